"""The leader creates the leases that shards need, parents before children; `shards.sync` decides which.

KCL: ShardSyncTask, PeriodicShardSyncManager, Scheduler.

Finished leases go (KCL: LeaseCleanupManager). Under a Java leader, workers delete their own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from kcl_daemon import faults
from kcl_daemon.config.balance import ShardSettings, ShardSyncStrategy
from kcl_daemon.context import WorkerContext, for_each, raise_first
from kcl_daemon.errors import AwsError, StreamNotFound
from kcl_daemon.fleet.streams import RECHECK_S, StreamState, TrackedStream, counted_shards
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import HashRange, Lease, LeaseKey, StreamIdentity, WorkerId
from kcl_daemon.leases.row import creation
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Kinesis, Table
from kcl_daemon.shards.lineage import (
    HoleWatch,
    Shard,
    finished_but_open,
    first_hole,
    generations,
    lease_hole,
    leases_of_another,
    missing_hash_ranges,
    unexpected_children,
    without_range,
)
from kcl_daemon.shards.sync import (
    CleanupVerdict,
    Generations,
    JudgedLease,
    judge_finished,
    leases_for_empty_table,
    missing_leases,
)

if TYPE_CHECKING:
    from kcl_daemon.fleet.snapshot_start import SnapshotStart


_MAX_PARALLEL_DELETES: Final = 10
_MAX_DELETES_PER_RUN: Final = 200
# Shards of DynamoDB live four hours and come by the hundred.
_MAX_DELETES_OF_DYNAMODB: Final = 2_000
# A create that got no answer may still arrive. After the delete it would begin the shard again.
_ON_ITS_WAY_S: Final = 35.0


async def delete_finished(
    context: WorkerContext,
    table: Table,
    leases: Sequence[Lease],
    shards: Sequence[Shard] | None = None,
    *,
    on_deleted: Callable[[], None] | None = None,
    owner: WorkerId | None = None,
    keep: Collection[LeaseKey] = (),
    most: int = _MAX_DELETES_PER_RUN,
) -> None:
    """A lease may go when those of its parents are gone.

    With `shards` None Kinesis was not asked. With an `owner` only its leases go.

    Raises:
        AwsError: after all were tried; the next look continues.
    """
    left = {lease.lease_key: lease for lease in leases}
    deleted = 0

    async def delete(each: JudgedLease) -> None:
        nonlocal deleted
        key = each.lease.lease_key
        written = await table.delete(key, lease_row.if_still_finished(each.lease))
        if written.applied:
            faults.maybe("after-finished-lease-deleted")
            deleted += 1
            if on_deleted is not None:
                on_deleted()
            context.log.info("lease_deleted", lease_key=key, reason=each.reason)

    while True:
        judged = judge_finished(left.values(), shards)
        ready = [each for each in judged if each.verdict is not CleanupVerdict.WAITS]
        own = [each for each in ready if owner is None or each.lease.lease_owner == owner]
        own = [each for each in own if each.lease.lease_key not in keep]
        before, going = deleted, own[: most - deleted]
        if not going:
            break
        raise_first(await for_each(going, delete, at_once=_MAX_PARALLEL_DELETES))
        for each in going:
            del left[each.lease.lease_key]
        if deleted - before < len(going):
            break
    for each in judged:
        if each.verdict is CleanupVerdict.WAITS:
            context.log.debug("finished_lease_kept", lease_key=each.lease.lease_key, reason=each.reason)


class LeaseCleanup:
    """`shards` returns None if its list cannot be relied on.

    `of_dynamodb`: finished leases go at once when they outnumber the others, and the last lease of all stays.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        shards: Callable[[Sequence[Lease]], Awaitable[Sequence[Shard] | None]],
        settings: ShardSettings,
        of_dynamodb: bool = False,
    ) -> None:
        self._context = context
        self._table = table
        self._shards = shards
        self._settings = settings
        self._of_dynamodb = of_dynamodb
        self._clock = context.clock
        self._finished_s: dict[LeaseKey, float] = {}
        self._polled_s = self._completed_s = self._garbage_s = context.clock.monotonic()

    async def clean(self, leases: Sequence[Lease]) -> None:
        """Never raises for AWS."""
        now_s = self._clock.monotonic()
        over = [lease.lease_key for lease in leases if lease.is_finished]
        self._finished_s = {key: self._finished_s.get(key, now_s) for key in over}
        finished = len(self._finished_s)
        is_crowded = self._of_dynamodb and 2 * finished > len(leases)
        is_due = is_crowded or self._is_over(self._polled_s, self._settings.cleanup_ms)
        if not self._settings.cleanup_finished or not is_due:
            return
        self._polled_s = self._clock.monotonic()
        if not finished:
            return
        try:
            if self._is_over(self._garbage_s, self._settings.cleanup_garbage_ms):
                self._garbage_s = self._polled_s
                shards = await self._shards(leases)
                if shards is not None:
                    await self._delete(leases, shards)
            elif is_crowded or self._is_over(self._completed_s, self._settings.cleanup_completed_ms):
                await self._delete(leases)
        except AwsError as error:
            self._context.log.info("lease_cleanup_failed", error=str(error))

    async def _delete(self, leases: Sequence[Lease], shards: Sequence[Shard] | None = None) -> None:
        now_s = self._clock.monotonic()
        keep = {key for key, since_s in self._finished_s.items() if now_s - since_s < _ON_ITS_WAY_S}
        if self._of_dynamodb:
            from kcl_daemon.shards.table_streams import only_memory

            keep |= {last for last in (only_memory(leases),) if last is not None}
        await delete_finished(
            self._context,
            self._table,
            leases,
            shards,
            on_deleted=self._deleted,
            keep=keep,
            most=_MAX_DELETES_OF_DYNAMODB if self._of_dynamodb else _MAX_DELETES_PER_RUN,
        )

    def _deleted(self) -> None:
        self._completed_s = self._clock.monotonic()

    def _is_over(self, since_s: float, period_ms: int) -> bool:
        return self._clock.monotonic() - since_s >= period_ms / 1000


