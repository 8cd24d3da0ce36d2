"""All streams of the one region, and the time of the call in hand. Knows no operation.

A name means a stream of the caller's account; an ARN may be of any account.

Shard iterators and page tokens: opaque text for callers, a position for the model. Knows no stream and no shard.
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
    """What the operations work on.

    Args:
        options: settings of the model.
        now_s: epoch seconds at the start.

    Attributes:
        now_s: the time of the call in hand, whole milliseconds; never goes back, whatever the clock does.
        streams: by ARN.
        numbers: of all streams.
    """

    def __init__(self, options: KinesisOptions, now_s: float) -> None:
        self.options = options
        self.now_s = whole_milliseconds(now_s)
        self.streams: dict[str, Stream] = {}
        self.numbers = SequenceNumbers(self.now_s)

    def advance(self, now_s: float) -> None:
        """A new call begins."""
        self.now_s = max(self.now_s, whole_milliseconds(now_s))

    def stream(self, arguments: Arguments) -> Stream:
        """The stream that StreamName, StreamARN or both name, in any state."""
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
        """As `stream`, for calls that need it ACTIVE."""
        stream = self.stream(arguments)
        if not self.is_active(stream):
            raise in_use(f"stream {stream.name} is not ACTIVE, but CREATING")
        return stream

    def readable_stream(self, arguments: Arguments) -> Stream:
        """As `stream`, for the calls that put and get records: to them a stream that is not ACTIVE does not exist."""
        stream = self.stream(arguments)
        if not self.is_active(stream):
            raise not_found(f"stream {stream.arn} not found: it is CREATING")
        return stream

    def identified_stream(self, arn: str, identity: int) -> Stream:
        """The stream that a token was made for; gone when it was deleted since, even if there is a new one."""
        stream = self.stream_of(arn)
        if stream.identity != identity:
            raise not_found(f"stream {arn} has been deleted and created anew since this token was made")
        return stream

    def is_active(self, stream: Stream) -> bool:
        """Whether its creation is over."""
        return self.now_s >= stream.created_s + self.options.creating_s

    def stream_of(self, arn: str) -> Stream:
        """The stream with that ARN, in any state."""
        stream = self.streams.get(arn)
        if stream is None:
            raise not_found(f"stream {arn} not found")
        stream.expire(self.now_s)
        return stream

    def consumers(self, stream: Stream) -> dict[str, RegisteredConsumer]:
        """The consumers of a stream that are not gone yet, by name."""
        keep_s = self.options.fan_out.deleting_s
        for consumer in tuple(stream.consumers.values()):
            if consumer.deleted_s is not None and self.now_s >= consumer.deleted_s + keep_s:
                del stream.consumers[consumer.name]
        return stream.consumers


_ITERATOR_TYPES: Final = (str, str, int, str, int, float)


@dataclass(frozen=True, slots=True)
class ShardIterator:
    """A position in a shard.

    Args:
        stream_arn: where the shard is.
        stream_identity: `Stream.identity`, so that a new stream of the same name refuses it.
        shard_id: the shard.
        after_tick: every record above it is still to be read.
        issued_s: when it was made; it is good for a while only.
    """

    stream_arn: str
    stream_identity: int
    shard_id: str
    after_tick: int
    issued_s: float

    def encode(self) -> str:
        """As on the wire."""
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
        """Read what `encode` wrote; ServiceError `InvalidArgumentException` for anything else."""
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
    """Where ListShards goes on.

    Args:
        stream_arn: what is listed.
        stream_identity: `Stream.identity`.
        after_shard_id: the last shard given.
        issued_s: when it was made.
        shard_filter: the first call's ShardFilter.
    """

    stream_arn: str
    stream_identity: int
    after_shard_id: str
    issued_s: float
    shard_filter: dict[str, object] | None

    def encode(self) -> str:
        """As on the wire."""
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
        """Read what `encode` wrote; ServiceError `InvalidArgumentException` for anything else."""
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
    """Where ListStreamConsumers goes on.

    Args:
        stream_arn: whose consumers.
        stream_identity: `Stream.identity`.
        after_name: the last consumer given.
    """

    stream_arn: str
    stream_identity: int
    after_name: str

    def encode(self) -> str:
        """As on the wire."""
        return _pack(["consumers", self.stream_arn, self.stream_identity, self.after_name])

    @classmethod
    def decode(cls, text: str) -> ConsumerPage:
        """Read what `encode` wrote; ServiceError `InvalidArgumentException` for anything else."""
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
