"""The rules of being told, seen to fail: a worker that keeps silent, or that names a cause that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from kcl_daemon.app import Adapters, build
from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.config.settings import Settings
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import FetchedRecords, StreamRef
from kcl_daemon.progress.watchdog import StallLimits
from kcl_daemon.records.payload import Payload
from kcl_daemon.worker import Worker
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief
from tests.simulator.faults.life import Service
from tests.simulator.fleet import workers as fleet
from tests.simulator.fleet.world import Sabotage
from tests.simulator.loop import now
from tests.simulator.plans.plan import CutOff, Plan, Planned, Split, Start
from tests.simulator.runner import run_plan
from tests.simulator.sabotage.parts import KeepsSilent, KinesisWrapper, ShowsNothingFinished, gives_nothing


def plan(children_plan: ChildrenPlan, *events: Planned) -> Plan:
    """One worker; children behave after a while, so a plan is good for one run."""
    return Plan(
        shards=2,
        records_per_s=8.0,
        events=(Planned(0.0, Start()), *events),
        calm_at_s=240.0,
        ends_at_s=400.0,
        bound_s=150.0,
        children_plan=children_plan,
        child_stuck_s=60.0,
    )


def good(*events: Planned) -> Plan:
    return plan(ChildrenPlan(behaviour=Behaviour()), *events)


def in_lanes(plan: Plan, lanes: int) -> Plan:
    return replace(plan, concurrency=ConcurrencySettings(lanes=LaneCounts(lanes)))


def bad(kind: Mischief, probability: float) -> Plan:
    return plan(ChildrenPlan(behaviour=Behaviour(), mischief={kind: probability}))


STALLS: dict[str, Callable[[], Plan]] = {
    "kinesis": lambda: good(Planned(30.0, CutOff(0, Service.KINESIS, 120.0))),
    "restart": lambda: bad(Mischief.EXIT, 1.0),
    "child": lambda: bad(Mischief.HANG, 0.2),
}


def violation(plan: Plan, sabotage: Sabotage | None = None) -> str | None:
    found = run_plan(plan, scenario="sabotage", seed=1, sabotage=sabotage).violation
    return None if found is None else found.name


@pytest.mark.parametrize("cause", list(STALLS))
def test_a_stall_is_noticed_where_the_log_does_not_tell_of_it(
    cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert violation(STALLS[cause]()) is None

    def silent(settings: Settings, adapters: Adapters) -> Worker:
        return build(settings, replace(adapters, log=KeepsSilent(adapters.log)))

    monkeypatch.setattr(fleet, "build", silent)
    assert violation(STALLS[cause]()) == "silent_stall"


class EmptyAtFirst(KinesisWrapper):
    """The first answers after an outage have no records yet."""

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        fetched = await super().get_records(stream, shard_id, iterator, limit)
        if not 30.0 < now() < 157.0:
            return fetched
        return replace(fetched, payload=Payload.of(()), next_iterator=iterator, millis_behind_latest=100_000)


def test_a_stall_whose_end_was_told_is_not_to_be_told_of_again_at_once() -> None:
    empty_at_first = Sabotage(kinesis=partial(EmptyAtFirst, alter=lambda fetched: fetched))
    assert violation(STALLS["kinesis"](), empty_at_first) is None


@pytest.mark.parametrize("lanes", [1, 3])
def test_nothing_new_where_there_are_records_is_noticed(lanes: int) -> None:
    nothing = Sabotage(kinesis=partial(KinesisWrapper, alter=gives_nothing))
    assert violation(in_lanes(good(), lanes), nothing) == "false_nothing_new"


def test_a_shard_has_nothing_new_for_its_lanes_while_one_of_them_works() -> None:
    """A child is given what comes next when it has answered."""
    slow = plan(ChildrenPlan(behaviour=Behaviour(process_s=(35.0, 36.0))))
    assert violation(in_lanes(slow, 3)) is None


def test_a_parent_that_is_finished_is_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    split = Planned(40.0, Split(0))
    assert violation(good(split)) is None

    def blind(settings: Settings, adapters: Adapters) -> Worker:
        tables = replace(adapters.tables, leases=ShowsNothingFinished(adapters.tables.leases))
        return build(settings, replace(adapters, tables=tables))

    monkeypatch.setattr(fleet, "build", blind)
    assert violation(good(split)) == "false_parent"


def test_a_word_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = StallLimits(child_s=0.1)
    slow = plan(ChildrenPlan(behaviour=Behaviour(process_s=(2.5, 3.5))))
    monkeypatch.setattr(fleet, "CLOSE_LIMITS", hasty)
    assert violation(slow) == "false_alarm"


def test_a_word_of_failing_children_right_after_a_checkpoint_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing() -> Plan:
        return plan(ChildrenPlan(behaviour=Behaviour(process_s=(0.5, 1.0)), mischief={Mischief.EXIT: 0.4}))

    assert violation(failing()) is None
    monkeypatch.setattr(fleet, "CLOSE_LIMITS", replace(fleet.CLOSE_LIMITS, restart_s=0.1))
    assert violation(failing()) == "false_alarm"
