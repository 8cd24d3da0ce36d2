"""The service has no hash keys: every shard gets the range that the Java adapter 2.x writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NotRequired, TypedDict

from kcl_daemon.leases.lease import HashRange, ShardId, TableStream
from kcl_daemon.ports import StreamSummary
from kcl_daemon.shards.lineage import ChildShard, InitialPosition, Shard, StartAt, created_ms
from kcl_daemon.transport.service_answers import parsing_answer

HASH_RANGE: Final = HashRange(0, 1)
DISABLED: Final = "DISABLED"
RETENTION_S: Final = 24 * 3600.0
# A child may be older than the last changes of its parent by the clocks of the service.
_MARGIN_MS: Final = 300_000


class NumberRangeShape(TypedDict):
    StartingSequenceNumber: str
    EndingSequenceNumber: NotRequired[str]


class ShardShape(TypedDict):
    ShardId: str
    SequenceNumberRange: NumberRangeShape
    ParentShardId: NotRequired[str]


class DescriptionShape(TypedDict):
    StreamArn: str
    StreamStatus: str
    Shards: Sequence[ShardShape]
    StreamViewType: NotRequired[str]
    CreationRequestDateTime: NotRequired[float]
    LastEvaluatedShardId: NotRequired[str]


class DescribedShape(TypedDict):
    StreamDescription: DescriptionShape


class ListedStreamShape(TypedDict):
    StreamArn: str


class StreamsShape(TypedDict):
    Streams: Sequence[ListedStreamShape]
    LastEvaluatedStreamArn: NotRequired[str]


def summary(answer: DescribedShape) -> StreamSummary:
    with parsing_answer("DescribeStream"):
        shape = answer["StreamDescription"]
        stream = TableStream.of(shape["StreamArn"])
        if stream is None:
            raise ValueError(f"not the ARN of a table's stream: {shape['StreamArn']!r:.200}")
        return StreamSummary(
            name=stream.name,
            arn=shape["StreamArn"],
            status=shape["StreamStatus"],
            creation_time_s=float(shape.get("CreationRequestDateTime", 0)),
            retention_s=RETENTION_S,
            view_type=shape.get("StreamViewType"),
        )


def listed(answer: StreamsShape) -> tuple[list[str], str | None]:
    with parsing_answer("ListStreams"):
        return [each["StreamArn"] for each in answer["Streams"]], answer.get("LastEvaluatedStreamArn")


def page(answer: DescribedShape) -> DescriptionShape:
    with parsing_answer("DescribeStream"):
        shape = answer["StreamDescription"]
        return {**shape, "StreamStatus": shape["StreamStatus"], "Shards": shape.get("Shards") or ()}


def shards(shapes: Iterable[ShardShape]) -> tuple[Shard, ...]:
    """A shard that has children is closed, even if its end is missing."""
    with parsing_answer("DescribeStream"):
        found = {each["ShardId"]: each for each in shapes}
        ends: dict[str, int] = {}
        for each in found.values():
            begun = int(each["SequenceNumberRange"]["StartingSequenceNumber"])
            if parent := each.get("ParentShardId"):
                ends[parent] = min(begun, ends.get(parent, begun))
        return tuple(_shard(each, ends.get(each["ShardId"])) for each in found.values())


def _shard(shape: ShardShape, children_begun: int | None) -> Shard:
    numbers, parent = shape["SequenceNumberRange"], shape.get("ParentShardId")
    ending = numbers.get("EndingSequenceNumber")
    return Shard(
        shard_id=ShardId(shape["ShardId"]),
        hash_range=HASH_RANGE,
        parent_shard_ids=frozenset({ShardId(parent)} if parent else ()),
        starting_sequence_number=int(numbers["StartingSequenceNumber"]),
        ending_sequence_number=children_begun if ending is None else int(ending),
    )


def open_at(found: Sequence[Shard], start: InitialPosition) -> tuple[Shard, ...]:
    """All others follow these, or ended before.

    LATEST: those without children, also in a stream that was switched off.
    """
    ids = {each.shard_id for each in found}
    parents = {parent for each in found for parent in each.parent_shard_ids}
    if start.at is StartAt.LATEST:
        return tuple(each for each in found if each.shard_id not in parents)
    until_ms = 0 if start.timestamp_s is None else start.timestamp_s * 1000 - _MARGIN_MS
    begun = {
        each.shard_id
        for each in found
        if each.parent_shard_ids.isdisjoint(ids) or (created_ms(each.shard_id) or until_ms + 1) <= until_ms
    }
    waiting = {parent for each in found if each.shard_id not in begun for parent in each.parent_shard_ids}
    return tuple(each for each in found if each.shard_id in begun and each.shard_id not in parents - waiting)


def children_of(parent: ShardId, shapes: Iterable[ShardShape]) -> tuple[ChildShard, ...]:
    with parsing_answer("DescribeStream"):
        return tuple(
            ChildShard(ShardId(each["ShardId"]), frozenset({parent}), HASH_RANGE)
            for each in shapes
            if each.get("ParentShardId") == parent
        )
