"""Looks at an application from outside, as its leader would, and writes nothing.

Owns the order of the reads. Takes part in nothing: no worker row, no lock, no table is made. What is concluded from
the rows is the leader's own code (`coordination.overview`); knows nothing of how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

import anyio

from kcl_daemon.cli.leases_seen import Lag, Leader, Origin, Seen, UnreadableRow
from kcl_daemon.config.settings import Settings
from kcl_daemon.coordination.malformed import MalformedRows
from kcl_daemon.coordination.moving_tables import TwoTables
from kcl_daemon.coordination.overview import Overview
from kcl_daemon.coordination.streams import Stream, Streams
from kcl_daemon.coordination.table_survey import survey
from kcl_daemon.coordination.table_views import COORDINATOR_KINDS, WORKER_KINDS, RowsOfKind, TableOver
from kcl_daemon.coordination.timings import timings
from kcl_daemon.errors import AccessDenied, AwsError, StreamNotFound, TableNotFound, Throttled
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.leases.leader import LEADER_KEY, Sighting, lock_from_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import MalformedRowError
from kcl_daemon.leases.state_row import ENTITY
from kcl_daemon.leases.stats import worker_from_row
from kcl_daemon.leases.table import Row
from kcl_daemon.leases.table_migration import TableStatus
from kcl_daemon.ports import Clock, Kinesis, Log, Table, Tables
from kcl_daemon.retrieval.start import StartMemory, read_from
from kcl_protocol.sequence import LATEST

# No worker: whoever leads knows of itself that it lives, an observer knows it of nobody.
_OBSERVER: Final = WorkerId("(observer)")
# Each costs one of the five reads a second that a shard allows, and its worker wants those.
_LAGS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Opened:
    """The tables of an application that exists, for reading, and where they are."""

    tables: Tables
    origin: Origin


async def open_existing(separate: Tables, settings: Settings) -> Opened:
    """Find out which tables the application has; none is made.

    Args:
        separate: the three of the separate layout, whether they exist or not.
        settings: of the file.

    Raises:
        TableNotFound: there is no lease table.
        ConfigurationError: the tables are in a state in which no worker would start.
        AwsError: a table could not be looked at.
    """
    # Whether a worker may drive a migration does not matter to somebody who only looks.
    found = await survey(separate, wished=settings.tables.layout, migrate_all=False)
    leases, workers, coordinator = found.states
    if leases is None:
        raise TableNotFound(
            f"there is no lease table {separate.leases.name}: no worker of this application has started yet"
        )
    names = [separate.leases.name]
    match found.layout:
        case TableLayout.SINGLE:
            tables = Tables(
                separate.leases,
                RowsOfKind(separate.leases, WORKER_KINDS),
                RowsOfKind(separate.leases, COORDINATOR_KINDS),
            )
        case TableLayout.SEPARATE:
            others = ((separate.worker_metrics, workers), (separate.coordinator, coordinator))
            names += [table.name for table, state in others if state is not None]
            worker_rows, coordinator_rows = (
                table if state is not None else _Missing(table) for table, state in others
            )
            if found.status is not TableStatus.INIT:  # rows may have been carried over
                coordinator_rows = TwoTables(coordinator_rows, separate.leases, written=coordinator_rows)
            tables = Tables(separate.leases, worker_rows, coordinator_rows)
        case _:
            assert_never(found.layout)
    stream = ", ".join(settings.streams.texts) or settings.stream_arn or settings.stream_name
    return Opened(tables, Origin(settings.application_name, stream, found.layout, found.reason, tuple(names)))


class _Missing(TableOver):
    """A table that does not exist, which is no trouble: fleets of KCL 2.x have the lease table alone."""

    async def scan(self) -> list[Row]:
        """Nothing."""
        return []

    async def get(self, key: str) -> Row | None:  # noqa: ARG002 - the port's signature
        """Nothing."""
        return None


class _Remembering(TableOver):
    """Keeps the rows of the last scan, for those that somebody else leaves out."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.rows: list[Row] = []

    async def scan(self) -> list[Row]:
        """As the port says."""
        self.rows = await super().scan()
        return self.rows


