"""The rules of several children for one shard, seen to fail: each is broken in the daemon, and noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.consumer.lanes import ShardLanes
from kcl_daemon.leases.lease import Lease
from kcl_daemon.progress.progress import LeaseProgress, WaitReason
from kcl_daemon.records import lane_window
from kcl_daemon.records.batch import Batch
from kcl_daemon.records.lane_window import LaneWindow, Position, key_hash
from tests.simulator.chance import Chance
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief, When
from tests.simulator.plans.draws import Draw, Sizes
from tests.simulator.plans.plan import Plan, Planned, Split, Start
from tests.simulator.runner import run_plan
from tests.simulator.scenarios.lanes import lanes_latest

Patch = Callable[[pytest.MonkeyPatch], None]


def violation() -> str | None:
    """Of one worker whose shards have three children each, some of which die."""
    plan = Plan(
        shards=2,
        records_per_s=20.0,
        events=(Planned(0.0, Start()), Planned(60.0, Split(0))),
        calm_at_s=150.0,
        ends_at_s=260.0,
        bound_s=120.0,
        children_plan=ChildrenPlan(
            behaviour=Behaviour(when=When.EVERY_NTH, every=4, process_s=(0.05, 0.5)),
            mischief={Mischief.EXIT: 0.02},
        ),
        concurrency=ConcurrencySettings(lanes=LaneCounts(3), window_bytes=2_000),
        keys=20,
    )
    found = run_plan(plan, scenario="sabotage", seed=2).violation
    return None if found is None else found.name


def above_the_unfinished(patch: pytest.MonkeyPatch) -> None:
    store = ShardLanes._store

    async def store_too_much(lanes: ShardLanes, position: Callable[[], Position]) -> None:
        await store(lanes, lambda: max(position(), lanes._window.high))

    patch.setattr(ShardLanes, "_store", store_too_much)


def to_another_lane(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lane_window, "key_hash", lambda record: key_hash(record) + 1)


def nothing_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaneWindow, "rewind", lambda window, lane: False)


def before_the_others_end(patch: pytest.MonkeyPatch) -> None:
    async def at_once(lanes: ShardLanes) -> bool:
        return True

    patch.setattr(ShardLanes, "_finish_lanes", at_once)


def twice(patch: pytest.MonkeyPatch) -> None:
    take = LaneWindow.take

    def take_twice(window: LaneWindow, lane: int, most_bytes: int, most_records: int) -> Batch | None:
        taken = take(window, lane, most_bytes, most_records)
        return taken and Batch.joined([taken, taken])

    patch.setattr(LaneWindow, "take", take_twice)


def not_read_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaneWindow, "_lane_again", lambda window, record, position: None)


def a_gap(patch: pytest.MonkeyPatch) -> None:
    add = LaneWindow.add

    def without_the_first(window: LaneWindow, batch: Batch) -> set[int]:
        return add(window, batch.part(1, len(batch)))

    patch.setattr(LaneWindow, "add", without_the_first)


def test_a_finished_lane_that_is_called_stalled_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its child has gone, while another lane works on for longer than a child may."""
    waits = LeaseProgress.waits

    def not_for_others(progress: LeaseProgress, cause: WaitReason, detail: str = "") -> None:
        if detail != "the other lanes":
            waits(progress, cause, detail)

    monkeypatch.setattr(LeaseProgress, "waits", not_for_others)
    plan = Plan(
        shards=1,
        records_per_s=2.0,
        events=(Planned(0.0, Start()), Planned(60.0, Split(0))),
        calm_at_s=200.0,
        ends_at_s=400.0,
        bound_s=200.0,
        children_plan=ChildrenPlan(behaviour=Behaviour(process_s=(0.05, 60.0))),
        concurrency=ConcurrencySettings(lanes=LaneCounts(3)),
        keys=20,
    )
    found = run_plan(plan, scenario="finished lane", seed=1).violation
    assert found is not None
    assert found.name == "false_alarm"
    assert str(found).endswith("it has finished")


def test_lanes_that_are_right_break_no_rule() -> None:
    assert violation() is None


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (above_the_unfinished, "checkpoint_never_asked"),
        (to_another_lane, "wrong_lane"),
        (nothing_again, "record_skipped"),
        (before_the_others_end, "checkpoint_never_asked"),
        (twice, "out_of_order"),
        (not_read_again, "record_skipped"),
        (a_gap, "record_skipped"),
    ],
)
@pytest.mark.usefixtures("blind")
def test_each_rule_of_lanes_can_be_broken(
    broken: Patch, noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    assert violation() == noticed


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_next_owner_that_begins_at_latest_although_a_lane_had_a_checkpoint_is_noticed(
    *, is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_broken:
        monkeypatch.setattr(Lease, "first_read", None)
    plan = lanes_latest(Draw(Chance("lanes_latest/14/plan"), Sizes(), 14))
    found = run_plan(plan, scenario="lanes_latest", seed=14).violation
    assert (None if found is None else found.name) == ("latest_after_checkpoint" if is_broken else None)


@pytest.mark.parametrize("broken", [above_the_unfinished, before_the_others_end])
def test_the_daemon_notices_some_by_itself(broken: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    assert violation() == "invariant_violated"
