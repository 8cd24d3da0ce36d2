from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NotRequired, TypedDict, TypeVar, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from kcl_daemon.errors import StreamNotFound
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import FetchedRecords, ReadFrom, StreamRef, StreamSummary
from kcl_daemon.records.payload import NULL, RECORD_OVERHEAD_BYTES, Payload, RawRecord
from kcl_daemon.shards.lineage import ChildShard, InitialPosition, Shard
from kcl_daemon.transport import service_answers
from kcl_daemon.transport.caller import AwsJsonClient, JsonApi
from kcl_daemon.transport.pool import Parameters
from kcl_protocol.sequence import ExtendedSequenceNumber

if TYPE_CHECKING:
    from kcl_daemon.records.producing import Entry, PutResult

Shape = TypeVar("Shape")
T = TypeVar("T")

_MS_PER_S: Final = 1000
_QUOTE: Final = b'"'
_KEY_STARTS: Final = (_QUOTE, bytes(NULL))
KINESIS_API: Final = JsonApi("Kinesis_20131202.", StreamNotFound)


class WireRecord(Struct, gc=False, rename="pascal", kw_only=True):
    """Decoding is quicker in the order of the service."""

    sequence_number: str
    approximate_arrival_timestamp: float | None = None
    data: Raw
    partition_key: Raw = NULL


class _Answer(Struct, gc=False, rename="pascal"):
    records: list[WireRecord]
    next_shard_iterator: str | None = None
    millis_behind_latest: int | None = None
    child_shards: Raw = NULL


_answers: Final = Decoder(_Answer)


def fetched(body: bytes | bytearray) -> FetchedRecords:
    with service_answers.parsing_answer("GetRecords"):
        try:
            answer = _answers.decode(body)
        except msgspec.DecodeError:
            return service_answers.fetched(cast("service_answers.RecordsShape", decode_leniently(body)))
        return FetchedRecords(
            payload=payload(answer.records, len(body)),
            next_iterator=answer.next_shard_iterator or None,
            millis_behind_latest=answer.millis_behind_latest,
            child_shards=child_shards(answer.child_shards),
        )


def parsed(operation: str, read: Callable[[Shape], T], body: bytes | bytearray) -> T:
    with service_answers.parsing_answer(operation):
        return read(cast("Shape", decode_leniently(body)))


def payload(records: Sequence[WireRecord], body_bytes: int) -> Payload:
    """The records keep a body of `body_bytes` in memory.

    ValueError: the first or last is invalid; others are not checked.
    """
    if not records:
        return Payload((), 0)
    for each in (records[0], records[-1]):
        if not bytes(each.data).startswith(_QUOTE) or not bytes(each.partition_key).startswith(_KEY_STARTS):
            raise ValueError(f"record {each.sequence_number} has data or a key that is no text")
        ExtendedSequenceNumber(each.sequence_number)
    raw = [
        RawRecord(
            each.data,
            each.partition_key,
            each.sequence_number,
            None
            if (arrival_s := each.approximate_arrival_timestamp) is None
            else round(arrival_s * _MS_PER_S),
        )
        for each in records
    ]
    return Payload(raw, body_bytes + RECORD_OVERHEAD_BYTES * len(raw))


def child_shards(entries: Raw) -> tuple[ChildShard, ...]:
    return service_answers.child_shards(json.loads(bytes(entries)))


def decode_leniently(body: bytes | bytearray) -> object:
    """A partition key with a lone surrogate or invalid UTF-8 must not stop a shard."""
    return json.loads(body.decode("utf-8", "replace"))


class HttpKinesis:
    def __init__(self, client: AwsJsonClient) -> None:
        self._client = client

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        return await self._call("DescribeStreamSummary", _named(stream), service_answers.summary)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        return await self._pages("ListStreams", {}, service_answers.summaries)

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        request = _named(stream)
        if start is not None:
            request["ShardFilter"] = service_answers.shard_filter(start)
        return await self._pages("ListShards", request, service_answers.shards)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        request = {**_named(stream), "ShardId": shard_id, "ShardIteratorType": read_from.kind.value}
        if read_from.sequence_number is not None:
            request["StartingSequenceNumber"] = read_from.sequence_number
        if read_from.timestamp_s is not None:
            request["Timestamp"] = read_from.timestamp_s
        return await self._call("GetShardIterator", request, service_answers.iterator)

    async def get_records(
        self,
        stream: StreamRef,
        shard_id: ShardId,  # noqa: ARG002 - the iterator says which shard
        iterator: str,
        limit: int,
    ) -> FetchedRecords:
        request: dict[str, object] = {"ShardIterator": iterator, "Limit": limit}
        if stream.arn is not None:
            request["StreamARN"] = stream.arn
        return await self._client.call("GetRecords", request, fetched)

    async def _call(self, operation: str, request: Parameters, read: Callable[[Shape], T]) -> T:
        return await self._client.call(operation, request, lambda body: parsed(operation, read, body))

    async def _pages(
        self, operation: str, request: Parameters, read: Callable[[Shape], tuple[T, ...]]
    ) -> tuple[T, ...]:
        def page(shape: Shape) -> tuple[tuple[T, ...], object]:
            found = read(shape)
            return found, cast("Mapping[str, object]", shape).get("NextToken")

        items: list[T] = []
        while True:
            found, token = await self._call(operation, request, page)
            items += found
            if not token:
                return tuple(items)
            request = {"NextToken": token}


async def put_records(client: AwsJsonClient, stream: StreamRef, entries: Sequence[Entry]) -> list[PutResult]:
    """Errors as `Kinesis` if all entries failed; after Unavailable some may have been put."""
    records = [{"Data": each.data, "PartitionKey": each.partition_key} for each in entries]
    request = {**_named(stream), "Records": records}

    def results(answer: PutRecordsShape) -> list[PutResult]:
        return _put_results(answer, len(entries))

    return await client.call(
        "PutRecords", request, lambda body: parsed("PutRecords", results, body), once=True
    )


def _put_results(answer: PutRecordsShape, count: int) -> list[PutResult]:
    from kcl_daemon.records.producing import PutResult

    results = [
        PutResult(each["ShardId"])
        if each.get("ErrorCode") is None
        else PutResult("", f"{each.get('ErrorCode')}: {each.get('ErrorMessage')}")
        for each in answer["Records"]
    ]
    if len(results) != count:
        raise ValueError(f"{len(results)} results for {count} records")
    return results


class PutResultShape(TypedDict):
    ShardId: str
    ErrorCode: NotRequired[str | None]
    ErrorMessage: NotRequired[str | None]


class PutRecordsShape(TypedDict):
    Records: Sequence[PutResultShape]


def _named(stream: StreamRef) -> dict[str, object]:
    return {"StreamName": stream.name} if stream.arn is None else {"StreamARN": stream.arn}
