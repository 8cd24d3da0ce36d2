"""What tables show of who reads a shard: for the leader after each of its polls, and for a watcher from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from kcl_daemon.capacity.figures import Bound, load_from
from kcl_daemon.context import WorkerContext
from kcl_daemon.coverage import (
    CoverageLog,
    TablesSeen,
    Unread,
    UnreadShard,
    coverage,
    is_lasting,
    unread_lines,
)
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.leases.holds import Hold
from kcl_daemon.leases.lease import LeaseKey
from kcl_daemon.metrics import own
from kcl_daemon.ports import Meters

_FORGETS_S: Final = 120.0
_EVERY_S: Final = 5.0
_NAMED_MOST: Final = 100
_TOLD: Final = {
    Bound.FAILING: "its children keep failing",
    Bound.HANGING: "its child has worked on one action for too long",
    Bound.REFUSED: "AWS refuses its reads, or does not answer",
}


def tables_seen(monitor: FleetMonitor, pauses: Sequence[Hold]) -> TablesSeen:
    """Of all streams, after a poll. Who has not been watched for long enough is not called silent."""
    fleet = monitor.fleet()
    silent_s = {key: fleet.ages_s[key] for key in fleet.abandoned if key in fleet.ages_s}
    told = list(_told(monitor))
    failing = {key: words for key, bound, words in told if bound is Bound.FAILING}
    stalled = {key: words for key, bound, words in told if bound is not Bound.FAILING}
    return TablesSeen(
        monitor.leases,
        unreadable=monitor.unreadable_leases,
        silent_s=silent_s,
        living=fleet.workers,
        failing=failing,
        stalled=stalled,
        pauses=pauses,
    )


def _told(monitor: FleetMonitor) -> Iterator[tuple[LeaseKey, Bound, str]]:
    """What living workers of ours say of their own leases; Java's say nothing."""
    owners = {lease.lease_key: lease.actual_owner for lease in monitor.leases}
    living = monitor.living_workers()
    for row in monitor.workers:
        load = None if row.load is None or row.worker_id not in living else load_from(row.load, row.worker_id)
        for each in () if load is None else load.shards:
            words = _TOLD.get(each.bound)
            if words is not None and owners.get(each.key) == row.worker_id:
                yield each.key, each.bound, f"{words}, says worker {row.worker_id}"


class UnreadFigures:
    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._named: set[str] = set()

    def take(self, unread: Sequence[UnreadShard]) -> None:
        self._meters.add(own.SHARDS_UNREAD, len(unread))
        for cause in Unread:
            count = sum(each.cause == cause.value for each in unread)
            self._meters.add(own.SHARDS_UNREAD_BY_CAUSE, count, cause=cause.value)
        seconds = {each.key: each.seconds for each in unread}
        named = {each.key for each in unread[:_NAMED_MOST]}
        for key in self._named | named:
            self._meters.add(own.SHARD_UNREAD, seconds.get(key, 0.0), **_labels(key))
        self._named = named


def _labels(key: str) -> dict[str, str]:
    stream, _, shard_id = key.rpartition(":")
    return {"shard_id": shard_id, "stream": stream} if stream else {"shard_id": shard_id}


class CoverageWatch:
    def __init__(
        self,
        context: WorkerContext,
        monitor: FleetMonitor,
        *,
        leads: Callable[[], bool],
        pauses: Callable[[], Sequence[Hold]],
    ) -> None:
        self._clock = context.clock
        self._monitor = monitor
        self._leads = leads
        self._pauses = pauses
        self._log = CoverageLog()
        self._polled_s = -inf
        self._figures = UnreadFigures(context.meters)

    def polled(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._polled_s < _EVERY_S:
            return  # thousands of leases take a tenth of a second
        seen = tables_seen(self._monitor, self._pauses())
        if now_s - self._polled_s > _FORGETS_S:
            self._log = CoverageLog()
        self._polled_s = now_s
        covered = [
            each
            for stream, leases in seen.by_stream().items()
            for each in coverage(stream, None, replace(seen, leases=leases))
        ]
        self._log = self._log.seen(covered, seen, now_s)
        self._figures.take(self._log.unread(now_s))

    @property
    def unread(self) -> tuple[UnreadShard, ...] | None:
        """None: this worker does not lead, so it does not know."""
        return self._log.unread(self._clock.monotonic()) if self._leads() else None

    def lasting_lines(self) -> tuple[str, ...]:
        return tuple(unread_lines(each for each in self.unread or () if is_lasting(each)))
