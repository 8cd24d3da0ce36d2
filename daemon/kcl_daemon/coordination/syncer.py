"""Creates the leases that a stream's shards need (leader only; KCL: ShardSyncTask).

Owns the carrying out: lists of shards that can be relied on, creation of thousands of leases, pauses after failures.
When to do it is the auditor's business, what to create that of `shards.sync`, what to delete the cleaner's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import anyio

from kcl_daemon.config.shard_settings import ShardSettings, ShardSyncStrategy
from kcl_daemon.coordination.auditor import Auditor
from kcl_daemon.coordination.cleaner import Cleaner
from kcl_daemon.coordination.stream_watch import RECHECK_S, StreamState, StreamWatch
from kcl_daemon.errors import AwsError, StreamNotFound
from kcl_daemon.leases.lease import HashRange, Lease, LeaseKey
from kcl_daemon.leases.row import creation
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, Table
from kcl_daemon.ports_metrics import NO_METERS, Meters
from kcl_daemon.shards.former import finished_but_open, of_former_stream
from kcl_daemon.shards.holes import first_hole, found_ranges, without_range
from kcl_daemon.shards.lineage import generations, unexpected_children
from kcl_daemon.shards.shard import InitialPosition, Shard
from kcl_daemon.shards.sync import Layers, leases_for_empty_table, missing_leases

_LIST_ATTEMPTS: Final = 3  # KCL: HierarchicalShardSyncer
_LIST_PAUSE_S: Final = 1.0
_CREATED_AT_ONCE: Final = 10
_PROGRESS_EVERY: Final = 1000
_TOLD_MOST: Final = 20
_RETRY_FIRST_S: Final = 1.0
_RETRY_MOST_S: Final = 60.0


class Syncer:
    """Keeps the leases of one stream complete while this worker leads, and forgets those that nothing needs any more."""

    def __init__(
        self,
        *,
        table: Table,
        kinesis: Kinesis,
        stream: StreamRef,
        position: InitialPosition,
        clock: Clock,
        log: Log,
        settings: ShardSettings | None = None,
        watch: StreamWatch | None = None,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._settings = settings or ShardSettings()
        self._table = table
        self._kinesis = kinesis
        self._stream = stream
        self._position = position
        self._clock = clock
        self._log = log
        self._watch = watch or StreamWatch(kinesis=kinesis, stream=stream, clock=clock, log=log)
        self._auditor = Auditor(table=table, settings=self._settings, clock=clock, log=log)
        self._cleaner = Cleaner(
            table=table, shards=self._own_shards, settings=self._settings, clock=clock, log=log
        )
        self._compared = False
        self._told_finished = set[LeaseKey]()
        self._not_before_s = clock.monotonic()
        self._failures = 0

    def begin(self) -> None:
        """Leadership begins: look at once, trust nothing remembered."""
        self._auditor.begin()
        self._compared = False
        self._failures = 0
        self._not_before_s = self._clock.monotonic()

    async def ensure(self, leases: Sequence[Lease]) -> bool:
        """Make the table complete and delete what is not needed, where it is time to look.

        After a failure the next look is put off, longer each time.

        Args:
            leases: all of the stream, as just read.

        Returns:
            whether leases were created.

        Raises:
            AwsError: Kinesis or the table did not do what was asked; what was created stays, the next call goes on.
        """
        created = False
        if self._auditor.is_due and self._clock.monotonic() >= self._not_before_s:
            created = await self._audit(leases)
        if self._watch.state is StreamState.THERE:
            await self._cleaner.clean(leases)
        return created

    async def _audit(self, leases: Sequence[Lease]) -> bool:
        try:
            with self._meters.operation(kcl.AUDIT):
                created = await self._look(leases)
        except StreamNotFound:
            self._meters.add(kcl.AUDIT_SKIPPED)
            await self._watch.look()  # it tells, once
            self._put_off(RECHECK_S)
            return False
        except AwsError:
            self._failures += 1
            self._put_off(min(_RETRY_FIRST_S * 2.0 ** min(self._failures, 10), _RETRY_MOST_S))
            raise
        self._failures = 0
        return created

    def _put_off(self, pause_s: float) -> None:
        self._not_before_s = self._clock.monotonic() + pause_s

    async def _look(self, leases: Sequence[Lease]) -> bool:
        """One audit, and the sync where it asks for one."""
        if self._watch.state is StreamState.GONE and await self._watch.look() is StreamState.GONE:
            self._put_off(RECHECK_S)
            self._meters.add(kcl.AUDIT_SKIPPED)
            return False
        leases = await self._with_ranges(leases)
        created = False
        wants = self._auditor.wants_sync(leases)
        self._meters.add(kcl.AUDIT_HOLES, self._auditor.sees_hole)
        self._meters.add(kcl.AUDIT_SYNCS, wants)
        if wants:
            with self._meters.operation(kcl.SYNC), self._meters.operation(kcl.SYNC_SHARDS):
                created = await self._fill(leases)
        elif leases and not self._compared and self._auditor.has_audited:
            await self._own_shards(leases)  # not at the first audit: leases wait to be given away
        self._auditor.done(synced=wants)
        return created

    async def _with_ranges(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """The leases with all hashes known; rows of old versions lack them."""
        if not without_range(leases):
            return leases
        shards = await self._listed()
        await self._auditor.fill_in_ranges(leases, shards)
        ranges = {lease.lease_key: hash_range for lease, hash_range in found_ranges(leases, shards)}
        return [replace(lease, hash_range=ranges.get(lease.lease_key, lease.hash_range)) for lease in leases]

    async def _fill(self, leases: Sequence[Lease]) -> bool:
        if not leases:
            wanted = leases_for_empty_table(
                await self._complete_list(), self._position, self._stream.identity
            )
            return await self._create(wanted)
        shards = await self._own_shards(leases)
        if shards is None:
            return False
        periodic = self._settings.sync_strategy is ShardSyncStrategy.PERIODIC
        layers = Layers.ALL if periodic else Layers.ONE
        wanted = missing_leases(shards, leases, self._position, layers=layers, stream=self._stream.identity)
        return await self._create(wanted)

    async def _create(self, wanted: Sequence[Lease]) -> bool:
        """Whether any lease was created; parents before their children, those of a generation side by side."""
        if not wanted or not await self._is_still_the_one():
            return False
        if self._stream.identity is not None:
            wanted = [replace(lease, stream_created_s=self._watch.created_s) for lease in wanted]
        creating = _Creating(self._table, len(wanted), self._log, self._meters)
        try:
            for generation in generations(wanted):
                await creating.create(generation)
        finally:
            if creating.created:
                self._log.info("leases_created", count=creating.created, position=self._position.at.value)
        return creating.created > 0

    async def _is_still_the_one(self) -> bool:
        """Whether the listed shards were those of the stream that its leases are named after, where they are."""
        return self._stream.identity is None or await self._watch.look() is StreamState.THERE

    async def _own_shards(self, leases: Sequence[Lease]) -> Sequence[Shard] | None:
        """All shards, None where they are those of another stream than the leases."""
        shards = await self._listed()
        former = of_former_stream(leases, shards)
        if former:
            self._watch.is_another(
                f"the checkpoint {former[0].checkpoint} of {former[0].shard_id} cannot belong to this stream"
            )
            return None
        self._watch.positions_fit()
        self._compared = True
        self._tell_finished(leases, shards)
        return shards

    def _tell_finished(self, leases: Sequence[Lease], shards: Sequence[Shard]) -> None:
        """Say once that shards are open, although their leases are finished; the others go on."""
        found = {each.lease_key for each in finished_but_open(leases, shards)}
        if not found <= self._told_finished:
            self._log.error(
                "open_shard_finished",
                count=len(found),
                lease_keys=sorted(found)[:_TOLD_MOST],
                advice="these shards are open, but their leases say SHARD_END, so no worker reads them. A Java "
                "worker writes SHARD_END when its fan-out consumer was deleted or the stream was not "
                "found. Read them again with `kcl-daemon leases reset --shard`",
            )
        self._told_finished = found

    async def _listed(self) -> Sequence[Shard]:
        """All shards, in a list that was not made while the stream changed."""
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
        """The shards at the initial position, covering every hash. That some overlap does no harm."""
        hole: HashRange | None = None
        for attempt in range(_LIST_ATTEMPTS):
            if attempt:
                await self._clock.sleep(_LIST_PAUSE_S)
            shards = await self._kinesis.list_shards(self._stream, self._position)
            hole = first_hole(shard.hash_range for shard in shards)
            if hole is None:
                return shards
        raise AwsError(
            f"the shards of {self._stream.name} leave hashes {hole.start if hole else 0} to {hole.end if hole else 0} "
            "uncovered; is it being resharded?",
            operation="ListShards",
        )


class _Creating:
    """The creation of many leases, a few at a time."""

    def __init__(self, table: Table, wanted: int, log: Log, meters: Meters) -> None:
        self._meters = meters
        self._table = table
        self._wanted = wanted
        self._log = log
        self.created = 0

    async def create(self, leases: Sequence[Lease]) -> None:
        """Create those that are not there; the first error ends it and is raised when all writes have come back."""
        pending, failures = deque(leases), list[AwsError]()

        async def work() -> None:
            """One after the other, while there are any."""
            while pending and not failures:
                try:
                    await self._create_one(pending.popleft())
                except AwsError as error:
                    failures.append(error)

        async with anyio.create_task_group() as writes:
            for _ in range(min(_CREATED_AT_ONCE, len(pending))):
                writes.start_soon(work)
        if failures:
            raise failures[0]

    async def _create_one(self, lease: Lease) -> None:
        at = kcl.SYNC_CREATE_AT[lease.checkpoint.sequence_number]
        with self._meters.operation(kcl.SYNC_CREATE), self._meters.operation(at):
            written = await self._table.put(*creation(lease))
        self.created += written.applied
        if written.applied and self.created % _PROGRESS_EVERY == 0:
            self._log.info("leases_being_created", count=self.created, of=self._wanted)
