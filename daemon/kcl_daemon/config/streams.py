"""Settings and properties of an application that reads many streams; the Java daemon reads only one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kcl_daemon.config.kinds import (
    MILLISECONDS,
    InvalidValue,
    Key,
    StreamArn,
    ValueKind,
    choice,
    duration,
    name,
    start_timestamp,
    start_word,
    stream_arn,
    trimmed,
)
from kcl_daemon.leases.lease import StreamIdentity
from kcl_daemon.shards.lineage import InitialPosition


class FormerStreams(Enum):
    """For leases of unlisted streams; the values are KCL's."""

    KEEP = "NO_STREAMS_LEASES_DELETION"
    DELETE_ALL = "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION"
    DELETE_GIVEN = "PROVIDED_STREAMS_DEFERRED_DELETION"


@dataclass(frozen=True, slots=True)
class ListedStream:
    """`arn` None: this account's stream, by name until Kinesis gives its ARN.

    `position` None: the application's.
    """

    name: str
    arn: str | None = None
    position: InitialPosition | None = None


@dataclass(frozen=True, slots=True)
class StreamsSettings:
    """`name_filter` is a `*` and `?` pattern for this account; `former_given` is for `DELETE_GIVEN`."""

    arns: tuple[ListedStream, ...] = ()
    names: tuple[ListedStream, ...] = ()
    name_filter: str | None = None
    refresh_ms: int = 60_000
    former: FormerStreams = FormerStreams.KEEP
    former_wait_s: float = 3_600.0
    former_given: tuple[StreamIdentity, ...] = ()

    @property
    def listed(self) -> tuple[ListedStream, ...]:
        return (*self.arns, *self.names)

    @property
    def are_many(self) -> bool:
        """If not, the application reads `streamName` or `streamArn`."""
        return bool(self.listed) or self.name_filter is not None

    @property
    def texts(self) -> tuple[str, ...]:
        """ARNs, names and pattern as written."""
        named = (each.arn or each.name for each in self.listed)
        return (*named, *(() if self.name_filter is None else (self.name_filter,)))


NAME_OF_STREAM: Final = name(
    r"[A-Za-z0-9_.-]{1,128}", "1 to 128 letters, digits, dots, dashes and underscores"
)
_AT: Final = "each optionally followed by its own start position: @TRIM_HORIZON, @LATEST or @EPOCH_SECONDS"


def listed_arns() -> ValueKind:
    kind = stream_arn()

    def read(text: str) -> ListedStream:
        arn = kind.read(text)
        assert isinstance(arn, StreamArn), "the kind gives ARNs"
        return ListedStream(arn.stream_name, arn.arn)

    return _list_of(read, f"{kind.allowed}; several separated by commas, {_AT}")


def listed_names() -> ValueKind:
    return _list_of(
        lambda text: ListedStream(str(NAME_OF_STREAM.read(text))),
        f"names of {NAME_OF_STREAM.allowed}; several separated by commas, {_AT}",
    )


def identities() -> ValueKind:
    def read(text: str) -> tuple[StreamIdentity, ...]:
        try:
            return tuple(StreamIdentity.parse(trimmed(each)) for each in text.split(","))
        except ValueError as wrong:
            raise InvalidValue(str(wrong)) from None

    return ValueKind(
        read, "ACCOUNT:NAME:CREATION_EPOCH, the prefix of lease keys; several separated by commas"
    )


def _list_of(read_one: Callable[[str], ListedStream], allowed: str) -> ValueKind:
    word, seconds = start_word(), start_timestamp()

    def read_entry(text: str) -> ListedStream:
        which, at, where = text.partition("@")
        try:
            listed = read_one(which)
            if not at:
                return listed
            is_time = trimmed(where).isdecimal()
            position = (seconds if is_time else word).read(where)
        except InvalidValue as refusal:
            raise InvalidValue(f"{trimmed(text)!r:.200}: {refusal}") from None
        assert isinstance(position, InitialPosition), "both kinds give positions"
        return ListedStream(listed.name, listed.arn, position)

    def read(text: str) -> tuple[ListedStream, ...]:
        found = tuple(read_entry(each) for each in text.split(","))
        known = [(each.name, each.arn) for each in found]
        twice = next(
            (each.arn or each.name for each in found if known.count((each.name, each.arn)) > 1), None
        )
        if twice is not None:
            raise InvalidValue(f"{twice} is listed twice")
        return found

    return ValueKind(read, allowed)


STREAM_ARNS: Final = Key(
    "streamArns",
    listed_arns(),
    "streams.arns",
    "ARNs of the streams to read in one daemon, also of other accounts. Can be combined with "
    "`streamNames`, not with `streamName` or `streamArn`. A lease table is either single-stream or "
    "multi-stream and cannot be changed later.",
    default="none",
    blank_is_absent=True,
    extension=True,
)
STREAM_NAMES: Final = Key(
    "streamNames",
    listed_names(),
    "streams.names",
    "Names of the streams to read; streams of the own account only.",
    default="none",
    blank_is_absent=True,
    extension=True,
)
STREAM_FILTER: Final = Key(
    "streamFilter",
    name(r"[A-Za-z0-9_.*?-]{1,128}", "a name with * for any characters and ? for one"),
    "streams.name_filter",
    "All streams of the account whose names match, including streams created later. Each starts at the "
    "initial position.",
    default="none",
    blank_is_absent=True,
    extension=True,
)
FORMER_GIVEN: Final = Key(
    "streamIdentifiersForLeaseCleanup",
    identities(),
    "streams.former_given",
    "Former streams whose leases are deleted with PROVIDED_STREAMS_DEFERRED_DELETION.",
    default="none",
    blank_is_absent=True,
    extension=True,
)
STREAMS_KEYS: Final[tuple[Key, ...]] = (
    STREAM_ARNS,
    STREAM_NAMES,
    STREAM_FILTER,
    Key(
        "streamListRefreshMillis",
        MILLISECONDS,
        "streams.refresh_ms",
        "How often the leader checks which of the streams exist, and whether one was recreated.",
        extension=True,
    ),
    Key(
        "formerStreamsLeasesDeletionStrategy",
        choice({each.value: each for each in FormerStreams}),
        "streams.former",
        "What happens to leases of streams that are no longer listed, and to former leases of a "
        "recreated stream. Until its leases are deleted, a stream that is no longer listed is still "
        "read.",
        extension=True,
    ),
    Key(
        "waitPeriodToDeleteFormerStreams",
        duration(),
        "streams.former_wait_s",
        "How long a stream must be unlisted before its leases are deleted. A stream that no longer "
        "exists in Kinesis has no waiting time.",
        default="PT1H",
        extension=True,
    ),
    FORMER_GIVEN,
)
