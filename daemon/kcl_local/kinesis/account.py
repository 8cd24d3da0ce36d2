"""The streams of the account, the time of the current call, and opaque tokens.

A name means a stream of the caller's account; an ARN may be of any account.
"""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass
from typing import Final, cast

import orjson

from kcl_local.kinesis.arguments import (
    Arguments,
    KinesisOptions,
    in_use,
    invalid_argument,
    not_found,
    whole_milliseconds,
)
from kcl_local.kinesis.stream import REGION, RegisteredConsumer, SequenceNumbers, Stream, stream_arn

Answer = dict[str, object]

_STREAM_ARN: Final = re.compile(rf"arn:aws:kinesis:{REGION}:[0-9]{{12}}:stream/[a-zA-Z0-9_.-]{{1,128}}")


class Account:
    """`now_s`, the time of the current call in whole milliseconds, never goes back."""

    def __init__(self, options: KinesisOptions, now_s: float) -> None:
        self.options = options
        self.now_s = whole_milliseconds(now_s)
        self.streams: dict[str, Stream] = {}
        self.numbers = SequenceNumbers(self.now_s)

    def advance(self, now_s: float) -> None:
        self.now_s = max(self.now_s, whole_milliseconds(now_s))

    def stream(self, arguments: Arguments) -> Stream:
        name = arguments.optional_text("StreamName")
        arn = arguments.optional_text("StreamARN")
        if arn is None:
            if name is None:
                raise invalid_argument("StreamName or StreamARN must be given")
            return self.stream_of(stream_arn(name))
        if not _STREAM_ARN.fullmatch(arn):
            raise invalid_argument(f"StreamARN {arn:.200} is not that of a stream in {REGION}")
        if name is not None and not arn.endswith(f":stream/{name}"):
            raise invalid_argument(f"StreamName {name} and StreamARN {arn} are different streams")
        return self.stream_of(arn)

    def active_stream(self, arguments: Arguments) -> Stream:
        stream = self.stream(arguments)
        if not self.is_active(stream):
            raise in_use(f"stream {stream.name} is not ACTIVE, but CREATING")
        return stream

    def readable_stream(self, arguments: Arguments) -> Stream:
        """To put and get calls, a stream that is not ACTIVE does not exist."""
        stream = self.stream(arguments)
        if not self.is_active(stream):
            raise not_found(f"stream {stream.arn} not found: it is CREATING")
        return stream

    def identified_stream(self, arn: str, identity: int) -> Stream:
        """Not found if the stream was deleted, even if a new one has its name."""
        stream = self.stream_of(arn)
        if stream.identity != identity:
            raise not_found(f"stream {arn} has been deleted and created anew since this token was made")
        return stream

    def is_active(self, stream: Stream) -> bool:
        return self.now_s >= stream.created_s + self.options.creating_s

    def stream_of(self, arn: str) -> Stream:
        stream = self.streams.get(arn)
        if stream is None:
            raise not_found(f"stream {arn} not found")
        stream.expire(self.now_s)
        return stream

    def consumers(self, stream: Stream) -> dict[str, RegisteredConsumer]:
        keep_s = self.options.fan_out.deleting_s
        for consumer in tuple(stream.consumers.values()):
            if consumer.deleted_s is not None and self.now_s >= consumer.deleted_s + keep_s:
                del stream.consumers[consumer.name]
        return stream.consumers


_ITERATOR_TYPES: Final = (str, str, int, str, int, float)


@dataclass(frozen=True, slots=True)
class ShardIterator:
    """Every record above `after_tick` is still to be read.

    `stream_identity` makes a new stream of the same name refuse it.
    """

    stream_arn: str
    stream_identity: int
    shard_id: str
    after_tick: int
    issued_s: float

    def encode(self) -> str:
        return _pack(
            [
                "iterator",
                self.stream_arn,
                self.stream_identity,
                self.shard_id,
                self.after_tick,
                self.issued_s,
            ]
        )

    @classmethod
    def decode(cls, text: str) -> ShardIterator:
        """ServiceError `InvalidArgumentException` unless `encode` wrote it."""
        fields = _unpack(text)
        if (
            not isinstance(fields, list)
            or tuple(map(type, fields)) != _ITERATOR_TYPES
            or fields[0] != "iterator"
        ):
            raise invalid_argument("ShardIterator is not valid")
        _kind, arn, identity, shard_id, tick, issued_s = cast("tuple[str, str, int, str, int, float]", fields)
        return cls(arn, identity, shard_id, tick, issued_s)


@dataclass(frozen=True, slots=True)
class ShardPage:
    stream_arn: str
    stream_identity: int
    after_shard_id: str
    issued_s: float
    shard_filter: dict[str, object] | None

    def encode(self) -> str:
        fields = [
            self.stream_arn,
            self.stream_identity,
            self.after_shard_id,
            self.issued_s,
            self.shard_filter,
        ]
        return _pack(["page", *fields])

    @classmethod
    def decode(cls, text: str) -> ShardPage:
        match _unpack(text):
            case [
                "page",
                str(arn),
                int(identity),
                str(shard_id),
                float() | int() as issued_s,
                None | dict() as kept,
            ]:
                shard_filter = cast("dict[str, object] | None", kept)
                return cls(arn, identity, shard_id, float(issued_s), shard_filter)
            case _:
                raise invalid_argument("NextToken is not valid")


@dataclass(frozen=True, slots=True)
class ConsumerPage:
    stream_arn: str
    stream_identity: int
    after_name: str

    def encode(self) -> str:
        return _pack(["consumers", self.stream_arn, self.stream_identity, self.after_name])

    @classmethod
    def decode(cls, text: str) -> ConsumerPage:
        match _unpack(text):
            case ["consumers", str(arn), int(identity), str(after_name)]:
                return cls(arn, identity, after_name)
            case _:
                raise invalid_argument("NextToken is not valid")


def _pack(fields: list[object]) -> str:
    return binascii.b2a_base64(orjson.dumps(fields), newline=False).decode("ascii")


def _unpack(text: str) -> object:
    try:
        return cast("object", orjson.loads(binascii.a2b_base64(text, strict_mode=True)))
    except (binascii.Error, ValueError):
        return None
