"""Kinesis answers in the service's JSON shapes, read into the daemon's values: by the SDK, and by a Kinesis in memory.

Pure: knows no SDK. `Data` is base64 text and timestamps are epoch seconds, exactly as they come over the wire.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, NotRequired, TypedDict, assert_never

from kcl_daemon.errors import Unavailable
from kcl_daemon.leases.lease import HashRange, ShardId
from kcl_daemon.ports import Fetched, StreamSummary
from kcl_daemon.retrieval.payload import Payload
from kcl_daemon.shards.shard import ChildShard, Shard, StartAt
from kcl_protocol.messages import Record

_MS_PER_S: Final = 1000


class RecordShape(TypedDict):
    """One entry of `Records`."""

    SequenceNumber: str
    PartitionKey: str
    Data: str
    ApproximateArrivalTimestamp: NotRequired[float]


class HashRangeShape(TypedDict):
    """`HashKeyRange`."""

    StartingHashKey: str
    EndingHashKey: str


class ChildShardShape(TypedDict):
    """One entry of `ChildShards`."""

    ShardId: str
    ParentShards: Sequence[str]
    HashKeyRange: HashRangeShape


class RecordsShape(TypedDict):
    """The answer of GetRecords."""

    Records: Sequence[RecordShape]
    NextShardIterator: NotRequired[str | None]
    MillisBehindLatest: NotRequired[int]
    ChildShards: NotRequired[Sequence[ChildShardShape]]


class NumberRangeShape(TypedDict):
    """`SequenceNumberRange`."""

    StartingSequenceNumber: str
    EndingSequenceNumber: NotRequired[str]


class ShardShape(TypedDict):
    """One entry of `Shards`."""

    ShardId: str
    ParentShardId: NotRequired[str]
    AdjacentParentShardId: NotRequired[str]
    HashKeyRange: HashRangeShape
    SequenceNumberRange: NumberRangeShape


class ShardsShape(TypedDict):
    """The answer of ListShards."""

    Shards: Sequence[ShardShape]
    NextToken: NotRequired[str]


class DescriptionShape(TypedDict):
    """`StreamDescriptionSummary`."""

    StreamName: str
    StreamARN: str
    StreamStatus: str
    StreamCreationTimestamp: float


class SummaryShape(TypedDict):
    """The answer of DescribeStreamSummary."""

    StreamDescriptionSummary: DescriptionShape


class StreamsShape(TypedDict):
    """The answer of ListStreams."""

    StreamSummaries: Sequence[DescriptionShape]
    NextToken: NotRequired[str]


class IteratorShape(TypedDict):
    """The answer of GetShardIterator."""

    ShardIterator: str


FilterType = Literal["AT_TRIM_HORIZON", "AT_LATEST", "AT_TIMESTAMP"]


def filter_type(start: StartAt) -> FilterType:
    """The filter of ListShards that leaves the shards open at that position (KCL: HierarchicalShardSyncer)."""
    match start:
        case StartAt.TRIM_HORIZON:
            return "AT_TRIM_HORIZON"
        case StartAt.LATEST:
            return "AT_LATEST"
        case StartAt.TIMESTAMP:
            return "AT_TIMESTAMP"
        case _:
            assert_never(start)


@contextmanager
def understanding(operation: str) -> Generator[None, None, None]:
    """Reading an answer: one that lacks a part, or is no answer of the service at all, is Unavailable."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise Unavailable(f"the answer cannot be understood: {error!r:.200}", operation=operation) from error


def fetched(answer: RecordsShape) -> Fetched:
    """The answer of GetRecords; Unavailable where it is none."""
    with understanding("GetRecords"):
        payload = Payload.of([_record(entry) for entry in answer["Records"]])
        if payload and payload.last < payload.first:  # which also finds what is no number
            raise ValueError("the records are out of order")
        return Fetched(
            payload=payload,
            next_iterator=text(answer.get("NextShardIterator") or "") or None,
            millis_behind_latest=_count(answer.get("MillisBehindLatest")),
            child_shards=child_shards(answer.get("ChildShards")),
        )


def text(told: object) -> str:
    """A text; TypeError where it is none."""
    if not isinstance(told, str):
        raise TypeError(f"{told!r:.50} is no text")
    return told


def child_shards(told: Sequence[ChildShardShape] | None) -> tuple[ChildShard, ...]:
    """`ChildShards`; KeyError, TypeError or ValueError where they are none."""
    return tuple(_child_shard(child) for child in told or ())


def shards(answer: ShardsShape) -> tuple[Shard, ...]:
    """One page of ListShards; Unavailable where it is none."""
    with understanding("ListShards"):
        return tuple(_shard(shard) for shard in answer["Shards"])


def summary(answer: SummaryShape) -> StreamSummary:
    """The answer of DescribeStreamSummary; Unavailable where it is none."""
    with understanding("DescribeStreamSummary"):
        return _summary(answer["StreamDescriptionSummary"])


def summaries(answer: StreamsShape) -> tuple[StreamSummary, ...]:
    """One page of ListStreams; Unavailable where it is none."""
    with understanding("ListStreams"):
        return tuple(_summary(told) for told in answer["StreamSummaries"])


def _summary(told: DescriptionShape) -> StreamSummary:
    return StreamSummary(
        name=told["StreamName"],
        arn=told["StreamARN"],
        status=told["StreamStatus"],
        creation_time_s=float(told["StreamCreationTimestamp"]),
    )


def iterator(answer: IteratorShape) -> str:
    """The answer of GetShardIterator; Unavailable where it is none."""
    with understanding("GetShardIterator"):
        return answer["ShardIterator"]


def _record(entry: RecordShape) -> Record:
    arrival_s = entry.get("ApproximateArrivalTimestamp")
    return Record(
        text(entry["Data"]),
        text(entry["PartitionKey"]),
        text(entry["SequenceNumber"]),
        None if arrival_s is None else round(arrival_s * _MS_PER_S),
    )


def _count(told: object) -> int | None:
    if told is not None and type(told) is not int:
        raise TypeError(f"{told!r:.50} is no count")
    return told


def _hash_range(told: HashRangeShape) -> HashRange:
    return HashRange(int(told["StartingHashKey"]), int(told["EndingHashKey"]))


def _child_shard(told: ChildShardShape) -> ChildShard:
    """ValueError where it has no parents (KCL: DataRetrievalUtil): its lease would be read before they are finished."""
    if not told["ParentShards"]:
        raise ValueError(f"child shard {told['ShardId']} has no parents")
    return ChildShard(
        shard_id=ShardId(told["ShardId"]),
        parent_shard_ids=frozenset(map(ShardId, told["ParentShards"])),
        hash_range=_hash_range(told["HashKeyRange"]),
    )


def _shard(told: ShardShape) -> Shard:
    parents = (told.get("ParentShardId"), told.get("AdjacentParentShardId"))
    numbers = told["SequenceNumberRange"]
    ending = numbers.get("EndingSequenceNumber")
    return Shard(
        shard_id=ShardId(told["ShardId"]),
        hash_range=_hash_range(told["HashKeyRange"]),
        parent_shard_ids=frozenset(ShardId(parent) for parent in parents if parent),
        starting_sequence_number=int(numbers["StartingSequenceNumber"]),
        ending_sequence_number=None if ending is None else int(ending),
    )
