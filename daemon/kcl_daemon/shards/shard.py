"""A shard as Kinesis tells of it, and the position where reading begins."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kcl_daemon.leases.lease import HashRange, ShardId
from kcl_protocol.sequence import AT_TIMESTAMP, LATEST, TRIM_HORIZON, ExtendedSequenceNumber


@dataclass(frozen=True, slots=True)
class Shard:
    """One entry of ListShards.

    Args:
        shard_id: its name.
        hash_range: the hashes it takes.
        parent_shard_ids: none for an original shard or one whose parents have been forgotten, two after a merge.
        starting_sequence_number: lowest possible number in it.
        ending_sequence_number: None while it is open.
    """

    shard_id: ShardId
    hash_range: HashRange
    parent_shard_ids: frozenset[ShardId]
    starting_sequence_number: int
    ending_sequence_number: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether producers can still write to it."""
        return self.ending_sequence_number is None


@dataclass(frozen=True, slots=True)
class ChildShard:
    """One entry of `ChildShards`, told with the last answer of a closed shard."""

    shard_id: ShardId
    parent_shard_ids: frozenset[ShardId]
    hash_range: HashRange


class StartAt(Enum):
    """Where reading begins in a shard without a checkpoint."""

    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """The configured starting point; `timestamp_s` (epoch seconds) only with `TIMESTAMP`."""

    at: StartAt = StartAt.LATEST
    timestamp_s: float | None = None

    @property
    def checkpoint(self) -> ExtendedSequenceNumber:
        """The sentinel that a new lease starts with."""
        return {
            StartAt.TRIM_HORIZON: TRIM_HORIZON,
            StartAt.LATEST: LATEST,
            StartAt.TIMESTAMP: AT_TIMESTAMP,
        }[self.at]
