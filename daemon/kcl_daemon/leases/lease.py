"""The lease: the right to read one shard and the record of how far it has been read.

Which stream a lease is of, where one application reads many (KCL: StreamIdentifier).

Pure. Owns the text form and the lease keys made from it. Knows nothing of positions, or of how a stream is called.

Which checkpoints a record processor may ask for (KCL: ShardRecordProcessorCheckpointer).

Not before the stored checkpoint and not beyond the last position handed to the processor. Without a sequence number it is
that last position; with a sequence number alone the sub-sequence number is 0.

How many KiB per second a lease delivers, smoothed (KCL: LeaseStatsRecorder).

Bytes and times in, a figure out. It knows neither leases nor renewals; whoever holds a lease keeps one of these beside
it and drops it with the lease.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Final, NewType

from kcl_protocol.errors import CheckpointIllegalArgument
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber

_IDENTITY: Final = re.compile(r"([0-9]+):([^:]+):([0-9]+)", re.ASCII)
_ARN: Final = re.compile(r"arn:[^:]+:kinesis:[^:]*:([0-9]+):stream/([^:/]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """One stream among many, and which of the streams that had its name one after the other.

    Args:
        account: the account that owns it, decimal digits.
        name: its name.
        creation_epoch: when it was created, in whole epoch seconds, above 0.
    """

    account: str
    name: str
    creation_epoch: int

    def __str__(self) -> str:
        """`account:name:creationEpoch`, as it stands in rows."""
        return f"{self.account}:{self.name}:{self.creation_epoch}"

    @staticmethod
    def parse(text: str) -> StreamIdentity:
        """The identity of a text; ValueError where it is none."""
        match = _IDENTITY.fullmatch(text)
        if match is None or not int(match[3]):
            raise ValueError(f"not an identity of a stream, account:name:creationEpoch: {text!r:.80}")
        return StreamIdentity(match[1], match[2], int(match[3]))

    @staticmethod
    def of_arn(arn: str, created_s: float) -> StreamIdentity:
        """The identity of a stream that Kinesis describes; ValueError where that is not the ARN of a stream.

        Args:
            arn: its ARN.
            created_s: its creation time, epoch seconds.
        """
        match = _ARN.fullmatch(arn)
        if match is None:
            raise ValueError(f"not the ARN of a stream: {arn!r:.200}")
        return StreamIdentity(match[1], match[2], int(created_s))


LeaseKey = NewType("LeaseKey", str)
ShardId = NewType("ShardId", str)
WorkerId = NewType("WorkerId", str)


@dataclass(frozen=True, slots=True)
class HashRange:
    """The partition-key hashes that a shard takes, both ends included (0 .. 2**128 - 1)."""

    start: int
    end: int


MAX_HASH = 2**128 - 1


def lease_key_of(stream: StreamIdentity | None, shard_id: ShardId) -> LeaseKey:
    """The key of a shard's lease: the shard's id, behind that of its stream where there are many (KCL: MultiStreamLease)."""
    return LeaseKey(shard_id if stream is None else f"{stream}:{shard_id}")


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease row as this worker understands it (KCL: Lease, DynamoDBLeaseSerializer).

    Args:
        lease_key: the shard id; of one stream among many behind the stream's identity.
        lease_counter: raised by each renewal, checkpoint and change of hands; the fence of every write.
        checkpoint: processed up to and including this position, or a sentinel.
        lease_owner: the worker that should read the shard; during a hand-off the next one. None: nobody.
        checkpoint_owner: during a hand-off the worker that still reads; else None.
        owner_switches_since_checkpoint: how often it changed hands without progress.
        pending_checkpoint: prepared but not confirmed by the record processor.
        pending_checkpoint_state: opaque bytes of the application, beside `pending_checkpoint`.
        parent_shard_ids: the shards that must be finished before this one.
        child_shard_ids: known once the shard has ended.
        hash_range: None on rows of old versions.
        throughput_kbps: smoothed KiB per second, None until measured.
        stream: which of many; None: the application reads one only.
        degraded_by: who released it last because its children kept failing, without a checkpoint since.
        stream_created_s: when Kinesis says that the stream was created, as of the write that noted it; epoch seconds.
            None: nobody has noted it, as on rows that Java programs make.
    """

    lease_key: LeaseKey
    lease_counter: int
    checkpoint: ExtendedSequenceNumber
    lease_owner: WorkerId | None = None
    checkpoint_owner: WorkerId | None = None
    owner_switches_since_checkpoint: int = 0
    pending_checkpoint: ExtendedSequenceNumber | None = None
    pending_checkpoint_state: bytes | None = None
    parent_shard_ids: frozenset[ShardId] = frozenset()
    child_shard_ids: frozenset[ShardId] = frozenset()
    hash_range: HashRange | None = None
    throughput_kbps: float | None = None
    stream: StreamIdentity | None = None
    degraded_by: WorkerId | None = None
    stream_created_s: int | None = None

    @property
    def shard_id(self) -> ShardId:
        """The shard this lease is for; its name is that within its stream."""
        if self.stream is None:
            return ShardId(self.lease_key)
        return ShardId(self.lease_key[len(str(self.stream)) + 1 :])

    def key_of(self, shard_id: ShardId) -> LeaseKey:
        """The key of the lease of another shard of the same stream (KCL: ShardInfo)."""
        return lease_key_of(self.stream, shard_id)

    @property
    def actual_owner(self) -> WorkerId | None:
        """Who reads the shard now: the old owner while a hand-off is pending, else the owner."""
        return self.checkpoint_owner or self.lease_owner

    @property
    def is_finished(self) -> bool:
        """Whether the whole shard has been processed."""
        return self.checkpoint.is_shard_end


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


