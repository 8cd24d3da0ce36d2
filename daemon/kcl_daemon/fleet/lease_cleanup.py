"""Deletes finished leases, and leases of former streams (KCL: LeaseCleanupManager).

`shards.sync` decides. A finished lease is deleted only if it is still finished. Under a Java leader, workers
delete their own (`OwnLeaseCleanup`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.config.streams import FormerStreams, StreamsSettings
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.context import for_each, raise_first
from kcl_daemon.fleet.streams import MultiStreamTracker, StreamState
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, StreamIdentity, WorkerId
from kcl_daemon.leases.row import MalformedRowError, Row, is_lease_row, lease_from_row
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters, Table
from kcl_daemon.shards.lineage import Shard
from kcl_daemon.shards.sync import CleanupVerdict, JudgedLease, judge_finished

_MAX_PARALLEL_DELETES: Final = 10
_MAX_DELETES_PER_RUN: Final = 200


def _allow_any(_: Lease) -> bool:
    return True


def _ignore_deletion() -> None: ...


class FinishedLeaseDeleter:
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
        """A lease may go when those of its parents are gone.

        With `shards` None Kinesis was not asked.

        Raises:
            AwsError: a delete failed; the next look continues.
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
                break
        for each in judged:
            if each.verdict is CleanupVerdict.WAITS:
                self._log.debug("finished_lease_kept", lease_key=each.lease.lease_key, reason=each.reason)

    async def _delete_all(self, going: Sequence[JudgedLease]) -> list[JudgedLease]:
        """The first error is raised after all were tried."""
        gone = list[JudgedLease]()

        async def delete(judged: JudgedLease) -> None:
            if await self._delete_one(judged):
                gone.append(judged)

        raise_first(await for_each(going, delete, at_once=_MAX_PARALLEL_DELETES))
        return gone

    async def _delete_one(self, each: JudgedLease) -> bool:
        lease = each.lease
        written = await self._table.delete(lease.lease_key, lease_row.if_still_finished(lease))
        if written.applied:
            self._on_deleted()
            self._log.info("lease_deleted", lease_key=lease.lease_key, reason=each.reason)
        return written.applied


class LeaseCleanup:
    """`shards` returns None if its list cannot be relied on."""

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
        """Clean up if it is time.

        Never raises for AWS.

        As in KCL, the next period begins only after a deletion.
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
    """`finished` gives the keys seen so far; the table is read only if there are any."""

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
        """Never raises for AWS; returns if cleanup is off."""
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
    try:
        return lease_from_row(row)
    except MalformedRowError:
        return None


class FormerStreamCleanup:
    """KCL: FormerStreamsLeasesDeletionStrategy.

    A worker that holds such a lease loses it at its next renewal.
    """

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
        """The last leader may have had another list, so all waits start again."""
        self._since_s.clear()

    async def clean(self, leases: Mapping[StreamIdentity, Sequence[Lease]]) -> None:
        """Never raises for AWS."""
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
        if not self._streams.is_list_known:
            return False
        return self._streams.listing(identity) is None or self._streams.successor(identity) is not None

    async def _reason(self, identity: StreamIdentity) -> str | None:
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
