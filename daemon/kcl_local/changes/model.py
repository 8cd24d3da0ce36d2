from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import orjson

from kcl_local import REGION
from kcl_local.changes.stream import DEFAULTS, Item, Shard, Stream, StreamsOptions, item_bytes, label_of
from kcl_local.faults import FaultyService
from kcl_local.kinesis.arguments import Arguments, ServiceError, malformed, not_found, whole_milliseconds
from kcl_local.kinesis.stream import ACCOUNT_ID

_PAGE_MAX: Final = 100
_RECORDS_MAX: Final = 1000
_WITH_NEW: Final = frozenset({"NEW_IMAGE", "NEW_AND_OLD_IMAGES"})
_WITH_OLD: Final = frozenset({"OLD_IMAGE", "NEW_AND_OLD_IMAGES"})
_BY_TTL: Final = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}


class StreamsModel(FaultyService):
    """A table is given by its name, or by its ARN if it is not in us-east-1. `now` gives epoch seconds."""

    def __init__(self, now: Callable[[], float], options: StreamsOptions = DEFAULTS) -> None:
        super().__init__()
        self._now = now
        self._now_s = 0.0
        self._streams: dict[str, Stream] = {}
        self._of_table: dict[str, Stream] = {}
        self.partitions: dict[str, int] = {}
        """How many shards a stream begins with, by the table's ARN; otherwise one."""
        self.options = options
        self._operations: Final[Mapping[str, Callable[[Arguments], bytes]]] = {
            "DescribeStream": self._describe_stream,
            "GetRecords": self._get_records,
            "GetShardIterator": self._get_shard_iterator,
            "ListStreams": self._list_streams,
        }

    @property
    def operations(self) -> frozenset[str]:
        return frozenset(self._operations)

    def answer(self, operation: str, arguments: Mapping[str, object]) -> bytes:
        """The service's JSON. ServiceError: the call is refused or fails; its code may be `DROP`."""
        self.calls[operation] += 1
        fault = self.faults.take(operation)
        if fault is not None:
            raise ServiceError(fault.code, f"{operation} was told to fail")
        perform = self._operations.get(operation)
        if perform is None:
            raise ServiceError("UnknownOperationException", f"{operation:.80} is not known here")
        self._advance()
        return perform(Arguments(arguments))

    def handle(self, operation: str, arguments: Mapping[str, object]) -> dict[str, object]:
        return cast("dict[str, object]", orjson.loads(self.answer(operation, arguments)))

    def enable(
        self,
        table: str,
        view_type: str = "NEW_AND_OLD_IMAGES",
        *,
        keys: Sequence[str] = ("id",),
        shards: int | None = None,
    ) -> Stream:
        """`keys`: the table's partition key, and its sort key. ValueError if the table has an enabled stream."""
        self._advance()
        table_arn = table_arn_of(table)
        if table_arn in self._of_table and self._of_table[table_arn].disabled_s is None:
            raise ValueError(f"{table_arn} has an enabled stream: {self._of_table[table_arn].arn}")
        created_s = self._now_s
        while f"{table_arn}/stream/{label_of(created_s)}" in self._streams:
            created_s = whole_milliseconds(created_s + 0.001)
        stream = Stream(
            table_arn,
            label_of(created_s),
            view_type=view_type,
            keys=keys,
            shards=shards or self.partitions.get(table_arn, 1),
            created_s=self._now_s,
            options=self.options,
        )
        self._streams[stream.arn] = self._of_table[table_arn] = stream
        return stream

    def disable(self, table: str) -> None:
        """Its changes can be read as long as they are kept. ValueError if no stream is enabled."""
        self.stream(table).disable(self._now_s)

    def is_enabled(self, table: str) -> bool:
        found = self._of_table.get(table_arn_of(table))
        return found is not None and found.disabled_s is None

    def stream(self, table: str) -> Stream:
        """ValueError if no stream is enabled."""
        self._advance()
        found = self._of_table.get(table_arn_of(table))
        if found is None or found.disabled_s is not None:
            raise ValueError(f"table {table} has no enabled stream")
        return found

    def write(
        self, table: str, old: Item | None, new: Item | None, *, size: int | None = None, by_ttl: bool = False
    ) -> str | None:
        """The sequence number; None: nothing has changed."""
        stream = self.stream(table)
        item = new or old
        if item is None or old == new:
            return None
        keys = {name: item[name] for name in stream.keys}
        images: dict[str, Item] = {}
        if new is not None and stream.view_type in _WITH_NEW:
            images["NewImage"] = new
        if old is not None and stream.view_type in _WITH_OLD:
            images["OldImage"] = old
        size_bytes = size or item_bytes(keys) + sum(map(item_bytes, images.values()))
        shard, number = stream.holder(item[stream.keys[0]]), stream.next_number()
        kind = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
        record = _record(stream, kind, number, {"Keys": keys, "SizeBytes": size_bytes, **images})
        if by_ttl:
            record["userIdentity"] = _BY_TTL
        shard.changes.append(number, self._now_s, size_bytes, orjson.dumps(record))
        return str(number)

    def fill(self, table: str, count: int, size_bytes: int = 1024, prefix: str = "item-") -> None:
        stream = self.stream(table)
        head, tail = _template(stream, size_bytes, prefix)
        keys = head.count(b"%b")
        for index in range(count):
            key = f"{prefix}{index}"
            shard, number = stream.holder({"S": key}), stream.next_number()
            record = head % (number, number, *[key.encode()] * keys)
            shard.changes.append(number, self._now_s, size_bytes, record, tail)

    def roll(self, table: str, shard_id: str | None = None) -> list[str]:
        """Close a shard, or all that are open. Gives the children."""
        return self._reshape(Stream.roll, table, shard_id)

    def split(self, table: str, shard_id: str | None = None) -> list[str]:
        return self._reshape(Stream.split, table, shard_id)

    def end(self, table: str, shard_id: str | None = None) -> list[str]:
        """A child comes only with the next change."""
        return self._reshape(Stream.end, table, shard_id)

    def _reshape(
        self, how: Callable[[Stream, str, float], list[str]], table: str, shard_id: str | None
    ) -> list[str]:
        stream = self.stream(table)
        chosen = [shard_id] if shard_id else [shard.shard_id for shard in stream.open_shards]
        return [child for each in chosen for child in how(stream, each, self._now_s)]

    def trim(self, table: str, before_s: float) -> None:
        self._advance()
        for stream in self._streams.values():
            if stream.table_arn == table_arn_of(table):
                stream.trimmed_before_s = max(stream.trimmed_before_s, before_s)
        self._advance()

    def _advance(self) -> None:
        self._now_s = now_s = max(self._now_s, whole_milliseconds(self._now()))
        for stream in tuple(self._streams.values()):
            stream.advance(now_s)
            if stream.disabled_s is not None and stream.disabled_s < stream.horizon_s():
                del self._streams[stream.arn]

    def _stream(self, arn: str) -> Stream:
        stream = self._streams.get(arn)
        if stream is None:
            raise not_found(f"stream {arn:.200} not found")
        return stream

    def _list_streams(self, arguments: Arguments) -> bytes:
        table, after = (arguments.optional_text(name) for name in ("TableName", "ExclusiveStartStreamArn"))
        limit = arguments.optional_integer("Limit", 1, _PAGE_MAX) or _PAGE_MAX
        found = [
            stream
            for arn, stream in sorted(self._streams.items(), reverse=True)  # the newest of a table first
            if table in {None, stream.table, stream.table_arn} and (after is None or arn < after)
        ]
        answer: dict[str, object] = {
            "Streams": [
                {"StreamArn": each.arn, "TableName": each.table, "StreamLabel": each.label}
                for each in found[:limit]
            ]
        }
        if len(found) > limit:
            answer["LastEvaluatedStreamArn"] = found[limit - 1].arn
        return orjson.dumps(answer)

    def _describe_stream(self, arguments: Arguments) -> bytes:
        stream = self._stream(arguments.text("StreamArn"))
        limit = arguments.optional_integer("Limit", 1, _PAGE_MAX) or _PAGE_MAX
        after, parent_id = arguments.optional_text("ExclusiveStartShardId") or "", _parent_id(arguments)
        found = [
            shard
            for shard in stream.shards
            if shard.shard_id > after and parent_id in {None, shard.parent_id} and stream.shows(shard)
        ]
        description: dict[str, object] = {
            "StreamArn": stream.arn,
            "StreamLabel": stream.label,
            "StreamStatus": stream.status(),
            "StreamViewType": stream.view_type,
            "CreationRequestDateTime": stream.created_s,
            "TableName": stream.table,
            "KeySchema": [
                {"AttributeName": name, "KeyType": kind}
                for name, kind in zip(stream.keys, ("HASH", "RANGE"), strict=False)
            ],
            "Shards": [_shard_json(stream, shard) for shard in found[:limit]],
        }
        if len(found) > limit:
            description["LastEvaluatedShardId"] = found[limit - 1].shard_id
        return orjson.dumps({"StreamDescription": description})

    def _get_shard_iterator(self, arguments: Arguments) -> bytes:
        stream = self._stream(arguments.text("StreamArn"))
        shard = stream.shard(arguments.text("ShardId"))
        shard.changes.trim(stream.horizon_s())
        since = _position(stream, shard, arguments)
        return orjson.dumps({"ShardIterator": self._iterator(stream, shard, since)})

    def _get_records(self, arguments: Arguments) -> bytes:
        stream, shard, since = self._decoded(arguments.text("ShardIterator"))
        limit = arguments.optional_integer("Limit", 1, 2**31 - 1) or _RECORDS_MAX
        if limit > _RECORDS_MAX:
            raise ServiceError("LimitExceededException", f"Limit must be at most {_RECORDS_MAX}, not {limit}")
        changes = shard.changes
        changes.trim(stream.horizon_s())
        if since < changes.trimmed_to:
            raise _trimmed(shard)
        start, end = changes.page(since, limit, self.options.answer_bytes_max)
        shard.reads += 1
        if self.options.empty_every and shard.reads % self.options.empty_every == 0:
            end = start
        following = b""
        if shard.is_open or end < len(changes.numbers):
            since = changes.numbers[end - 1] + 1 if end > start else since
            following = b',"NextShardIterator":"%b"' % self._iterator(stream, shard, since).encode()
        return b'{"Records":[%b]%b}' % (changes.json(start, end), following)

    def _iterator(self, stream: Stream, shard: Shard, since: int) -> str:
        position = orjson.dumps([shard.shard_id, str(since), self._now_s])
        return f"{stream.arn}|1|{binascii.b2a_base64(position, newline=False).decode()}"

    def _decoded(self, iterator: str) -> tuple[Stream, Shard, int]:
        arn, _, position = iterator.rpartition("|1|")
        try:
            shard_id, since, issued_s = orjson.loads(binascii.a2b_base64(position, strict_mode=True))
        except ValueError as error:
            raise malformed("ShardIterator is not valid") from error
        if (age_s := self._now_s - issued_s) >= self.options.iterator_ttl_s:
            ttl_s = self.options.iterator_ttl_s
            raise ServiceError(
                "ExpiredIteratorException", f"ShardIterator is {age_s:g} s old; it is good for {ttl_s:g} s"
            )
        stream = self._stream(arn)
        return stream, stream.shard(shard_id), int(since)


