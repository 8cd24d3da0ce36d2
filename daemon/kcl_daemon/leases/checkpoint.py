"""Which checkpoints a record processor may ask for (KCL: ShardRecordProcessorCheckpointer).

Not before the stored checkpoint and not beyond the last position handed to the processor. Without a sequence number it is
that last position; with a sequence number alone the sub-sequence number is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcl_protocol.errors import CheckpointIllegalArgument
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber


@dataclass(frozen=True, slots=True)
class CheckpointWindow:
    """What may be checkpointed now.

    Args:
        last: the checkpoint that is stored.
        largest: the last position handed to the processor; before any, the checkpoint it started from.
        shard_ended: whether everything has been handed over and the processor was told so.
    """

    last: ExtendedSequenceNumber
    largest: ExtendedSequenceNumber
    shard_ended: bool = False

    def position(
        self, sequence_number: str | None, sub_sequence_number: int | None
    ) -> ExtendedSequenceNumber:
        """The position that a request stands for.

        No sequence number means everything handed over, which at the end of a shard is SHARD_END; so does the last
        position itself then, stored before or not (KCL drops that case and the shard never completes, kcl#211).

        Raises:
            CheckpointIllegalArgument: malformed, before the stored checkpoint or beyond what was handed over.
        """
        everything = SHARD_END if self.shard_ended else self.largest
        if sequence_number is None:
            return everything
        try:
            asked = ExtendedSequenceNumber(sequence_number, sub_sequence_number or 0)
        except ValueError as wrong:
            raise CheckpointIllegalArgument(str(wrong)) from wrong
        if self.shard_ended and asked == self.largest:
            return SHARD_END
        if asked < self.last:
            raise CheckpointIllegalArgument(f"{asked} is before the stored checkpoint {self.last}")
        # KCL lets any number pass at the end of a shard; a stored position that no record has cannot be read from.
        if asked > (everything if asked.is_shard_end else self.largest):
            raise CheckpointIllegalArgument(f"{asked} is beyond {self.largest}, the last delivered position")
        return asked
