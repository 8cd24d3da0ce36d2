"""Many streams in one application: which of those listed there are, and how each is called (KCL: MultiStreamTracker).

Owns what Kinesis has told of them, and which identity (`account:name:epoch`) each has in the lease table. Every worker
can tell the stream of any lease, without a call; which of them there are the leader keeps finding out. Knows nothing of
what becomes of their leases.

KCL takes the epoch from the program and never compares it with Kinesis (StreamIdentifier: "assumed to be correct"), so
it may be anything. What a stream's leases are called in the table, they go on being called; that it was created anew
is told by a creation time that differs from the one noted in its leases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

import anyio

from kcl_daemon.config.stream_settings import ListedStream, StreamsSettings
from kcl_daemon.coordination.stream_watch import StreamWatch
from kcl_daemon.coordination.streams import Stream
from kcl_daemon.errors import AwsError, ConfigurationError, StreamNotFound
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, StreamSummary
from kcl_daemon.shards.former import are_of_these_shards
from kcl_daemon.shards.shard import InitialPosition

# DescribeStreamSummary is allowed twenty times a second, to the whole account.
_AT_ONCE: Final = 4
_READABLE: Final = frozenset({"ACTIVE", "UPDATING"})
# The creation time of a stream that is no more, where nobody knows it; no stream has this one.
_LONG_GONE_S: Final = 0
_ADVICE: Final = (
    "Each shard would be read once per identity. Stop all workers, use `kcl-daemon leases list` to see "
    "which identity has the later checkpoints, and delete the leases of the others with `kcl-daemon "
    "leases delete --stream IDENTITY --shard ID`"
)

LeasesByStream = Mapping[StreamIdentity, Sequence[Lease]]


def by_stream(leases: Iterable[Lease]) -> dict[StreamIdentity, list[Lease]]:
    """The leases of each stream."""
    found: dict[StreamIdentity, list[Lease]] = {}
    for lease in leases:
        if lease.stream is not None:
            found.setdefault(lease.stream, []).append(lease)
    return found


class ManyStreams:
    """The `Streams` of an application that reads many.

    Args:
        settings: which ones, and how often `refresh` looks.
        position: where reading begins, of those that do not say so.
        leases: reads all leases there are, for the start.
        kinesis: tells of them.
        clock: for that.
        log: a stream that cannot be had is told once, until it is there.
    """

    def __init__(
        self,
        settings: StreamsSettings,
        *,
        position: InitialPosition,
        leases: Callable[[], Awaitable[Sequence[Lease]]],
        kinesis: Kinesis,
        clock: Clock,
        log: Log,
    ) -> None:
        self._leases = leases
        self._named = settings.listed
        self._filter = settings.name_filter
        self._filtered: tuple[ListedStream, ...] = ()
        self._was_filtered = False
        self._position = position
        self._refresh_s = settings.refresh_ms / 1000
        self._kinesis = kinesis
        self._clock = clock
        self._log = log
        self._known: dict[StreamIdentity, Stream] = {}
        self._current: dict[ListedStream, Stream] = {}
        self._missing: set[ListedStream] = set()
        self._created_s: dict[StreamIdentity, int] = {}
        self._doubles: dict[ListedStream, tuple[StreamIdentity, ...]] = {}
        self._arns = [each.arn for each in self._named if each.arn is not None]
        self._looked_s: float | None = None

    @property
    def _listed(self) -> tuple[ListedStream, ...]:
        return (*self._named, *self._filtered)

    @property
    def is_list_known(self) -> bool:
        """Whether it is known which streams are listed: where a filter names some, Kinesis has answered once."""
        return self._filter is None or self._was_filtered

    @property
    def current(self) -> tuple[Stream, ...]:
        """Those that are listed and were there at the latest look."""
        return tuple(self._current[each] for each in self._listed if each in self._current)

    def of(self, lease: Lease) -> Stream:
        """As the protocol says. A worker may be given a lease of a stream that is only in the leader's list."""
        identity = lease.stream
        assert identity is not None, "every lease is of a stream here: the start has seen to that"
        self._learn([lease])
        return self.known(identity)

    def known(self, identity: StreamIdentity) -> Stream:
        """The stream of this identity, whether it is listed or there."""
        found = self._known.get(identity)
        if found is None:
            listed = self.listing(identity)
            position = self._position if listed is None else listed.position or self._position
            found = self._known[identity] = self._stream(identity, self._arn_of(identity, listed), position)
        return found

    def listing(self, identity: StreamIdentity) -> ListedStream | None:
        """Under what it is listed, by name and account, whatever stream of this name it is; None: it is a former one."""
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
        """The stream that has the name of this one now; None: it is this one still, or nobody knows.

        Only a creation time that is noted in the leases, or positions that the stream cannot have, show that it is another.
        """
        listed = self.listing(identity)
        stream = None if listed is None else self._current.get(listed)
        current = None if stream is None else stream.ref.identity
        created_s = self._created_s.get(identity)
        if current is None or created_s is None or created_s == self._created_s.get(current):
            return None
        return current

    def creation_s(self, identity: StreamIdentity) -> int | None:
        """When the stream was created whose leases are called so; None: nobody knows."""
        return self._created_s.get(identity)

    async def see(self) -> None:
        """As the protocol says: nothing, as streams may come later; the list is looked at by `prepare`."""

    async def prepare(self) -> None:
        """As the protocol says. One that is not there does not hold up the others.

        Raises:
            ConfigurationError: the table has leases of one stream under two identities.
        """
        failures = await self._look(by_stream(await self._leases()))
        for listed in self._doubles:
            raise ConfigurationError(f"{self._told_of_doubles(listed)}. {_ADVICE}")
        if failures and not self._current:
            others = [each for each in failures if not isinstance(each, StreamNotFound)]
            if others:
                raise others[0]

    async def refresh(self, leases: LeasesByStream) -> None:
        """Look again where it is time. Never raises for AWS: what is not told now is told at the next look.

        Args:
            leases: all there are, as just read.
        """
        now_s = self._clock.monotonic()
        if self._looked_s is None or now_s - self._looked_s >= self._refresh_s:
            before = dict(self._doubles)
            await self._look(leases)
            for listed in self._doubles:
                if self._doubles[listed] != before.get(listed):
                    self._log.error(
                        "stream_has_two_identities", error=self._told_of_doubles(listed), advice=_ADVICE
                    )

    def _told_of_doubles(self, listed: ListedStream) -> str:
        names = " and ".join(str(each) for each in self._doubles[listed])
        return (
            f"the lease table has leases of the stream {listed.name} under {names}, and it is unknown which "
            "are valid"
        )

    def _learn(self, leases: Iterable[Lease]) -> None:
        """Take in what was noted in leases; of two times the later one counts."""
        for lease in leases:
            identity, created_s = lease.stream, lease.stream_created_s
            if identity is None or created_s is None or created_s <= self._created_s.get(identity, -1):
                continue
            self._created_s[identity] = created_s
            if (known := self._known.get(identity)) is not None:
                known.watch.was_created(created_s)

    def forget_look(self) -> None:
        """The next `refresh` looks at once."""
        self._looked_s = None

    async def _look(self, leases: LeasesByStream) -> list[AwsError]:
        """Look at all of them; what they failed with."""
        limiter, failures = anyio.CapacityLimiter(_AT_ONCE), list[AwsError]()
        for each in leases.values():
            self._learn(each)

        async def look(listed: ListedStream) -> None:
            """One of them."""
            async with limiter:
                try:
                    summary = await self._kinesis.describe_stream(self._ref(listed))
                    await self._found(listed, summary, leases)
                except AwsError as error:
                    failures.append(error)
                    self._failed(listed, error)

        async with anyio.create_task_group() as looks:
            if self._filter is not None:
                looks.start_soon(self._look_by_filter, self._filter, failures, leases)
            for listed in self._named:
                looks.start_soon(look, listed)
        self._looked_s = self._clock.monotonic()
        return failures

    async def _look_by_filter(self, pattern: str, failures: list[AwsError], leases: LeasesByStream) -> None:
        """Look which streams have names like this; what is not told leaves them as they were."""
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
        for gone in set(self._filtered) - found.keys():
            self._log.info("stream_left_the_filter", stream=gone.arn)
            if (stream := self._current.pop(gone, None)) is not None:
                stream.watch.doubt()
        self._filtered, self._was_filtered = tuple(found), True
        for listed, summary in found.items():
            try:
                await self._found(listed, summary, leases)
            except AwsError as error:
                failures.append(error)
                self._failed(listed, error)

    def _ref(self, listed: ListedStream) -> StreamRef:
        # By what is configured, so that a stream that was created anew is found.
        return StreamRef(listed.name, listed.arn)

    async def _found(self, listed: ListedStream, summary: StreamSummary, leases: LeasesByStream) -> None:
        if summary.status not in _READABLE:
            if summary.status == "DELETING":
                self._failed(listed, StreamNotFound(f"stream {summary.name} is being deleted"))
            return
        identity = await self._identity(listed, summary, leases)
        self._missing.discard(listed)
        if not self._arns:
            self._arns.append(summary.arn)
        before = self._current.get(listed)
        stream = self._known.get(identity)
        if stream is None or stream.ref.arn != summary.arn:
            stream = self._stream(identity, summary.arn, listed.position or self._position)
            self._known[identity] = stream
        self._current[listed] = stream
        stream.watch.seen(summary)
        if before is stream:
            return
        self._log.info("stream_found", stream=str(identity), arn=summary.arn, status=summary.status)
        if before is not None and before.ref.identity != identity:
            before.watch.seen(summary)

    async def _identity(
        self, listed: ListedStream, summary: StreamSummary, leases: LeasesByStream
    ) -> StreamIdentity:
        """What the stream is called in its leases; what Kinesis tells, where it has none.

        Raises:
            AwsError: its shards could not be listed, which alone can tell whose some leases are.
        """
        real = StreamIdentity.of_arn(summary.arn, summary.creation_time_s)
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
        """What leases of this stream are called, those first that surely are its own."""
        named = [each for each in leases if (each.account, each.name) == (real.account, real.name)]
        noted = {each: self._created_s.get(each) for each in named}
        own = [each for each in named if noted[each] == real.creation_epoch]
        own += [each for each in named if noted[each] is None and each == real]
        doubtful = [each for each in named if noted[each] is None and each != real]
        if not doubtful:
            return own
        shards = await self._kinesis.list_shards(StreamRef(summary.name, summary.arn))
        for each in doubtful:
            if are_of_these_shards(leases[each], shards) is False:
                self._created_s[each] = _LONG_GONE_S
            else:
                own.append(each)
        return own

    def _failed(self, listed: ListedStream, error: AwsError) -> None:
        """It is not there, or nobody knows: its leases stay, and what is being read is read on."""
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
        if not self._arns:
            return None
        _, partition, _, region = self._arns[0].split(":")[:4]
        return f"arn:{partition}:kinesis:{region}:{identity.account}:stream/{identity.name}"

    def _stream(self, identity: StreamIdentity, arn: str | None, position: InitialPosition) -> Stream:
        ref = StreamRef(identity.name, arn, identity)
        watch = StreamWatch(
            kinesis=self._kinesis,
            stream=ref,
            clock=self._clock,
            log=self._log,
            created_s=self._created_s.get(identity),
        )
        return Stream(ref, position, watch)
