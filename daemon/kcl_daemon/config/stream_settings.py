"""What a properties file says about the streams of an application that reads many.

Pure values, part of `Settings`. Owns which streams are meant, and what becomes of the leases of those that are no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.shards.shard import InitialPosition


class FormerStreams(Enum):
    """What becomes of the leases of streams that are not listed any more; the values are KCL's."""

    KEEP = "NO_STREAMS_LEASES_DELETION"
    DELETE_ALL = "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION"
    DELETE_GIVEN = "PROVIDED_STREAMS_DEFERRED_DELETION"


@dataclass(frozen=True, slots=True)
class ListedStream:
    """One stream that is to be read.

    Args:
        name: its name.
        arn: its ARN; None: it is the account's own, and called by its name until Kinesis tells its ARN.
        position: where reading of it begins; None: as the application's.
    """

    name: str
    arn: str | None = None
    position: InitialPosition | None = None


@dataclass(frozen=True, slots=True)
class StreamsSettings:
    """Many streams.

    Args:
        arns: streams by ARN.
        names: streams by name, of the account itself.
        name_filter: pattern of further names, of the account itself, with `*` and `?`; None: there are no more.
        refresh_ms: how often the leader looks which of them there are.
        former: what becomes of the leases of streams that are listed no more.
        former_wait_s: how long a stream must have been listed no more before its leases are deleted.
        former_given: whose leases are deleted, with `DELETE_GIVEN`.
    """

    arns: tuple[ListedStream, ...] = ()
    names: tuple[ListedStream, ...] = ()
    name_filter: str | None = None
    refresh_ms: int = 60_000
    former: FormerStreams = FormerStreams.KEEP
    former_wait_s: float = 3_600.0
    former_given: tuple[StreamIdentity, ...] = ()

    @property
    def listed(self) -> tuple[ListedStream, ...]:
        """All streams that are named."""
        return (*self.arns, *self.names)

    @property
    def are_many(self) -> bool:
        """Whether there may be many; else the application reads the one of `streamName` or `streamArn`."""
        return bool(self.listed) or self.name_filter is not None

    @property
    def texts(self) -> tuple[str, ...]:
        """What is to be read, as it was written: ARNs, names, the pattern."""
        named = (each.arn or each.name for each in self.listed)
        return (*named, *(() if self.name_filter is None else (self.name_filter,)))
