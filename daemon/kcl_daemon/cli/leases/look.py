"""Observes an application with the leader's own `FleetMonitor`.

It writes nothing: no worker row, lock or table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio

from kcl_daemon.assignment.plan import AssignmentPlan, Fleet, LeaseMove
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AccessDenied, AwsError, StreamNotFound, Throttled
from kcl_daemon.fleet.context import timings
from kcl_daemon.fleet.lease_renewer import MalformedRowLog
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.streams import StreamTracker, TrackedStream
from kcl_daemon.fleet.table_views import WORKER_KINDS, TableWrapper
from kcl_daemon.leases.layout import ENTITY
from kcl_daemon.leases.leader import LEADER_KEY, LockObservation, lock_from_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import MalformedRowError, Row
from kcl_daemon.leases.worker_row import CPU, FAILED, worker_from_row
from kcl_daemon.migrations.tables import OpenedTables, TableOrigin
from kcl_daemon.ports import Clock, Kinesis, Log, Table, Tables
from kcl_daemon.retrieval.source import StartMemory, read_from
from kcl_protocol.sequence import LATEST


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The lock lapses after `lease_s` of silence. `silent_s` is 0 after a single poll."""

    worker: WorkerId
    lease_s: float
    released: bool
    silent_s: float

    @property
    def leads(self) -> bool:
        return not self.released and self.silent_s <= self.lease_s


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    table: str
    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class LeaseLag:
    """Milliseconds behind the tip of the shard, or why they are unknown."""

    millis: int | None
    unknown_because: str = ""


@dataclass(frozen=True, slots=True)
class ObservedFleet:
    """The state of an application.

    `leader` is None if there is no lock, `lags` if they were not requested. `wall_s` is epoch seconds of this
    machine at the last poll.
    """

    origin: TableOrigin
    leader: LeaderView | None
    fleet: Fleet
    unreadable: tuple[UnreadableRow, ...]
    lags: Mapping[LeaseKey, LeaseLag] | None
    wall_s: float
    watched_s: float
    failover_s: float

    @property
    def leases(self) -> tuple[Lease, ...]:
        return tuple(sorted(self.fleet.leases, key=lambda lease: lease.lease_key))

    @property
    def knows_abandoned(self) -> bool:
        """Whether the watch was long enough to see abandoned leases."""
        return self.watched_s > self.failover_s


@dataclass(frozen=True, slots=True)
class ObservedWorker:
    """`last_report_s` is epoch seconds by the worker's clock; `report_age_s` is its age at the last poll.

    `leases` counts the unfinished ones that it reads.
    """

    worker_id: WorkerId
    alive: bool
    last_report_s: int | None
    report_age_s: float | None
    cpu_percent: float | None
    cpu_failed: bool
    leases: int
    leads: bool


def worker_views(seen: ObservedFleet) -> tuple[ObservedWorker, ...]:
    reads = Counter(lease.actual_owner for lease in seen.fleet.unfinished if lease.actual_owner is not None)
    leader = seen.leader.worker if seen.leader is not None and seen.leader.leads else None
    names = {*seen.fleet.stats, *seen.fleet.workers, *reads, *([] if leader is None else [leader])}
    return tuple(_worker_view(seen, name, reads[name], leads=name == leader) for name in sorted(names))


def _worker_view(seen: ObservedFleet, name: WorkerId, leases: int, *, leads: bool) -> ObservedWorker:
    row = seen.fleet.stats.get(name)
    averages = () if row is None else row.metrics.get(CPU, ())
    latest = averages[-1] if averages else None
    return ObservedWorker(
        worker_id=name,
        alive=name in seen.fleet.workers,
        last_report_s=None if row is None else row.last_update_s,
        report_age_s=None if row is None else seen.wall_s - row.last_update_s,
        cpu_percent=None if latest == FAILED else latest,
        cpu_failed=latest == FAILED,
        leases=leases,
        leads=leads,
    )


@dataclass(frozen=True, slots=True)
class LeaseSummary:
    """`leases` and `finished` count all; the others count unfinished leases.

    `abandoned` is None if the watch was too short.
    """

    leases: int
    owned: int
    unowned: int
    abandoned: int | None
    handing_off: int
    finished: int


def summarize_leases(seen: ObservedFleet) -> LeaseSummary:
    unfinished = seen.fleet.unfinished
    owned = [lease for lease in unfinished if lease.actual_owner is not None]
    abandoned = sum(lease.lease_key in seen.fleet.abandoned for lease in owned)
    return LeaseSummary(
        leases=len(seen.fleet.leases),
        owned=len(owned),
        unowned=len(unfinished) - len(owned),
        abandoned=abandoned if seen.knows_abandoned else None,
        handing_off=sum(lease.checkpoint_owner is not None for lease in owned),
        finished=len(seen.fleet.leases) - len(unfinished),
    )


@dataclass(frozen=True, slots=True)
class ExplainedPlan:
    """The leader's plan.

    Moves in `at_once` happen at the next poll, the others at the next balancing.
    """

    seen: ObservedFleet
    plan: AssignmentPlan
    at_once: frozenset[LeaseKey]
    balance_s: float
    ema_alpha: float

    def is_at_once(self, move: LeaseMove) -> bool:
        return move.lease.lease_key in self.at_once


