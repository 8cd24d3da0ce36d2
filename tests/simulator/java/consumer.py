"""A shard as a Java worker consumes it: parents first, polling, a checkpoint for every batch, the shard's end.

Owns one consumer in its simplest form (no prefetching, one record processor that never
fails). What the processor is given goes to the `Deliveries` ledger, like what our children are given.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio

from kcl_daemon.errors import AwsError, IteratorExpired
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.leases.row import lease_from_row
from kcl_daemon.ports import IteratorKind, ReadFrom
from kcl_daemon.shards.lineage import ChildShard
from kcl_protocol.messages import Record
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber
from tests.simulator.fleet.aggregates import opened
from tests.simulator.java import rows as java_rows
from tests.simulator.java.host import BACKOFF_S, IDLE_S, PARENTS_S, Host
from tests.simulator.java.leases import Held, JavaLeases, Stored
from tests.simulator.rules.deliveries import Incarnation

_LIMIT: Final = 10_000
_PROCESS_S: Final = (0.005, 0.4)


class _LeaseLost(Exception):
    """Raised where the consumer finds that it may not go on."""


class JavaConsumer:
    """One acquisition of one shard.

    Attributes:
        scope: cancelled when the lease is gone.
        is_over: whether it has ended, by itself or not.
    """

    def __init__(self, host: Host, leases: JavaLeases, held: Held) -> None:
        self._host = host
        self._leases = leases
        self.held = held
        self._shard_id = ShardId(held.lease.lease_key)
        self._requested = anyio.Event()
        self.scope = anyio.CancelScope()
        self.is_over = False

    def request_shutdown(self) -> None:
        """Finish what is being processed, let the processor checkpoint, pass the lease on where it is leaving."""
        self._requested.set()

    async def run(self) -> None:
        """Until the shard has ended, the lease is lost, or it was asked to stop; a lease that is left is dropped."""
        with self.scope, suppress(_LeaseLost):
            await self._consume()
        self.is_over = True
        if not self.held.lease.is_finished:
            self._leases.drop(self.held)

    async def _consume(self) -> None:
        if self.held.lease.is_finished:
            return
        if not await self._parents_are_finished():
            await self._leave()
            return
        checkpoint = await self._initialize()
        if checkpoint.is_shard_end:
            return
        child = self._host.deliveries.started(self._shard_id, self._host.me)
        self._host.deliveries.initialized(child, checkpoint)
        following = await self._read(child, checkpoint)
        if following is not None:
            await self._end(child, following)
            return
        if child.largest is not None:
            await self._checkpoint(child, child.largest)
        await self._leave()

    async def _leave(self) -> None:
        try:
            await self._leases.pass_on(self.held)
        except AwsError as error:
            self._host.log.info("java_transfer_failed", lease_key=self._shard_id, error=str(error))

    async def _pause(self, seconds: float) -> bool:
        """Wait; True: at once, because we are to stop."""
        with self._host.clock.move_on_after(seconds):
            await self._requested.wait()
        return self._requested.is_set()

    async def _parents_are_finished(self) -> bool:
        """O2: a parent that has no lease does not block. False: asked to stop meanwhile."""
        while True:
            try:
                if not await self._has_unfinished_parent():
                    return True
            except AwsError as error:
                self._host.log.info("java_parents_unknown", lease_key=self._shard_id, error=str(error))
            if await self._pause(PARENTS_S):
                return False

    async def _has_unfinished_parent(self) -> bool:
        for parent in sorted(self.held.lease.parent_shard_ids):
            row = await self._host.tables.leases.get(parent)
            if row is not None and not lease_from_row(row).is_finished:
                return True
        return False

    async def _initialize(self) -> ExtendedSequenceNumber:
        """O3: the checkpoint as the row has it now."""
        while True:
            try:
                row = await self._host.tables.leases.get(self._shard_id)
                if row is None:
                    raise _LeaseLost
                return lease_from_row(row).checkpoint
            except AwsError:
                await self._host.clock.sleep(BACKOFF_S)

    async def _read(self, child: Incarnation, start: ExtendedSequenceNumber) -> tuple[ChildShard, ...] | None:
        """Poll to the shard's end, and give what follows it; None: asked to stop."""
        kinesis, stream = self._host.kinesis, self._host.stream
        iterator: str | None = None
        while not self._requested.is_set():
            began_s = self._host.now_s()
            try:
                if iterator is None:
                    iterator = await kinesis.get_shard_iterator(
                        stream, self._shard_id, self._from(child, start)
                    )
                fetched = await kinesis.get_records(stream, self._shard_id, iterator, _LIMIT)
            except IteratorExpired:
                iterator = None
                continue
            except AwsError as error:
                self._host.log.info("java_read_failed", lease_key=self._shard_id, error=str(error))
                await self._pause(IDLE_S)
                continue
            found = (each for record in fetched.records for each in opened(record))
            new = [record for record in found if _position(record) > (child.largest or start)]
            if new:
                await self._process(child, new)
            if fetched.next_iterator is None:
                return fetched.child_shards
            iterator = fetched.next_iterator
            await self._pause(max(IDLE_S - (self._host.now_s() - began_s), 0.0))
        return None

    def _from(self, child: Incarnation, start: ExtendedSequenceNumber) -> ReadFrom:
        """AT the checkpoint at first, AFTER what was received later."""
        if child.largest is not None:
            return ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, child.largest.sequence_number)
        if start.is_sentinel:
            return ReadFrom(IteratorKind(str(start.sequence_number)))
        return ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, start.sequence_number)

    async def _process(self, child: Incarnation, records: list[Record]) -> None:
        self.held.throughput.add(self._host.now_s(), sum(len(record.data) for record in records) * 0.75)
        self._host.deliveries.delivered(child, records)
        await self._host.clock.sleep(self._host.chance.uniform(*_PROCESS_S))
        await self._checkpoint(child, _position(records[-1]))

    async def _checkpoint(self, child: Incarnation, position: ExtendedSequenceNumber) -> bool:
        """As the processor asks for it; what fails for reasons that may pass is left to the next one."""
        if position == self.held.lease.checkpoint:
            return True
        deliveries = self._host.deliveries
        deliveries.asked(child, position)
        match await self._leases.checkpoint(self.held, position):
            case Stored.YES:
                deliveries.answered(child, position, None)
                return True
            case Stored.FAILED:
                deliveries.answered(child, position, "KinesisClientLibDependencyException")
                return False
            case Stored.LOST:
                deliveries.answered(child, position, "ShutdownException")
                raise _LeaseLost

    async def _end(self, child: Incarnation, following: tuple[ChildShard, ...]) -> None:
        """M8: child leases first, then the children's names on the row, then the processor and its checkpoint."""
        while True:
            if not self._leases.holds(self.held):
                raise _LeaseLost
            try:
                if await self._lease_children(following):
                    self._host.deliveries.shard_ended(child)
                    if await self._checkpoint(child, SHARD_END):
                        return
            except AwsError as error:
                self._host.log.info("java_shard_end_failed", lease_key=self._shard_id, error=str(error))
            await self._host.clock.sleep(BACKOFF_S)

    async def _lease_children(self, following: tuple[ChildShard, ...]) -> bool:
        """False: not yet, one of two merged parents is not known to the table."""
        leases = self._host.tables.leases
        if len(following) == 1:
            parents = [await leases.get(parent) for parent in sorted(following[0].parent_shard_ids)]
            if any(row is None for row in parents):
                return False
        for shard in following:
            if await leases.get(shard.shard_id) is None:
                row, condition = java_rows.new_lease(
                    self._host.dialect,
                    shard.shard_id,
                    parents=shard.parent_shard_ids,
                    hash_range=shard.hash_range,
                    position=ExtendedSequenceNumber("TRIM_HORIZON"),
                )
                await leases.put(row, condition)
        if following:
            await self._leases.set_children(self.held, frozenset(shard.shard_id for shard in following))
        return True


def _position(record: Record) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(record.sequence_number, record.sub_sequence_number)
