"""Streams and opaque tokens. A name means a stream of the caller's account; an ARN may be of any."""

from __future__ import annotations

import binascii
import re
from typing import Final, Self

from msgspec import Struct, json

from kcl_local import REGION
from kcl_local.kinesis.arguments import (
    Arguments,
    KinesisOptions,
    in_use,
    invalid_argument,
    not_found,
    whole_milliseconds,
)
from kcl_local.kinesis.stream import RegisteredConsumer, SequenceNumbers, Stream, stream_arn

Answer = dict[str, object]

_STREAM_ARN: Final = re.compile(rf"arn:aws:kinesis:{REGION}:[0-9]{{12}}:stream/[a-zA-Z0-9_.-]{{1,128}}")


class Account:
    """`now_s`: of the current call, in whole milliseconds."""

    def __init__(self, options: KinesisOptions, now_s: float) -> None:
        self.options = options
        self.now_s = whole_milliseconds(now_s)
        self.streams: dict[str, Stream] = {}
        self.numbers = SequenceNumbers(self.now_s)
        self.refused_in_part = ""
        """The code with which this call refuses every second of its records."""

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
        """For put and get calls, a stream that is not ACTIVE does not exist."""
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


class Token(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    stream_arn: str
    stream_identity: int

    def encode(self) -> str:
        return binascii.b2a_base64(json.encode(self), newline=False).decode("ascii")

    @classmethod
    def decode(cls, arguments: Arguments, name: str) -> Self:
        """ServiceError `InvalidArgumentException` unless `encode` wrote it."""
        text = arguments.text(name)
        try:
            return json.decode(binascii.a2b_base64(text, strict_mode=True), type=cls)
        except ValueError as error:
            raise invalid_argument(f"{name} is not valid") from error


class ShardIterator(Token, frozen=True):
    shard_id: str
    after_tick: int
    issued_s: float


class ShardPage(Token, frozen=True):
    after_shard_id: str
    issued_s: float
    shard_filter: dict[str, object] | None


class ConsumerPage(Token, frozen=True):
    after_name: str
