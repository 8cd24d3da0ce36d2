"""Everything of one run, put together: stream, tables, network, children, workers, checkers.

Owns the carrying out of events. Knows nothing of how long a run goes on (`runner`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, assert_never

from kcl_daemon.config.settings import Settings
from kcl_daemon.fleet.client_version import CLIENT_VERSION_CODEC, ClientVersion
from kcl_daemon.leases.layout import TableLayout, UnusableState
from kcl_daemon.leases.row import Row, RowUpdate, Value
from kcl_daemon.migrations.kcl2_rules import rollback, rollforward
from kcl_daemon.ports import Kinesis, Table, Tables
from kcl_daemon.shards.lineage import StartAt
from kcl_local.kinesis.model import KinesisModel
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.handoff_deaths import HandoffDeaths
from tests.simulator.faults.life import Service
from tests.simulator.faults.network import Network, WriteLimit
from tests.simulator.faults.points import Points
from tests.simulator.faults.ports import RowWrite
from tests.simulator.faults.shard_end_deaths import ShardEndDeaths
from tests.simulator.fleet.changed_tables import ChangedTables
from tests.simulator.fleet.machine import Machine
from tests.simulator.fleet.stream import SimStream
from tests.simulator.fleet.streams import SimStreams
from tests.simulator.fleet.workers import ASTRAY_STREAM, Fleet, SimWorker, worker_settings
from tests.simulator.loop import at_once, current_lane, current_loop, now
from tests.simulator.memory.fan_out import MemoryFanOut
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.simulator.memory.table import MemoryTable
from tests.simulator.plans.plan import (
    AddAttribute,
    AddRows,
    AtPoint,
    Configure,
    CutOff,
    DeleteLease,
    DieAtShardEnd,
    DieAtWrites,
    DieInHandoff,
    Event,
    HoldBack,
    Kill,
    Kind,
    LetGo,
    Merge,
    MigrateTables,
    Pause,
    Plan,
    Roll,
    Scale,
    Split,
    Start,
    StartApart,
    StartNamesake,
    StartOnClone,
    Steering,
    StepWallClock,
    Stop,
    StreamAppears,
    StreamDisappears,
    SwitchStream,
    Target,
    Where,
    Who,
)
from tests.simulator.rules.bank import Bank
from tests.simulator.rules.capacity import CapacityRules
from tests.simulator.rules.deliveries import Deliveries
from tests.simulator.rules.handoffs import HandoffGaps
from tests.simulator.rules.landing import Landing
from tests.simulator.rules.leader import LeaderRules
from tests.simulator.rules.liveness import Liveness
from tests.simulator.rules.rows import ForeignRows, LeaseTableRules, is_lease
from tests.simulator.rules.succession import Succession
from tests.simulator.rules.table_moves import TableMoveRules
from tests.simulator.rules.truth import Truth
from tests.simulator.scenarios.holds import HOLDS_KEY, HoldRules, hold_back
from tests.simulator.trace import Trace
from tests.simulator.violation import report

if TYPE_CHECKING:
    from tests.simulator.rules.landing_marks import LandingMarks

_MIGRATE_LOOK_S: Final = 10.0
_DISTURBED: Final = {Pause: "worker paused", CutOff: "worker cut off", StepWallClock: "clock jumped"}
Deploying = Steering | Configure | MigrateTables | StartApart


@dataclass(frozen=True, slots=True)
class Sabotage:
    """Parts of the world that are broken on purpose, to see that the checkers notice.

    Args:
        table: is given each shared table and gives the one to use.
        kinesis: is given the stream's adapter and gives the one to use.
        fan_out: the same for subscriptions.
    """

    table: Callable[[Table], Table] = lambda table: table
    kinesis: Callable[[Kinesis], Kinesis] = lambda kinesis: kinesis
    fan_out: Callable[[MemoryFanOut], MemoryFanOut] = lambda fan_out: fan_out


def _lease_rules(plan: Plan, settings: Settings, truth: Truth) -> LeaseTableRules:
    rules = LeaseTableRules(
        settings.lease_table,
        truth,
        lease_s=settings.leases.failover_time_ms / 1000 * (1 - 2 * plan.drift),
        may_steal=plan.comes_from_2x,
        hands_over_at_once=not plan.leases.graceful_handoff,
        at_latest=plan.start_at is StartAt.LATEST,
    )
    rules.clocks_apart_s = 2 * (plan.skew_s + plan.drift * plan.ends_at_s) + 1.0
    return rules


class World:
    """One run's world."""

    marks: LandingMarks | None = None
    ended_s = inf
    """When the producers stopped; what ends later by itself need not be finished."""

    def __init__(self, plan: Plan, chance: Chance, trace: Trace, sabotage: Sabotage) -> None:
        self._plan, self._trace = plan, trace
        self._chance = chance.fork("happenings")  # a name of chance: another one would draw other runs
        self._deaths: list[WriteLimit] = []
        self.truth = Truth(plan.keeps, plan.unreadable_s)
        self._model = model = KinesisModel(lambda: EPOCH_S + now() - plan.unreadable_s, plan.stream)
        producer = chance.fork("producer")
        self.stream = _stream_of(plan, model, self.truth, producer)
        settings = worker_settings("nobody", plan)
        self.tables = self._tables(settings, sabotage)
        self.rules = _lease_rules(plan, settings, self.truth)
        self.leader = LeaderRules(settings.coordinator_table, settings.lease_table, drift=plan.drift)
        bakes_s = plan.tables.deploy_bake_s, plan.tables.complete_bake_s
        self.moves = TableMoveRules(self.tables, bakes_s=bakes_s)
        self.deliveries = Deliveries(self.truth, self.rules, trace, plan.concurrency)
        self.rules.asked = self.deliveries
        self.deliveries.token_of = lambda key: self.rules.rows.get(key, {}).get("daemonFence")
        self.gaps = HandoffGaps(settings.lease_table, self.truth, most_s=plan.handoff_gap_most_s)
        self.deliveries.on_work, self.deliveries.on_stop = self.gaps.works, self.gaps.stop_requested
        self.deliveries.play(plan)
        trace.on_skip = self.deliveries.skipped
        self.network = Network(chance.fork("network"), index_ready_at_s=plan.index_ready_at_s)
        self.foreign, self.faults = ForeignRows(), Counter[str]()
        is_hurried = not plan.leases.graceful_handoff
        self.handoffs = HandoffDeaths(settings.lease_table, self._die_in_handoff, at_once=is_hurried)
        self.shard_ends = ShardEndDeaths(settings.lease_table, self._die_at_shard_end)
        self.children_plan = plan.children_plan
        self.bank = self.children_plan.bank = self._bank_of(plan)
        self.landing = None if plan.landing is None else Landing(plan.landing, self.truth, trace)
        self.children_plan.landing = self.landing
        if self.landing is not None:
            self.landing.on_sleep, self.landing.on_begin = self._sleep, self._wake
            self.deliveries.on_anew = self.landing.begins_anew
        self.fleet = Fleet(
            tables=self.tables,
            kinesis=sabotage.kinesis(MemoryKinesis(model)),
            fan_out=sabotage.fan_out(MemoryFanOut(model)),
            network=self.network,
            children_plan=self.children_plan,
            deliveries=self.deliveries,
            observer=self,
            trace=trace,
            chance=chance.fork("fleet"),
            plan=plan,
            changed=self.changed,
        )
        self.points = Points(plan.points, self._worker_here, self._befall)
        self.succession = Succession(plan, fleet=self.fleet, rules=self.rules, leader=self.leader)
        self.rules.may_succeed = self.leader.may_succeed = self.succession.may_succeed
        self.deliveries.ahead_most_s, self.moves.ahead_s = self.fleet.ahead_most_s, self.fleet.ahead_s
        self.rules.is_java, self.gaps.stands_by = self.fleet.is_java, self.fleet.stands_by
        self.capacity = CapacityRules(self.rules)
        self.holds = HoldRules(ahead_most_s=self.fleet.ahead_most_s, is_java=self.fleet.is_java)
        self.deliveries.on_delivered = self.holds.delivered
        self.liveness = Liveness(
            truth=self.truth,
            rules=self.rules,
            deliveries=self.deliveries,
            living=lambda: [worker.worker_id for worker in self.fleet.living if not worker.life.is_paused],
            bound_s=plan.bound_s,
            may_age=plan.landing is not None,
        )

    def _bank_of(self, plan: Plan) -> Bank | None:
        if plan.bank is None:
            return None
        bank = Bank(plan.bank, self.truth)
        bank.on_sleep, bank.on_begin = self._sleep, self._wake
        bank.is_aside, self.deliveries.on_anew = self.deliveries.is_aside, bank.begins_anew
        return bank

    def _tables(self, settings: Settings, sabotage: Sabotage) -> Tables:
        leases = MemoryTable(
            settings.lease_table,
            "leaseKey",
            has_owner_index=True,
            defer_index=self._index_later,
            defer_build=self._build_later,
        )
        if self._plan.comes_from_2x:
            leases.exist_without_index()
        return Tables(
            leases=sabotage.table(leases),
            worker_metrics=sabotage.table(MemoryTable(settings.worker_metrics_table, "wid")),
            coordinator=sabotage.table(MemoryTable(settings.coordinator_table, "key")),
        )

    def _index_later(self, change: Callable[[], None]) -> None:
        current_loop().after(self._chance.uniform(*self._plan.index_lag_s), change)

    def _build_later(self, change: Callable[[], None]) -> None:
        current_loop().after(self._chance.uniform(*self._plan.index_build_s), change)

    @property
    def changed(self) -> ChangedTables | None:
        """The tables whose streams are read."""
        return self.stream if isinstance(self.stream, ChangedTables) else None

    def begin(self) -> None:
        """Create the stream, start the producers, plan everything that will happen."""
        if self.changed is not None:
            self.changed.watch(self.deliveries, self.rules, self._trace)
        self.network.trouble = {Service.DYNAMODB: self._plan.dynamodb, Service.KINESIS: self._plan.kinesis}
        self.stream.create(self._plan.shards)
        if self._plan.astray_shards:
            arguments = {"StreamName": ASTRAY_STREAM, "ShardCount": self._plan.astray_shards}
            self._model.handle("CreateStream", arguments)
        self.stream.put(self._plan.backlog)
        self._leave_java_leases()
        self.stream.produce(self._plan.records_per_s)
        self._follow_the_log()
        for planned in self._plan.events:
            current_loop().after(planned.at_s, self.happen, planned.what)

    def _follow_the_log(self) -> None:
        if self.landing is None or not self.landing.plan.marks:
            return
        from tests.simulator.rules.landing_marks import LandingMarks  # it loads Spark's part

        self.marks = LandingMarks(
            self.landing, self._chance.fork("marks"), self._trace, lambda: self.fleet.workers
        )

    def _leave_java_leases(self) -> None:
        if not self._plan.java_epochs:
            return
        streams = self.stream if self.changed is None else self.changed.kinesis
        assert isinstance(streams, SimStreams), "such a program reads many streams"
        for table in (self.tables.leases, self.tables.worker_metrics, self.tables.coordinator):
            at_once(table.ensure())
        for row in streams.left_leases():
            written = at_once(self.tables.leases.put(row))
            assert written.row is not None
            self.rules.restore(str(row["leaseKey"]), written.row)
            self.faults["lease of a Java program"] += 1

    def calm_down(self) -> None:
        """No more trouble of any kind; at least one worker lives."""
        self._trace.note("world", "calm")
        self.fleet.calm_since_s = now()
        self.network.calm()
        self._hold_back(LetGo())
        self.children_plan.behave()
        self._deaths.clear()
        self.handoffs.clear()
        self.shard_ends.clear()
        self.points.clear()
        if self.bank is not None:
            self.bank.calm_down()
        if self.landing is not None:
            self.landing.calm_down()
        for worker in self.fleet.workers:
            worker.life.reconnect()
            worker.life.resume()
            worker.children.resume()
        if not self.fleet.living:
            self._start()

    @property
    def faults_by_kind(self) -> dict[str, int]:
        """How often what was wrong, by kind; those at points apart."""
        found = self.faults + self.network.faults
        if self.landing is not None:
            found += self.landing.faults
        del found[""]
        found["child did something wrong"] = self.children_plan.misdeeds
        return {kind: count for kind, count in sorted(found.items()) if count}

    def row_written(self, write: RowWrite) -> None:
        """A write took effect."""
        self._trace.note(write.worker_id, "row_written", f"{write.table} {write.key} {_shown(write)}")
        if self.fleet.is_astray(write.worker_id):
            report(
                "written_by_a_stranger", f"{write.worker_id} wrote {write.table} {write.key} {_shown(write)}"
            )
        if self.changed is not None and write.table == self.tables.leases.name and is_lease(write):
            self.changed.lease_written(write, len(self.rules.rows) + (write.before is None))
        self.rules.row_written(write)
        if self.landing is not None and write.table == self.tables.leases.name:
            self.landing.row_written(write)
        self.leader.row_written(write)
        self.moves.row_written(write)
        self.foreign.row_written(write)
        self.holds.row_written(write)
        self.capacity.row_written(write)
        self.gaps.row_written(write)
        self.handoffs.row_written(write, leader=self.leader.owner)
        self.shard_ends.row_written(write)

    @property
    def unfinished(self) -> list[str]:
        """Closed shards that nobody has finished yet."""
        return [
            shard.shard_id
            for shard in self.truth.wanted
            if shard.is_closed and shard.closed_s <= self.ended_s and not self._is_finished(shard.shard_id)
        ]

    @property
    def all_finished(self) -> bool:
        """Whether every closed shard is at its end."""
        return not self.unfinished

    def happen(self, what: Event) -> None:
        """Carry out one happening."""
        match what:
            case Start(kind):
                self._start(None, kind)
            case StartOnClone() | StartNamesake():
                self._start_beside(what)
            case Kill() | Stop():
                self._leave(what)
            case Pause() | CutOff() | StepWallClock():
                self._disturb(what)
            case DieAtWrites(at, before):
                self._deaths = [WriteLimit(n, b) for n, b in zip(at, before, strict=True)]
            case DeleteLease(rank):
                self._delete_lease(rank)
            case Split() | Merge() | Scale() | StreamAppears() | StreamDisappears() | SwitchStream() | Roll():
                self._reshape(what)
            case AddAttribute() | AddRows():
                (self._add_rows if isinstance(what, AddRows) else self._add_attribute)()
            case HoldBack() | LetGo():
                self._hold_back(what)
            case _:
                self._arm_or_deploy(what)

    def _arm_or_deploy(self, what: DieInHandoff | DieAtShardEnd | Deploying) -> None:
        match what:
            case DieInHandoff():
                self.handoffs.arm(what)
            case DieAtShardEnd():
                self.shard_ends.arm(what)
            case Steering() | Configure() | MigrateTables() | StartApart():
                self._deploy(what)
            case _:
                assert_never(what)

    def _hold_back(self, what: HoldBack | LetGo) -> None:
        is_single = self._plan.tables.layout is TableLayout.SINGLE
        table = self.tables.leases if is_single else self.tables.coordinator
        if at_once(table.describe()) is None or (
            isinstance(what, LetGo) and at_once(table.get(HOLDS_KEY)) is None
        ):
            return
        self._trace.note("world", "holds_back", repr(what))
        self.faults["hold by an operator"] += 1
        is_open = [key for key, shard in self.truth.shards.items() if not shard.is_closed]
        self.holds.wrote(hold_back(table, what, self.rules.rows.values(), is_open))

    def _reshape(
        self, what: Split | Merge | Scale | StreamAppears | StreamDisappears | SwitchStream | Roll
    ) -> None:
        match what:
            case Split(rank):
                self.stream.split(rank)
            case Merge(rank):
                self.stream.merge(rank)
            case Scale(up):
                assert not isinstance(self.stream, ChangedTables), "only Kinesis does that"
                self.stream.scale(up)
            case StreamAppears() | StreamDisappears():
                streams = self.stream if self.changed is None else self.changed.kinesis
                assert isinstance(streams, SimStreams), "streams come and go where there are many"
                streams.change(what)
            case SwitchStream() | Roll():
                assert self.changed is not None, "only tables have such streams"
                self.changed.change(what)
            case _:
                assert_never(what)
        self._trace.note("world", "reshaped", repr(what))
        self.faults[
            "stream appeared or went" if isinstance(what, StreamAppears | StreamDisappears) else "reshard"
        ] += 1

    def _is_finished(self, shard_id: str) -> bool:
        stored = self.rules.checkpoint_of(shard_id)
        return stored.is_shard_end if stored is not None else shard_id in self.rules.deleted

    def _target(self, target: Target) -> SimWorker | None:
        living = self.fleet.living
        if not living:
            return None
        if target is Who.LEADER:
            leader = [worker for worker in living if worker.worker_id == self.leader.owner]
            return leader[0] if leader else living[0]
        assert isinstance(target, int)
        return living[target % len(living)]

    def _start_beside(self, what: StartOnClone | StartNamesake) -> None:
        other = self._target(what.target)
        if other is None:
            return
        self._trace.note(other.worker_id, "is_joined", repr(what))
        match what:
            case StartOnClone():
                self._start(machine=other.machine.clone(f"clone-{len(self.fleet.workers)}"))
            case StartNamesake(_, same_host):
                self._start(other.worker_id, machine=other.machine if same_host else None)
            case _:
                assert_never(what)

    def _start(self, name: str | None = None, kind: Kind = Kind.OURS, machine: Machine | None = None) -> None:
        worker = self.fleet.start(name, kind=kind, machine=machine)
        if self._deaths:
            self.network.write_limits[worker.worker_id] = self._deaths.pop(0)
            worker.life.on_death(lambda: current_loop().after(self._chance.uniform(0.1, 3.0), self._start))

    def _leave(self, what: Kill | Stop) -> None:
        worker = self._target(what.target)
        if worker is None:
            return
        self._trace.note(worker.worker_id, "leaves", repr(what))
        self.faults["worker killed" if isinstance(what, Kill) else "worker stopped"] += 1
        name: str | None = None
        machine: Machine | None = None
        match what:
            case Kill():
                if what.where is Where.IN_PLACE:
                    self.succession.killed(worker)
                worker.life.kill()
                name = worker.worker_id if what.keeps_name else None
                machine = self._machine_after(what, worker)
            case Stop():
                worker.stop()
            case _:
                assert_never(what)
        if what.replaced_after_s is not None:
            current_loop().after(what.replaced_after_s, self._start, name, worker.kind, machine)

    def _machine_after(self, what: Kill, worker: SimWorker) -> Machine | None:
        match what.where:
            case Where.ELSEWHERE:
                return None
            case Where.IN_PLACE:
                return worker.machine
            case Where.AFTER_REBOOT:
                worker.machine.reboot()
                return worker.machine
            case Where.CLONE:
                return worker.machine.clone(f"clone-{len(self.fleet.workers)}")
            case _:
                assert_never(what.where)

    def _die_in_handoff(self, worker_id: str, death: DieInHandoff) -> None:
        # Also one that has been asked to stop: it is the one that announces.
        named = (worker for worker in self.fleet.workers if worker.worker_id == worker_id)
        for worker in [worker for worker in named if not worker.life.is_dead and not worker.ended.is_done]:
            self._trace.note(worker_id, "dies_in_handoff", repr(death))
            self.faults["worker killed in a handoff"] += 1
            worker.life.kill()
            current_loop().after(death.replaced_after_s, self._start, None, worker.kind)

    def _die_at_shard_end(self, worker_id: str, death: DieAtShardEnd) -> None:
        for worker in [worker for worker in self.fleet.living if worker.worker_id == worker_id]:
            self._trace.note(worker_id, "dies_at_shard_end", repr(death))
            self.faults["worker killed at a shard end"] += 1
            worker.life.kill()
            current_loop().after(death.replaced_after_s, self._start)

    def _delete_lease(self, rank: int) -> None:
        is_open = [
            key for key, shard in self.truth.shards.items() if not shard.is_closed and key in self.rules.rows
        ]
        if is_open:
            key = is_open[rank % len(is_open)]
            self._trace.note("world", "deletes_lease", key)
            self.faults["lease deleted by a person"] += 1
            at_once(self.tables.leases.delete(key))
            self.rules.forget(key)

    def _disturb(self, what: Pause | CutOff | StepWallClock) -> None:
        worker = self._target(what.target)
        if worker is None:
            return
        self._trace.note(worker.worker_id, "disturbed", repr(what))
        self.faults[_DISTURBED[type(what)]] += 1
        if isinstance(what, Pause | CutOff):
            self.holds.excuse(worker.worker_id, what.for_s)
        match what:
            case Pause(_, for_s, with_children):
                self._pause(worker, for_s, with_children=with_children)
            case CutOff(_, service, for_s):
                worker.life.cut_off(service)
                current_loop().after(for_s, worker.life.reconnect)
            case StepWallClock(_, seconds):
                worker.clock.step_wall(seconds)
            case _:
                assert_never(what)

    def _pause(self, worker: SimWorker, for_s: float, *, with_children: bool) -> None:
        worker.life.pause()
        if with_children:
            worker.children.pause()
        current_loop().after(for_s, worker.life.resume)
        current_loop().after(for_s, worker.children.resume)

    def _worker_here(self) -> SimWorker | None:
        return next((each for each in self.fleet.workers if each.life.limiter is current_lane()), None)

    def _befall(self, worker: SimWorker, what: AtPoint) -> None:
        worker.life.ensure_alive()  # the remains of a process come no further
        self._trace.note(worker.worker_id, "at_point", repr(what))
        if what.pause_s is not None:
            self.holds.excuse(worker.worker_id, what.pause_s)
            self._pause(worker, what.pause_s, with_children=what.with_children)
            return
        worker.life.kill()
        name = worker.worker_id if what.keeps_name else None
        current_loop().after(what.replaced_after_s, self._start, name, worker.kind)
        worker.life.ensure_alive()

    def _sleep(self, worker_id: str, shard_id: str, for_s: float) -> None:
        """A host stops while a child of it is about to write."""
        for worker in [worker for worker in self.fleet.living if worker.worker_id == worker_id]:
            self._trace.note(worker_id, "sleeps", f"{shard_id} {for_s}")
            self.faults["worker paused"] += 1
            self._pause(worker, for_s, with_children=True)

    def _wake(self, shard_id: str) -> None:
        """The former child of a shard goes on just now: the worst moment."""
        for worker in self.fleet.workers:
            for child in worker.children.running:
                if child.identity.shard_id == shard_id:
                    current_loop().after(self._chance.uniform(0.0, 1.0), child.resume)

    @property
    def client_version(self) -> ClientVersion | None:
        """What the row says; None also where there is only the lease table."""
        if at_once(self.tables.coordinator.describe()) is None:
            return None
        stored = CLIENT_VERSION_CODEC.read(at_once(self.tables.coordinator.get(CLIENT_VERSION_CODEC.row_key)))
        return None if stored is None or isinstance(stored, UnusableState) else stored.state

    def _steer(self, what: Steering) -> None:
        table = self.tables.coordinator
        stored = CLIENT_VERSION_CODEC.read(at_once(table.get(CLIENT_VERSION_CODEC.row_key)))
        rule = rollback if what is Steering.ROLL_BACK else rollforward
        decided = rule(stored, now_ms=int((EPOCH_S + now()) * 1000), key_attribute=table.key_attribute)
        self._trace.note("world", "steers", f"{what.name} {decided}")
        if isinstance(decided, UnusableState):
            return
        assert at_once(table.update(decided.update)).applied
        if decided.remove_index_after_s is not None:
            current_loop().after(decided.remove_index_after_s, self._remove_index)

    def _deploy(self, what: Deploying) -> None:
        match what:
            case Steering():
                self._steer(what)
            case Configure(config):
                self.fleet.client_version_config = config
            case MigrateTables():
                self._migrate_tables(what)
            case StartApart():
                self._start_apart(what)
            case _:
                assert_never(what)

    def _migrate_tables(self, what: MigrateTables) -> None:
        if self.moves.state != "DEPLOYED":  # a person looks at `kcl-daemon migrate status` first
            current_loop().after(_MIGRATE_LOOK_S, self._migrate_tables, what)
            return
        self._trace.note("world", "migrates_tables")
        self.fleet.migrate_all = True
        for number, worker in enumerate(self.fleet.living):
            current_loop().after(number * what.apart_s, self._replace, worker)

    def _replace(self, worker: SimWorker) -> None:
        if worker.is_living:
            worker.stop()
            current_loop().after(1.0, self._start)

    def _start_apart(self, what: StartApart) -> None:
        worker = self.fleet.start(apart=what)
        self.faults["worker apart"] += 1
        self._trace.note(worker.worker_id, "joins_apart", repr(what))
        current_loop().after(what.leaves_after_s, worker.life.kill if what.dies else worker.stop)

    def _remove_index(self) -> None:
        self._trace.note("world", "index_removed")
        at_once(self.tables.leases.remove_owner_index())

    def _add_attribute(self) -> None:
        for key in sorted(self.rules.rows):
            update = RowUpdate(key, put={"attributeOfALaterVersion": f"kept-{key}"})
            written = at_once(self.tables.leases.update(update))
            assert written.row is not None
            self.rules.restore(key, written.row)

    def _add_rows(self) -> None:
        tables = self.tables
        rows: list[tuple[Table, Row]] = [
            (tables.coordinator, _second_leader(tables.coordinator, "LEADER")),
            (
                tables.worker_metrics,
                {tables.worker_metrics.key_attribute: "of a later version", "entityType": "NEW"},
            ),
        ]
        if self._plan.java_names_entities:  # KCL up to 3.4 cannot read a lease table with such rows
            rows.append((tables.leases, _second_leader(tables.leases, "DEPLOYING_LEADER")))
        for table, row in rows:
            at_once(table.put(row))
            self.foreign.add(table.name, str(row[table.key_attribute]))
        for table in (tables.coordinator, tables.worker_metrics):
            for row in at_once(table.scan()):
                key = str(row[table.key_attribute])
                if key in {"Leader", *(worker.worker_id for worker in self.fleet.living)}:
                    at_once(table.update(RowUpdate(key, put={ForeignRows.ATTRIBUTE: "9f86d081"})))
        self._trace.note("world", "adds_rows")


