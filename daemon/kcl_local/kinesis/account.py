"""All streams of the one region, and the time of the call in hand. Knows no operation.

A name means a stream of the caller's account; an ARN may be of any account.
"""

from __future__ import annotations

import re
from typing import Final

from kcl_local.kinesis.arguments import Arguments, whole_milliseconds
from kcl_local.kinesis.consumer import Consumer
from kcl_local.kinesis.errors import in_use, invalid_argument, not_found
from kcl_local.kinesis.options import Options
from kcl_local.kinesis.sequence import SequenceNumbers
from kcl_local.kinesis.stream import REGION, Stream, stream_arn

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

    def __init__(self, options: Options, now_s: float) -> None:
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

    def consumers(self, stream: Stream) -> dict[str, Consumer]:
        """The consumers of a stream that are not gone yet, by name."""
        keep_s = self.options.fan_out.deleting_s
        for consumer in tuple(stream.consumers.values()):
            if consumer.deleted_s is not None and self.now_s >= consumer.deleted_s + keep_s:
                del stream.consumers[consumer.name]
        return stream.consumers