def table_arn_of(table: str) -> str:
    return table if table.startswith("arn:") else f"arn:aws:dynamodb:{REGION}:{ACCOUNT_ID}:table/{table}"


def _parent_id(arguments: Arguments) -> str | None:
    given = arguments.structure("ShardFilter")
    if given is None:
        return None
    if given.text("Type") != "CHILD_SHARDS":
        raise malformed("ShardFilter.Type must be CHILD_SHARDS")
    return given.text("ShardId")


def _shard_json(stream: Stream, shard: Shard) -> dict[str, object]:
    numbers = {"StartingSequenceNumber": str(shard.first)}
    if not stream.shows_open(shard):
        numbers["EndingSequenceNumber"] = str(shard.last)
    parent = {"ParentShardId": shard.parent_id} if shard.parent_id else {}
    return {"ShardId": shard.shard_id, "SequenceNumberRange": numbers, **parent}


def _position(stream: Stream, shard: Shard, arguments: Arguments) -> int:
    numbers, latest = shard.changes.numbers, (shard.last or stream.last_number) + 1
    oldest = numbers[0] if numbers else max(shard.first, shard.changes.trimmed_to)
    match arguments.text("ShardIteratorType"):
        case "TRIM_HORIZON":
            return oldest
        case "LATEST":
            return latest
        case "AT_TIMESTAMP":
            timestamp_s = arguments.optional_timestamp("Timestamp")
            if timestamp_s is None or timestamp_s > stream.now_s:
                raise malformed(
                    f"AT_TIMESTAMP needs a Timestamp that is not in the future, not {timestamp_s}"
                )
            return shard.changes.first_at(timestamp_s) or latest
        case "AT_SEQUENCE_NUMBER":
            return _given_number(stream, shard, arguments)
        case "AFTER_SEQUENCE_NUMBER":
            return _given_number(stream, shard, arguments) + 1
        case unknown:
            raise malformed(f"ShardIteratorType {unknown!r:.80} is unknown")


