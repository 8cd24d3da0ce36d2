"""The port `Kinesis` with the record path over this transport; all other calls go the SDK's way.

Owns the requests. Knows nothing of pacing, and nothing of leases.

PURE: bodies of Kinesis, read as far as the daemon needs them; records stay undecoded.

Owns the names and types of the wire for GetRecords; the events of SubscribeToShard hold the same records. What is no
such answer is Unavailable: it is asked for again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import FetchedRecords, Kinesis, ReadFrom, StreamRef, StreamSummary
from kcl_daemon.records.payload import RECORD_OVERHEAD_BYTES, Payload, RawRecord
from kcl_daemon.shards.lineage import ChildShard, InitialPosition, Shard
from kcl_daemon.transport import service_answers
from kcl_daemon.transport.caller import AwsJsonClient
from kcl_protocol.sequence import ExtendedSequenceNumber

_MS_PER_S: Final = 1000
_QUOTE: Final = b'"'
_NULL: Final = Raw(b"null")


class WireRecord(Struct, gc=False, rename="pascal"):
    """One entry of `Records`."""

    sequence_number: str
    partition_key: Raw
    data: Raw
    approximate_arrival_timestamp: float | None = None


class _Answer(Struct, gc=False, rename="pascal"):
    """The answer of GetRecords."""

    records: list[WireRecord]
    next_shard_iterator: str | None = None
    millis_behind_latest: int | None = None
    child_shards: Raw = _NULL


_answers: Final = Decoder(_Answer)


def fetched(body: bytes | bytearray) -> FetchedRecords:
    """The answer of GetRecords; Unavailable where it is none. Its records keep hold of the body."""
    with service_answers.parsing_answer("GetRecords"):
        try:
            answer = _answers.decode(body)
        except msgspec.DecodeError:
            return service_answers.fetched(cast("service_answers.RecordsShape", _decode_leniently(body)))
        return FetchedRecords(
            payload=payload(answer.records, len(body)),
            next_iterator=answer.next_shard_iterator or None,
            millis_behind_latest=answer.millis_behind_latest,
            child_shards=child_shards(answer.child_shards),
        )


def iterator(body: bytes | bytearray) -> str:
    """The answer of GetShardIterator; Unavailable where it is none."""
    with service_answers.parsing_answer("GetShardIterator"):
        return service_answers.iterator(cast("service_answers.IteratorShape", _decode_leniently(body)))


def payload(records: Sequence[WireRecord], body_bytes: int) -> Payload:
    """The records of an answer or event.

    Args:
        records: as they were read.
        body_bytes: length of the body, which they keep hold of.

    Raises:
        ValueError: `Data` or `PartitionKey` are no texts, or a sequence number is none; only the first and the last record are looked at.
    """
    if not records:
        return Payload((), 0)
    for each in (records[0], records[-1]):
        if not bytes(each.data).startswith(_QUOTE) or not bytes(each.partition_key).startswith(_QUOTE):
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
    """`ChildShards`, of an answer or event; KeyError, TypeError or ValueError where they are none."""
    return service_answers.child_shards(json.loads(bytes(entries)))


def _decode_leniently(body: bytes | bytearray) -> object:
    """A body that the strict reader refused, by one that takes lone surrogates and replaces what is no UTF-8.

    Producers can put either into a partition key, and one odd key must not stop a shard.
    """
    return json.loads(body.decode("utf-8", "replace"))


TARGET_PREFIX: Final = "Kinesis_20131202."


class FastKinesis:
    """Kinesis Data Streams.

    Args:
        caller: for GetRecords and GetShardIterator.
        control: for the rest.
    """

    def __init__(self, caller: AwsJsonClient, control: Kinesis) -> None:
        self._caller = caller
        self._control = control

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        """As the port says."""
        return await self._control.describe_stream(stream)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        """As the port says."""
        return await self._control.list_streams()

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        """As the port says."""
        return await self._control.list_shards(stream, start)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        """As the port says."""
        request: dict[str, object] = {"ShardId": shard_id, "ShardIteratorType": read_from.kind.value}
        if stream.arn is None:
            request["StreamName"] = stream.name
        else:
            request["StreamARN"] = stream.arn
        if read_from.sequence_number is not None:
            request["StartingSequenceNumber"] = read_from.sequence_number
        if read_from.timestamp_s is not None:
            request["Timestamp"] = read_from.timestamp_s
        return await self._caller.call("GetShardIterator", request, iterator)

    async def get_records(
        self,
        stream: StreamRef,
        shard_id: ShardId,  # noqa: ARG002 - the iterator says which shard
        iterator: str,
        limit: int,
    ) -> FetchedRecords:
        """As the port says."""
        request: dict[str, object] = {"ShardIterator": iterator, "Limit": limit}
        if stream.arn is not None:
            request["StreamARN"] = stream.arn
        return await self._caller.call("GetRecords", request, fetched)
