"""Many streams in one application: which of those listed there are, and how each is called (KCL: MultiStreamTracker).

Owns what Kinesis has told of them. Every worker can tell the stream of any lease, without a call; which of them there
are the leader keeps finding out. Knows nothing of what becomes of their leases.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

import anyio

from kcl_daemon.config.stream_settings import ListedStream, StreamsSettings
from kcl_daemon.coordination.stream_watch import StreamWatch
from kcl_daemon.coordination.streams import Stream
from kcl_daemon.errors import AwsError, StreamNotFound
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, StreamSummary
from kcl_daemon.shards.shard import InitialPosition

# DescribeStreamSummary is allowed twenty times a second, to the whole account.
_AT_ONCE: Final = 4
_READABLE: Final = frozenset({"ACTIVE", "UPDATING"})


class ManyStreams:
    """The `Streams` of an application that reads many.

    Args:
        settings: which ones, and how often `refresh` looks.
        position: where reading begins, of those that do not say so.
        kinesis: tells of them.
        clock: for that.
        log: a stream that cannot be had is told once, until it is there.
    """

    def __init__(
        self,
        settings: StreamsSettings,
        *,
        position: InitialPosition,
        kinesis: Kinesis,
        clock: Clock,
        log: Log,
    ) -> None:
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
        """As the protocol says. A worker may be given a lease of a stream that is only in the leader's list (N5)."""
        identity = lease.stream
        assert identity is not None, "every lease is of a stream here: the start has seen to that"
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
        """The stream that has the name of this one now; None where that is not known."""
        listed = self.listing(identity)
        stream = None if listed is None else self._current.get(listed)
        current = None if stream is None else stream.ref.identity
        is_later = current is not None and current.creation_epoch > identity.creation_epoch
        return current if is_later else None

    async def prepare(self) -> None:
        """As the protocol says. One that is not there does not hold up the others."""
        failures = await self._look()
        if failures and not self._current:
            others = [each for each in failures if not isinstance(each, StreamNotFound)]
            if others:
                raise others[0]

    async def refresh(self) -> None:
        """Look again where it is time. Never raises for AWS: what is not told now is told at the next look."""
        now_s = self._clock.monotonic()
        if self._looked_s is None or now_s - self._looked_s >= self._refresh_s:
            await self._look()

    def forget_look(self) -> None:
        """The next `refresh` looks at once."""
        self._looked_s = None

    async def _look(self) -> list[AwsError]:
        """Look at all of them; what they failed with."""
        limiter, failures = anyio.CapacityLimiter(_AT_ONCE), list[AwsError]()

        async def look(listed: ListedStream) -> None:
            """One of them."""
            async with limiter:
                try:
                    self._found(listed, await self._kinesis.describe_stream(self._ref(listed)))
                except AwsError as error:
                    failures.append(error)
                    self._failed(listed, error)

        async with anyio.create_task_group() as looks:
            if self._filter is not None:
                looks.start_soon(self._look_by_filter, self._filter, failures)
            for listed in self._named:
                looks.start_soon(look, listed)
        self._looked_s = self._clock.monotonic()
        return failures

    async def _look_by_filter(self, pattern: str, failures: list[AwsError]) -> None:
        """Look which streams have names like this; what is not told leaves them as they were."""
        try:
            summaries = await self._kinesis.list_streams()
        except AwsError as error:
            failures.append(error)
            self._log.warning("streams_not_listed", streamFilter=pattern, error=str(error))
            return
        named = {each.arn or each.name for each in self._named}
        found = {
            ListedStream(each.name, each.arn): each
            for each in summaries
            if fnmatchcase(each.name, pattern)
            and not named & {each.name, each.arn}
            and each.status != "DELETING"
        }
        for gone in set(self._filtered) - found.keys():
            self._log.info("stream_left_the_filter", stream=gone.arn)
            if (stream := self._current.pop(gone, None)) is not None:
                stream.watch.doubt()
        self._filtered, self._was_filtered = tuple(found), True
        for listed, summary in found.items():
            self._found(listed, summary)

    def _ref(self, listed: ListedStream) -> StreamRef:
        # By what is configured, so that a stream that was created anew is found.
        return StreamRef(listed.name, listed.arn)

    def _found(self, listed: ListedStream, summary: StreamSummary) -> None:
        if summary.status not in _READABLE:
            if summary.status == "DELETING":
                self._failed(listed, StreamNotFound(f"stream {summary.name} is being deleted"))
            return
        identity = StreamIdentity.of_arn(summary.arn, summary.creation_time_s)
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
            before.watch.is_another("its creation time has changed")

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
                advice="create it, or take it off the list; the other streams are read, and this one is looked for "
                "again every streamListRefreshMillis",
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
        watch = StreamWatch(kinesis=self._kinesis, stream=ref, clock=self._clock, log=self._log)
        return Stream(ref, position, watch)
