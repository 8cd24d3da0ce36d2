from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, NewType

from kcl_protocol.errors import CheckpointIllegalArgument
from kcl_protocol.sequence import LATEST, SHARD_END, ExtendedSequenceNumber

_IDENTITY: Final = re.compile(r"([0-9]+):([^:]+):([0-9]+)", re.ASCII)
_ARN: Final = re.compile(r"arn:[^:]+:kinesis:[^:]*:([0-9]+):stream/([^:/]+)", re.ASCII)
_TABLE_ARN: Final = re.compile(
    r"arn:aws[a-z0-9-]*:dynamodb:([a-z0-9-]+):([0-9]{12}):table/([A-Za-z0-9_.-]+)/stream/([A-Za-z0-9_.:-]+)",
    re.ASCII,
)
_TABLE_NAME: Final = re.compile(r"([a-z0-9-]+)\$([0-9]{12})\$([^$:]+)\$([^$:]+)", re.ASCII)
_PARTITIONS: Final = (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov"))
_ALPHA: Final = 0.5
_BYTES_IN_KIB: Final = 1024
_MIN_KBPS: Final = 0.0000005
# Idle after so long without a delivery: in least samples, or in pauses like the longest of the last sample.
_IDLE_SAMPLES: Final = 3
_IDLE_PAUSES: Final = 2
_PAUSE_MOST_S: Final = 300.0
MAX_HASH = 2**128 - 1


@dataclass(frozen=True, slots=True)
class TableStream:
    """`label`: when the stream was switched on."""

    region: str
    account: str
    table: str
    label: str

    @property
    def name(self) -> str:
        """KCL's adapter 2.x: KinesisMapperUtil."""
        return "$".join((self.region, self.account, self.table, self.label.replace(":", "_")))

    def is_beside(self, other: TableStream) -> bool:
        return replace(self, label=other.label) == other

    @property
    def arn(self) -> str:
        partition = next((name for prefix, name in _PARTITIONS if self.region.startswith(prefix)), "aws")
        return f"arn:{partition}:dynamodb:{self.region}:{self.account}:table/{self.table}/stream/{self.label}"

    @staticmethod
    def of(text: str) -> TableStream | None:
        """By ARN, or by the name in lease keys; None: another stream."""
        if (match := _TABLE_ARN.fullmatch(text)) is not None:
            return TableStream(*match.groups())
        if (match := _TABLE_NAME.fullmatch(text)) is None:
            return None
        region, account, table, label = match.groups()
        return TableStream(region, account, table, label.replace("_", ":"))


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """KCL: StreamIdentifier. The creation epoch is in seconds, above 0; of DynamoDB it is 1."""

    account: str
    name: str
    creation_epoch: int

    def __str__(self) -> str:
        return f"{self.account}:{self.name}:{self.creation_epoch}"

    @property
    def of_table(self) -> TableStream | None:
        return TableStream.of(self.name)

    @property
    def names(self) -> frozenset[str]:
        found, of_table = {self.name, str(self)}, self.of_table
        return frozenset(found if of_table is None else {*found, of_table.arn, of_table.table})

    @staticmethod
    def parse(text: str) -> StreamIdentity:
        match = _IDENTITY.fullmatch(text)
        if match is None or not int(match[3]):
            raise ValueError(f"not an identity of a stream, account:name:creationEpoch: {text!r:.80}")
        return StreamIdentity(match[1], match[2], int(match[3]))

    @staticmethod
    def of_arn(arn: str, created_s: float) -> StreamIdentity:
        """ValueError unless `arn` is a stream ARN; `created_s` is in epoch seconds."""
        if (of_table := TableStream.of(arn)) is not None:
            return StreamIdentity(of_table.account, of_table.name, 1)
        match = _ARN.fullmatch(arn)
        if match is None:
            raise ValueError(f"not the ARN of a stream: {arn!r:.200}")
        return StreamIdentity(match[1], match[2], int(created_s))


LeaseKey = NewType("LeaseKey", str)
ShardId = NewType("ShardId", str)
WorkerId = NewType("WorkerId", str)


@dataclass(frozen=True, slots=True)
class HashRange:
    """Of partition keys, both ends included."""

    start: int
    end: int


def lease_key_of(stream: StreamIdentity | None, shard_id: ShardId) -> LeaseKey:
    """KCL: MultiStreamLease."""
    return LeaseKey(shard_id if stream is None else f"{stream}:{shard_id}")


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease row (KCL: Lease, DynamoDBLeaseSerializer).

    Args:
        lease_counter: raised by each renewal, checkpoint and change of owner; the fence of every write.
        checkpoint: processed up to and including this position, or a sentinel.
        lease_owner: who should read the shard; during a handoff the next one.
        checkpoint_owner: who still reads during a handoff; else None.
        owner_switches_since_checkpoint: changes of owner without progress.
        pending_checkpoint: prepared by the record processor but not confirmed.
        parent_shard_ids: must be finished first.
        hash_range: None on rows of old versions.
        throughput_kbps: smoothed KiB per second, None until measured.
        degraded_by: who released it because its children kept failing.
        stream_created_s: epoch seconds; None on rows of Java programs.
        lanes: how far each of several children is done; at LATEST: the first record that was read.
        standby: the next owner of a handoff starts its child first: `asked WORKER`, then `ready WORKER`.
        fence: the fencing token, which each claim raises; None: no worker of ours has claimed it.
        reached_ms: a bounded run (`runUntil`) has read all up to this time, epoch milliseconds.
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
    lanes: tuple[ExtendedSequenceNumber, ...] = ()
    standby: str | None = None
    fence: int | None = None
    reached_ms: int | None = None

    def next_fence(self, now_ms: int) -> int:
        """The time makes it grow where the row was deleted and created again."""
        return now_ms if self.fence is None else max(self.fence + 1, now_ms)

    @property
    def shard_id(self) -> ShardId:
        if self.stream is None:
            return ShardId(self.lease_key)
        return ShardId(self.lease_key[len(str(self.stream)) + 1 :])

    def key_of(self, shard_id: ShardId) -> LeaseKey:
        return lease_key_of(self.stream, shard_id)

    @property
    def actual_owner(self) -> WorkerId | None:
        """The current reader."""
        return self.checkpoint_owner or self.lease_owner

    @property
    def first_read(self) -> str | None:
        is_known = self.checkpoint == LATEST and len(self.lanes) == 1
        return self.lanes[0].sequence_number if is_known else None

    @property
    def awaits_standby(self) -> bool:
        """The old owner should read on for a while."""
        return self.checkpoint_owner is not None and self.standby == f"asked {self.lease_owner}"

    @property
    def is_finished(self) -> bool:
        return self.checkpoint.is_shard_end

    def is_at(self, until_ms: int) -> bool:
        """Whether a run that ends with the records before this time has nothing left to read."""
        return self.is_finished or (self.reached_ms is not None and self.reached_ms >= until_ms)


@dataclass(frozen=True, slots=True)
class CheckpointWindow:
    """From the stored checkpoint to the last delivered position (KCL: ShardRecordProcessorCheckpointer).

    `began`: the child has named this position itself; it may be before the stored checkpoint, which then stays.
    """

    last: ExtendedSequenceNumber
    largest: ExtendedSequenceNumber
    shard_ended: bool = False
    began: ExtendedSequenceNumber | None = None

    def position(
        self, sequence_number: str | None, sub_sequence_number: int | None
    ) -> ExtendedSequenceNumber:
        """Without a sequence number: the last delivered position.

        At the end of the shard that also means SHARD_END, even if it is stored already (in KCL the shard then never
        completes, kcl#211). CheckpointIllegalArgument: malformed, before the stored checkpoint, or beyond the last
        delivered position.
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
        if asked < (self.last if self.began is None else min(self.last, self.began)):
            raise CheckpointIllegalArgument(f"{asked} is before the stored checkpoint {self.last}")
        # KCL accepts any number at the end of a shard, but a position without a record cannot be read from.
        if asked > (everything if asked.is_shard_end else self.largest):
            raise CheckpointIllegalArgument(f"{asked} is beyond {self.largest}, the last delivered position")
        return asked


class Throughput:
    """The smoothed throughput of one lease (KCL: LeaseStatsRecorder); not thread-safe.

    A sample is all bytes since the last one over the time between both last deliveries, so bursts count with their
    average. Unlike in KCL, a new owner continues from the row: a lease moved because it is busy does not look idle.
    """

    def __init__(self, least_s: float, *, now_s: float, stored_kbps: float | None = None) -> None:
        """`least_s`: no sample is shorter; after so long half of the average is new."""
        if least_s <= 0:
            raise ValueError(f"a sample of a throughput takes {least_s} s, it must be above 0")
        self._least_s = least_s
        self._since_s = self._last_s = self._delivered_s = now_s
        self._pause_s = self._longest_s = 0.0
        self._kbps = stored_kbps
        self._bytes = 0
        self._has_begun = False

    def begins(self) -> None:
        """From now on the child is idle if it gets no records."""
        self._has_begun = True

    def record(self, size_bytes: int, *, now_s: float) -> None:
        self._bytes += size_bytes
        self._longest_s = max(self._longest_s, now_s - self._delivered_s)
        self._last_s = self._delivered_s = now_s
        self._has_begun = True

    def at_renewal(self, *, now_s: float) -> float | None:
        """In KiB per second; None: no sample is due, or there is no figure yet, and what is stored stays."""
        if not self._has_begun:
            self._since_s = self._last_s = self._delivered_s = now_s
        elif now_s - self._last_s >= max(_IDLE_SAMPLES * self._least_s, _IDLE_PAUSES * self._pause_s):
            self._last_s = now_s
        took_s = self._last_s - self._since_s
        if took_s < self._least_s:
            return None
        if self._bytes:
            self._pause_s, self._longest_s = min(self._longest_s, _PAUSE_MOST_S), 0.0
        latest = self._bytes / _BYTES_IN_KIB / took_s
        self._since_s, self._bytes = self._last_s, 0
        if self._kbps is not None:
            old = (1 - _ALPHA) ** (took_s / self._least_s)
            smoothed = (1 - old) * latest + old * self._kbps
            self._kbps = smoothed if smoothed >= _MIN_KBPS else 0.0
        elif latest:
            self._kbps = latest
        return self._kbps
