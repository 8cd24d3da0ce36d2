"""The workers of a run: the production object graph on simulated ports, one process each.

Owns starting, stopping and killing them. Knows nothing of plans; the only file that builds production code.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, cast
from zlib import crc32

import anyio

from kcl_daemon.app import Adapters, Application, build
from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.config.changes import ChangesSettings
from kcl_daemon.config.children import ChildSettings, ConcurrencySettings, LaneCounts
from kcl_daemon.config.kinds import RunUntil
from kcl_daemon.config.landing import LandingSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.config.streams import ListedStream, StreamsSettings
from kcl_daemon.errors import ConfigurationError, Throttled, Unavailable, WorkerIdTaken, leaves
from kcl_daemon.exporters import MeteredWorker, telemetry_of
from kcl_daemon.landing import roster_line
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import CloudWatch, Cpu, Kinesis, StreamRef, Table, Tables
from kcl_daemon.progress.watchdog import StallLimits, Watchdog
from kcl_daemon.shards.lineage import InitialPosition
from kcl_daemon.source import source_named
from kcl_daemon.sources import StreamSources
from kcl_daemon.transport.caller import AwsJsonClient
from kcl_daemon.transport.dynamodb_streams import CHANGES_API, HttpDynamoStreams
from kcl_daemon.transport.pool import Parameters
from kcl_daemon.transport.snapshots import TABLE_API, SnapshotSegments, TableScan
from kcl_daemon.transport.table_streams import FollowedTables
from kcl_daemon.worker import Worker
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S, SimClock, drawn_clock
from tests.simulator.faults.behaviour import ChildrenPlan
from tests.simulator.faults.fan_out import FaultyFanOut
from tests.simulator.faults.life import Life, Service
from tests.simulator.faults.network import Network
from tests.simulator.faults.ports import FaultyKinesis, FaultyTable, FaultyTransactions, WriteObserver
from tests.simulator.fleet.changed_tables import ChangedTables, listed_tables
from tests.simulator.fleet.children import SimChildren
from tests.simulator.fleet.dead_letters import SimDeadLetters
from tests.simulator.fleet.machine import Machine, SimEvidence, SimStateFolder
from tests.simulator.fleet.stream import STREAM_NAME
from tests.simulator.java.host import Host
from tests.simulator.java.rows import Dialect
from tests.simulator.java.worker import JavaWorker
from tests.simulator.loop import Promise, current_loop, now
from tests.simulator.memory.changes import MemoryClient
from tests.simulator.memory.fan_out import MemoryFanOut
from tests.simulator.plans.plan import Kind, Plan, StartApart
from tests.simulator.rules.deliveries import Deliveries
from tests.simulator.rules.table_moves import OldReports
from tests.simulator.trace import Trace, TraceLog
from tests.simulator.violation import report

# A call that began in trouble has ended by then, in production by its own time-outs.
_ECHO_S: Final = 60.0
# RestartSec of our systemd unit.
_RESTART_S: Final = 5.0
CLOSE_LIMITS: Final = StallLimits(
    starting_s=10.0,
    child_s=20.0,
    restart_s=40.0,
    kinesis_s=15.0,
    dynamodb_s=15.0,
    parent_s=60.0,
    stream_s=20.0,
    lease_s=60.0,
    answer_s=12.0,
)
_NAMES: Final = {Kind.OURS: "worker", Kind.JAVA: "java", Kind.ASTRAY: "astray"}
ASTRAY_STREAM: Final = "astray"


class SimWorker:
    """One worker process."""

    def __init__(
        self,
        life: Life,
        make: Callable[[], MeteredWorker],
        *,
        kind: Kind,
        clock: SimClock,
        children: SimChildren,
        may_give_up: Callable[[], bool],
        start_again: Callable[[], object],
        machine: Machine,
        has_standby: bool,
        ends_itself: bool = False,
    ) -> None:
        self._ends_itself = ends_itself
        self.machine = machine
        self._may_give_up = may_give_up
        self._start_again = start_again
        self.life = life
        self.kind = kind
        self.clock = clock
        self.children = children
        self.has_standby = has_standby
        self.started_at_s = now()
        self.stop_asked_at_s: float | None = None
        self.ended: Promise[None] = Promise()
        self._make = make
        self._worker: MeteredWorker | None = None
        self.roster: Callable[[], bytes | None] = lambda: None

    @property
    def worker_id(self) -> str:
        """Its name in the tables."""
        return self.life.worker_id

    @property
    def watchdog(self) -> Watchdog | None:
        """Of a worker of ours that runs; None: there is none."""
        ours = self._worker
        return ours.watchdog if isinstance(ours, Worker) and ours.started.is_set() else None

    @property
    def run_until_s(self) -> float | None:
        """Where the run of a worker of ours ends, virtual seconds; None: nowhere, or it is not known yet."""
        run_end = self._worker.run_end if isinstance(self._worker, Worker) else None
        until_ms = None if run_end is None else run_end.until_ms
        return None if until_ms is None else until_ms / 1000 - EPOCH_S

    @property
    def is_living(self) -> bool:
        """Whether it works, or would if it were not paused."""
        return not (self.life.is_dead or self.ended.is_done or self.stop_asked_at_s is not None)

    def stop(self) -> None:
        """SIGTERM."""
        if self.stop_asked_at_s is None and not self.life.is_dead:
            self.stop_asked_at_s = now()
            if self._worker is not None:
                self._worker.request_stop()

    async def host(self) -> None:
        """The process: from its start to its end, whatever end that is."""
        try:
            with anyio.CancelScope() as scope:
                self.life.ensure_alive()
                self.life.on_death(scope.cancel)
                self._worker = self._make()
                if self.stop_asked_at_s is not None:
                    self._worker.request_stop()
                await self._worker.run()
            self.life.ensure_alive()
        except BaseException as error:
            if self.life.is_dead:
                return  # the remains of a killed process
            if not isinstance(error, Exception):
                raise  # the run is over
            self._failed(error)
            return
        self._ended()

    def _failed(self, error: Exception) -> None:
        """It may give up at its start when AWS does not answer for long, as long as there is trouble.

        Whoever runs services starts it again then.
        """
        gave_up = isinstance(error, Unavailable | Throttled) and not self.children.started
        gave_way = any(isinstance(each, WorkerIdTaken) for each in leaves(error))
        if self.kind is Kind.ASTRAY and isinstance(error, ConfigurationError):
            self.life.kill()
            return
        if not (gave_up and self._may_give_up()) and not gave_way:
            report("worker_failed", f"{self.worker_id}: {_reported(error)}")
        self.life.kill()
        current_loop().after(_RESTART_S, self._start_again)

    def _ended(self) -> None:
        if self.stop_asked_at_s is None and not self._ends_itself:
            report("worker_ended", f"{self.worker_id} ended without being asked to")
        left = [str(child.identity) for child in self.children.running]
        if left:
            report("child_left_behind", f"{self.worker_id} has ended, but not {', '.join(left)}")
        self.ended.resolve(None)


class Fleet:
    """All workers, those that have ended included."""

    process: type[SimWorker] = SimWorker

    def __init__(
        self,
        *,
        tables: Tables,
        kinesis: Kinesis,
        fan_out: MemoryFanOut,
        network: Network,
        children_plan: ChildrenPlan,
        deliveries: Deliveries,
        observer: WriteObserver,
        trace: Trace,
        chance: Chance,
        plan: Plan,
        changed: ChangedTables | None = None,
    ) -> None:
        self.changed = changed
        self._tables = tables
        self._kinesis = kinesis
        self._fan_out = fan_out
        self._network = network
        self._children_plan = children_plan
        self._deliveries = deliveries
        self._observer = observer
        self._trace = trace
        self._chance = chance
        self._plan = plan
        self.calm_since_s: float | None = None
        self.workers: list[SimWorker] = []
        self.cpu_of: Callable[[str], Cpu | None] = _no_figures
        self.cloudwatch: CloudWatch | None = None
        self.client_version_config = plan.leases.client_version_config
        self.migrate_all = plan.tables.migrate_all
        self.run_until: RunUntil | None = None

    @property
    def living(self) -> list[SimWorker]:
        """Those that work, paused ones included."""
        return [worker for worker in self.workers if worker.is_living]

    def stands_by(self, name: str) -> bool:
        """Whether the worker with this name lives and starts children before their leases come."""
        return any(each.worker_id == name and each.has_standby and each.is_living for each in self.workers)

    def is_astray(self, name: str) -> bool:
        """Whether workers of another stream have this name."""
        return any(worker.worker_id == name and worker.kind is Kind.ASTRAY for worker in self.workers)

    def is_java(self, name: str) -> bool:
        """Whether Java workers have this name."""
        return any(worker.worker_id == name and worker.kind is Kind.JAVA for worker in self.workers)

    def _streams_for(self, life: Life, clock: SimClock, scan: TableScan | None) -> Kinesis:
        kinesis = FaultyKinesis(
            self._kinesis, life=life, network=self._network, on_latest=self._deliveries.reads_latest
        )
        changed, plan = self.changed, self._plan.changes
        if changed is None or plan is None or scan is None:
            return kinesis

        def answer(operation: str, parameters: Parameters) -> bytes:
            if parameters.get("ShardIteratorType") == "LATEST":
                self._deliveries.reads_latest(life.worker_id, changed.key_of(parameters))
            return changed.answer(operation, parameters)

        client = MemoryClient(answer, api=CHANGES_API, life=life, network=self._network)
        changes = FollowedTables(HttpDynamoStreams(cast("AwsJsonClient", client), plan.form, clock))
        log = TraceLog(self._trace, life.worker_id)
        segments = SnapshotSegments(
            changes, scan, form=plan.form, read_units=plan.read_units, clock=clock, log=log
        )
        return StreamSources({source_named("kinesis"): kinesis, source_named("dynamodb"): segments})

    def _scan(self, life: Life) -> TableScan | None:
        if self.changed is None:
            return None
        client = MemoryClient(
            self.changed.answer_of_table,
            api=TABLE_API,
            life=life,
            network=self._network,
            service=Service.DYNAMODB,
        )
        return TableScan(cast("AwsJsonClient", client))

    def _letters(self, life: Life, chance: Chance) -> SimDeadLetters:
        return SimDeadLetters(
            life, chance=chance, deliveries=self._deliveries, away_s=self._plan.letters_away_s
        )

    def ahead_s(self, name: str) -> float:
        """How far the clock of the last worker with this name is ahead now."""
        return next(each.clock.ahead_s for each in reversed(self.workers) if each.worker_id == name)

    def ahead_most_s(self, name: str) -> float:
        """How far the clock of a worker has been ahead, at most."""
        ahead_s = (each.clock.ahead_most_s for each in self.workers if each.worker_id == name)
        return max(ahead_s, default=0.0)

    def _fan_out_for(self, life: Life) -> FaultyFanOut:
        on_latest = self._deliveries.reads_latest
        return FaultyFanOut(self._fan_out, life=life, network=self._network, on_latest=on_latest)

    def start(
        self,
        name: str | None = None,
        apart: StartApart | None = None,
        *,
        kind: Kind = Kind.OURS,
        machine: Machine | None = None,
    ) -> SimWorker:
        """A new worker, with a name of its own or with that of one that is dead; `apart`: one unlike the others.

        It runs on the machine, or on one of its own.
        """
        number = len(self.workers) + 1
        machine = machine or Machine(f"boot-{number}")
        life = Life(name or f"{_NAMES[kind]}-{number}")
        chance = self._chance.fork(f"worker-{number}")
        plan, given = self._children_plan, self._deliveries
        children = SimChildren(life, children_plan=plan, chance=chance.fork("children"), deliveries=given)
        knows_one_table = apart is None or apart.supports
        clock = drawn_clock(chance.fork("clock"), life, skew_s=self._plan.skew_s, drift=self._plan.drift)
        adapters = Adapters(
            clock=clock,
            clock_ahead_s=lambda: clock.ahead_s,
            randomness=chance.fork("randomness"),
            kinesis=self._streams_for(life, clock, scan := self._scan(life)),
            scan=scan,
            fan_out=self._fan_out_for(life),
            tables=Tables(
                leases=self._table(self._tables.leases, life),
                worker_metrics=self._table(self._tables.worker_metrics, life, knows_one_table),
                coordinator=self._table(self._tables.coordinator, life),
            ),
            transactions=FaultyTransactions(
                self._tables, life=life, network=self._network, observer=self._observer
            ),
            children=children,
            log=TraceLog(self._trace, life.worker_id),
            cpu=self.cpu_of(life.worker_id),
            dead_letters=self._letters(life, chance.fork("dead letters")),
            cloudwatch=self.cloudwatch,
            evidence=SimEvidence(life),
            state_folder=SimStateFolder(machine, life, chance.fork("state folder")),
        )
        leases = self._leases_of(number)
        settings = self._settings_of(life.worker_id, leases, kind, apart)

        def make() -> MeteredWorker:
            if kind is not Kind.JAVA:
                return self.make_ours(worker, settings, adapters)
            return JavaWorker(self._java_host(settings, adapters, clock, chance.fork("java")))

        worker = self.process(
            life,
            make,
            kind=kind,
            clock=clock,
            children=children,
            may_give_up=self._is_trouble_felt,
            start_again=lambda: self.start(name, apart, kind=kind, machine=machine),
            machine=machine,
            has_standby=kind is Kind.OURS and leases.standby_ms > 0,
            ends_itself=self.run_until is not None,
        )
        self.workers.append(worker)
        self._trace.note(life.worker_id, "process_started")
        current_loop().spawn(life.limiter, worker.host)
        return worker

    def make_ours(self, worker: SimWorker, settings: Settings, adapters: Adapters) -> MeteredWorker:
        """The program of a process that is not Java's."""
        telemetry = telemetry_of(settings, adapters, snapshot=lambda: None)
        ours = self._with_roster(worker, settings, telemetry.adapters)
        _watch_closely(ours, self._plan)
        return telemetry.background(ours)

    def _with_roster(self, worker: SimWorker, settings: Settings, adapters: Adapters) -> Worker:
        if self._plan.landing is None or not self._plan.landing.marks:
            return build(settings, adapters)
        application = Application(settings, adapters)
        worker.roster = partial(_roster, application, settings)
        return application.worker

    def _settings_of(
        self, worker_id: str, leases: LeaseSettings, kind: Kind, apart: StartApart | None
    ) -> Settings:
        tables = replace(self._plan.tables, migrate_all=self.migrate_all and apart is None)
        settings = worker_settings(worker_id, self._plan)
        if kind is Kind.ASTRAY:
            settings = replace(settings, stream_name=ASTRAY_STREAM)
        return replace(settings, leases=leases, tables=tables, run_until=self.run_until)

    def _leases_of(self, number: int) -> LeaseSettings:
        leases = replace(self._plan.leases, client_version_config=self.client_version_config)
        waits = self._plan.every_third_waits and number % 3 == 0
        return replace(leases, standby_ms=0) if waits else leases

    def _java_host(self, settings: Settings, adapters: Adapters, clock: SimClock, chance: Chance) -> Host:
        busy = chance.fork("cpu")
        return Host(
            me=WorkerId(settings.worker_id),
            tables=adapters.tables,
            kinesis=adapters.kinesis,
            stream=StreamRef(settings.stream_name),
            clock=clock,
            chance=chance,
            log=TraceLog(self._trace, settings.worker_id),
            deliveries=self._deliveries,
            position=settings.initial_position,
            dialect=Dialect(names_entities=self._plan.java_names_entities),
            cpu=(lambda: busy.uniform(20.0, 60.0)) if self._plan.java_reports_cpu else None,
        )

    def _is_trouble_felt(self) -> bool:
        """Whether there is trouble, or was when a call began that may end now."""
        return self.calm_since_s is None or now() - self.calm_since_s < _ECHO_S

    def _table(self, table: Table, life: Life, knows_one_table: bool = True) -> FaultyTable:
        kind = FaultyTable if knows_one_table else OldReports
        return kind(table, life=life, network=self._network, observer=self._observer)


