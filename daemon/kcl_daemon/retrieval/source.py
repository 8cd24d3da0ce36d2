"""What a reader reads, and which records of it are still to be delivered; the same for polling and fan-out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Clock, Log, StreamRef
from kcl_daemon.progress.heard import Heard
from kcl_daemon.retrieval.left_out import LeftOut
from kcl_daemon.retrieval.payload import Payload, Split
from kcl_daemon.retrieval.schemas import Opening, ShardSchemas, Trouble
from kcl_daemon.retrieval.start import StartMemory, has_been_trimmed
from kcl_protocol.sequence import ExtendedSequenceNumber

# Aggregates are taken apart this much at a time, and delivered so: some ten milliseconds.
SLICE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """What is read, from where.

    Args:
        stream: its stream.
        shard_id: the shard.
        checkpoint: the lease's, where delivery resumes.
        timestamp_s: the configured starting time, if any.
        memory: shared by all readers that one consumer starts after one another.
        split: takes KPL aggregates apart; None: they are delivered as they are.
        left_out: told of what the checkpoint covers; None: nobody counts it.
        schemas: opens records of a schema registry; None: they are delivered as they are.
        heard: what is told of the answers; shared like `memory`.
        stream_is_there: asked where the shard is not found; None: the stream is, so the shard must be gone.
    """

    stream: StreamRef
    shard_id: ShardId
    checkpoint: ExtendedSequenceNumber
    timestamp_s: float | None
    memory: StartMemory
    split: Split | None = None
    left_out: LeftOut | None = None
    schemas: ShardSchemas | None = None
    stream_is_there: Callable[[], Awaitable[bool]] | None = None
    heard: Heard = field(default_factory=Heard)

    async def wait_out(self, clock: Clock, pause_s: float) -> None:
        """A while, after the stream was not there.

        One of many streams is waited for until it is: a new stream of the same name has leases of its own, and must not
        be read for this one.
        """
        await clock.sleep(pause_s)
        while self.stream.identity is not None and not await self._is_back():
            await clock.sleep(pause_s)

    async def _is_back(self) -> bool:
        try:
            return self.stream_is_there is None or await self.stream_is_there()
        except AwsError:
            return False

    def undelivered(self, payload: Payload) -> Iterator[Payload]:
        """Aggregates taken apart, without what the checkpoint covers, in parts; only the first answers can hold such records.

        There is one part, unless there are aggregates: those are taken apart as the parts are taken. A part without records
        may come before a part that takes long.
        """
        if self.split is None:
            yield self._behind_checkpoint(payload)
            return
        for slice_ in payload.slices(SLICE_BYTES):
            for part in slice_.expanded(self.split):
                yield self._behind_checkpoint(part)

    def _behind_checkpoint(self, payload: Payload) -> Payload:
        checkpoint = self.checkpoint
        if checkpoint.is_sentinel:
            return payload
        if self.split is None and checkpoint.sub_sequence_number:
            # A checkpoint inside an aggregate does not cover the rest of it, and here it is delivered whole.
            checkpoint = ExtendedSequenceNumber(str(int(checkpoint.sequence_number) - 1))
        rest = payload.after(checkpoint)
        if self.left_out is not None and len(rest) < len(payload):
            self.left_out.before_checkpoint(len(payload) - len(rest))
        return rest

    def opening(self, payload: Payload, trouble: Trouble) -> Opening | None:
        """What is still to be delivered, where it has to be opened first; None: it is as it should be.

        Args:
            payload: a part as `undelivered` gave it.
            trouble: told why, while it cannot be opened.
        """
        return None if self.schemas is None else self.schemas.opening(payload, trouble)

    def look_at_beginning(self, first_sequence_number: str, log: Log) -> None:
        """Say where the first record is not the one that was to be the first."""
        if has_been_trimmed(self.checkpoint, first_sequence_number):
            log.warning(
                "position_trimmed",
                checkpoint=str(self.checkpoint),
                first_sequence_number=first_sequence_number,
                advice="the checkpoint is older than the retention of the stream; reading continues at the "
                "oldest record, the records before it are lost. Raise the retention, or find out why "
                "this shard was not read for so long",
            )
