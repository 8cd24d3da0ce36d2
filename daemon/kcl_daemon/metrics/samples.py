"""What a snapshot of the worker says, as samples. Pure: a snapshot in, samples out, family by family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from kcl_daemon.metrics import ours
from kcl_daemon.metrics.kcl_shards import SHARD_BEHIND
from kcl_daemon.metrics.metric import Family, Labels
from kcl_daemon.metrics.spark_samples import spark_samples
from kcl_daemon.metrics.totals import Histogram, Totals
from kcl_daemon.observe.snapshot import ShardView, Snapshot

Samples: TypeAlias = list[tuple[Labels, float]]
Value: TypeAlias = float | Histogram


def everything(
    totals: Totals, snapshot: Snapshot | None
) -> Iterator[tuple[Family, Iterator[tuple[Labels, Value]]]]:
    """All families that have series, with their series; histograms go on changing, all else is as it is now.

    Args:
        totals: what was counted.
        snapshot: of the worker; None: nobody can tell yet.
    """
    if snapshot is not None:
        for family, found in samples(snapshot):
            if found:
                yield family, iter(found)
    for family, series in totals.families():
        if series:
            yield (
                family,
                ((labels, each if isinstance(each, Histogram) else each.value) for labels, each in series),
            )


def samples(snapshot: Snapshot) -> Iterator[tuple[Family, Samples]]:
    """All families that come from a snapshot; those of shards have one sample for each shard that has a value."""
    yield from _of_worker(snapshot)
    named = [(shard, _labels(shard)) for shard in snapshot.shards]
    yield (
        ours.SHARD_WAITS,
        [((*labels, ("cause", shard.cause.value)), shard.waits_s) for shard, labels in named],
    )
    for family, value_of in _OF_SHARDS:
        found: Samples = []
        for shard, labels in named:
            value = value_of(shard)
            if value is not None:
                found.append((labels, value))
        yield family, found
    if snapshot.spark is not None:
        yield from spark_samples(snapshot.spark)


def _of_worker(snapshot: Snapshot) -> Iterator[tuple[Family, Samples]]:
    who = (
        ("worker_id", snapshot.worker_id),
        ("application", snapshot.application),
        ("version", snapshot.version),
    )
    yield ours.INFO, [(who, 1.0)]
    yield ours.UPTIME, [((), snapshot.uptime_s)]
    yield ours.WORKING, [((), float(snapshot.started))]
    yield ours.STOPPING, [((), float(snapshot.stopping))]


def _labels(shard: ShardView) -> Labels:
    named = (("shard_id", shard.shard_id),)
    return named if shard.stream_id is None else (*named, ("stream", shard.stream_id))


def _read_behind_s(shard: ShardView) -> float | None:
    return None if shard.behind_ms is None else shard.behind_ms / 1000


def _memory(shard: ShardView) -> float | None:
    return None if shard.child is None or shard.child.rss_bytes is None else float(shard.child.rss_bytes)


_OF_SHARDS: Final[tuple[tuple[Family, Callable[[ShardView], float | None]], ...]] = (
    (ours.SHARD_IDLE, lambda shard: shard.idle_s),
    (ours.SHARD_STALLED, lambda shard: float(shard.stalled)),
    (SHARD_BEHIND, lambda shard: shard.lag_s),
    (ours.SHARD_READ_BEHIND, _read_behind_s),
    (ours.SHARD_FAILURES, lambda shard: float(shard.failures)),
    (ours.SHARD_RESTARTS, lambda shard: float(shard.restarts)),
    (ours.CHILD_MEMORY, _memory),
)
