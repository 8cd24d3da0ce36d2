"""The lease: the right to read one shard and the record of how far it has been read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from kcl_daemon.leases.stream import StreamIdentity
from kcl_protocol.sequence import ExtendedSequenceNumber

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
