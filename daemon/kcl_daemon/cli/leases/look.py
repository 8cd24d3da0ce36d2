from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kcl_daemon.assignment.plan import Fleet
from kcl_daemon.cli.application import Application, OpenedTables, TableOrigin, no_log, observer
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import for_each, raise_first, timings
from kcl_daemon.coverage import ShardCoverage, coverage
from kcl_daemon.errors import AccessDenied, AwsError, StreamNotFound, Throttled
from kcl_daemon.fleet.coverage_watch import tables_seen
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.streams import StreamTracker, TrackedStream
from kcl_daemon.leases.holds import HOLDS_KEY, Hold, MalformedHoldsError, holds_from_row
from kcl_daemon.leases.leader import LEADER_KEY, LeaderLock, lock_from_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import MalformedRowError, is_lease_row, lease_from_row
from kcl_daemon.leases.worker_row import worker_from_row
from kcl_daemon.ports import Clock, Kinesis, Log, Tables
from kcl_daemon.retrieval.source import StartMemory, read_from
from kcl_protocol.sequence import LATEST

_OBSERVER: Final = WorkerId("(observer)")
# The worker needs most of a shard's five reads a second.
_MAX_PARALLEL_LAGS: Final = 8


@dataclass(frozen=True, slots=True)
class LeaderView:
    worker: WorkerId
    lease_s: float
    released: bool
    silent_s: float


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    table: str
    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class LeaseLag:
    millis: int | None
    unknown_because: str = ""


@dataclass(frozen=True, slots=True)
class ObservedFleet:
    """`lags` is None if not requested."""

    origin: TableOrigin
    leader: LeaderView | None
    fleet: Fleet
    unreadable: tuple[UnreadableRow, ...]
    lags: Mapping[LeaseKey, LeaseLag] | None
    wall_s: float
    watched_s: float
    failover_s: float
    holds: tuple[Hold, ...] = ()
    covered: Mapping[LeaseKey, ShardCoverage] = field(default_factory=dict[LeaseKey, ShardCoverage])
    """Of shards with an unfinished lease. One look shows no silent owners."""

    @property
    def leases(self) -> tuple[Lease, ...]:
        return tuple(sorted(self.fleet.leases, key=lambda lease: lease.lease_key))

    @property
    def leading(self) -> WorkerId | None:
        leader = self.leader
        in_force = leader is not None and not leader.released and leader.silent_s <= leader.lease_s
        return leader.worker if leader is not None and in_force else None

    @property
    def knows_abandoned(self) -> bool:
        return self.watched_s > self.failover_s

    def report_age_s(self, worker: WorkerId) -> float | None:
        row = self.fleet.stats.get(worker)
        return None if row is None else self.wall_s - row.last_update_s


async def look_at(application: Application, settings: Settings, watch_s: float = 0.0) -> ObservedFleet:
    clock = application.clock
    return await observe(application.opened, settings, watch_s, clock=clock, log=no_log(clock))


async def observe(
    opened: OpenedTables, settings: Settings, seconds: float = 0.0, *, clock: Clock, log: Log
) -> ObservedFleet:
    """At least one poll."""
    tables, pace = opened.tables, timings(settings.leases, settings.balance)
    monitor = observer(tables, settings, clock=clock, log=log)
    began_s = since_s = clock.monotonic()
    lock: LeaderLock | None = None
    while True:
        await monitor.poll()
        before, lock = lock, lock_from_row(await tables.coordinator.get(LEADER_KEY))
        if before is None or lock is None or lock.version != before.version:
            since_s = clock.monotonic()
        left_s = began_s + seconds - clock.monotonic()
        if left_s <= 0:
            break
        await clock.sleep(min(pace.poll_s, left_s))
    leader = None
    if lock is not None and lock.owner:
        silent_s = clock.monotonic() - since_s
        leader = LeaderView(lock.owner, lock.duration_ms / 1000, lock.released, silent_s)
    seen = ObservedFleet(
        origin=opened.origin,
        leader=leader,
        fleet=monitor.fleet(),
        unreadable=(),
        lags=None,
        wall_s=clock.wall_ms() / 1000,
        watched_s=clock.monotonic() - began_s if seconds > 0 else 0.0,
        failover_s=pace.failover_s,
    )
    holds: tuple[Hold, ...] = ()
    unreadable = [each async for each in unreadable_rows(tables, monitor, lock)]
    try:
        holds = holds_from_row(await tables.coordinator.get(HOLDS_KEY))
    except MalformedHoldsError as malformed:
        unreadable.append(UnreadableRow(tables.coordinator.name, HOLDS_KEY, str(malformed)))
    in_force = tuple(hold for hold in holds if not hold.is_over(clock.wall_ms()))
    tables_now = tables_seen(monitor, in_force)
    covered = {
        each.key: each
        for stream, leases in tables_now.by_stream().items()
        for each in coverage(stream, None, replace(tables_now, leases=leases))
    }
    return replace(seen, unreadable=tuple(unreadable), holds=in_force, covered=covered)


async def unreadable_rows(
    tables: Tables, monitor: FleetMonitor, lock: LeaderLock | None
) -> AsyncIterator[UnreadableRow]:
    if monitor.unreadable_leases:
        for row in await tables.leases.scan():
            try:
                if is_lease_row(row):
                    lease_from_row(row)
            except MalformedRowError as malformed:
                yield UnreadableRow(tables.leases.name, malformed.key, malformed.problem)
    workers = tables.worker_metrics
    if monitor.unreadable_workers:
        for row in await workers.scan():
            if worker_from_row(row, key_attribute=workers.key_attribute) is None:
                yield UnreadableRow(
                    workers.name, str(row.get(workers.key_attribute)), "not a valid worker row"
                )
    if lock is not None and not lock.owner:
        yield UnreadableRow(tables.coordinator.name, LEADER_KEY, "not a valid leader lock")


async def lags(
    leases: Iterable[Lease], kinesis: Kinesis, streams: StreamTracker
) -> Mapping[LeaseKey, LeaseLag]:
    """A failing shard does not fail the others, but AccessDenied does."""
    found: dict[LeaseKey, LeaseLag] = {}

    async def ask(lease: Lease) -> None:
        found[lease.lease_key] = await _lag(lease, kinesis, streams.of(lease))

    unfinished = [lease for lease in leases if not lease.is_finished]
    raise_first(await for_each(unfinished, ask, at_once=_MAX_PARALLEL_LAGS, to_the_end=False))
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
