from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kcl_daemon.config.kinds import (
    MILLISECONDS,
    SOMETHING,
    Form,
    InvalidValue,
    ValueKind,
    duration,
    member,
    name,
    ours,
    start_timestamp,
    start_word,
    stream_arn,
    trimmed,
)
from kcl_daemon.leases.lease import StreamIdentity
from kcl_daemon.shards.lineage import InitialPosition

_NAME: Final = r"[A-Za-z0-9_.-]{1,128}", "1 to 128 letters, digits, dots, dashes and underscores"
NAME_OF_STREAM: Final = name(*_NAME, "streamArn")
_LISTED_NAME: Final = name(*_NAME, "streamArns")
_STREAM_ARN: Final = stream_arn()
_AT: Final = "each optionally followed by its own start position: @TRIM_HORIZON, @LATEST or @EPOCH_SECONDS"
_FILTER: Final = name(r"[A-Za-z0-9_.*?-]{1,128}", "a name with * for any characters and ? for one")


class FormerStreams(Enum):
    KEEP = "NO_STREAMS_LEASES_DELETION"
    DELETE_ALL = "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION"
    DELETE_GIVEN = "PROVIDED_STREAMS_DEFERRED_DELETION"


@dataclass(frozen=True, slots=True)
class ListedStream:
    """`arn` None: by name until Kinesis gives its ARN."""

    name: str
    arn: str | None = None
    position: InitialPosition | None = None
    table: str | None = None


def many_of(values: Mapping[str, object]) -> str | None:
    return next((name for name in ("streamArns", "streamNames", "streamFilter") if name in values), None)


def _by_arn(text: str) -> ListedStream:
    arn = _STREAM_ARN.read(text)
    return ListedStream(arn.stream_name, arn.arn)


def _identities(text: str) -> tuple[StreamIdentity, ...]:
    try:
        return tuple(StreamIdentity.parse(trimmed(each)) for each in text.split(","))
    except ValueError as wrong:
        raise InvalidValue(str(wrong)) from None


def _list_of(read_one: Callable[[str], ListedStream], allowed: str) -> ValueKind[tuple[ListedStream, ...]]:
    word, seconds = start_word(), start_timestamp()

    def read_entry(text: str) -> ListedStream:
        which, at, where = text.partition("@")
        try:
            listed = read_one(which)
            if not at:
                return listed
            is_time = trimmed(where)[:1].isdecimal()
            position = (seconds if is_time else word).read(where)
        except InvalidValue as refusal:
            raise InvalidValue(f"{trimmed(text)!r:.200}: {refusal}") from None
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

    return ValueKind(read, f"{allowed}; several separated by commas, {_AT}", form=Form(SOMETHING))


_ARNS: Final = _list_of(_by_arn, _STREAM_ARN.allowed)
_NAMES: Final = _list_of(
    lambda text: ListedStream(_LISTED_NAME.read(text)), f"names of {_LISTED_NAME.allowed}"
)
_IDENTITIES: Final = ValueKind(
    _identities,
    "ACCOUNT:NAME:CREATION_EPOCH, the prefix of lease keys; several separated by commas",
    form=Form("[^:]+:[^:]+:[\\s\\S]+"),
)


@dataclass(frozen=True, slots=True)
class StreamsSettings:
    arns: tuple[ListedStream, ...] = ours("streamArns", _ARNS, (), blank_is_absent=True)
    """ARNs of the streams to read in one daemon, also of other accounts. Can be combined with `streamNames` and
    `tableName.source`, not with `streamName` or `streamArn`. A lease table is either single-stream or multi-stream and cannot be
    changed later."""
    names: tuple[ListedStream, ...] = ours("streamNames", _NAMES, (), blank_is_absent=True)
    """Names of the streams to read; streams of the own account only."""
    name_filter: str | None = ours("streamFilter", _FILTER, None, blank_is_absent=True)
    """All streams of the account whose names match, including streams created later. Each starts at the
    initial position."""
    refresh_ms: int = ours("streamListRefreshMillis", MILLISECONDS, 60_000)
    """How often the leader checks which of the streams exist, and whether one was recreated."""
    former: FormerStreams = ours(
        "formerStreamsLeasesDeletionStrategy", member(FormerStreams), FormerStreams.KEEP
    )
    """What happens to leases of streams that are no longer listed, and to former leases of a recreated
    stream. Until its leases are deleted, a stream that is no longer listed is still read."""
    former_wait_s: float = ours("waitPeriodToDeleteFormerStreams", duration(), 3_600.0, shown="PT1H")
    """How long a stream must be unlisted before its leases are deleted. A stream that no longer exists in
    Kinesis has no waiting time."""
    former_given: tuple[StreamIdentity, ...] = ours(
        "streamIdentifiersForLeaseCleanup", _IDENTITIES, (), blank_is_absent=True
    )
    """Former streams whose leases are deleted with PROVIDED_STREAMS_DEFERRED_DELETION."""
    tables: tuple[ListedStream, ...] = ()

    @property
    def listed(self) -> tuple[ListedStream, ...]:
        return (*self.arns, *self.names, *self.tables)

    @property
    def are_many(self) -> bool:
        return bool(self.listed) or self.name_filter is not None

    @property
    def texts(self) -> tuple[str, ...]:
        named = (each.arn or each.name for each in self.listed)
        return (*named, *(() if self.name_filter is None else (self.name_filter,)))
