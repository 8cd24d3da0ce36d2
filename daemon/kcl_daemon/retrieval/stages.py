"""What becomes of an answer before its batches wait for the child; `stages` is the list.

A stage takes the parts of an answer from the one before it and gives parts itself (`source.Parts`), one at a time: an answer
of a million user records is never open at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from anyio.lowlevel import checkpoint

from kcl_daemon.config.settings import Settings
from kcl_daemon.context import WorkerContext
from kcl_daemon.metrics.own import NOT_DELIVERED
from kcl_daemon.ports import Log, Meters
from kcl_daemon.progress.progress import LastFetch
from kcl_daemon.records.batch import Batch
from kcl_daemon.retrieval.source import Parts, ShardSource, Stage
from kcl_protocol.sequence import ExtendedSequenceNumber

if TYPE_CHECKING:
    from kcl_daemon.retrieval.schemas import SchemaCache


def stages(
    settings: Settings,
    schemas: SchemaCache | None,
    skipped: SkippedRecords,
    *,
    context: WorkerContext,
    last_fetch: LastFetch,
) -> tuple[Stage, ...]:
    """After `Opened`. What is not configured is not in it, and is not loaded."""
    found: list[Stage] = []
    if schemas is not None:
        found.append(schemas.decoder(settings.schemas.on_failure, context, last_fetch).decoded)
    if (record_filter := settings.delivery.record_filter) is not None:
        from kcl_daemon.retrieval.filtering import ShardFilter

        found.append(ShardFilter(record_filter, skipped).filtered)
    return tuple(found)


class Opened:
    """The first stage: the records after the checkpoint, with aggregates taken apart.

    `taken`: parts, also those without a record. `oldest_s`: monotonic arrival of the first record of the last one.
    """

    def __init__(self, source: ShardSource, whole: Batch) -> None:
        self._source = source
        self._parts: Iterable[Batch] = iter((whole,)) if source.split is None else whole.opened(source.split)
        self.taken = 0
        self.oldest_s: float | None = None
        if source.strays is not None:
            source.strays.received()

    async def next(self) -> Batch | None:
        strays = self._source.strays
        for whole in self._parts:
            part = self._after_checkpoint(whole)
            if strays is not None:
                await strays.settle()  # before the next part is opened
            if self.taken:
                await checkpoint()  # a million user records would delay lease renewals
            self.taken += 1
            self.oldest_s = part.arrived_s
            if part:
                return part
        return None

    def _after_checkpoint(self, batch: Batch) -> Batch:
        source, position = self._source, self._source.checkpoint
        if position.is_sentinel:
            return batch
        if source.split is None and position.sub_sequence_number:
            # The rest of the aggregate, which the checkpoint does not cover, is delivered whole.
            position = ExtendedSequenceNumber(str(int(position.sequence_number) - 1))
        rest = batch.after(position)
        if source.skipped is not None and len(rest) < len(batch):
            source.skipped.before_checkpoint(len(batch) - len(rest))
        return rest


def parts_of(source: ShardSource, whole: Batch) -> tuple[Opened, Parts]:
    """Its first stage, and the last one."""
    first = Opened(source, whole)
    last: Parts = first
    for stage in source.stages:
        last = stage(last)
    return first, last


_ADVICE: Final = (
    "their keys belong to other shards. After a reshard the KPL writes such records again by itself. Any other producer that "
    "aggregates must put only records of one shard into an aggregate; keepRecordsOfOtherShards = true delivers them here. (On a "
    "stream whose RecordDistributionStrategy is AUTO all are delivered.)"
)


_CHECK_PRODUCER: Final = (
    "they are delivered: where a key is missing, under the partition key of their aggregate (the Java KCL loses them), else "
    "under their own; check the producer, and anything that rewrites its records"
)


class SkipReason(StrEnum):
    BEFORE_CHECKPOINT = "before_checkpoint"  # KCL: ProcessTask
    FILTERED = "filtered"  # it does not match `recordFilter`
    OTHER_SHARD = "other_shard"  # a user record's hash key is outside this shard (KCL: AggregatorUtil)


class SkippedRecords:
    """Of one reader. Each kind warns once: all aggregates of a producer may be alike."""

    def __init__(self, meters: Meters, labels: Mapping[str, str], log: Log) -> None:
        self._meters = meters
        self._labels = dict(labels)
        self._log = log
        self._of_other_shards = 0
        self._bad_keys = 0
        self._malformed = 0

    def before_checkpoint(self, count: int) -> None:
        self._count(count, SkipReason.BEFORE_CHECKPOINT)

    def filtered(self, count: int) -> None:
        self._count(count, SkipReason.FILTERED)

    def other_shard(self, count: int, total: int, sequence_number: str) -> None:
        """`total` is all in the aggregate."""
        log_event = self._log.debug if self._of_other_shards else self._log.warning
        self._of_other_shards += count
        self._count(count, SkipReason.OTHER_SHARD)
        log_event(
            "records_of_other_shard",
            sequence_number=sequence_number,
            records=count,
            of=total,
            so_far=self._of_other_shards,
            advice=_ADVICE,
        )

    def bad_keys(self, reason: str, count: int, total: int, sequence_number: str) -> None:
        """They are delivered anyway."""
        log_event = self._log.debug if self._bad_keys else self._log.warning
        self._bad_keys += count
        log_event(
            "aggregate_keys_invalid",
            reason=reason,
            sequence_number=sequence_number,
            records=count,
            of=total,
            so_far=self._bad_keys,
            advice=_CHECK_PRODUCER,
        )

    def malformed(self, reason: str, sequence_number: str) -> None:
        self._malformed += 1
        log_event = self._log.warning if self._malformed == 1 else self._log.debug
        log_event(
            "aggregate_malformed",
            reason=reason,
            sequence_number=sequence_number,
            count=self._malformed,
            advice="it is delivered unchanged; check the producer, or anything that rewrites its records",
        )

    def _count(self, count: int, skip_reason: SkipReason) -> None:
        self._meters.add(NOT_DELIVERED, count, **self._labels, reason=skip_reason.value)
