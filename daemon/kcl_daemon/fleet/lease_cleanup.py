"""Deletes the leases of streams that are read no more (leader only; KCL: FormerStreamsLeasesDeletionStrategy).

Owns since when a stream has been a former one. Whoever holds such a lease loses it at its next renewal.

Deletes finished leases that nothing needs any more (KCL: LeaseCleanupManager).

`shards.cleanup` decides; every delete is conditional on the row being finished still. When to look is others' business.

Deletes the leases of finished shards when nothing needs them any more (leader only; KCL: LeaseCleanupManager).

Owns when it was done last. What may go, and how it goes, is the remover's business.

Deletes the finished leases that bear this worker's name, where whoever leads does not (KCL: LeaseCleanupManager).

A leader of ours deletes all finished leases and gives none away. A Java leader gives them to workers like others, and each
worker is to delete its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import anyio

from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.config.streams import FormerStreams, StreamsSettings
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.streams import MultiStreamTracker, StreamState
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, StreamIdentity, WorkerId
from kcl_daemon.leases.row import MalformedRowError, Row, is_lease_row, lease_from_row
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters, Table
from kcl_daemon.shards.lineage import Shard
from kcl_daemon.shards.sync import CleanupVerdict, JudgedLease, judge_finished

_MAX_PARALLEL_DELETES: Final = 10
# Who looks has other things to do as well; the rest goes at the next look.
_MAX_DELETES_PER_RUN: Final = 200


def _allow_any(_: Lease) -> bool:
    """The default of `may`."""
    return True


def _ignore_deletion() -> None:
    """The default of `on_deleted`."""


class FinishedLeaseDeleter:
    """Deletes what may go.

    Args:
        table: the lease table.
        log: what was deleted is told, what waits only for those who look closely.
        may: which finished leases are this worker's to delete.
        on_deleted: called for each that was deleted.
    """

    def __init__(
        self,
        *,
        table: Table,
        log: Log,
        may: Callable[[Lease], bool] = _allow_any,
        on_deleted: Callable[[], None] = _ignore_deletion,
    ) -> None:
        self._table = table
        self._log = log
        self._may = may
        self._on_deleted = on_deleted

    async def remove(self, leases: Sequence[Lease], shards: Sequence[Shard] | None = None) -> None:
        """Generation by generation: a lease may go when those of its parents are gone.

        Args:
            leases: all of one stream.
            shards: all that Kinesis lists; None: nobody asked.

        Raises:
            AwsError: a delete failed; what was deleted is, the next look goes on.
        """
        left = {lease.lease_key: lease for lease in leases}
        deleted = 0
        while True:
            judged = judge_finished(left.values(), shards)
            ready = [
                each for each in judged if each.verdict is not CleanupVerdict.WAITS and self._may(each.lease)
            ]
            going = ready[: _MAX_DELETES_PER_RUN - deleted]
            if not going:
                break
            gone = await self._delete_all(going)
            deleted += len(gone)
            for each in going:
                del left[each.lease.lease_key]
            if len(gone) < len(going):
                break  # what has changed meanwhile is for the next look
        for each in judged:
            if each.verdict is CleanupVerdict.WAITS:
                self._log.debug("finished_lease_kept", lease_key=each.lease.lease_key, reason=each.reason)

    async def _delete_all(self, going: Sequence[JudgedLease]) -> list[JudgedLease]:
        """Those that were deleted; the first error is raised when all were tried."""
        limiter, failures, gone = (
            anyio.CapacityLimiter(_MAX_PARALLEL_DELETES),
            list[AwsError](),
            list[JudgedLease](),
        )

        async def delete(each: JudgedLease) -> None:
            """One of them."""
            async with limiter:
                try:
                    if await self._delete_one(each):
                        gone.append(each)
                except AwsError as error:
                    failures.append(error)

        async with anyio.create_task_group() as deletes:
            for each in going:
                deletes.start_soon(delete, each)
        if failures:
            raise failures[0]
        return gone

    async def _delete_one(self, each: JudgedLease) -> bool:
        lease = each.lease
        written = await self._table.delete(lease.lease_key, lease_row.if_still_finished(lease))
        if written.applied:
            self._on_deleted()
            self._log.info("lease_deleted", lease_key=lease.lease_key, reason=each.reason)
        return written.applied


class LeaseCleanup:
    """One for a stream.

    Args:
        table: the lease table.
        shards: gives all shards of the stream; None where that must not be relied on now.
        settings: how often.
        clock: for that.
        log: what was deleted is told, what waits only for those who look closely.
    """

    def __init__(
        self,
        *,
        table: Table,
        shards: Callable[[Sequence[Lease]], Awaitable[Sequence[Shard] | None]],
        settings: ShardSettings,
        clock: Clock,
        log: Log,
    ) -> None:
        self._deleter = FinishedLeaseDeleter(table=table, log=log, on_deleted=self._deleted)
        self._shards = shards
        self._settings = settings
        self._clock = clock
        self._log = log
        self._polled_s = self._completed_s = self._garbage_s = clock.monotonic()

    async def clean(self, leases: Sequence[Lease]) -> None:
        """Delete what may go, if it is time to look. Never raises for AWS: the next look tries again.

        As in KCL, the time until the next clean-up runs only from one that led to something.

        Args:
            leases: all of the stream.
        """
        if not self._settings.cleanup_finished or not self._is_over(
            self._polled_s, self._settings.cleanup_ms
        ):
            return
        self._polled_s = self._clock.monotonic()
        if not any(lease.is_finished for lease in leases):
            return
        try:
            if self._is_over(self._garbage_s, self._settings.cleanup_garbage_ms):
                self._garbage_s = self._polled_s
                shards = await self._shards(leases)
                if shards is not None:
                    await self._deleter.remove(leases, shards)
            elif self._is_over(self._completed_s, self._settings.cleanup_completed_ms):
                await self._deleter.remove(leases)
        except AwsError as error:
            self._log.info("lease_cleanup_failed", error=str(error))

    def _deleted(self) -> None:
        self._completed_s = self._clock.monotonic()

    def _is_over(self, since_s: float, period_ms: int) -> bool:
        return self._clock.monotonic() - since_s >= period_ms / 1000


class OwnLeaseCleanup:
    """One worker's.

    Args:
        table: the lease table; it is read whole, and only if there is something to delete.
        worker_id: this worker.
        finished: keys of finished leases that bear its name, as it has noticed by the way.
        leading: whether this worker leads; then it deletes all finished leases elsewhere.
        settings: how often.
        clock: for that.
        log: what was deleted is told.
    """

    def __init__(
        self,
        *,
        table: Table,
        worker_id: WorkerId,
        finished: Callable[[], Collection[str]],
        leading: Callable[[], bool],
        settings: ShardSettings,
        clock: Clock,
        log: Log,
    ) -> None:
        self._table = table
        self._finished = finished
        self._leading = leading
        self._settings = settings
        self._clock = clock
        self._log = log
        self._deleter = FinishedLeaseDeleter(
            table=table, log=log, may=lambda lease: lease.lease_owner == worker_id
        )

    async def run(self) -> None:
        """Look in each period, for ever, or never where clean-up is off. Never raises for AWS: the next look tries again."""
        period_s = max(self._settings.cleanup_ms, self._settings.cleanup_completed_ms) / 1000
        while self._settings.cleanup_finished:
            await self._clock.sleep(period_s)
            if self._leading() or not self._finished():
                continue
            try:
                for leases in (await self._by_stream()).values():
                    await self._deleter.remove(leases)
            except AwsError as error:
                self._log.info("lease_cleanup_failed", error=str(error))

    async def _by_stream(self) -> dict[StreamIdentity | None, list[Lease]]:
        found = defaultdict[StreamIdentity | None, list[Lease]](list)
        for row in await self._table.scan():
            lease = _parsed(row) if is_lease_row(row) else None
            if lease is not None:
                found[lease.stream].append(lease)
        return found


def _parsed(row: Row) -> Lease | None:
    """None for a row that cannot be read; whoever leads tells of it."""
    try:
        return lease_from_row(row)
    except MalformedRowError:
        return None


class FormerStreamCleanup:
    """One for a leader."""

    def __init__(
        self,
        *,
        table: Table,
        streams: MultiStreamTracker,
        settings: StreamsSettings,
        clock: Clock,
        log: Log,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._table = table
        self._streams = streams
        self._settings = settings
        self._clock = clock
        self._log = log
        self._since_s: dict[StreamIdentity, float] = {}

    def begin(self) -> None:
        """Leadership begins: whoever led before may have had another list, so that all waits begin anew."""
        self._since_s.clear()

    async def clean(self, leases: Mapping[StreamIdentity, Sequence[Lease]]) -> None:
        """Delete what is to go. Never raises for AWS: the next look goes on.

        Args:
            leases: all there are, by stream.
        """
        now_s = self._clock.monotonic()
        former = [identity for identity in leases if self._is_former(identity)]
        self._since_s = {identity: self._since_s.get(identity, now_s) for identity in former}
        self._meters.add(kcl.STREAMS_PENDING, len(former))
        for identity in leases:
            try:
                reason = await self._reason(identity)
                if reason is not None:
                    await self._delete(identity, leases[identity], reason)
            except AwsError as error:
                self._log.info("former_stream_not_cleaned", stream=str(identity), error=str(error))

    def _is_former(self, identity: StreamIdentity) -> bool:
        """Whether it is listed no more, or its name is another's now.

        While nobody knows what the filter names, it may be one of those.
        """
        if not self._streams.is_list_known:
            return False
        return self._streams.listing(identity) is None or self._streams.successor(identity) is not None

    async def _reason(self, identity: StreamIdentity) -> str | None:
        """Why the leases of a stream are deleted now; None: they are not."""
        since_s = self._since_s.get(identity)
        if since_s is None or not self._should_delete(identity):
            return None
        successor = self._streams.successor(identity)
        if self._clock.monotonic() - since_s >= self._settings.former_wait_s:
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
        """Row by row; the first error leaves the rest to the next run."""
        count = 0
        try:
            for lease in leases:
                count += (await self._table.delete(lease.lease_key, lease_row.if_exists(lease))).applied
            self._meters.add(kcl.STREAMS_DELETED)
        finally:
            if count:
                self._log.info(
                    "former_stream_leases_deleted", stream=str(identity), count=count, reason=reason
                )
