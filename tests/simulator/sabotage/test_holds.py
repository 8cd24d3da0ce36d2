"""The rules of pauses and limits, seen to fail: each thing that keeps them is left out in turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from kcl_daemon.consumer.gate import Gate
from kcl_daemon.fleet import hold_watch
from kcl_daemon.fleet.hold_watch import HoldWatch
from kcl_daemon.leases.holds import NOT_HELD, Hold, LeaseHold, Pace
from kcl_daemon.leases.lease import Lease
from kcl_daemon.retrieval.source import DeliveryBatch
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan
from tests.simulator.plans.plan import HoldBack, Kill, LetGo, Plan, Planned, Start, StepWallClock, Who
from tests.simulator.runner import Outcome, run_plan

PAUSE = Planned(40.0, HoldBack(rank=None, limit=None, for_s=None))
LIMIT = Planned(40.0, HoldBack(rank=None, limit=6.0, for_s=None))
# Leader and owner, one after the other.
KILLS = (Planned(60.0, Kill(Who.LEADER, 1.0)), Planned(80.0, Kill(0, 1.0)))


def outcome(*more: Planned) -> Outcome:
    """Two workers and three shards with much to read."""
    plan = Plan(
        shards=3,
        records_per_s=12.0,
        events=(Planned(0.0, Start()), Planned(5.0, Start()), *more),
        calm_at_s=150.0,
        ends_at_s=200.0,
        bound_s=60.0,
        children_plan=ChildrenPlan(behaviour=Behaviour()),
    )
    return run_plan(plan, scenario="sabotage of holds", seed=1)


def violation(*more: Planned) -> str | None:
    found = outcome(*more).violation
    return None if found is None else found.name


@pytest.mark.parametrize("held", [PAUSE, LIMIT])
def test_a_hold_outlives_the_leader_and_the_owner(held: Planned) -> None:
    assert violation(held, *KILLS, Planned(130.0, LetGo())) is None


@pytest.mark.parametrize(("held", "noticed"), [(PAUSE, "given_while_paused"), (LIMIT, "limit_exceeded")])
def test_a_worker_that_does_not_ask_is_noticed(
    held: Planned, noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(
        _self: Gate, batch: DeliveryBatch, deliver: Callable[[DeliveryBatch], Awaitable[None]]
    ) -> None:
        await deliver(batch)

    async def open_always(_self: Gate, **_asked: bool) -> bool:
        return _self._stop_signal.reason == 0

    monkeypatch.setattr(Gate, "give", at_once)
    if held is PAUSE:
        monkeypatch.setattr(Gate, "opens", open_always)
    assert violation(held) == noticed


@pytest.mark.parametrize("seconds", [300.0, -300.0])
def test_whose_date_jumps_ends_a_pause_at_another_time(seconds: float) -> None:
    """Each worker goes by its own date, and so does the rule, also where it jumps."""
    bounded = HoldBack(rank=None, limit=None, for_s=60.0)
    jumps = [Planned(70.0, StepWallClock(rank, seconds)) for rank in (0, 1)]
    assert violation(Planned(40.0, bounded), *jumps, Planned(120.0, LetGo())) is None


def test_giving_before_a_pause_is_over_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Hold, "is_over", lambda self, now_ms: now_ms >= (self.until_ms or now_ms + 1) - 20_000
    )
    assert violation(Planned(40.0, HoldBack(rank=None, limit=None, for_s=60.0))) == "given_while_paused"


def test_a_worker_that_never_reads_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_watch, "_BUSY_S", 10_000.0)
    monkeypatch.setattr(hold_watch, "FRESH_S", 10_000.0)
    assert violation(PAUSE) == "given_while_paused"


def test_a_new_worker_that_begins_without_reading_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_at_all(_self: HoldWatch) -> None: ...

    monkeypatch.setattr(HoldWatch, "begin", not_at_all)
    monkeypatch.setattr(HoldWatch, "run", not_at_all)
    monkeypatch.setattr(HoldWatch, "may_give", lambda _self: True)
    assert violation(PAUSE, *KILLS) == "given_while_paused"


def test_a_pause_that_never_ends_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    of = HoldWatch.of
    seen: dict[str, LeaseHold] = {}

    def remembered(self: HoldWatch, lease: Lease) -> LeaseHold:
        now = of(self, lease)
        if now is not NOT_HELD:
            seen[lease.lease_key] = now
        return seen.get(lease.lease_key, NOT_HELD)

    monkeypatch.setattr(HoldWatch, "of", remembered)
    assert violation(PAUSE) in {"false_hold", "not_finished", "shard_stalled"}


def test_a_pace_without_debt_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def free(self: Pace, _records: int, _data_bytes: int, _now_s: float) -> Pace:
        return self

    monkeypatch.setattr(Pace, "after", free)
    assert violation(LIMIT) == "limit_exceeded"


def test_a_leader_that_changes_more_than_the_count_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_reasons(holds: tuple[Hold, ...], _leases: object) -> tuple[Hold, ...]:
        return tuple(replace(hold, reason="") for hold in holds)

    monkeypatch.setattr(hold_watch, "counted", without_reasons)
    assert violation(PAUSE) == "hold_altered"
