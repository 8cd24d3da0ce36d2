"""Answers a child's checkpoint requests (KCL: ShardRecordProcessorCheckpointer)."""

from __future__ import annotations

from kcl_daemon.coordination.keeper import HeldLease, LeaseKeeper
from kcl_daemon.errors import AwsError, LeaseLost, TableNotFound, Throttled
from kcl_daemon.leases.checkpoint import CheckpointWindow
from kcl_daemon.ports import Log
from kcl_protocol.errors import (
    CheckpointDependencyFailed,
    CheckpointError,
    CheckpointIllegalArgument,
    CheckpointInvalidState,
    CheckpointShutdown,
    CheckpointThrottled,
)
from kcl_protocol.messages import CheckpointAnswer, CheckpointRequest
from kcl_protocol.sequence import ExtendedSequenceNumber


class Checkpointer:
    """The checkpoints of one child. Stores nothing that the child has not asked for.

    Attributes:
        advanced: whether it has stored a new checkpoint.
        refused: whether one was refused since the last batch was taken up, for no fault of the child's.
    """

    def __init__(self, *, held: HeldLease, keeper: LeaseKeeper, log: Log) -> None:
        self._held = held
        self._keeper = keeper
        self._log = log
        self._largest = held.lease.checkpoint
        self._shard_ended = False
        self.advanced = False
        self.refused = False

    def takes_up(self) -> None:
        """A batch is the next thing to go out; what the child still asks for before that may be refused in its course."""
        self.refused = False

    def delivering(self, last: ExtendedSequenceNumber) -> None:
        """A batch goes out that ends here; checkpoints up to this position are allowed from now on."""
        self._largest = last

    def shard_ended(self) -> None:
        """Everything has been handed over: the whole shard may be checkpointed now."""
        self._shard_ended = True

    async def answer(self, request: CheckpointRequest) -> CheckpointAnswer:
        """Store what is asked for, if that is allowed; the answer names what went wrong, it never raises for that."""
        error: str | None = None
        try:
            await self._store(request)
        except CheckpointError as refused:
            error = refused.wire_name
            self.refused |= not isinstance(refused, CheckpointIllegalArgument)
            self._log.warning(
                "checkpoint_refused",
                sequence_number=request.sequence_number,
                sub_sequence_number=request.sub_sequence_number,
                error=error,
                reason=str(refused),
            )
        return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, error)

    async def _store(self, request: CheckpointRequest) -> None:
        if self._held.lost is not None:
            raise CheckpointShutdown(self._held.lost)
        window = CheckpointWindow(self._held.lease.checkpoint, self._largest, self._shard_ended)
        position = window.position(request.sequence_number, request.sub_sequence_number)
        before, progress = self._held.lease.checkpoint, self._held.progress
        refused: str | None = None
        progress.checkpoint_begins()
        try:
            await self._keeper.checkpoint(self._held, position)
        except LeaseLost as lost:
            raise CheckpointShutdown(str(lost)) from lost
        except Throttled as throttled:
            refused = str(throttled)
            raise CheckpointThrottled(str(throttled)) from throttled
        except TableNotFound as gone:
            refused = str(gone)
            raise CheckpointInvalidState(str(gone)) from gone
        except AwsError as failed:
            refused = str(failed)
            raise CheckpointDependencyFailed(str(failed)) from failed
        finally:
            progress.checkpoint_ended(moved=self._held.lease.checkpoint > before, refused=refused)
        if position > before:
            self.advanced = True
            self._log.debug("checkpoint_stored", checkpoint=str(position))