class _Unreadable(MalformedRows):
    """Keeps what cannot be a lease, as of the latest look, instead of logging it."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.problems: dict[str, str] = {}

    def tell(self, malformed: MalformedRowError) -> None:
        """Keep it."""
        self.problems[malformed.key] = malformed.problem


class Observer:
    """Watches one application.

    Args:
        opened: its tables.
        settings: of the file.
        clock: for the times between looks.
        log: required by what the leader uses; nothing is written to it.
    """

    def __init__(self, opened: Opened, settings: Settings, *, clock: Clock, log: Log) -> None:
        tables = opened.tables
        self._origin = opened.origin
        self._clock = clock
        self._leases, self._coordinator = _Remembering(tables.leases), tables.coordinator
        # Where there is one table the rows of workers come with the leases.
        self._workers = self._leases if tables.share_one_table else _Remembering(tables.worker_metrics)
        self._unreadable = _Unreadable(log)
        self._timings = timings(settings.leases, settings.balance)
        self._overview = Overview(
            worker_id=_OBSERVER,
            tables=Tables(self._leases, self._workers, self._coordinator),
            max_leases_for_worker=settings.leases.max_leases_for_worker,
            clock=clock,
            timings=self._timings,
            malformed=self._unreadable,
        )
        self._lock_row: Row | None = None
        self._lock_seen: Sighting | None = None

    async def watch(self, seconds: float) -> Seen:
        """Look for this long, at least once; what was seen, without lags.

        Raises:
            AwsError: a table could not be read.
        """
        began_s = self._clock.monotonic()
        await self._look()
        while (left_s := began_s + seconds - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(self._timings.look_s, left_s))
            await self._look()
        return Seen(
            origin=self._origin,
            leader=self._leader(),
            fleet=self._overview.fleet(),
            unreadable=tuple(self._unreadable_rows()),
            lags=None,
            wall_s=self._clock.wall_ms() / 1000,
            watched_s=self._clock.monotonic() - began_s if seconds > 0 else 0.0,
            failover_s=self._timings.failover_s,
        )

    async def _look(self) -> None:
        self._unreadable.problems.clear()
        await self._overview.look()
        self._lock_row = await self._coordinator.get(LEADER_KEY)
        lock = lock_from_row(self._lock_row)
        if lock is None:
            self._lock_seen = None
        elif self._lock_seen is None or self._lock_seen.version != lock.version:
            self._lock_seen = Sighting(lock.version, self._clock.monotonic())

    def _leader(self) -> Leader | None:
        lock = lock_from_row(self._lock_row)
        if lock is None or not lock.owner or self._lock_seen is None:
            return None
        silent_s = self._clock.monotonic() - self._lock_seen.since_s
        return Leader(lock.owner, lock.duration_ms / 1000, lock.released, silent_s)

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


async def lags(leases: Iterable[Lease], kinesis: Kinesis, streams: Streams) -> Mapping[LeaseKey, Lag]:
    """How far each unfinished lease is behind, asked of Kinesis with one read of one record each.

    A shard that does not tell is no failure of the whole.

    Raises:
        AccessDenied: this host may not read the stream.
    """
    found: dict[LeaseKey, Lag] = {}
    denied: list[AccessDenied] = []
    limiter = anyio.CapacityLimiter(_LAGS_AT_ONCE)

    async def ask(lease: Lease) -> None:
        """One lease; a refusal ends the others."""
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


async def _lag(lease: Lease, kinesis: Kinesis, of: Stream) -> Lag:
    if lease.checkpoint == LATEST:
        return Lag(None, "no checkpoint yet")  # where its worker began is written nowhere
    stream, start = of.ref, read_from(lease.checkpoint, StartMemory(), of.position.timestamp_s)
    try:
        iterator = await kinesis.get_shard_iterator(stream, lease.shard_id, start)
        fetched = await kinesis.get_records(stream, lease.shard_id, iterator, 1)
    except AccessDenied:
        raise
    except Throttled:
        return Lag(None, "throttled")
    except StreamNotFound:
        return Lag(None, "no such shard")
    except AwsError as error:
        return Lag(None, str(error))
    behind = fetched.millis_behind_latest
    return Lag(behind) if behind is not None else Lag(None, "no answer")
