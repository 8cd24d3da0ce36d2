"""The rule of planned hand-offs, seen to fail: each side of standing by left out in turn."""

from __future__ import annotations

import pytest

from kcl_daemon.consumer.standby import StandbyChildren
from kcl_daemon.fleet.lease_renewer import HeldLease, LeaseRenewer
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.ports import Child, Log
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan
from tests.simulator.plans.plan import Plan, Planned, Start, Stop
from tests.simulator.runner import Outcome, run_plan


def outcome(*more: Planned) -> Outcome:
    """A second worker joins, then a third one."""
    plan = Plan(
        shards=6,
        records_per_s=8.0,
        events=(Planned(0.0, Start()), Planned(60.0, Start()), Planned(120.0, Start()), *more),
        calm_at_s=200.0,
        ends_at_s=260.0,
        bound_s=120.0,
        children_plan=ChildrenPlan(behaviour=Behaviour(), import_s=(19.0, 21.0)),
        handoff_gap_most_s=1.0,
    )
    return run_plan(plan, scenario="sabotage of standing by", seed=1)


def violation(*more: Planned) -> str | None:
    found = outcome(*more).violation
    return None if found is None else found.name


def test_planned_handoffs_are_measured_and_short() -> None:
    sound = outcome()
    assert sound.violation is None
    assert len(sound.gaps_s) >= 3, (
        "two leases to the second worker, and as many as fit its share to the third"
    )
    assert sound.repeats == 0


def test_an_old_owner_that_does_not_wait_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_self: LeaseRenewer, _held: HeldLease) -> bool:
        return False

    monkeypatch.setattr(LeaseRenewer, "awaits_standby", never)
    assert violation() == "handoff_gap"


def test_a_leader_that_asks_nobody_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_self: FleetMonitor, _worker: WorkerId) -> bool:
        return False

    monkeypatch.setattr(FleetMonitor, "stands_by", never)
    assert violation() == "handoff_gap"


def test_a_next_owner_that_says_too_early_that_it_is_ready_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_once(self: StandbyChildren, lease: Lease) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._tell, lease, self._context.log)

    monkeypatch.setattr(StandbyChildren, "prepare", at_once)
    assert violation() == "handoff_gap"


def test_a_child_whose_lease_did_not_come_and_that_lives_on_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def not_at_all(_self: StandbyChildren, _child: Child, _log: Log) -> None: ...

    stop = Planned(75.0, Stop(1))
    assert violation(stop) is None
    monkeypatch.setattr(StandbyChildren, "_end", not_at_all)
    assert violation(stop) == "child_left_behind"