def _second_leader(table: Table, entity: str) -> Row:
    return {
        table.key_attribute: ForeignRows.SECOND_LEADER,
        "ownerName": "java-of-tomorrow",
        "leaseDuration": "120000",
        "recordVersionNumber": "00000000-0000-4000-8000-000000000000",
        "entityType": entity,
        ForeignRows.ATTRIBUTE: "9f86d081",
    }


def _shown(write: RowWrite) -> str:
    """What changed, for the trace."""
    if write.after is None:
        return "deleted"
    before = write.before or {}
    changed = {name: value for name, value in write.after.items() if before.get(name) != value}
    removed = [f"-{name}" for name in before if name not in write.after]
    return " ".join([*(f"{name}={_text(value)}" for name, value in changed.items()), *removed])


def _text(value: Value) -> str:
    """A value, the same in every process."""
    return "{" + ",".join(sorted(value)) + "}" if isinstance(value, frozenset) else str(value)


def _stream_of(
    plan: Plan, model: KinesisModel, truth: Truth, chance: Chance
) -> SimStream | SimStreams | ChangedTables:
    streams = None
    if plan.streams:
        streams = SimStreams(
            model,
            truth=truth,
            chance=chance,
            names=plan.streams,
            epochs=plan.java_epochs,
            aggregates=plan.aggregates,
            keeps_others=plan.delivery.keeps_other_shards,
        )
    if plan.changes is not None:
        latest = plan.start_at is StartAt.LATEST
        return ChangedTables(plan.changes, truth=truth, chance=chance, kinesis=streams, latest=latest)
    if streams is not None:
        return streams
    return SimStream(
        model,
        truth=truth,
        chance=chance,
        record_bytes=plan.record_bytes,
        skew=plan.skew,
        keys=plan.keys,
        aggregates=plan.aggregates,
        chooses_shards=plan.chooses_shards,
        keeps_others=plan.delivery.keeps_other_shards,
    )