def _roster(application: Application, settings: Settings) -> bytes | None:
    """What it would tell its lander now; None: it does not lead."""
    leases = application.leases_as_leader()
    return None if leases is None else roster_line(leases, settings)


def _watch_closely(worker: object, plan: Plan) -> None:
    """A run takes minutes: with the limits of the house hardly any shard would stand still for long enough."""
    if not plan.is_quiet and isinstance(worker, Worker):  # not one that a test has put in its place
        watchdog = worker.watchdog
        watchdog.limits = replace(CLOSE_LIMITS, child_stuck_s=watchdog.limits.child_stuck_s)


def _no_figures(_worker_id: str) -> Cpu | None:
    """A worker on a system without CPU figures."""
    return None


def worker_settings(worker_id: str, plan: Plan) -> Settings:
    """Production defaults but for what the plan sets."""
    name, arn, changes = _source(plan)
    return Settings(
        application_name="application",
        stream_name=name,
        stream_arn=arn,
        streams=_streams(plan),
        changes=changes,
        child=ChildSettings(
            command=("child",),
            timeout_s=plan.child_timeout_s,
            stuck_timeout_ms=None if plan.child_stuck_s is None else int(plan.child_stuck_s * 1000),
            call_for_empty=plan.calls_for_empty,
            is_relay=plan.calls_for_empty,
        ),
        leases=plan.leases,
        balance=plan.balance,
        retrieval=plan.retrieval,
        delivery=plan.delivery,
        shards=plan.shard_settings,
        failures=plan.failures,
        concurrency=_concurrency(worker_id, plan),
        landing=LandingSettings(uri=None if plan.landing is None else "simulated"),
        worker_id=worker_id,
        initial_position=InitialPosition(plan.start_at),
    )