async def clean_own_leases(
    context: WorkerContext,
    *,
    table: Table,
    finished: Callable[[], Collection[str]],
    leading: Callable[[], bool],
    settings: ShardSettings,
) -> None:
    """Returns if cleanup is off; never raises for AWS. The table is read only if `finished` has keys."""
    period_s = max(settings.cleanup_ms, settings.cleanup_completed_ms) / 1000
    old = set[LeaseKey]()
    while settings.cleanup_finished:
        await context.clock.sleep(max(0.0, period_s - _ON_ITS_WAY_S))
        old |= {LeaseKey(key) for key in finished()}
        await context.clock.sleep(_ON_ITS_WAY_S)
        if leading() or not finished():
            continue
        found = defaultdict[StreamIdentity | None, list[Lease]](list)
        try:
            for row in await table.scan():
                if (lease := lease_row.readable_lease(row)) is not None:
                    found[lease.stream].append(lease)
            over = {each.lease_key for leases in found.values() for each in leases if each.is_finished}
            fresh, old = over - old, over
            for leases in found.values():
                await delete_finished(context, table, leases, owner=context.worker_id, keep=fresh)
        except AwsError as error:
            context.log.info("lease_cleanup_failed", error=str(error))


class SyncSchedule:
    """A new leader syncs on its first look: the previous one may have died between two writes.

    `compares`: there are no hash keys, so only the shards show what is missing.
    """

    def __init__(
        self, context: WorkerContext, *, table: Table, settings: ShardSettings, compares: bool = False
    ) -> None:
        self._context = context
        self._compares = compares
        self._table = table
        self._settings = settings
        self._audited_s: float | None = None
        self.found_hole = False
        self._watch = HoleWatch()

    def begin(self) -> None:
        self._audited_s = None
        self._watch = HoleWatch()

    @property
    def has_audited(self) -> bool:
        return self._audited_s is not None

    @property
    def is_due(self) -> bool:
        period_s = self._settings.audit_ms / 1000
        return self._audited_s is None or self._context.clock.monotonic() - self._audited_s >= period_s

    def needs_sync(self, leases: Sequence[Lease]) -> bool:
        if self._compares:
            return True
        hole = lease_hole(leases)
        self.found_hole = hole is not None
        self._watch = self._watch.seen(hole)
        if not leases:
            return True  # a reshard never empties a table
        if self._audited_s is None:
            return hole is not None or self._settings.sync_strategy is ShardSyncStrategy.PERIODIC
        if hole is not None:
            self._context.log.debug(
                "lease_hole_seen", start_hash=hole.start, end_hash=hole.end, times=self._watch.times
            )
        if self._settings.sync_strategy is ShardSyncStrategy.PERIODIC:
            return True
        return self._watch.is_believed(self._settings.audit_confidence)

    def done(self, *, synced: bool) -> None:
        self._audited_s = self._context.clock.monotonic()
        if synced:
            self._watch = HoleWatch()

    async def fill_in_ranges(self, leases: Sequence[Lease], shards: Sequence[Shard]) -> None:
        """After an error, what was written stays."""
        for lease, hash_range in missing_hash_ranges(leases, shards):
            written = await self._table.update(lease_row.hash_range_update(lease, hash_range))
            if written.applied:
                faults.maybe("after-hash-range-written")
                self._context.log.info("lease_hashes_filled_in", lease_key=lease.lease_key)


