"""Who reads each open shard, or why nobody does.

It is judged from outside, by what the tables and the stream show: a worker that is gone or cannot write its leases says
nothing itself. A shard whose parents are unfinished is read with them, because parents come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from typing import TypeAlias

from kcl_daemon.leases.holds import Hold
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, StreamIdentity, WorkerId, lease_key_of
from kcl_daemon.shards.lineage import Shard
from kcl_daemon.text import about, on_one_line, short_shards
from kcl_protocol.sequence import ExtendedSequenceNumber


class Unread(StrEnum):
    """Why nobody reads a shard, the worst first. Programs may rely on the words."""

    OTHER_STREAM = "other stream"
    UNREADABLE = "unreadable lease"
    NO_LEASE = "no lease"
    FINISHED = "finished lease"
    NO_OWNER = "no owner"
    SILENT = "silent owner"
    FAILING = "failing"
    STALLED = "stalled"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class TablesSeen:
    """What the tables show of one stream.

    Args:
        leases: also finished ones.
        unreadable: keys of lease rows that cannot be read.
        another: why a lease cannot be of this stream.
        silent_s: for how long a lease was not renewed, where that is longer than it may be.
        living: workers that report.
        failing: what a living worker says of a lease whose children fail.
        stalled: the same of one that makes no progress.
    """

    leases: Sequence[Lease]
    unreadable: AbstractSet[str] = frozenset()
    another: Mapping[LeaseKey, str] = field(default_factory=dict[LeaseKey, str])
    silent_s: Mapping[LeaseKey, float] = field(default_factory=dict[LeaseKey, float])
    living: AbstractSet[WorkerId] = frozenset()
    failing: Mapping[LeaseKey, str] = field(default_factory=dict[LeaseKey, str])
    stalled: Mapping[LeaseKey, str] = field(default_factory=dict[LeaseKey, str])
    pauses: Sequence[Hold] = ()

    def by_stream(self) -> dict[StreamIdentity | None, list[Lease]]:
        found: dict[StreamIdentity | None, list[Lease]] = {}
        for lease in self.leases:
            found.setdefault(lease.stream, []).append(lease)
        return found


@dataclass(frozen=True, slots=True)
class ShardCoverage:
    """`cause` None: `reader` reads it. `waits_for`: the parent that is read first, whose state this is. `why`: in words."""

    key: LeaseKey
    reader: WorkerId | None
    cause: Unread | None = None
    why: str = ""
    waits_for: ShardId | None = None


def coverage(
    stream: StreamIdentity | None, shards: Sequence[Shard] | None, seen: TablesSeen
) -> tuple[ShardCoverage, ...]:
    """One answer for each open shard, in order of keys.

    Without `shards` (nobody listed them) each lease that is unfinished or unreadable stands for its shard: then a shard without a
    lease is not seen.
    List the shards after reading the leases.
    """
    rule = _Coverage(stream, shards, seen)
    return tuple(sorted(map(rule.of, rule.asked), key=lambda each: each.key))


class _Coverage:
    def __init__(
        self, stream: StreamIdentity | None, shards: Sequence[Shard] | None, seen: TablesSeen
    ) -> None:
        self._stream = stream
        self._seen = seen
        self._leases = {lease.shard_id: lease for lease in seen.leases}
        self._parents = {shard.shard_id: shard.parent_shard_ids for shard in shards or ()}
        open_shards = (shard.shard_id for shard in shards or () if shard.is_open)
        self.asked: tuple[ShardId, ...] = tuple(self._of_leases() if shards is None else open_shards)

    def _of_leases(self) -> Iterator[ShardId]:
        yield from (lease.shard_id for lease in self._seen.leases if not lease.is_finished)
        prefix = lease_key_of(self._stream, ShardId(""))
        names = (key.removeprefix(prefix) for key in self._seen.unreadable if key.startswith(prefix))
        yield from (ShardId(name) for name in names if ":" not in name)

    def of(self, shard_id: ShardId) -> ShardCoverage:
        key = lease_key_of(self._stream, shard_id)
        first = [(self._judged(lease), lease.shard_id) for lease in self._unfinished_before(shard_id)]
        if first:
            worst, parent = min(first, key=_urgency)
            return ShardCoverage(key, worst.reader, worst.cause, worst.why, waits_for=parent)
        lease = self._leases.get(shard_id)
        if lease is not None:
            return self._judged(lease)
        if key in self._seen.unreadable:
            return ShardCoverage(key, None, Unread.UNREADABLE, "the row of its lease cannot be read")
        return ShardCoverage(key, None, Unread.NO_LEASE, f"it has no lease{self._no_worker}")

    def _unfinished_before(self, shard_id: ShardId) -> Iterator[Lease]:
        """The unfinished leases that come first: none of their own parents is unfinished. Lineages may be long, and lie."""
        pending, known = [shard_id], {shard_id}
        while pending:
            current = pending.pop()
            lease = self._leases.get(current)
            told = self._parents.get(current, frozenset()) | (
                lease.parent_shard_ids if lease else frozenset()
            )
            older = [each for each in told if each not in known]
            known |= set(older)
            unfinished = [each for each in older if self._is_unfinished(each)]
            pending += [each for each in older if self._is_unfinished(each) or each not in self._leases]
            if current != shard_id and lease is not None and not unfinished:
                yield lease

    def _is_unfinished(self, shard_id: ShardId) -> bool:
        lease = self._leases.get(shard_id)
        return lease is not None and not lease.is_finished

    def _judged(self, lease: Lease) -> ShardCoverage:
        cause, why = next(self._troubles(lease), (None, ""))
        reader = None if cause is Unread.FINISHED else lease.actual_owner
        return ShardCoverage(lease.lease_key, reader, cause, why)

    def _troubles(self, lease: Lease) -> Iterator[tuple[Unread, str]]:
        """The worst first."""
        key, owner, seen = lease.lease_key, lease.actual_owner, self._seen
        if key in seen.another:
            yield Unread.OTHER_STREAM, seen.another[key]
        if lease.is_finished:
            yield Unread.FINISHED, "its lease says that it is finished, and it is open"
        if owner is None:
            yield Unread.NO_OWNER, f"no worker has its lease{self._no_worker}"
        elif key in seen.silent_s:
            gone = "" if owner in seen.living else ", and does not report"
            for_s = about(seen.silent_s[key])
            yield Unread.SILENT, f"worker {on_one_line(owner)} has not renewed its lease for {for_s}{gone}"
        if key in seen.failing:
            yield Unread.FAILING, seen.failing[key]
        if key in seen.stalled:
            yield Unread.STALLED, seen.stalled[key]
        for pause in seen.pauses:
            if pause.is_pause and pause.covers(lease):
                yield Unread.PAUSED, f"{pause.by} has paused it: {pause.reason}"

    @property
    def _no_worker(self) -> str:
        return "" if self._seen.living else ", and no worker runs"


def _urgency(judged: tuple[ShardCoverage, ShardId]) -> tuple[int, ShardId]:
    cause = judged[0].cause
    return len(Unread) if cause is None else list(Unread).index(cause), judged[1]


@dataclass(frozen=True, slots=True)
class UnreadShard:
    """`seconds`: how long nobody was seen to read it; it may be longer. `cause` is a word of `Unread`."""

    key: str
    cause: str
    why: str
    seconds: float
    owner: str | None = None
    waits_for: str | None = None


def is_lasting(unread: UnreadShard) -> bool:
    """For the other causes its own worker is not ready."""
    return unread.seconds >= 60.0 and unread.cause not in {Unread.FAILING, Unread.STALLED, Unread.PAUSED}


def unread_lines(unread: Iterable[UnreadShard]) -> Iterator[str]:
    """One line for each cause, the worst first."""
    order = [each.value for each in Unread]
    by_cause = sorted(
        unread, key=lambda each: (order.index(each.cause) if each.cause in order else -1, -each.seconds)
    )
    for cause, found in groupby(by_cause, key=lambda each: each.cause):
        group = list(found)
        named = short_shards([each.key for each in group])
        yield f"{named} for {about(group[0].seconds)}: {group[0].why} ({cause})"


_Failed: TypeAlias = tuple[ExtendedSequenceNumber, Unread | None, str]


@dataclass(frozen=True, slots=True)
class CoverageLog:
    """What an observer remembers.

    A shard stays unread while the causes follow each other, whoever holds its lease. One that fails or is stalled stays so until
    its checkpoint moves: a new owner has not read it yet.
    """

    covered: tuple[ShardCoverage, ...] = ()
    since_s: Mapping[LeaseKey, float] = field(default_factory=dict[LeaseKey, float])
    failed: Mapping[LeaseKey, _Failed] = field(default_factory=dict[LeaseKey, _Failed])

    def seen(self, covered: Iterable[ShardCoverage], seen: TablesSeen, now_s: float) -> CoverageLog:
        """The log after a look, of which `covered` is what `coverage` found. Times are monotonic.

        A lease that was not renewed has been unread since its last renewal.
        """
        checkpoints = {lease.lease_key: lease.checkpoint for lease in seen.leases}
        now = tuple(self._still_failing(each, checkpoints) for each in covered)
        unread = [each.key for each in now if each.cause is not None]
        since_s = {
            key: min(self.since_s.get(key, now_s), now_s - seen.silent_s.get(key, 0.0)) for key in unread
        }
        failed = {
            each.key: self.failed.get(each.key, (checkpoints[each.key], each.cause, each.why))
            for each in now
            if each.cause in {Unread.FAILING, Unread.STALLED} and each.key in checkpoints
        }
        return CoverageLog(now, since_s, failed)

    def _still_failing(
        self, now: ShardCoverage, checkpoints: Mapping[LeaseKey, ExtendedSequenceNumber]
    ) -> ShardCoverage:
        at, cause, why = self.failed.get(now.key, (None, None, ""))
        if now.cause not in {None, Unread.NO_OWNER} or at is None or at != checkpoints.get(now.key):
            return now
        return replace(now, cause=cause, why=f"{why}; nothing was checkpointed since")

    def unread(self, now_s: float) -> tuple[UnreadShard, ...]:
        """The longest first."""
        since_s = self.since_s
        found = [
            UnreadShard(
                each.key, cause.value, each.why, now_s - since_s[each.key], each.reader, each.waits_for
            )
            for each in self.covered
            if (cause := each.cause) is not None
        ]
        return tuple(sorted(found, key=lambda each: (-each.seconds, each.key)))