def _concurrency(worker_id: str, plan: Plan) -> ConcurrencySettings:
    if not plan.lane_counts:
        return plan.concurrency
    count = plan.lane_counts[crc32(worker_id.encode()) % len(plan.lane_counts)]
    return replace(plan.concurrency, lanes=LaneCounts(count))


def _source(plan: Plan) -> tuple[str, str | None, ChangesSettings]:
    """Name and ARN of the only stream, and what is set for tables."""
    changed = plan.changes
    if changed is None:
        return "" if plan.streams else STREAM_NAME, None, ChangesSettings()
    listed, follows = listed_tables(changed)[0], changed.follows and changed.tables == 1 and not plan.streams
    settings = ChangesSettings(
        table="table-0" if follows else None,
        form=changed.form,
        continues_trimmed=changed.continues_trimmed,
        snapshot=changed.snapshot,
        segments=changed.segments,
        read_units=changed.read_units,
    )
    if plan.streams or changed.tables > 1:
        return "", None, settings
    return ("table-0", None, settings) if follows else (listed.name, listed.arn, settings)


def _streams(plan: Plan) -> StreamsSettings:
    settings = plan.streams_settings
    if plan.changes is not None and (plan.streams or plan.changes.tables > 1):
        settings = replace(settings, arns=listed_tables(plan.changes))
        return replace(settings, names=tuple(map(ListedStream, plan.streams)))
    return settings if settings.are_many else replace(settings, names=tuple(map(ListedStream, plan.streams)))


def _reported(error: BaseException) -> str:
    """An error with the place where it was raised; of a group of errors the first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return f"{error!r}{place}"
