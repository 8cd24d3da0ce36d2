"""A checker that cannot fail proves nothing: whole runs over broken parts, each with the violation it must end in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import anyio
import pytest

from kcl_daemon.app import Adapters
from kcl_daemon.config.retrieval import RetrievalMode, RetrievalSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.fleet.client_version import ClientVersion
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Table
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan
from tests.simulator.faults.network import Trouble
from tests.simulator.fleet import workers as fleet
from tests.simulator.fleet.world import Sabotage
from tests.simulator.plans.plan import AddAttribute, Kill, Pause, Plan, Planned, Start, Stop
from tests.simulator.runner import Outcome, run_plan
from tests.simulator.sabotage.parts import (
    CheckpointsTooFar,
    ForgetsCheckpoints,
    ForgetsCounters,
    KeepsOwners,
    KinesisWrapper,
    LosesEvents,
    NoConditions,
    ReplacesRows,
    SeesNoRows,
    TableWrapper,
    alters_data,
    changes_order,
    drops_a_record,
    ends_early,
    gives_nothing,
)


def plan(*events: Planned, shards: int = 4) -> Plan:
    """Two workers that live through a few events."""
    return Plan(
        shards=shards,
        records_per_s=8.0,
        events=(Planned(0.0, Start()), Planned(0.0, Start()), *events),
        calm_at_s=100.0,
        ends_at_s=200.0,
    )


FANOUT = RetrievalSettings(mode=RetrievalMode.FANOUT)


def outcome(of: Plan, sabotage: Sabotage | None = None) -> Outcome:
    return run_plan(of, scenario="sabotage", seed=1, sabotage=sabotage)


def violation(of: Plan, sabotage: Sabotage | None = None) -> str | None:
    found = outcome(of, sabotage).violation
    return None if found is None else found.name


def on_leases(wrapper: type[TableWrapper]) -> Sabotage:
    def wrap(table: Table) -> Table:
        return wrapper(table) if table.key_attribute == "leaseKey" else table

    return Sabotage(table=wrap)


def on_worker_metrics(wrapper: type[TableWrapper]) -> Sabotage:
    def wrap(table: Table) -> Table:
        return wrapper(table) if table.key_attribute == "wid" else table

    return Sabotage(table=wrap)


PAUSES = (Planned(50.0, Pause(0, 30.0)), Planned(60.0, Pause(1, 25.0)))


def test_sound_parts_end_in_no_violation() -> None:
    assert violation(plan(*PAUSES, Planned(60.0, AddAttribute()))) is None


@pytest.mark.parametrize(
    ("wrapper", "events", "violations"),
    [
        (ForgetsCheckpoints, (), {"checkpoint_not_stored"}),
        (CheckpointsTooFar, (), {"checkpoint_never_asked"}),
        (ReplacesRows, (Planned(60.0, AddAttribute()),), {"strange_attributes"}),
        (KeepsOwners, (Planned(60.0, Stop(0)),), {"lease_orphaned", "not_released"}),
        (ForgetsCounters, (), {"counter"}),
        (SeesNoRows, (), {"lease_orphaned", "lease_missing"}),
    ],
)
def test_a_broken_lease_table_is_noticed(
    wrapper: type[TableWrapper], events: tuple[Planned, ...], violations: set[str]
) -> None:
    assert violation(plan(*events), on_leases(wrapper)) in violations


def test_a_lease_table_without_conditions_is_noticed_when_writes_are_belated() -> None:
    troubled = replace(plan(*PAUSES), dynamodb=Trouble(belated=0.1))
    assert violation(troubled) is None
    assert violation(troubled, on_leases(NoConditions)) in {
        "checkpoint_by_stranger",
        "checkpoint_backwards",
        "counter",
        "malformed_row",
        "owner_switches",
    }


def test_leases_that_nobody_assigns_are_noticed() -> None:
    assert violation(plan(), on_worker_metrics(SeesNoRows)) == "lease_orphaned"


@pytest.mark.parametrize(
    ("alter", "violations"),
    [
        (drops_a_record, {"record_skipped"}),
        (changes_order, {"record_skipped", "out_of_order"}),
        (alters_data, {"altered_record"}),
        (ends_early, {"ended_too_early"}),
        (gives_nothing, {"false_nothing_new", "shard_stalled"}),
    ],
)
@pytest.mark.usefixtures("blind")
def test_a_broken_stream_is_noticed(alter: Callable[..., object], violations: set[str]) -> None:
    sabotage = Sabotage(kinesis=partial(KinesisWrapper, alter=alter))  # type: ignore[arg-type]  # each takes and gives a Fetched
    assert violation(plan(), sabotage) in violations


def test_an_event_that_a_subscription_loses_is_a_record_that_was_skipped() -> None:
    pushed = replace(plan(), retrieval=FANOUT)
    assert violation(pushed) is None
    broken = Sabotage(fan_out=lambda fan_out: LosesEvents(fan_out.model))
    assert violation(pushed, broken) == "record_skipped"


class FakeWorker:
    """A worker that does something of its own until it is asked to stop."""

    def __init__(self, run: Callable[[anyio.Event], Awaitable[None]]) -> None:
        self._run = run
        self._stop = anyio.Event()

    def request_stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        await self._run(self._stop)


def with_worker(
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[Adapters, anyio.Event], Awaitable[None]],
    of: Plan | None = None,
) -> str | None:
    """The violation of a run whose workers are not ours."""

    def build(settings: Settings, adapters: Adapters) -> FakeWorker:
        return FakeWorker(partial(run, adapters))

    monkeypatch.setattr(fleet, "build", build)
    return violation(of or plan(Planned(30.0, Stop(0))))


def test_a_worker_that_ends_by_itself_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(adapters: Adapters, stop: anyio.Event) -> None:
        await adapters.clock.sleep(5)

    assert with_worker(monkeypatch, run) == "worker_ended"


def test_a_worker_that_fails_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(adapters: Adapters, stop: anyio.Event) -> None:
        raise ConfigurationError("planned")

    assert with_worker(monkeypatch, run) == "worker_failed"


def test_a_child_that_outlives_its_worker_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(adapters: Adapters, stop: anyio.Event) -> None:
        await adapters.children.start(ShardId("shardId-000000000000"))
        await stop.wait()

    assert with_worker(monkeypatch, run) == "child_left_behind"


def test_a_worker_that_does_not_stop_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(adapters: Adapters, stop: anyio.Event) -> None:
        await anyio.sleep_forever()

    idle = Plan(shards=1, records_per_s=0.0, events=(Planned(0.0, Start()),), calm_at_s=1.0, ends_at_s=20.0)
    assert with_worker(monkeypatch, run, idle) == "stop_too_slow"


def test_workers_that_do_nothing_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(adapters: Adapters, stop: anyio.Event) -> None:
        await stop.wait()

    assert with_worker(monkeypatch, run) == "lease_missing"


def test_limits_of_a_plan_are_judged_at_the_end_of_the_run() -> None:
    killed = plan(Planned(60.0, Kill(0)), shards=2)
    troubled = replace(plan(), kinesis=Trouble(lost=0.3))
    assert violation(replace(killed, repeats_most=0)) == "records_repeated"
    assert violation(replace(killed, latency_most_s=1.0)) == "too_slow"
    assert violation(replace(troubled, is_quiet=True)) == "not_quiet"


@pytest.mark.parametrize(
    ("wanted", "name"), [(ClientVersion.V3X, None), (ClientVersion.V2X, "wrong_version")]
)
def test_the_version_that_a_fleet_ends_in_is_judged(wanted: ClientVersion, name: str | None) -> None:
    assert violation(replace(plan(shards=1), records_per_s=1.0, ends_in=frozenset({wanted}))) == name


@pytest.mark.parametrize(("process_s", "name"), [(0.1, None), (5.0, "not_finished")])
def test_a_fleet_that_gets_on_and_does_not_come_to_the_end_is_noticed(
    process_s: float, name: str | None
) -> None:
    """No shard stands still; there is more to do than children that take one record at a time can do by then."""
    one_by_one = RetrievalSettings(max_records=1)
    slow = ChildrenPlan(Behaviour(process_s=(process_s, process_s)))
    of = replace(plan(shards=1), records_per_s=1.0, retrieval=one_by_one, children_plan=slow)
    assert violation(of) == name
