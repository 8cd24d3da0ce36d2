"""All streams of the one account and region, and the time of the call in hand. Knows no operation."""

from __future__ import annotations

from kcl_local.kinesis.arguments import Arguments, whole_milliseconds
from kcl_local.kinesis.errors import in_use, invalid_argument, not_found
from kcl_local.kinesis.options import Options
from kcl_local.kinesis.sequence import SequenceNumbers
from kcl_local.kinesis.stream import ACCOUNT_ID, ARN_PREFIX, Stream

Answer = dict[str, object]


class Account:
    """What the operations work on.

    Args:
        options: settings of the model.
        now_s: epoch seconds at the start.

    Attributes:
        now_s: the time of the call in hand, whole milliseconds; never goes back, whatever the clock does.
        streams: by name.
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
        if arn is not None:
            if not arn.startswith(ARN_PREFIX):
                raise invalid_argument(
                    f"StreamARN {arn} is not one of account {ACCOUNT_ID}: {ARN_PREFIX}<name>"
                )
            named = arn.removeprefix(ARN_PREFIX)
            if name not in {None, named}:
                raise invalid_argument(f"StreamName {name} and StreamARN {arn} are different streams")
            name = named
        if name is None:
            raise invalid_argument("StreamName or StreamARN must be given")
        return self._named(name)

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
            raise not_found(f"stream {stream.name} under account {ACCOUNT_ID} not found: it is CREATING")
        return stream

    def identified_stream(self, name: str, identity: int) -> Stream:
        """The stream that a token was made for; gone when it was deleted since, even if there is a new one."""
        stream = self._named(name)
        if stream.identity != identity:
            raise not_found(f"stream {name} has been deleted and created anew since this token was made")
        return stream

    def is_active(self, stream: Stream) -> bool:
        """Whether its creation is over."""
        return self.now_s >= stream.created_s + self.options.creating_s

    def _named(self, name: str) -> Stream:
        stream = self.streams.get(name)
        if stream is None:
            raise not_found(f"stream {name} under account {ACCOUNT_ID} not found")
        stream.expire(self.now_s)
        return stream
