"""The account of records that Kinesis gave and no child is given: how many of each shard, and why.

Owns the reasons and how loud they are. Whoever leaves a record out decides about it, and tells here. What is passed over
or put aside because its processor fails is another matter (`kcl_daemon.failures`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kcl_daemon.metrics.ours import LEFT_OUT
from kcl_daemon.ports import Log
from kcl_daemon.ports_metrics import Meters

_ADVICE: Final = (
    "their hashes are outside this shard's range. After a reshard the KPL writes such records again by itself; any other "
    "producer that aggregates must put records of one shard only into an aggregate, or they are lost"
)


_LOOK_AT_PRODUCER: Final = (
    "what comes before it in its aggregate is delivered, the rest is lost, as the Java KCL does; look at the producer, or at "
    "what rewrites its records on the way"
)


class Why(StrEnum):
    """Why a record is left out; the value of the label `reason`."""

    BEFORE_CHECKPOINT = "before_checkpoint"  # at or before it (KCL: ProcessTask)
    UNREADABLE = "unreadable"  # what is behind a user record whose keys make no sense (KCL: AggregatorUtil)
    OTHER_SHARD = "other_shard"  # a user record of an aggregate, of a hash that is not this shard's (KCL: AggregatorUtil)


class LeftOut:
    """What one reader of a shard leaves out.

    Args:
        meters: told of each time, not of each record.
        labels: of the shard.
        log: of the shard.
    """

    def __init__(self, meters: Meters, labels: Mapping[str, str], log: Log) -> None:
        self._meters = meters
        self._labels = dict(labels)
        self._log = log
        self._of_other_shards = 0
        self._unreadable = 0

    def before_checkpoint(self, count: int) -> None:
        """So many were read again that a child had finished with; nothing to look at."""
        self._count(count, Why.BEFORE_CHECKPOINT)

    def other_shard(self, count: int, total: int, sequence_number: str) -> None:
        """So many user records of an aggregate belong elsewhere; loud once for each reader.

        Args:
            count: of them.
            total: of all in the aggregate.
            sequence_number: the aggregate's.
        """
        tell = self._log.debug if self._of_other_shards else self._log.warning
        self._of_other_shards += count
        self._count(count, Why.OTHER_SHARD)
        tell(
            "records_of_other_shard",
            sequence_number=sequence_number,
            records=count,
            of=total,
            so_far=self._of_other_shards,
            advice=_ADVICE,
        )

    def unreadable(self, reason: str, count: int, total: int, sequence_number: str) -> None:
        """So many user records at the end of an aggregate are lost; loud once for each reader.

        Args:
            reason: why the first of them cannot be delivered.
            count: of them.
            total: of all in the aggregate.
            sequence_number: the aggregate's.
        """
        tell = self._log.debug if self._unreadable else self._log.warning
        self._unreadable += count
        self._count(count, Why.UNREADABLE)
        tell(
            "aggregate_cut_short",
            reason=reason,
            sequence_number=sequence_number,
            records=count,
            of=total,
            so_far=self._unreadable,
            advice=_LOOK_AT_PRODUCER,
        )

    def _count(self, count: int, why: Why) -> None:
        self._meters.add(LEFT_OUT, count, **self._labels, reason=why.value)