def _given_number(stream: Stream, shard: Shard, arguments: Arguments) -> int:
    """A number that is trimmed is refused, even if everything after it is kept."""
    text = arguments.text("SequenceNumber")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 40 else -1
    if not shard.first <= number <= (shard.last or stream.last_number):
        raise malformed(f"SequenceNumber {text:.80} is not in the range of shard {shard.shard_id}")
    if number < shard.changes.trimmed_to:
        raise _trimmed(shard)
    return number


def _trimmed(shard: Shard) -> ServiceError:
    return ServiceError(
        "TrimmedDataAccessException", f"what shard {shard.shard_id} had at this position is not kept any more"
    )


def _record(stream: Stream, kind: str, number: int, body: Mapping[str, object]) -> dict[str, object]:
    return {
        "eventID": f"{number:032x}",
        "eventName": kind,
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": stream.table_arn.split(":")[3],
        "dynamodb": {
            "ApproximateCreationDateTime": int(stream.now_s),
            "SequenceNumber": str(number),
            "StreamViewType": stream.view_type,
            **body,
        },
    }


def _template(stream: Stream, size_bytes: int, prefix: str) -> tuple[bytes, bytes]:
    item: dict[str, dict[str, object]] = {stream.keys[0]: {"S": "<key>"}}
    item.update({name: {"N": "0"} for name in stream.keys[1:]})
    body: dict[str, object] = {"SequenceNumber": "<number>", "SizeBytes": size_bytes, "Keys": item}
    if stream.view_type in _WITH_NEW:
        body["NewImage"] = {**item, "data": {"S": "<data>"}}
    text = orjson.dumps(_record(stream, "INSERT", 0, body)).replace(b"%", b"%%")
    for place, mark in ((b"%032x" % 0, b"%032x"), (b"<number>", b"%d"), (b"<key>", b"%b")):
        text = text.replace(place, mark)
    head, found, tail = text.partition(b"<data>")
    letters = max(1, size_bytes - 2 * (item_bytes(item) + len(prefix)) - len("data"))
    return head, b"x" * letters + tail if found else b""
