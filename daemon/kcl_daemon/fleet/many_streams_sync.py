"""Leases of many streams: each stream is synced as one alone, and what is left of former streams is deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from kcl_daemon import faults
from kcl_daemon.config.streams import FormerStreams, StreamsSettings
from kcl_daemon.context import WorkerContext, for_each
from kcl_daemon.errors import AccessDenied, AwsError
from kcl_daemon.fleet.many_streams import LeasesByStream, MultiStreamTracker, by_stream
from kcl_daemon.fleet.shard_sync import ShardSync
from kcl_daemon.fleet.stream_monitor import StreamState
from kcl_daemon.fleet.streams import TrackedStream
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, StreamIdentity
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Table

_MAX_PARALLEL_SYNCS: Final = 8
_MAX_NOTES_PER_RUN: Final = 200


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
        """Note the creation time for later leaders; Java programs do not.

        Never raises for AWS: the next look continues.
        """

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
