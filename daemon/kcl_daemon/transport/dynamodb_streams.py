"""`Changes` over this transport: one DynamoDB stream, named by its ARN.

Iterators have two forms of our own. `MILLIS:ITERATOR`: changes before that time are left out, because the endpoint
cannot begin at a time. `end:TRIES`: all changes are read, but the children of the shard are not listed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from kcl_daemon.errors import ChildNotListed, InvalidRequest, StreamNotFound
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Clock, FetchedRecords, IteratorKind, ReadFrom, StreamRef, StreamSummary
from kcl_daemon.records.changes import changes_of
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.records.payload import EMPTY, Payload
from kcl_daemon.shards.lineage import InitialPosition, Shard
from kcl_daemon.transport import changes_answers, service_answers
from kcl_daemon.transport.caller import AwsJsonClient, JsonApi
from kcl_daemon.transport.kinesis import parsed

Shape = TypeVar("Shape")
T = TypeVar("T")

CHANGES_API: Final = JsonApi("DynamoDBStreams_20120810.", StreamNotFound, "application/x-amz-json-1.0")
MOST_RECORDS: Final = 1000
_END: Final = "end"
# A second each; then it is trouble.
_QUIET_TRIES: Final = 30


class HttpDynamoStreams:
    """`clock` has the service's time of day."""

    def __init__(self, client: AwsJsonClient, form: ChangeForm, clock: Clock) -> None:
        self._client = client
        self._form = form
        self._clock = clock

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        request = {"StreamArn": _arn(stream), "Limit": 1}
        return await self._call("DescribeStream", request, changes_answers.summary)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        return await self._summaries({})

    async def streams_of(self, table: str) -> tuple[StreamSummary, ...]:
        found = await self._summaries({"TableName": table})
        return tuple(sorted(found, key=lambda each: (each.creation_time_s, each.arn)))

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        shapes, _ = await self._described({"StreamArn": _arn(stream)})
        found = changes_answers.shards(shapes)
        return found if start is None else changes_answers.open_at(found, start)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        request = {"StreamArn": _arn(stream), "ShardId": shard_id, "ShardIteratorType": read_from.kind.value}
        if read_from.sequence_number is not None:
            request["SequenceNumber"] = read_from.sequence_number
        if read_from.kind is not IteratorKind.AT_TIMESTAMP:
            return await self._call("GetShardIterator", request, service_answers.iterator)
        timestamp_s = read_from.timestamp_s or 0.0
        try:
            # Times of changes are whole seconds.
            timed = {**request, "Timestamp": int(timestamp_s)}
            return await self._call("GetShardIterator", timed, service_answers.iterator)
        except InvalidRequest:  # an endpoint without it, or a time in the future
            request["ShardIteratorType"] = IteratorKind.TRIM_HORIZON.value
            found = await self._call("GetShardIterator", request, service_answers.iterator)
        # Such an endpoint may give whole minutes.
        return f"{int(timestamp_s // 60) * 60_000}:{found}"

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        arn, (head, _, rest) = _arn(stream), iterator.partition(":")
        if head == _END:
            return await self._end(arn, shard_id, int(rest))
        since_ms = int(head) if head.isdigit() else None

        def read(body: bytearray) -> tuple[Payload, str | None, int]:
            with service_answers.parsing_answer("GetRecords"):
                return changes_of(body, self._form, arn, since_ms)

        request = {"ShardIterator": iterator if since_ms is None else rest, "Limit": min(limit, MOST_RECORDS)}
        payload, following, count = await self._client.call("GetRecords", request, read)
        if following is None and not payload:
            return await self._end(arn, shard_id, 0)
        if following is None:
            following = f"{_END}:0"
        elif since_ms is not None and not payload:
            following = f"{since_ms}:{following}"
        return FetchedRecords(payload, following, self._behind_ms(payload, count, since_ms), ())

    def _behind_ms(self, payload: Payload, count: int, since_ms: int | None) -> int:
        """The service does not say it. Changes that were left out are older than `since_ms`."""
        newest_ms = payload.last_arrival_ms if payload else since_ms if count else None
        return 0 if newest_ms is None else max(1, self._clock.wall_ms() - newest_ms)

    async def _end(self, arn: str, shard_id: ShardId, tries: int) -> FetchedRecords:
        request = {"StreamArn": arn}
        try:
            child_filter = {"Type": "CHILD_SHARDS", "ShardId": shard_id}
            shapes, status = await self._described({**request, "ShardFilter": child_filter})
        except InvalidRequest:  # an endpoint without filters
            shapes, status = await self._described(request)
        children = changes_answers.children_of(shard_id, shapes)
        if children or status == changes_answers.DISABLED:
            return FetchedRecords(EMPTY, None, 0, children, is_last=not children)
        if tries >= _QUIET_TRIES:
            raise ChildNotListed(
                f"{shard_id} has ended, but no child of it is listed although the stream is {status}",
                operation="DescribeStream",
            )
        return FetchedRecords(EMPTY, f"{_END}:{tries + 1}", 0, ())

    async def _summaries(self, request: Mapping[str, object]) -> tuple[StreamSummary, ...]:
        found: list[StreamSummary] = []
        token: str | None = ""
        while token is not None:
            start = {"ExclusiveStartStreamArn": token} if token else {}
            arns, token = await self._call("ListStreams", {**request, **start}, changes_answers.listed)
            for arn in arns:
                try:
                    found.append(await self.describe_stream(StreamRef(arn, arn)))
                except StreamNotFound:
                    continue
        return tuple(found)

    async def _described(self, request: Mapping[str, object]) -> tuple[list[changes_answers.ShardShape], str]:
        shapes: list[changes_answers.ShardShape] = []
        start: dict[str, object] = {}
        while True:
            page = await self._call("DescribeStream", {**request, **start}, changes_answers.page)
            shapes += page["Shards"]
            if not (last := page.get("LastEvaluatedShardId")):
                return shapes, page["StreamStatus"]
            start = {"ExclusiveStartShardId": last}

    async def _call(self, operation: str, request: Mapping[str, object], read: Callable[[Shape], T]) -> T:
        return await self._client.call(operation, request, lambda body: parsed(operation, read, body))


def _arn(stream: StreamRef) -> str:
    if stream.arn is None:
        raise InvalidRequest(f"{stream.name} has no ARN; a DynamoDB stream is read by its ARN")
    return stream.arn
