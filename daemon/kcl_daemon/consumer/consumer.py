"""One held lease at work: waits for its parents, keeps a child running, ends with the lease (KCL: ShardConsumer)."""

from __future__ import annotations

from typing import Final

from kcl_daemon.consumer.aftermath import Aftermath
from kcl_daemon.consumer.incarnation import CalledAway, Failed, Finished, Incarnation
from kcl_daemon.consumer.interrupts import Call, Interrupts
from kcl_daemon.consumer.parts import ConsumerParts
from kcl_daemon.coordination.keeper import HeldLease
from kcl_daemon.coordination.stream_watch import RECHECK_S, StreamState
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.leases.row import lease_from_row
from kcl_daemon.progress.cause import Cause
from kcl_daemon.retrieval.start import StartMemory
from kcl_daemon.shards.children import unfinished_parents

_STREAM_PAUSE_S: Final = 5.0
# It takes longer to delete a stream and to create it again.
_FRESH_S: Final = 5.0


class Consumer:
    """The consumer of one held lease. A failing child is replaced here; other shards do not notice."""

    def __init__(self, *, parts: ConsumerParts, held: HeldLease) -> None:
        self._parts = parts
        self._held = held
        self._interrupts = Interrupts()
        self._memory = StartMemory()
        stream = held.lease.stream
        named = {} if stream is None else {"stream": str(stream)}
        self._log = parts.log.bind(**named, shard_id=held.lease.shard_id)
        self._aftermath = Aftermath(parts=parts, held=held, interrupts=self._interrupts, log=self._log)
        held.on_change = self._lease_changed

    def request_stop(self) -> None:
        """Finish what is under way, let the child checkpoint, release the lease. Idempotent."""
        self._interrupts.raise_to(Call.STOP)

    async def until_called(self) -> None:
        """Wait until there is a reason to end: a stop, a hand-off, or the loss of the lease."""
        await self._interrupts.until_called()

    def _lease_changed(self) -> None:
        self._interrupts.raise_to(Call.STOP if self._held.lost is None else Call.LEASE_LOST)

    async def run(self) -> None:
        """Until the shard is finished or the lease is gone.

        The lease is not held afterwards, unless it is finished and finished ones are kept.

        Cancelled: the child is killed and nothing is written.
        """
        if self._held.next_owner is not None:
            self.request_stop()
        if await self._parents_finished():
            await self._work()
        keeper = self._parts.keeper
        stays = self._held.lease.is_finished and keeper.keeps_finished and not self._stopped
        self._held.progress.waits(Cause.LEASE, "it is released")
        if self._held.lost is None and keeper.holds(self._held.key) and not stays:
            await keeper.give_up(self._held, degraded=self._aftermath.degraded)

    @property
    def _stopped(self) -> bool:
        return self._interrupts.call is not Call.NONE

    async def _work(self) -> None:
        await self._aftermath.rest()
        while await self._stream_found() and self._interrupts.call is Call.NONE:
            incarnation = Incarnation(
                parts=self._parts,
                held=self._held,
                interrupts=self._interrupts,
                memory=self._memory,
                log=self._log,
                scrutiny=self._aftermath.scrutiny,
            )
            match await incarnation.run():
                case Finished():
                    self._log.info("shard_finished")
                    self._parts.shard_finished.fire()
                    return
                case CalledAway():
                    return
                case Failed() as failed:
                    self._held.progress.failed(str(failed.error), failed.stderr)
                    if not await self._aftermath.goes_on(failed):
                        return

    async def _parents_finished(self) -> bool:
        """Wait until the parents are done; False where called away first."""
        said = False
        while self._interrupts.call is Call.NONE:
            waiting = await self._unfinished_parents()
            if not waiting:
                self._held.progress.moved()
                return True
            (self._log.debug if said else self._log.info)("shard_waits_for_parents", parents=sorted(waiting))
            said = True
            await self._interrupts.interruptible(
                lambda: self._parts.shard_finished.wait(self._parts.timings.parents_s)
            )
        return False

    async def _stream_found(self) -> bool:
        """Wait until the stream is there; False where called away first.

        Where one stream only is read, its readers find out. Among many a lease may be left of a stream that was deleted
        and created anew: the new one's shards have the same names, and must not be read for the old one.
        """
        lease, said = self._held.lease, False
        if lease.stream is None:
            return True
        watch = self._parts.streams.of(lease).watch
        # A number of a former stream is refused by the new one, a word is not.
        within_s = _FRESH_S if lease.checkpoint.is_sentinel else RECHECK_S
        while self._interrupts.call is Call.NONE:
            try:
                if await watch.confirm(within_s) is StreamState.THERE:
                    if said:
                        self._held.progress.moved()
                    return True
                why = "it is not there"
            except AwsError as error:
                why = str(error)
            self._held.progress.waits(Cause.STREAM, why)
            (self._log.debug if said else self._log.info)("shard_waits_for_stream", why=why)
            said = True
            await self._interrupts.interruptible(lambda: self._parts.clock.sleep(_STREAM_PAUSE_S))
        return False

    async def _unfinished_parents(self) -> frozenset[ShardId]:
        parents: dict[ShardId, Lease | None] = {}
        try:
            for shard_id in sorted(self._held.lease.parent_shard_ids):
                row = await self._parts.table.get(self._held.lease.key_of(shard_id))
                parents[shard_id] = None if row is None else lease_from_row(row)
        except (AwsError, ValueError) as error:
            self._held.progress.waits(Cause.PARENT, str(error))
            self._log.warning("parents_unreadable", error=str(error))
            return self._held.lease.parent_shard_ids
        unfinished = unfinished_parents(self._held.lease, parents)
        if unfinished:
            self._held.progress.waits(Cause.PARENT, ", ".join(sorted(unfinished)))
        return unfinished
