"""One look after another at an application from outside: its tables and its streams. Writes nothing.

The workers may be dead, or Java's. What could not be looked at is in the answer: it is neither zero nor fine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from kcl_daemon.capacity.figures import Capacity
from kcl_daemon.cli.application import Application, no_log, observer
from kcl_daemon.cli.leases.look import LeaseLag, lags
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import for_each, timings
from kcl_daemon.coverage import CoverageLog, ShardCoverage, TablesSeen, Unread, UnreadShard, coverage
from kcl_daemon.errors import AwsError, ConfigurationError
from kcl_daemon.fleet.capacity_watch import read_capacity
from kcl_daemon.fleet.coverage_watch import tables_seen
from kcl_daemon.fleet.many_streams import MultiStreamTracker
from kcl_daemon.fleet.streams import stream_words
from kcl_daemon.leases.holds import HOLDS_KEY, Hold, MalformedHoldsError, holds_from_row
from kcl_daemon.leases.lease import Lease, LeaseKey, StreamIdentity
from kcl_daemon.leases.text_row import OwnStream
from kcl_daemon.ports import StreamRef
from kcl_daemon.shards.lineage import Shard, leases_of_another
from kcl_protocol.sequence import ExtendedSequenceNumber

# Of the stream: shards, positions; each costs a call a shard or a stream.
STREAM_EVERY_S: Final = 60.0
_LISTED_AT_ONCE: Final = 10
_BACK_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Position:
    """Of a lease: its checkpoint, since when it stands there, and when it last went back; `lag`: of the last look into the stream."""

    checkpoint: ExtendedSequenceNumber
    since_s: float
    lag: LeaseLag
    back_s: float = -inf


@dataclass(frozen=True, slots=True)
class Watched:
    """What a look has found, at `now_s` (monotonic) and `now_ms` (epoch).

    Args:
        log: of all shards, and since when nobody reads them.
        complete: no stream's shards are unknown, so that a shard without a lease is seen.
        settled: it was watched for long enough to know who renews.
        seen_s: when the tables were last read; None: never.
        troubles: what could not be looked at, and why.
    """

    now_s: float
    now_ms: int
    log: CoverageLog = field(default_factory=CoverageLog)
    complete: bool = False
    settled: bool = False
    seen_s: float | None = None
    workers: int | None = None
    positions: Mapping[LeaseKey, Position] = field(default_factory=dict[LeaseKey, Position])
    capacity: Capacity | None = None
    troubles: tuple[str, ...] = ()

    @property
    def unread(self) -> tuple[UnreadShard, ...]:
        return self.log.unread(self.now_s)

    @property
    def oldest(self) -> tuple[LeaseKey, float] | None:
        """The shard with the oldest unread record, and its age in seconds; None: unknown."""
        known = [(at.lag.millis, key) for key, at in self.positions.items() if at.lag.millis is not None]
        worst = max(known, key=lambda each: each[0], default=None)
        return worst and (worst[1], worst[0] / 1000)

    @property
    def unknown_lags(self) -> int:
        return sum(each.lag.millis is None for each in self.positions.values())

    @property
    def still_s(self) -> float | None:
        """The longest time without a checkpoint where records wait; None: unknown."""
        known = [each for each in self.positions.values() if each.lag.millis is not None]
        return max((self.now_s - each.since_s if each.lag.millis else 0.0 for each in known), default=None)

    @property
    def went_back(self) -> list[LeaseKey]:
        return [key for key, each in self.positions.items() if self.now_s - each.back_s < _BACK_S]

    def reasons(self, after_s: float) -> tuple[str, ...]:
        """Why it is not well, in words; `after_s`: how long a shard may be unread."""
        if self.seen_s is None:
            return self.troubles or ("nothing was seen yet",)
        words = (f"{each.key}: {each.why}" for each in self.unread if each.seconds > after_s)
        if not self.log.covered:
            return (*self.troubles, "there is no shard: the stream was never read, or the leases are gone")
        return (*self.troubles, *words)


class Watcher:
    """Reads through the ports of an application. Calls do not overlap."""

    def __init__(self, application: Application, settings: Settings) -> None:
        self._application = application
        self._clock = application.clock
        self._pace = timings(settings.leases, settings.balance)
        self._monitor = observer(
            application.opened.tables, settings, clock=self._clock, log=no_log(self._clock)
        )
        self._began_s = self._clock.monotonic()
        self._streams: dict[StreamRef, _Stream] = {}
        self._listed_s = self._measured_s = -inf
        self._watched = Watched(self._began_s, self._clock.wall_ms())

    async def look(self) -> Watched:
        """Never raises AwsError: what failed is in `troubles`, and what was known before stays, with its time."""
        troubles: list[str] = []
        before, tables = self._watched, self._application.opened.tables
        now_s, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        try:
            await self._monitor.poll()
            await self._monitor.refresh_workers()
            _, capacity = await read_capacity(tables.coordinator)
            pauses = await self._pauses(troubles)
        except AwsError as error:
            troubles.append(f"the tables cannot be read: {error}")
            self._watched = replace(before, now_s=now_s, now_ms=now_ms, troubles=tuple(troubles))
            return self._watched
        settled = now_s - self._began_s > self._pace.failover_s
        seen = tables_seen(self._monitor, pauses)
        by_stream = seen.by_stream()
        await self._list_streams(by_stream, troubles)
        covered = [
            each
            for stream in self._streams.values()
            for each in stream.covered(replace(seen, leases=by_stream.get(stream.ref.identity, [])))
        ]
        self._watched = Watched(
            now_s,
            now_ms,
            before.log.seen(covered, seen, self._clock.monotonic()),
            complete=bool(self._streams) and all(each.shards is not None for each in self._streams.values()),
            settled=settled,
            seen_s=now_s,
            # Before KCL 3 none reports.
            workers=len(seen.living | {each.reader for each in covered if settled and each.cause is None}),
            positions=await self._positions(before.positions, covered, troubles),
            capacity=capacity,
            troubles=tuple(troubles),
        )
        return self._watched

    async def _pauses(self, troubles: list[str]) -> tuple[Hold, ...]:
        try:
            holds = holds_from_row(await self._application.opened.tables.coordinator.get(HOLDS_KEY))
        except MalformedHoldsError as malformed:
            troubles.append(str(malformed))
            return ()
        return tuple(each for each in holds if not each.is_over(self._clock.wall_ms()))

    async def _list_streams(
        self, by_stream: Mapping[StreamIdentity | None, Sequence[Lease]], troubles: list[str]
    ) -> None:
        """Now and then, and where the leases say that the list is old."""
        now_s, streams = self._clock.monotonic(), self._application.streams
        is_due, refs = now_s - self._listed_s >= STREAM_EVERY_S, list(self._streams)
        if is_due:
            try:
                if isinstance(streams, MultiStreamTracker):
                    await streams.prepare()
                    refs = [each.ref for each in streams.current]
                else:
                    refs = [streams.stream.ref]
            except (AwsError, ConfigurationError) as error:
                troubles.append(f"the streams cannot be listed: {error}")
                return
            self._listed_s = now_s
        of = self._streams
        asked = [ref for ref in refs if is_due or of[ref].is_older_than(by_stream.get(ref.identity, ()))]
        await for_each(asked, self._list, at_once=_LISTED_AT_ONCE)
        self._streams = {ref: self._streams[ref] for ref in refs}
        troubles += [each.trouble for each in self._streams.values() if each.trouble]

    async def _list(self, ref: StreamRef) -> None:
        kinesis, own, another = self._application.kinesis, self._application.own_stream, None
        try:
            shards = tuple(await kinesis.list_shards(ref))
            if own is not None:
                summary, stored = await kinesis.describe_stream(ref), await own.stored()
                mine = OwnStream.of(summary.arn, summary.creation_time_s)
                if stored is not None and stored != mine:
                    words = stream_words(stored), stream_words(mine)
                    another = "the tables belong to the stream {}, not to {}".format(*words)
            self._streams[ref] = _Stream(ref, shards, another)
        except AwsError as error:
            unknown = f"the shards of {ref.name} are not known: {error}"
            self._streams[ref] = _Stream(ref, None, trouble=unknown)

    async def _positions(
        self, before: Mapping[LeaseKey, Position], covered: Iterable[ShardCoverage], troubles: list[str]
    ) -> Mapping[LeaseKey, Position]:
        now_s = self._clock.monotonic()
        chosen = {
            each.key for each in covered if each.waits_for is None and each.cause is not Unread.OTHER_STREAM
        }
        leases = [each for each in self._monitor.leases if each.lease_key in chosen and not each.is_finished]
        measured: Mapping[LeaseKey, LeaseLag] = {}
        if now_s - self._measured_s >= STREAM_EVERY_S:
            try:
                measured = await lags(leases, self._application.kinesis, self._application.streams)
                self._measured_s = now_s
            except AwsError as error:
                troubles.append(f"the age of records is not known: {error}")
                measured = {each.lease_key: LeaseLag(None, str(error)) for each in leases}
        return {
            (key := one.lease_key): _position(one, before.get(key), measured.get(key), now_s)
            for one in leases
        }


def _position(lease: Lease, before: Position | None, lag: LeaseLag | None, now_s: float) -> Position:
    before = before or Position(lease.checkpoint, now_s, LeaseLag(None, "not looked at yet"))
    since_s = before.since_s if before.checkpoint == lease.checkpoint else now_s
    back_s = now_s if lease.checkpoint < before.checkpoint else before.back_s
    return Position(lease.checkpoint, since_s, lag or before.lag, back_s)


@dataclass(frozen=True, slots=True)
class _Stream:
    """`another`: why no lease is of it. `trouble`: why `shards` is None."""

    ref: StreamRef
    shards: tuple[Shard, ...] | None
    another: str | None = None
    trouble: str = ""

    def is_older_than(self, leases: Iterable[Lease]) -> bool:
        """Whether a lease of it is finished whose shard was open, or of a shard that was not there."""
        is_open = {each.shard_id: each.is_open for each in self.shards or ()}
        return self.shards is None or any(
            is_open.get(each.shard_id, False) if each.is_finished else each.shard_id not in is_open
            for each in leases
        )

    def covered(self, seen: TablesSeen) -> tuple[ShardCoverage, ...]:
        another: dict[LeaseKey, str] = {}
        if self.another is not None:
            another = {each.lease_key: self.another for each in seen.leases}
        elif self.ref.source.is_replaceable:
            another = {
                lease.lease_key: why for lease, why in leases_of_another(seen.leases, self.shards or ())
            }
        return coverage(self.ref.identity, self.shards, replace(seen, another=another))