# Not a real worker: only a leader counts itself as alive.
_OBSERVER: Final = WorkerId("(observer)")
# The worker needs most of a shard's five reads a second.
_MAX_PARALLEL_LAGS: Final = 8


class _CachedTable(TableWrapper):
    """Keeps the rows that `FleetMonitor` drops as unreadable."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.rows: list[Row] = []

    async def scan(self) -> list[Row]:
        self.rows = await super().scan()
        return self.rows


class _Unreadable(MalformedRowLog):
    """Collects unreadable rows instead of logging them."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.problems: dict[str, str] = {}

    def report(self, malformed: MalformedRowError) -> None:
        self.problems[malformed.key] = malformed.problem


class FleetObserver:
    def __init__(self, opened: OpenedTables, settings: Settings, *, clock: Clock, log: Log) -> None:
        tables = opened.tables
        self._origin = opened.origin
        self._clock = clock
        self._leases, self._coordinator = _CachedTable(tables.leases), tables.coordinator
        # A single table holds the worker rows, too.
        self._workers = self._leases if tables.share_one_table else _CachedTable(tables.worker_metrics)
        self._unreadable = _Unreadable(log)
        self._timings = timings(settings.leases, settings.balance)
        self._monitor = FleetMonitor(
            worker_id=_OBSERVER,
            tables=Tables(self._leases, self._workers, self._coordinator),
            max_leases_for_worker=settings.leases.max_leases_for_worker,
            clock=clock,
            timings=self._timings,
            malformed=self._unreadable,
        )
        self._lock_row: Row | None = None
        self._lock_seen: LockObservation | None = None

    async def watch(self, seconds: float) -> ObservedFleet:
        """Poll for this many seconds, at least once; raises AwsError."""
        began_s = self._clock.monotonic()
        await self._poll()
        while (left_s := began_s + seconds - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(self._timings.poll_s, left_s))
            await self._poll()
        return ObservedFleet(
            origin=self._origin,
            leader=self._leader(),
            fleet=self._monitor.fleet(),
            unreadable=tuple(self._unreadable_rows()),
            lags=None,
            wall_s=self._clock.wall_ms() / 1000,
            watched_s=self._clock.monotonic() - began_s if seconds > 0 else 0.0,
            failover_s=self._timings.failover_s,
        )

    async def _poll(self) -> None:
        self._unreadable.problems.clear()
        await self._monitor.poll()
        self._lock_row = await self._coordinator.get(LEADER_KEY)
        lock = lock_from_row(self._lock_row)
        if lock is None:
            self._lock_seen = None
        elif self._lock_seen is None or self._lock_seen.version != lock.version:
            self._lock_seen = LockObservation(lock.version, self._clock.monotonic())

    def _leader(self) -> LeaderView | None:
        lock = lock_from_row(self._lock_row)
        if lock is None or not lock.owner or self._lock_seen is None:
            return None
        silent_s = self._clock.monotonic() - self._lock_seen.since_s
        return LeaderView(lock.owner, lock.duration_ms / 1000, lock.released, silent_s)

    def _unreadable_rows(self) -> Iterable[UnreadableRow]:
        for key, problem in sorted(self._unreadable.problems.items()):
            yield UnreadableRow(self._leases.name, key, problem)
        key_attribute = self._workers.key_attribute
        for row in self._workers.rows:
            is_worker = self._workers is not self._leases or row.get(ENTITY) in WORKER_KINDS
            if is_worker and worker_from_row(row, key_attribute=key_attribute) is None:
                yield UnreadableRow(self._workers.name, str(row.get(key_attribute)), "not a valid worker row")
        lock = lock_from_row(self._lock_row)
        if lock is not None and not lock.owner:
            yield UnreadableRow(self._coordinator.name, LEADER_KEY, "not a valid leader lock")


async def lags(
    leases: Iterable[Lease], kinesis: Kinesis, streams: StreamTracker
) -> Mapping[LeaseKey, LeaseLag]:
    """Measure lags with one read of one record each.

    One failing shard does not fail the others. Raises AccessDenied.
    """
    found: dict[LeaseKey, LeaseLag] = {}
    denied: list[AccessDenied] = []
    limiter = anyio.CapacityLimiter(_MAX_PARALLEL_LAGS)

    async def ask(lease: Lease) -> None:
        async with limiter:
            try:
                found[lease.lease_key] = await _lag(lease, kinesis, streams.of(lease))
            except AccessDenied as error:
                denied.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for lease in leases:
            if not lease.is_finished:
                group.start_soon(ask, lease)
    if denied:
        raise denied[0]
    return found


async def _lag(lease: Lease, kinesis: Kinesis, of: TrackedStream) -> LeaseLag:
    if lease.checkpoint == LATEST:
        return LeaseLag(None, "no checkpoint yet")  # the table does not store the start position
    stream, start = of.ref, read_from(lease.checkpoint, StartMemory(), of.position.timestamp_s)
    try:
        iterator = await kinesis.get_shard_iterator(stream, lease.shard_id, start)
        fetched = await kinesis.get_records(stream, lease.shard_id, iterator, 1)
    except AccessDenied:
        raise
    except Throttled:
        return LeaseLag(None, "throttled")
    except StreamNotFound:
        return LeaseLag(None, "no such shard")
    except AwsError as error:
        return LeaseLag(None, str(error))
    behind = fetched.millis_behind_latest
    return LeaseLag(behind) if behind is not None else LeaseLag(None, "no answer")