_ALPHA: Final = 0.5
_BYTES_IN_KIB: Final = 1024
# Rows carry six decimals: what would be written as 0 is 0.
_MIN_KBPS: Final = 0.0000005


class Throughput:
    """The throughput of one lease. Not for use by several threads.

    Differs from KCL in that a new owner goes on from the figure in the row instead of forgetting it: a shard that has
    just been moved because it is busy does not look idle while its new owner starts.
    """

    def __init__(self, window_s: float, *, stored_kbps: float | None = None) -> None:
        """Begin.

        Args:
            window_s: how long a delivery counts, the interval between two renewals.
            stored_kbps: what the lease row said when the lease was taken over.
        """
        if window_s <= 0:
            raise ValueError(f"window of a throughput is {window_s} s, it must be above 0")
        self._window_s = window_s
        self._kbps = stored_kbps
        self._deliveries: deque[tuple[float, int]] = deque()

    def record(self, size_bytes: int, *, now_s: float) -> None:
        """A batch is about to be delivered: the bytes of its user records, at a monotonic time."""
        self._deliveries.append((now_s, size_bytes))
        self._forget_before(now_s - self._window_s)

    def at_renewal(self, *, now_s: float) -> float | None:
        """Take the next step of the average, once in each window, and return KiB per second.

        Half of the figure comes from the window that ends now, so it halves with each idle window. None until
        something was recorded or stored: the row is then left without a figure.
        """
        seen = bool(self._deliveries)
        self._forget_before(now_s - self._window_s)
        latest = sum(size_bytes for _, size_bytes in self._deliveries) / _BYTES_IN_KIB / self._window_s
        if self._kbps is not None:
            smoothed = _ALPHA * latest + (1 - _ALPHA) * self._kbps
            self._kbps = smoothed if smoothed >= _MIN_KBPS else 0.0
        elif seen:
            self._kbps = latest
        return self._kbps

    def _forget_before(self, time_s: float) -> None:
        while self._deliveries and self._deliveries[0][0] <= time_s:
            self._deliveries.popleft()
