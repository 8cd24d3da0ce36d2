"""That a child has all until a time is true whatever happens: each thing that makes it so is taken away, and noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kcl_daemon.config.retrieval import DeliverySettings, RetrievalMode, RetrievalSettings
from kcl_daemon.records.batch import Batch, Limits
from kcl_daemon.retrieval import source
from kcl_daemon.retrieval.fan_out import FanOutReader
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan
from tests.simulator.faults.network import Trouble
from tests.simulator.plans.plan import Kill, Pause, Plan, Planned, Split, Start, Stop
from tests.simulator.rules.deliveries import Deliveries
from tests.simulator.runner import run_plan

Patch = Callable[[pytest.MonkeyPatch], None]
PLAN = Plan(
    shards=2,
    records_per_s=4.0,
    backlog=200,
    events=(
        Planned(0.0, Start()),
        Planned(20.0, Start()),
        Planned(40.0, Split(0)),
        Planned(50.0, Pause(0, 15.0, with_children=False)),
        Planned(80.0, Kill(1, 5.0)),
        Planned(110.0, Stop(0)),
    ),
    calm_at_s=140.0,
    ends_at_s=180.0,
    kinesis=Trouble(slow=0.1, lost=0.02),
    children_plan=ChildrenPlan(behaviour=Behaviour(process_s=(0.05, 0.5), takes_frames=True)),
    calls_for_empty=True,
    unreadable_s=0.9,
)
CUT = replace(PLAN, delivery=DeliverySettings(batch_max_records=3))
PUSHED = replace(PLAN, retrieval=RetrievalSettings(mode=RetrievalMode.FANOUT))


def violation(plan: Plan) -> str | None:
    found = run_plan(plan, scenario="sabotage", seed=1).violation
    return None if found is None else found.name


@pytest.mark.parametrize("plan", [PLAN, CUT, PUSHED], ids=["polled", "cut", "pushed"])
def test_complete_until_is_true_and_told_often(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[int]()
    completed = Deliveries.completed

    def noted(self: Deliveries, *what: object) -> None:
        told.append(0)
        completed(self, *what)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(Deliveries, "completed", noted)
    assert violation(plan) is None
    assert len(told) > 50


def on_the_first_part(patch: pytest.MonkeyPatch) -> None:
    pieces = Batch.pieces

    def first(whole: Batch, limits: Limits) -> Iterator[Batch]:
        parts = list(pieces(whole, limits))
        yield replace(parts[0], complete_ms=whole.complete_ms)
        yield from parts[1:]

    patch.setattr(Batch, "pieces", first)


def without_the_margin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(source, "_UNREADABLE_MS", 0)


def by_the_end_of_the_answer(patch: pytest.MonkeyPatch) -> None:
    """As if it were complete until it was read, and not until it was asked for."""
    complete_ms = source.ShardSource.complete_ms

    def later(
        self: source.ShardSource, tip_ms: int | None, behind_ms: int | None, last_ms: int | None = None
    ) -> int | None:
        found = complete_ms(self, tip_ms, behind_ms, last_ms)
        return None if found is None else found + 500

    patch.setattr(source.ShardSource, "complete_ms", later)


def without_a_look_at_the_tip(patch: pytest.MonkeyPatch) -> None:
    complete_ms = source.ShardSource.complete_ms

    def always(self: source.ShardSource, tip_ms: int | None, *_: object) -> int | None:
        return complete_ms(self, tip_ms, 0)

    patch.setattr(source.ShardSource, "complete_ms", always)


def by_the_time_of_an_event(patch: pytest.MonkeyPatch) -> None:
    async def believed(self: FanOutReader, _tip: str) -> int:
        return self._clock.passed_ms() - 1_000

    patch.setattr(FanOutReader, "_asked", believed)


@pytest.mark.parametrize(
    ("plan", "broken"),
    [
        (CUT, on_the_first_part),
        (PLAN, without_the_margin),
        (PLAN, by_the_end_of_the_answer),
        (replace(PLAN, retrieval=RetrievalSettings(max_records=5)), without_a_look_at_the_tip),
        (PUSHED, by_the_time_of_an_event),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_a_complete_until_that_is_too_late_is_noticed(
    plan: Plan, broken: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    assert violation(plan) == "not_complete"
