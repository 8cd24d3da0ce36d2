"""The Java workers of the simulator: the model is as slow as Java is, both kinds lead, and a sick worker of ours shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from kcl_daemon.app import Adapters, build
from kcl_daemon.config.settings import Settings
from kcl_daemon.fleet.assigner import Assigner
from kcl_daemon.leases.lease import HashRange, Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.leases.row import Equals, RowUpdate, WriteResult
from kcl_daemon.ports import Cpu
from kcl_daemon.shards.lineage import Shard
from kcl_daemon.worker import Worker
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.chance import Chance
from tests.simulator.faults.network import Trouble
from tests.simulator.fleet import workers as fleet
from tests.simulator.fleet.world import Sabotage
from tests.simulator.java.auditor import without_lease
from tests.simulator.java.decider import Decision, Snapshot
from tests.simulator.plans.plan import (
    AddRows,
    Event,
    Kill,
    Kind,
    Pause,
    Plan,
    Planned,
    Split,
    Start,
    Stop,
    Who,
)
from tests.simulator.runner import Outcome, run_plan
from tests.simulator.sabotage.parts import TableWrapper

JAVA, OURS = Start(Kind.JAVA), Start(Kind.OURS)
SEEDS: Final = range(1, 6)
_JOINS_S: Final = 100.0
_HAPPENS_S: Final = 260.0
# The Java leader evens out every minute; by the next time a worker that starts now has reported its CPU.
_AFTER_BALANCING_S: Final = 280.0


def plan(*events: Planned, bound_s: float = 270.0) -> Plan:
    return Plan(
        shards=4,
        records_per_s=4.0,
        events=events,
        calm_at_s=330.0,
        ends_at_s=600.0,
        bound_s=bound_s,
    )


def outcome(of: Plan, seed: int = 1) -> Outcome:
    return run_plan(of, scenario="java", seed=seed)


def java_fleet(what: Event, shows: str) -> tuple[tuple[str, ...], float]:
    """Two Java workers have shared their leases when something happens: who led, and when a write showed this."""
    lines: list[str] = []
    events = (Planned(0.0, JAVA), Planned(_JOINS_S, JAVA), Planned(_HAPPENS_S, what))
    found = run_plan(plan(*events), scenario="java", seed=1, write=lines.append)
    assert found.violation is None
    times = [float(line.split()[0]) for line in lines if "row_written" in line and shows in line]
    return found.leaders, min(at_s for at_s in times if at_s > _HAPPENS_S) - _HAPPENS_S


def without_counter_conditions(settings: Settings, adapters: Adapters) -> Worker:
    """A worker of ours that writes leases whoever has written them since."""

    class IgnoresCounters(TableWrapper):
        async def update(self, update: RowUpdate) -> WriteResult:
            kept = tuple(each for each in update.require if not _is_counter(each))
            return await self._table.update(replace(update, require=kept))

    tables = replace(adapters.tables, leases=IgnoresCounters(adapters.tables.leases))
    return build(settings, replace(adapters, tables=tables))


def _is_counter(condition: object) -> bool:
    return isinstance(condition, Equals) and condition.attribute == "leaseCounter"


def test_a_killed_java_leader_is_replaced_by_java_as_late_as_java_does_it() -> None:
    leaders, after_s = java_fleet(Kill(Who.LEADER), "ownerName=java-2")
    assert leaders == ("java-1", "java-2")
    assert 90.0 < after_s < 180.0  # 120 to 180 s after its last heartbeat


def test_a_java_worker_that_stops_leaves_its_leases_to_expire() -> None:
    leaders, after_s = java_fleet(Stop(1), "leaseOwner=java-1")
    assert leaders == ("java-1",)
    assert 10.0 < after_s < 60.0  # two runs of the leader that find its counters unmoved


def test_both_kinds_lead_and_take_over_from_each_other() -> None:
    kills = (Planned(_HAPPENS_S, Kill(Who.LEADER)), Planned(560.0, Kill(Who.LEADER)))
    fleet_of_both = plan(Planned(0.0, JAVA), Planned(_JOINS_S, OURS), Planned(300.0, JAVA), *kills)
    run = outcome(replace(fleet_of_both, calm_at_s=600.0, ends_at_s=900.0))
    assert run.violation is None
    assert [name.split("-")[0] for name in run.leaders] == ["java", "worker", "java"]


# With these seeds every child shard has a record before the end; until then its parent's lease stays, as with Java.
@pytest.mark.parametrize("seed", [2, pytest.param(8, marks=pytest.mark.prove)])
def test_finished_leases_that_a_java_leader_gives_to_ours_are_deleted(seed: int) -> None:
    lines: list[str] = []
    starts = (Planned(0.0, JAVA), Planned(_JOINS_S, OURS), Planned(_JOINS_S + 1, OURS))
    splits = (Planned(200.0 + 20 * rank, Split(rank)) for rank in range(3))
    busy = replace(plan(*starts, *splits), records_per_s=20.0, skew=1.0, ends_at_s=720.0)
    found = run_plan(busy, scenario="java", seed=seed, write=lines.append)
    assert (found.violation, found.leaders) == (None, ("java-1",))
    written = [line.split() for line in lines if "row_written" in line and " application shardId" in line]
    finished = {words[4] for words in written if "checkpoint=SHARD_END" in words}
    deleted_by = {words[4]: words[1].split("-")[0] for words in written if words[5] == "deleted"}
    assert len(finished) == 3
    assert finished == deleted_by.keys()
    assert "worker" in deleted_by.values()


class _SteadyCpu:
    """A host that is 30 % busy."""

    @property
    def name(self) -> str:
        return "steady"

    async def sample(self) -> float | None:
        return 30.0


@pytest.mark.parametrize("ours", [pytest.param(1, marks=pytest.mark.prove), 2])
def test_a_java_leader_without_a_cpu_figure_gives_workers_of_ours_that_have_one_their_share(
    monkeypatch: pytest.MonkeyPatch, ours: int
) -> None:
    def measured(_worker_id: str) -> Cpu | None:
        return _SteadyCpu()

    monkeypatch.setattr(fleet, "_no_figures", measured)
    lines: list[str] = []
    starts = (
        Planned(0.0, JAVA),
        Planned(_JOINS_S, JAVA),
        *(Planned(_AFTER_BALANCING_S, OURS) for _ in range(ours)),
    )
    busy = replace(plan(*starts), shards=8, records_per_s=20.0, ends_at_s=900.0)
    found = run_plan(busy, scenario="java", seed=1, write=lines.append)
    assert (found.violation, found.leaders) == (None, ("java-1",))
    owners: dict[str, str] = {}
    for line in lines:
        words = line.split()
        if (
            "row_written" in words
            and float(words[0]) < busy.ends_at_s
            and (owner := re.search(r"leaseOwner=(\S+)", line))
        ):
            owners[words[4]] = owner.group(1).rstrip(",")
    counts = Counter(owners.values())
    assert all(counts[f"worker-{3 + number}"] >= 2 for number in range(ours)), counts


@pytest.mark.parametrize("first", [JAVA, OURS])
def test_a_worker_of_ours_that_ignores_counters_is_noticed_beside_java(
    monkeypatch: pytest.MonkeyPatch, first: Start
) -> None:
    second = OURS if first == JAVA else JAVA
    pauses = [Planned(at_s, Pause(number, 30.0)) for number, at_s in enumerate((110.0, 160.0, 210.0, 260.0))]
    troubled = replace(
        plan(Planned(0.0, first), Planned(20.0, second), *pauses), dynamodb=Trouble(belated=0.1)
    )
    assert outcome(troubled).violation is None
    monkeypatch.setattr(fleet, "build", without_counter_conditions)
    # Two writes must meet: chance has it so in most runs, not in each.
    found = next(filter(None, (outcome(troubled, seed).violation for seed in SEEDS)), None)
    assert found is not None
    assert found.name in {"counter", "checkpoint_by_stranger", "checkpoint_backwards", "owner_switches"}


def lease(number: int, owner: str | None, kbps: float | None = None) -> Lease:
    return Lease(
        LeaseKey(f"shard-{number}"),
        5,
        TRIM_HORIZON,
        None if owner is None else WorkerId(owner),
        throughput_kbps=kbps,
    )


def decided(
    *leases: Lease, metrics: Mapping[str, Mapping[str, float]], balance: bool = False
) -> dict[str, str]:
    loose = tuple(each.lease_key for each in leases if each.lease_owner is None)
    by_key = {each.lease_key: each for each in leases}
    workers = {WorkerId(name): values for name, values in metrics.items()}
    decision = Decision(Snapshot(by_key, loose, frozenset(), workers))
    decision.place()
    if balance:
        decision.balance(Chance("test"))
    return {str(key): str(to) for key, to in decision.moves.items()}


def test_java_gives_a_fresh_fleet_without_figures_to_two_workers() -> None:
    moves = decided(
        *(lease(number, None) for number in range(6)), metrics={"a": {}, "b": {}, "c": {}, "d": {}}
    )
    assert len(moves) == 6
    assert len(set(moves.values())) == 2  # G13b: its queue alternates between two equals


def test_java_moves_from_the_busy_to_the_idle_and_not_within_the_band() -> None:
    leases = [lease(number, "busy", 10.0) for number in range(4)]
    moved = decided(*leases, metrics={"busy": {"C": 80.0}, "idle": {"C": 10.0}}, balance=True)
    assert set(moved.values()) == {"idle"}
    assert 0 < len(moved) < 4
    assert decided(*leases, metrics={"busy": {"C": 52.0}, "idle": {"C": 48.0}}, balance=True) == {}


def shard(number: int, *parents: int, is_open: bool = True) -> Shard:
    ids = frozenset(ShardId(str(parent)) for parent in parents)
    return Shard(ShardId(str(number)), HashRange(0, 1), ids, number, None if is_open else 99)


def test_java_fills_the_first_layer_without_leases_as_its_source_says() -> None:
    """M5b: 0+1 to 6, 2+3 to 7, 6+7 to 8, 5 to 9 and 10, 4 open; 4, 5 and 7 have leases."""
    closed = [shard(number, is_open=False) for number in (0, 1, 2, 3, 5)]
    merged = [shard(6, 0, 1, is_open=False), shard(7, 2, 3, is_open=False)]
    open_ones = [shard(4), shard(8, 6, 7), shard(9, 5), shard(10, 5)]
    shards = {each.shard_id: each for each in (*closed, *merged, *open_ones)}
    leased = frozenset(ShardId(str(number)) for number in (4, 5, 7))
    assert sorted(without_lease(shards, leased)) == ["0", "1"]


class DropsWhatItDoesNotKnow(TableWrapper):
    """Takes the attribute of a later version away with each write."""

    async def update(self, update: RowUpdate) -> WriteResult:
        if "versionHash" in update.put:
            return await super().update(update)
        return await super().update(replace(update, remove=update.remove | {"versionHash"}))


def test_rows_and_attributes_of_a_later_version_stay_and_what_touches_them_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = plan(Planned(0.0, OURS), Planned(20.0, JAVA), Planned(60.0, AddRows()))
    assert outcome(later).violation is None
    found = run_plan(
        later, scenario="java", seed=1, sabotage=Sabotage(table=DropsWhatItDoesNotKnow)
    ).violation
    assert found is not None
    assert found.name == "foreign_attribute"

    async def delete_all(assigner: Assigner) -> None:
        await assigner._tables.worker_metrics.delete("of a later version")

    monkeypatch.setattr(Assigner, "_delete_stale_workers", delete_all)
    found = outcome(later).violation
    assert found is not None
    assert found.name == "foreign_row_touched"
