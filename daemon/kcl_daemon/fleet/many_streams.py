"""Many streams (KCL: MultiStreamTracker): each is synced as one alone, and what is left of former ones is deleted.

A multi-stream table calls a stream `account:name:epoch`; Java programs write any epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final

import anyio

from kcl_daemon import faults
from kcl_daemon.config.streams import FormerStreams, ListedStream, StreamsSettings
from kcl_daemon.context import WorkerContext, for_each
from kcl_daemon.errors import AccessDenied, AwsError, ConfigurationError, StreamNotFound
from kcl_daemon.fleet.shard_sync import ShardSync
from kcl_daemon.fleet.streams import StreamMonitor, StreamState, TrackedStream
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, StreamIdentity, TableStream
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, StreamSummary, Table, streams_of
from kcl_daemon.shards.lineage import InitialPosition, StartAt, leases_match_shards
from kcl_daemon.shards.table_streams import no_stream_of

# DescribeStreamSummary is limited to 20 calls a second for the whole account.
_MAX_PARALLEL_CALLS: Final = 4
_READABLE: Final = frozenset({"ACTIVE", "UPDATING", "ENABLING", "ENABLED", "DISABLING", "DISABLED"})
# For an unknown creation time; no real stream has it.
_LONG_GONE_S: Final = 0
_MANY_STREAMS_ADVICE: Final = (
    "Each shard would be read once per identity. Stop all workers, use `kcl-daemon leases list` to see "
    "which identity has the later checkpoints, and delete the leases of the others with `kcl-daemon "
    "leases delete --stream IDENTITY --shard ID`"
)
_MAX_PARALLEL_SYNCS: Final = 8
_MAX_NOTES_PER_RUN: Final = 200
LeasesByStream = Mapping[StreamIdentity, Sequence[Lease]]


def streams_to_read(
    summaries: Sequence[StreamSummary], leases: LeasesByStream, position: InitialPosition
) -> list[tuple[StreamSummary, InitialPosition]]:
    """Of the streams of a DynamoDB table, oldest first: up to the first that is not finished.

    `position` is for the one that reading began with.
    """
    labels = [_table_stream(each).label for each in summaries]
    mine = _table_stream(summaries[-1])
    of_leases = [each.of_table for each in leases]
    begun = [each.label for each in of_leases if each is not None and each.is_beside(mine)]
    first = min(begun, default=labels[_first_of(summaries, position)])
    found: list[tuple[StreamSummary, InitialPosition]] = []
    for label, summary in zip(labels, summaries, strict=True):
        if label < first:
            continue
        found.append((summary, position if label == first else InitialPosition(StartAt.TRIM_HORIZON)))
        own = leases.get(StreamIdentity.of_arn(summary.arn, summary.creation_time_s), ())
        if not own or not all(lease.is_finished for lease in own):
            break
    return found


def _table_stream(summary: StreamSummary) -> TableStream:
    found = TableStream.of(summary.arn)
    assert found is not None, "a table's stream has such an ARN"
    return found


def _first_of(summaries: Sequence[StreamSummary], position: InitialPosition) -> int:
    if position.at is not StartAt.TIMESTAMP or position.timestamp_s is None:
        return len(summaries) - 1 if position.at is StartAt.LATEST else 0
    return max(sum(each.creation_time_s <= position.timestamp_s for each in summaries) - 1, 0)


def by_stream(leases: Iterable[Lease]) -> dict[StreamIdentity, list[Lease]]:
    found: dict[StreamIdentity, list[Lease]] = {}
    for lease in leases:
        if lease.stream is not None:
            found.setdefault(lease.stream, []).append(lease)
    return found


class MultiStreamTracker:
    """`position` is for streams without one of their own; `leases` reads all leases."""

    def __init__(
        self,
        settings: StreamsSettings,
        *,
        position: InitialPosition,
        leases: Callable[[], Awaitable[Sequence[Lease]]],
        kinesis: Kinesis,
        clock: Clock,
        log: Log,
        check_images: Callable[[StreamSummary, Log], None],
    ) -> None:
        self._leases = leases
        self._check_images = check_images
        self._named = (*settings.arns, *settings.names)
        self._followed: dict[ListedStream, tuple[ListedStream, ...]] = dict.fromkeys(settings.tables, ())
        self._filter = settings.name_filter
        self._filtered: tuple[ListedStream, ...] = ()
        self._was_filtered = False
        self._is_list_fresh = False
        self._position = position
        self._refresh_s = settings.refresh_ms / 1000
        self._kinesis = kinesis
        self._clock = clock
        self._log = log
        self._known: dict[StreamIdentity, TrackedStream] = {}
        self._current: dict[ListedStream, TrackedStream] = {}
        self._missing: set[ListedStream] = set()
        self._created_s: dict[StreamIdentity, int] = {}
        self._doubles: dict[ListedStream, tuple[StreamIdentity, ...]] = {}
        self._arns = [each.arn for each in settings.arns if each.arn and TableStream.of(each.name) is None]
        self._polled_s: float | None = None

    @property
    def _listed(self) -> tuple[ListedStream, ...]:
        return (*self._named, *self._filtered, *(each for found in self._followed.values() for each in found))

    @property
    def is_list_known(self) -> bool:
        """An unlisted stream is a former one; not until a new leader has listed the streams itself."""
        return self._filter is None or self._is_list_fresh

    @property
    def current(self) -> tuple[TrackedStream, ...]:
        return tuple(self._current[each] for each in self._listed if each in self._current)

    def of(self, lease: Lease) -> TrackedStream:
        identity = lease.stream
        assert identity is not None, "every lease is of a stream here: the start has seen to that"
        self._learn_streams([lease])
        return self.known(identity)

    def known(self, identity: StreamIdentity) -> TrackedStream:
        found = self._known.get(identity)
        if found is None:
            listed = self.listing(identity)
            position = self._position if listed is None else listed.position or self._position
            found = self._known[identity] = self._stream(identity, self._arn_of(identity, listed), position)
        return found

    def listing(self, identity: StreamIdentity) -> ListedStream | None:
        """With this name and account, whatever the epoch; None for a former stream."""
        for listed in self._listed:
            if listed.name != identity.name:
                continue
            stream = self._current.get(listed)
            is_known = stream is not None and stream.ref.identity is not None
            if listed.arn is not None:
                account: str | None = listed.arn.split(":")[4]
            else:
                account = stream.ref.identity.account if is_known and stream and stream.ref.identity else None
            if account in (None, identity.account):
                return listed
        return None

    def successor(self, identity: StreamIdentity) -> StreamIdentity | None:
        """None also if unknown: only a noted creation time, or positions that the stream cannot have, prove it."""
        listed = self.listing(identity)
        stream = None if listed is None else self._current.get(listed)
        current = None if stream is None else stream.ref.identity
        created_s = self._created_s.get(identity)
        if current is None or created_s is None or created_s == self._created_s.get(current):
            return None
        return current

    def creation_s(self, identity: StreamIdentity) -> int | None:
        return self._created_s.get(identity)

    async def discover(self) -> None: ...

    async def prepare(self) -> None:
        """A missing stream does not block the others.

        Raises:
            ConfigurationError: leases of one stream have two identities.
        """
        failures = await self._poll(by_stream(await self._leases()))
        for listed in self._doubles:
            raise ConfigurationError(f"{self._logged_duplicates(listed)}. {_MANY_STREAMS_ADVICE}")
        if failures and not self._current:
            others = [each for each in failures if not isinstance(each, StreamNotFound)]
            if others:
                raise others[0]

    async def refresh(self, leases: LeasesByStream) -> None:
        """Never raises for AWS."""
        now_s = self._clock.monotonic()
        if self._polled_s is None or now_s - self._polled_s >= self._refresh_s:
            before = dict(self._doubles)
            await self._poll(leases)
            for listed in self._doubles:
                if self._doubles[listed] != before.get(listed):
                    self._log.error(
                        "stream_has_two_identities",
                        error=self._logged_duplicates(listed),
                        advice=_MANY_STREAMS_ADVICE,
                    )

    def _logged_duplicates(self, listed: ListedStream) -> str:
        names = " and ".join(str(each) for each in self._doubles[listed])
        return (
            f"the lease table has leases of the stream {listed.name} under {names}, and it is unknown which "
            "are valid"
        )

    def _learn_streams(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            identity, created_s = lease.stream, lease.stream_created_s
            if identity is None or created_s is None or created_s <= self._created_s.get(identity, -1):
                continue
            self._created_s[identity] = created_s
            if (known := self._known.get(identity)) is not None:
                known.watch.was_created(created_s)

    def forget_poll(self) -> None:
        self._polled_s, self._is_list_fresh = None, False

    async def _poll(self, leases: LeasesByStream) -> list[AwsError]:
        limiter, failures = anyio.CapacityLimiter(_MAX_PARALLEL_CALLS), list[AwsError]()
        for each in leases.values():
            self._learn_streams(each)

        async def poll(listed: ListedStream) -> None:
            async with limiter:
                try:
                    summary = await self._kinesis.describe_stream(self._ref(listed))
                    await self._found(listed, summary, leases)
                except AwsError as error:
                    failures.append(error)
                    self._failed(listed, error)

        async with anyio.create_task_group() as polls:
            if self._filter is not None:
                polls.start_soon(self._list_by_filter, self._filter, failures, leases)
            for followed in self._followed:
                polls.start_soon(self._follow, followed, failures, leases)
            for listed in self._named:
                polls.start_soon(poll, listed)
        self._polled_s = self._clock.monotonic()
        return failures

    async def _list_by_filter(self, pattern: str, failures: list[AwsError], leases: LeasesByStream) -> None:
        try:
            summaries = await self._kinesis.list_streams()
        except AwsError as error:
            failures.append(error)
            self._log.warning("streams_not_listed", streamFilter=pattern, error=str(error))
            return
        named = {each.arn or each.name for each in self._named}
        fitting = [
            each for each in summaries if fnmatchcase(each.name, pattern) and each.status != "DELETING"
        ]
        if not fitting and not (self._was_filtered and not self._filtered):
            self._log.warning(
                "no_stream_fits_the_filter",
                streamFilter=pattern,
                listed=len(summaries),
                advice="check streamFilter, regionName and the account of the credentials; streams created "
                "later are read",
            )
        found = {
            ListedStream(each.name, each.arn): each for each in fitting if not named & {each.name, each.arn}
        }
        for gone in [each for each in self._filtered if each not in found]:
            self._log.info("stream_left_the_filter", stream=gone.arn)
            if (stream := self._current.pop(gone, None)) is not None:
                stream.watch.recheck()
        self._filtered, self._was_filtered, self._is_list_fresh = tuple(found), True, True
        for listed, summary in found.items():
            try:
                await self._found(listed, summary, leases)
            except AwsError as error:
                failures.append(error)
                self._failed(listed, error)

    async def _follow(self, listed: ListedStream, failures: list[AwsError], leases: LeasesByStream) -> None:
        table = listed.table or listed.name
        try:
            summaries = await streams_of(self._kinesis, table)
            if not summaries:
                raise StreamNotFound(no_stream_of(table), operation="ListStreams")
            found = streams_to_read(summaries, leases, listed.position or self._position)
            streams = {ListedStream(each.name, each.arn, listed.position): each for each, _ in found}
            self._followed[listed] = tuple(streams)
            for (one, summary), (_, position) in zip(streams.items(), found, strict=True):
                await self._found(one, summary, leases, position)
            self._missing.discard(listed)
        except AwsError as error:
            failures.append(error)
            self._failed(listed, error)

    def is_read_out(self, identity: StreamIdentity, leases: LeasesByStream) -> bool:
        mine = identity.of_table
        if mine is None or self.listing(identity) is not None:
            return False
        is_followed = mine.table in {each.table for each in self._followed}
        is_finished = all(lease.is_finished for lease in leases[identity])
        return (
            is_followed
            and is_finished
            and any(
                (other := each.of_table) is not None and other.is_beside(mine) and other.label > mine.label
                for each in leases
            )
        )

    def _ref(self, listed: ListedStream) -> StreamRef:
        return StreamRef(listed.name, listed.arn)

    async def _found(
        self,
        listed: ListedStream,
        summary: StreamSummary,
        leases: LeasesByStream,
        position: InitialPosition | None = None,
    ) -> None:
        if summary.status not in _READABLE:
            if summary.status == "DELETING":
                self._failed(listed, StreamNotFound(f"stream {summary.name} is being deleted"))
            return
        identity = await self._identity(listed, summary, leases)
        self._missing.discard(listed)
        if not self._arns and identity.of_table is None:
            self._arns.append(summary.arn)
        before = self._current.get(listed)
        stream = self._known.get(identity)
        if stream is None or stream.ref.arn != summary.arn:
            position = position or listed.position or self._position
            stream = self._known[identity] = self._stream(identity, summary.arn, position)
        self._current[listed] = stream
        stream.watch.seen(summary)
        if before is stream:
            return
        self._log.info("stream_found", stream=str(identity), arn=summary.arn, status=summary.status)
        try:
            self._check_images(summary, self._log)
        except ConfigurationError as error:
            self._log.error("stream_without_images", stream=str(identity), error=str(error))
        if before is not None and before.ref.identity != identity:
            before.watch.seen(summary)

    async def _identity(
        self, listed: ListedStream, summary: StreamSummary, leases: LeasesByStream
    ) -> StreamIdentity:
        real = StreamIdentity.of_arn(summary.arn, summary.creation_time_s)
        if real.of_table is not None:
            return real
        created_s = real.creation_epoch
        candidates = await self._candidates(real, summary, leases)
        before = self._current.get(listed)
        known = None if before is None else before.ref.identity
        if known is not None and self._created_s.get(known) == created_s:
            candidates = [known, *(each for each in candidates if each != known)]
        self._doubles.pop(listed, None)
        if sum(each in leases for each in candidates) > 1:
            self._doubles[listed] = tuple(sorted(candidates, key=str))
        identity = candidates[0] if candidates else real
        self._created_s[identity] = created_s
        return identity

    async def _candidates(
        self, real: StreamIdentity, summary: StreamSummary, leases: LeasesByStream
    ) -> list[StreamIdentity]:
        named = [each for each in leases if (each.account, each.name) == (real.account, real.name)]
        noted = {each: self._created_s.get(each) for each in named}
        own = [each for each in named if noted[each] == real.creation_epoch]
        own += [each for each in named if noted[each] is None and each == real]
        doubtful = [each for each in named if noted[each] is None and each != real]
        if not doubtful:
            return own
        shards = await self._kinesis.list_shards(StreamRef(summary.name, summary.arn))
        for each in doubtful:
            if leases_match_shards(leases[each], shards) is False:
                self._created_s[each] = _LONG_GONE_S
            else:
                own.append(each)
        return own

    def _failed(self, listed: ListedStream, error: AwsError) -> None:
        if listed in self._missing:
            self._log.debug("stream_not_found", stream=listed.arn or listed.name, error=str(error))
            return
        if isinstance(error, StreamNotFound):
            self._missing.add(listed)
            self._log.error(
                "stream_not_found",
                stream=listed.arn or listed.name,
                error=str(error),
                advice="create it, or remove it from the list; the other streams are read, and the daemon "
                "looks for this one every streamListRefreshMillis",
            )
            return
        self._log.warning("stream_not_described", stream=listed.arn or listed.name, error=str(error))

    def _arn_of(self, identity: StreamIdentity, listed: ListedStream | None) -> str | None:
        if listed is not None and listed.arn is not None:
            return listed.arn
        if identity.of_table is not None:
            return identity.of_table.arn
        if not self._arns:
            return None
        _, partition, _, region = self._arns[0].split(":")[:4]
        return f"arn:{partition}:kinesis:{region}:{identity.account}:stream/{identity.name}"

    def _stream(self, identity: StreamIdentity, arn: str | None, position: InitialPosition) -> TrackedStream:
        ref = StreamRef(identity.name, arn, identity)
        watch = StreamMonitor(
            kinesis=self._kinesis,
            stream=ref,
            clock=self._clock,
            log=self._log,
            created_s=self._created_s.get(identity),
        )
        return TrackedStream(ref, position, watch)


class FormerStreamCleanup:
    """KCL: FormerStreamsLeasesDeletionStrategy.

    A worker that holds such a lease loses it at its next renewal.
    """

    def __init__(
        self, context: WorkerContext, *, table: Table, streams: MultiStreamTracker, settings: StreamsSettings
    ) -> None:
        self._context = context
        self._meters = context.meters
        self._table = table
        self._streams = streams
        self._settings = settings
        self._since_s: dict[StreamIdentity, float] = {}

    def begin(self) -> None:
        """The previous leader may have had another list, so all waits start again."""
        self._since_s.clear()

    async def clean(self, leases: Mapping[StreamIdentity, Sequence[Lease]]) -> None:
        """Never raises for AWS."""
        now_s = self._context.clock.monotonic()
        former = [identity for identity in leases if self._is_former(identity)]
        self._since_s = {identity: self._since_s.get(identity, now_s) for identity in former}
        self._meters.add(kcl.STREAMS_PENDING, len(former))
        for identity in leases:
            try:
                is_read = self._streams.is_read_out(identity, leases)
                reason = "the table's next stream is read" if is_read else await self._reason(identity)
                if reason is not None:
                    await self._delete(identity, leases[identity], reason)
            except AwsError as error:
                self._context.log.info("former_stream_not_cleaned", stream=str(identity), error=str(error))

    def _is_former(self, identity: StreamIdentity) -> bool:
        if not self._streams.is_list_known:
            return False
        return self._streams.listing(identity) is None or self._streams.successor(identity) is not None

    async def _reason(self, identity: StreamIdentity) -> str | None:
        since_s = self._since_s.get(identity)
        if since_s is None or not self._should_delete(identity):
            return None
        successor = self._streams.successor(identity)
        if self._context.clock.monotonic() - since_s >= self._settings.former_wait_s:
            if successor is not None:
                return f"the stream was recreated; it is {successor} now"
            return "the stream is no longer listed"
        if successor is not None:
            return None
        gone = await self._streams.known(identity).watch.confirm() is StreamState.GONE
        if not gone:
            return None
        self._meters.add(kcl.STREAMS_NOT_FOUND)
        return "the stream is no longer listed, and Kinesis does not know it"

    def _should_delete(self, identity: StreamIdentity) -> bool:
        match self._settings.former:
            case FormerStreams.KEEP:
                return False
            case FormerStreams.DELETE_ALL:
                return True
            case FormerStreams.DELETE_GIVEN:
                return identity in self._settings.former_given

    async def _delete(self, identity: StreamIdentity, leases: Sequence[Lease], reason: str) -> None:
        count = 0
        try:
            for lease in leases:
                count += (await self._table.delete(lease.lease_key, lease_row.if_exists(lease))).applied
                faults.maybe("after-former-lease-deleted")
            self._meters.add(kcl.STREAMS_DELETED)
        finally:
            if count:
                self._context.log.info(
                    "former_stream_leases_deleted", stream=str(identity), count=count, reason=reason
                )


class MultiStreamShardSync:
    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        streams: MultiStreamTracker,
        shard_sync_of: Callable[[TrackedStream], ShardSync],
        former: FormerStreamCleanup,
    ) -> None:
        self._meters = context.meters
        self._table = table
        self._streams = streams
        self._shard_sync_of = shard_sync_of
        self._former = former
        self._log = context.log
        self._syncers: dict[StreamIdentity, ShardSync] = {}

    def begin(self) -> None:
        self._syncers.clear()
        self._former.begin()
        self._streams.forget_poll()

    @property
    def audited(self) -> frozenset[StreamIdentity | None]:
        return frozenset().union(*(each.audited for each in self._syncers.values()))

    async def ensure(self, leases: Sequence[Lease]) -> bool:
        """Returns whether leases were created; never raises for AWS. `leases` are all, as just read."""
        found = by_stream(leases)
        await self._streams.refresh(found)
        self._keep_current()
        self._meters.add(kcl.STREAMS_ACTIVE, len(self._syncers))
        await self._note_creation(found)
        created = await self._ensure_all(found)
        await self._former.clean(found)
        return created

    async def _note_creation(self, leases: LeasesByStream) -> None:
        """Java programs do not. Never raises for AWS."""

        async def note(unnoted: tuple[Lease, int]) -> None:
            await self._table.update(lease_row.stream_creation_update(*unnoted))
            faults.maybe("after-stream-creation-noted")

        await for_each(islice(self._unnoted(leases), _MAX_NOTES_PER_RUN), note, at_once=_MAX_PARALLEL_SYNCS)

    def _unnoted(self, leases: LeasesByStream) -> Iterator[tuple[Lease, int]]:
        for identity in self._syncers:
            created_s = self._streams.creation_s(identity)
            for lease in leases.get(identity, ()):
                if lease.stream_created_s is None and created_s is not None:
                    yield lease, created_s

    def _keep_current(self) -> None:
        before = self._syncers
        self._syncers = {}
        for stream in self._streams.current:
            identity = stream.ref.identity
            assert identity is not None, "one of many streams has an identity"
            shard_sync = before.get(identity)
            if shard_sync is None:
                shard_sync = self._shard_sync_of(stream)
                shard_sync.begin()
            self._syncers[identity] = shard_sync

    async def _ensure_all(self, leases: LeasesByStream) -> bool:
        created = False

        async def ensure(syncer: tuple[StreamIdentity, ShardSync]) -> None:
            nonlocal created
            identity, shard_sync = syncer
            try:
                created = await shard_sync.ensure(leases.get(identity, ())) or created
            except AwsError as error:
                report = self._log.error if isinstance(error, AccessDenied) else self._log.warning
                report("lease_sync_failed", stream=str(identity), error=str(error))

        await for_each(self._syncers.items(), ensure, at_once=_MAX_PARALLEL_SYNCS)
        return created
