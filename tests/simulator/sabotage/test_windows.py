"""The rules of delivery hold for batches of a size: each is broken in the daemon, and noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kcl_daemon.config.children import FailureSettings
from kcl_daemon.config.retrieval import DeliverySettings
from kcl_daemon.records.batch import Batch
from kcl_daemon.retrieval.batch_window import BatchWindow
from kcl_daemon.retrieval.source import DeliveryBatch, Passed, ReadItem
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, When
from tests.simulator.plans.plan import Kill, Plan, Planned, Split, Start, Stop
from tests.simulator.runner import run_plan
from tests.simulator.scenarios.poison import DEAD_LETTERS

Patch = Callable[[pytest.MonkeyPatch], None]


def violation() -> str | None:
    """Of two workers, of which one stops, and shards of which one ends, with batches of five seconds."""
    plan = Plan(
        shards=2,
        records_per_s=20.0,
        events=(
            Planned(0.0, Start()),
            Planned(30.0, Start()),
            Planned(60.0, Split(0)),
            Planned(90.0, Stop(0)),
        ),
        calm_at_s=120.0,
        ends_at_s=200.0,
        children_plan=ChildrenPlan(behaviour=Behaviour(when=When.EACH_BATCH, process_s=(0.05, 0.5))),
        delivery=DeliverySettings(batch_window_ms=5_000, batch_max_records=300),
        repeats_most=0,
        latency_most_s=30.0,
    )
    found = run_plan(plan, scenario="sabotage", seed=1).violation
    return None if found is None else found.name


def one_too_few(patch: pytest.MonkeyPatch) -> None:
    joined = Batch.joined

    def without_the_first(parts: Sequence[Batch]) -> Batch:
        whole = joined(parts)
        return whole.part(1, len(whole)) if len(whole) > 1 else whole

    patch.setattr(Batch, "joined", without_the_first)


def in_another_order(patch: pytest.MonkeyPatch) -> None:
    joined = Batch.joined
    patch.setattr(Batch, "joined", lambda parts: joined(parts[::-1]))


def never_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchWindow, "_until_s", property(lambda window: float("inf")))


def above_what_is_gathered(patch: pytest.MonkeyPatch) -> None:
    take_in = BatchWindow._take_in

    def as_if_given(window: BatchWindow, item: ReadItem) -> None:
        last = item.last if isinstance(item, DeliveryBatch) else None
        take_in(window, item)
        if last is not None:
            window._next = Passed(last)
            window._gathered.clear()

    patch.setattr(BatchWindow, "_take_in", as_if_given)


def test_windows_that_are_right_break_no_rule() -> None:
    assert violation() is None


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (one_too_few, "record_skipped"),
        (in_another_order, "record_skipped"),
        (never_over, "shard_stalled"),
        (above_what_is_gathered, "checkpoint_never_asked"),
    ],
)
@pytest.mark.usefixtures("blind")
def test_each_rule_of_windows_can_be_broken(
    broken: Patch, noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    assert violation() == noticed


def test_the_daemon_notices_another_order_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    in_another_order(monkeypatch)
    assert violation() == "invariant_violated"


AGED = Plan(
    shards=2,
    records_per_s=3.0,
    events=(Planned(0.0, Start()), Planned(20.0, Kill(0, 30.0))),
    calm_at_s=120.0,
    ends_at_s=200.0,
    children_plan=ChildrenPlan(behaviour=Behaviour(when=When.EACH_BATCH, process_s=(0.05, 0.5))),
    delivery=DeliverySettings(batch_max_records=10),
    failures=FailureSettings(dead_letters=DEAD_LETTERS.dead_letters, max_age_ms=25_000),
    skew_s=0.0,
)


def aged_violation(window_ms: int | None = None) -> str | None:
    """Of one worker that is killed, so that some records are too old when another takes its place."""
    plan = replace(AGED, delivery=replace(AGED.delivery, batch_window_ms=window_ms))
    found = run_plan(plan, scenario="sabotage", seed=1).violation
    return None if found is None else found.name


def as_old_as_the_first(patch: pytest.MonkeyPatch) -> None:
    init = DeliveryBatch.__init__

    def separated(delivery: DeliveryBatch, batch: Batch, *args: Any, **more: Any) -> None:
        if batch:
            read = batch.read._replace(dated_ms=batch.payload.first_arrival_ms)
            batch = replace(batch, read=read)
        init(delivery, batch, *args, **more)

    patch.setattr(DeliveryBatch, "__init__", separated)


@pytest.mark.parametrize("window_ms", [None, 5_000])
def test_records_of_an_age_that_is_right_break_no_rule(window_ms: int | None) -> None:
    assert aged_violation(window_ms) is None


@pytest.mark.parametrize("window_ms", [None, 5_000])
@pytest.mark.usefixtures("blind")
def test_a_record_that_is_not_too_old_is_not_left_out(
    window_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_old_as_the_first(monkeypatch)
    assert aged_violation(window_ms) == "young_record_expired"
