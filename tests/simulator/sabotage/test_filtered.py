"""The rules of filters, seen to fail: each is broken in the daemon, and noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.config.retrieval import DeliverySettings
from kcl_daemon.consumer.connection import Checkpointer
from kcl_daemon.records.batch import Batch
from kcl_daemon.records.lane_window import LaneWindow, Position
from kcl_daemon.records.payload import Payload
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.retrieval.filtering import ShardFilter
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief, When
from tests.simulator.plans.plan import Plan, Planned, Split, Start, Stop
from tests.simulator.runner import run_plan
from tests.simulator.scenarios.filtered import Kept

Patch = Callable[[pytest.MonkeyPatch], None]


def violation(lanes: int = 1) -> str | None:
    """Of two workers with children of which some die, where one record in ten is for them; then in a hundred."""
    kept = Kept(keys=("key-3",), digits="05")
    plan = Plan(
        shards=2,
        records_per_s=20.0,
        events=(
            Planned(0.0, Start()),
            Planned(30.0, Start()),
            Planned(60.0, Split(0)),
            Planned(90.0, Stop(0)),
        ),
        calm_at_s=150.0,
        ends_at_s=320.0,
        bound_s=70.0,
        children_plan=ChildrenPlan(
            behaviour=Behaviour(when=When.EVERY_NTH, every=4, process_s=(0.05, 0.5)),
            mischief={Mischief.EXIT: 0.02},
        ),
        concurrency=ConcurrencySettings(lanes=LaneCounts(lanes)),
        keeps=kept,
        delivery=DeliverySettings(record_filter=RecordFilter.of(kept.pattern)),
        keys=9,
    )
    found = run_plan(plan, scenario="sabotage", seed=1).violation
    return None if found is None else found.name


def all_of_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecordFilter, "kept_in_steps", lambda self, payload: iter((payload,)))


def too_few(patch: pytest.MonkeyPatch) -> None:
    kept = RecordFilter.kept_in_steps

    def without_the_first(self: RecordFilter, payload: Payload) -> Iterator[Payload | None]:
        for found in kept(self, payload):
            yield found.only(found.records[1:]) if found is not None and len(found) > 1 else found

    patch.setattr(RecordFilter, "kept_in_steps", without_the_first)


def over_what_is_not_done(patch: pytest.MonkeyPatch) -> None:
    passed = Checkpointer.passed

    def as_if_nothing_was_given(self: Checkpointer, position: Position) -> None:
        passed(self, position)
        self._given = self._lane.checkpoint

    patch.setattr(Checkpointer, "passed", as_if_nothing_was_given)


def too_far(patch: pytest.MonkeyPatch) -> None:
    kept = ShardFilter.kept

    async def told_more(self: ShardFilter, batch: Batch) -> Batch:
        found = await kept(self, batch)
        self.at = Position(str(int(batch.payload.last.sequence_number) + 1))
        return found

    patch.setattr(ShardFilter, "kept", told_more)


def never(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Checkpointer) -> None: ...

    patch.setattr(Checkpointer, "store_passed", nothing)


def never_in_lanes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaneWindow, "passed", lambda self, position: None)


def test_filters_that_are_right_break_no_rule() -> None:
    assert violation() is None
    assert violation(lanes=3) is None


@pytest.mark.parametrize(
    ("broken", "noticed", "lanes"),
    [
        (all_of_them, "filtered_record", 1),
        (all_of_them, "filtered_record", 3),
        (too_few, "record_skipped", 1),
        (over_what_is_not_done, "checkpoint_never_asked", 1),
        (too_far, "checkpoint_never_asked", 1),
        (never, "checkpoint_aged", 1),
        (never_in_lanes, "checkpoint_aged", 3),
    ],
)
def test_each_rule_of_filters_can_be_broken(
    broken: Patch, noticed: str, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    assert violation(lanes) == noticed