_LIST_ATTEMPTS: Final = 3  # KCL: HierarchicalShardSyncer
_LIST_PAUSE_S: Final = 1.0
_MAX_PARALLEL_CREATES: Final = 10
_PROGRESS_EVERY: Final = 1000
_MAX_LOGGED: Final = 20
_RETRY_FIRST_S: Final = 1.0
_MAX_RETRY_S: Final = 60.0


class ShardSync:
    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        kinesis: Kinesis,
        stream: TrackedStream,
        settings: ShardSettings,
        leads: Callable[[], bool],
        snapshot: SnapshotStart | None = None,
    ) -> None:
        self._meters = context.meters
        self._snapshot = snapshot
        self._settings = settings
        self._table = table
        self._kinesis = kinesis
        self._stream, self._position, self._watch = stream.ref, stream.position, stream.watch
        self._clock = context.clock
        self._log = context.log
        self._leads = leads
        self._of_dynamodb = not stream.ref.source.has_hash_keys
        self._schedule = SyncSchedule(context, table=table, settings=settings, compares=self._of_dynamodb)
        self._cleanup = LeaseCleanup(
            context, table=table, shards=self._own_shards, settings=settings, of_dynamodb=self._of_dynamodb
        )
        self._compared = False
        self._logged_finished = set[LeaseKey]()
        self._not_before_s = context.clock.monotonic()
        self._failures = 0

    def begin(self) -> None:
        self._schedule.begin()
        self._compared = False
        self._failures = 0
        self._not_before_s = self._clock.monotonic()

    @property
    def audited(self) -> frozenset[StreamIdentity | None]:
        return frozenset({self._stream.identity} if self._schedule.has_audited else ())

    async def ensure(self, leases: Sequence[Lease]) -> bool:
        """Returns whether leases were created. `leases` are all of the stream, as just read.

        After a failure created leases stay, and looks become rarer.
        """
        created = False
        if self._snapshot is not None:
            await self._snapshot.over(self._stream, leases)
        if self._schedule.is_due and self._clock.monotonic() >= self._not_before_s:
            created = await self._audit(leases)
        if self._watch.state is StreamState.THERE:
            await self._cleanup.clean(leases)
        return created

    async def _audit(self, leases: Sequence[Lease]) -> bool:
        try:
            with self._meters.operation(kcl.AUDIT):
                created = await self._poll(leases)
        except StreamNotFound:
            self._meters.add(kcl.AUDIT_SKIPPED)
            await self._watch.poll()
            self._delay(RECHECK_S)
            return False
        except AwsError:
            self._failures += 1
            self._delay(min(_RETRY_FIRST_S * 2.0 ** min(self._failures, 10), _MAX_RETRY_S))
            raise
        self._failures = 0
        return created

    def _delay(self, pause_s: float) -> None:
        self._not_before_s = self._clock.monotonic() + pause_s

    async def _poll(self, leases: Sequence[Lease]) -> bool:
        if self._watch.state is StreamState.GONE and await self._watch.poll() is StreamState.GONE:
            self._delay(RECHECK_S)
            self._meters.add(kcl.AUDIT_SKIPPED)
            return False
        if self._settings.only:
            return await self._fill_named(leases)
        leases = await self._with_ranges(leases)
        created = False
        wants = self._schedule.needs_sync(leases)
        self._meters.add(kcl.AUDIT_HOLES, self._schedule.found_hole)
        self._meters.add(kcl.AUDIT_SYNCS, wants)
        if wants:
            with self._meters.operation(kcl.SYNC), self._meters.operation(kcl.SYNC_SHARDS):
                created = await self._fill(leases)
        elif leases and not self._compared and self._schedule.has_audited:
            await self._own_shards(leases)  # not at the first audit: leases wait to be assigned
        self._schedule.done(synced=wants)
        return created

    async def _with_ranges(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        shards = await self._own_shards(leases) if without_range(leases) else None
        if shards is None:
            return leases
        await self._schedule.fill_in_ranges(leases, shards)
        ranges = {lease.lease_key: hash_range for lease, hash_range in missing_hash_ranges(leases, shards)}
        return [replace(lease, hash_range=ranges.get(lease.lease_key, lease.hash_range)) for lease in leases]

    async def _fill(self, leases: Sequence[Lease]) -> bool:
        snapshot = self._snapshot
        if not leases:
            self._watch.positions_match()
            starting = await self._complete_list()
            if snapshot is not None and starting:
                return await self._create(await snapshot.leases(self._stream))
            return await self._create(leases_for_empty_table(starting, self._position, self._stream.identity))
        if snapshot is not None:
            snapshot.is_not_taken(self._stream, leases)
        shards = await self._own_shards(leases)
        if shards is None:
            return False
        periodic = self._settings.sync_strategy is ShardSyncStrategy.PERIODIC
        generations, position = Generations.ALL if periodic else Generations.ONE, self._position
        if self._of_dynamodb:
            from kcl_daemon.shards.table_streams import position_of_others, unread

            shards, position = unread(shards, leases), position_of_others(shards, leases, position)
        wanted = missing_leases(
            shards, leases, position, generations=generations, stream=self._stream.identity
        )
        return await self._create(wanted)

    async def _fill_named(self, leases: Sequence[Lease]) -> bool:
        known = {lease.shard_id for lease in leases}
        missing = self._settings.only - known
        shards = [shard for shard in await self._listed() if shard.shard_id in missing] if missing else []
        self._schedule.done(synced=True)
        return await self._create(leases_for_empty_table(shards, self._position, self._stream.identity))

    async def _create(self, wanted: Sequence[Lease]) -> bool:
        if not wanted or not await self._watch.is_there():
            return False
        if self._stream.identity is not None:
            wanted = [replace(lease, stream_created_s=self._watch.created_s) for lease in wanted]
        created = 0

        async def create(lease: Lease) -> None:
            nonlocal created
            if not self._leads():
                return  # it stood still: another leader's leases may be over by now, and deleted
            at = kcl.SYNC_CREATE_AT[lease.checkpoint.sequence_number]
            with self._meters.operation(kcl.SYNC_CREATE), self._meters.operation(at):
                written = await self._table.put(*creation(lease))
            faults.maybe("after-lease-created")
            created += written.applied
            if written.applied and created % _PROGRESS_EVERY == 0:
                self._log.info("leases_being_created", count=created, of=len(wanted))

        try:
            for generation in generations(wanted):
                await _until_one_fails(generation, create)
        finally:
            if created:
                self._log.info("leases_created", count=created, position=self._position.at.value)
        return created > 0

    async def _own_shards(self, leases: Sequence[Lease]) -> Sequence[Shard] | None:
        """None if they belong to another stream than the leases."""
        shards = counted_shards(await self._listed(), leases)
        for _, why in () if self._of_dynamodb else leases_of_another(leases, shards):
            self._watch.is_replacement(why)
            return None
        self._watch.positions_match()
        self._compared = True
        self._log_finished(leases, shards)
        return shards

    def _log_finished(self, leases: Sequence[Lease], shards: Sequence[Shard]) -> None:
        found = {lease.lease_key for lease in finished_but_open(leases, shards)}
        if not found <= self._logged_finished:
            self._log.error(
                "open_shard_finished",
                count=len(found),
                lease_keys=sorted(found)[:_MAX_LOGGED],
                advice="these shards are open, but their leases say SHARD_END, so no worker reads them. A Java "
                "worker writes SHARD_END when its fan-out consumer was deleted or the stream was not "
                "found. Read them again with `kcl-daemon leases reset --shard`",
            )
        self._logged_finished = found

    async def _listed(self) -> Sequence[Shard]:
        unexpected = frozenset[str]()
        for attempt in range(_LIST_ATTEMPTS):
            if attempt:
                await self._clock.sleep(_LIST_PAUSE_S)
            shards = await self._kinesis.list_shards(self._stream)
            unexpected = unexpected_children(shards)
            if not unexpected or self._settings.ignore_unexpected_children:
                return shards
        raise AwsError(
            f"{self._stream.name} lists child shards of open shards, such as {min(unexpected)}; no lease "
            "is created until this ends, or set ignoreUnexpectedChildShards = true",
            operation="ListShards",
        )

    async def _complete_list(self) -> Sequence[Shard]:
        """Shards must cover all hash keys, if they have any; overlaps are harmless."""
        hole: HashRange | None = None
        for attempt in range(_LIST_ATTEMPTS):
            if attempt:
                await self._clock.sleep(_LIST_PAUSE_S)
            shards = await self._kinesis.list_shards(self._stream, self._position)
            hole = first_hole(shard.hash_range for shard in shards)
            if hole is None or self._of_dynamodb:
                return shards
        raise AwsError(
            f"the shards of {self._stream.name} leave hashes {hole.start if hole else 0} to {hole.end if hole else 0} "
            "uncovered; is it being resharded?",
            operation="ListShards",
        )


async def _until_one_fails(leases: Sequence[Lease], create: Callable[[Lease], Awaitable[None]]) -> None:
    pending, failures = deque(leases), list[AwsError]()

    async def work() -> None:
        while pending and not failures:
            try:
                await create(pending.popleft())
            except AwsError as error:
                failures.append(error)

    async with anyio.create_task_group() as writes:
        for _ in range(min(_MAX_PARALLEL_CREATES, len(pending))):
            writes.start_soon(work)
    raise_first(failures)
