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
    "their hash keys are outside the range of this shard. After a reshard the KPL writes such records again by itself; any "
    "other producer that aggregates must put only records of one shard into an aggregate, or they are lost"
)


_LOOK_AT_PRODUCER: Final = (
    "they are delivered under the partition key of their aggregate (the Java KCL loses them); check the producer, and "
    "anything that rewrites its records"
)


class Why(StrEnum):
    """Why a record is left out; the value of the label `reason`."""

    BEFORE_CHECKPOINT = "before_checkpoint"  # at or before it (KCL: ProcessTask)
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
        self._bad_keys = 0

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

    def bad_keys(self, reason: str, count: int, total: int, sequence_number: str) -> None:
        """User records with invalid keys, which are delivered all the same; a warning once for each reader.

        Args:
            reason: what is wrong with the last of them.
            count: of them.
            total: of all in the aggregate.
            sequence_number: the aggregate's.
        """
        tell = self._log.debug if self._bad_keys else self._log.warning
        self._bad_keys += count
        tell(
            "aggregate_keys_invalid",
            reason=reason,
            sequence_number=sequence_number,
            records=count,
            of=total,
            so_far=self._bad_keys,
            advice=_LOOK_AT_PRODUCER,
        )

    def _count(self, count: int, why: Why) -> None:
        self._meters.add(LEFT_OUT, count, **self._labels, reason=why.value)
