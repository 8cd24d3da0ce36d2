"""How a record processor says how far it has come, in the plain and in the async form.

Owns what the user calls. The rules (when a checkpoint is possible, what is repeated, what an answer means) are those of
`session`, which hands its `store` to the constructor.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Final

from kcl_client.plain import complete
from kcl_client.records import Record
from kcl_protocol.messages import CheckpointRequest
from kcl_protocol.sequence import ExtendedSequenceNumber

Position = Record | ExtendedSequenceNumber
Store = Callable[[CheckpointRequest, int], Coroutine[object, object, None]]

CHECKPOINT_ATTEMPTS: Final = 5
"""Tries of one checkpoint, the first one included."""
FIRST_BACKOFF_S: Final = 0.5
"""Wait before the second try, doubled before each further one: 7.5 s in all with five attempts."""


class Checkpointer:
    """Stores positions for a `RecordProcessor`; one object for the whole life of the shard.

    It works inside `process_records`, `shard_ended` and `shutdown_requested`, from any thread, one at a time. A
    position may be kept and checkpointed in a later call.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def checkpoint(self, position: Position | None = None, *, attempts: int = CHECKPOINT_ATTEMPTS) -> None:
        """Record that everything up to and including a position is done; returns once it is stored.

        Args:
            position: a record or the position of one. None means everything delivered so far, **the whole batch in
                hand included**, done or not; in `shard_ended` it means the end of the shard.
            attempts: how often a throttled or failed write is tried, with a wait of 0.5 s that doubles.

        Raises:
            CheckpointShutdown: the lease is no longer held, or the daemon has gone: nothing can be stored any more. If
                it leaves the processor uncaught the action just ends; it does not count as a failure.
            CheckpointInvalidState: not possible now: outside an action, in `initialize` or in `lease_lost`.
            CheckpointIllegalArgument: the position is before the last checkpoint or beyond what was delivered.
            CheckpointError: any other refusal; CheckpointThrottled and CheckpointDependencyFailed after the last try.
        """
        complete(self._store(request_for(position), attempts))


class AsyncCheckpointer:
    """Stores positions for an `AsyncRecordProcessor`; may be shared by tasks, which then take turns.

    It works while `process_records`, `shard_ended` or `shutdown_requested` runs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def checkpoint(
        self, position: Position | None = None, *, attempts: int = CHECKPOINT_ATTEMPTS
    ) -> None:
        """As `Checkpointer.checkpoint`.

        Cancelling it cancels the waiting and further tries; a request already sent may still be stored.
        """
        await self._store(request_for(position), attempts)


def request_for(position: Position | None) -> CheckpointRequest:
    """The protocol's request for a position; with None the daemon takes the largest one it delivered."""
    if position is None:
        return CheckpointRequest()
    if isinstance(position, Record):
        return CheckpointRequest(position.sequence_number, position.sub_sequence_number)
    return CheckpointRequest(str(position.sequence_number), position.sub_sequence_number)
