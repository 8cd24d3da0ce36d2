"""A landing log: the store that children write into, and the rules of what is in it.

Owns the objects and what becomes of a call to the store. Every segment is compared with the stream when it is written, and
all of them again at the end. Knows nothing of how children get their records (`landing_program`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import msgspec

from kcl_daemon.leases.row import Row
from kcl_landing.log import MANIFESTS, Footer, Format, Layout, LogInfo, Mark, place
from kcl_landing.positions import START, Position, position
from kcl_landing.shard import ShardLanding
from kcl_landing.store import NoObject, StoredObject
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.network import CALM, Trouble
from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import now
from tests.simulator.rules.truth import ShardTruth, Truth
from tests.simulator.trace import Trace
from tests.simulator.violation import report

# How often a write is the moment for the next sleep.
_SLEEPS: Final = 0.1
# When somebody wakes who has not noticed that his child is gone.
_LATE_S: Final = (0.1, 5.0, 40.0)
APPLICATION: Final = "landing"


@dataclass(frozen=True, slots=True)
class LandingPlan:
    """What the children of a run do, and what their store is like.

    Args:
        layout, window_ms, max_bytes: as the settings say.
        memory_bytes: of the records in one child.
        hour_s: after so long an hour of the records' arrival passes.
        jitter_ms: their arrival goes back by up to this.
        trouble: of calls to the store.
        full_s: from when to when it takes nothing more.
        old: how often a manifest is read as it was before.
        looked_at: how many objects of a dated layout a writer looks at, at most, when it opens the log.
        replaces: a store that replaces what is there; nobody may use one.
        outlives: how often what writes for a child goes on for a while after the child has ended.
        marks: the hosts state until when their shards are complete, and a reader follows the log by that.
        left_after_s: for so long the reader waits for a shard that stands still.
        sleeps_s: for so long, one after the other, a worker and its children are stopped when a child is about to write. The
            child wakes earlier when its successor has begun.
    """

    layout: Layout = "log"
    window_ms: int = 5_000
    max_bytes: int = 64 << 20
    memory_bytes: int = 256 << 20
    hour_s: float = 3_600.0
    jitter_ms: int = 0
    trouble: Trouble = CALM
    full_s: tuple[tuple[float, float], ...] = ()
    old: float = 0.0
    looked_at: int = 2_000
    replaces: bool = False
    outlives: float = 0.0
    marks: bool = False
    left_after_s: float = 3_600.0
    sleeps_s: tuple[float, ...] = ()


def stamped_ms(plan: LandingPlan, number: int, at_ms: int) -> int:
    """Each so many seconds an hour passes, so that a run has some of them; not quite in order, as Kinesis gives it."""
    hours = int((at_ms / 1000 - EPOCH_S) / plan.hour_s)
    return at_ms + hours * 3_600_000 - number // 7 % (plan.jitter_ms + 1)


class Segment(msgspec.Struct, frozen=True):
    """The content of one, instead of Parquet."""

    footer: Footer
    rows: tuple[Position, ...]
    sent_s: float
    arrivals_ms: tuple[int | None, ...] = ()


def read_footer(content: bytes | memoryview, _format: Format) -> Footer:
    """As production's."""
    return msgspec.json.decode(content, type=Segment).footer


class Fate(Enum):
    """What becomes of one call to the store."""

    DONE = auto()
    REFUSED = auto()
    LOST = auto()
    UNANSWERED = auto()
    BELATED = auto()
    SLOW = auto()


_FAULTS: Final = {
    Fate.DONE: "",
    Fate.REFUSED: "store call refused",
    Fate.LOST: "store call lost",
    Fate.UNANSWERED: "store call not answered",
    Fate.BELATED: "store write belated",
    Fate.SLOW: "store call slow",
}


@dataclass(slots=True)
class ShardInLog:
    """What has been written of one shard.

    Args:
        places: of the stream's records that are in the log, from the first one on.
        segments: names, in order.
        written_s: when the last of them was.
        upto: of each segment, how many records it and those before it have.
        stated_ms: the latest time until which a mark has called it complete.
        ranks: where the items that it has stand in their scan; only of a snapshot.
    """

    places: int = 0
    upto: list[int] = field(default_factory=list[int])
    stated_ms: int = 0
    segments: list[str] = field(default_factory=list[str])
    last: Position = START
    is_ended: bool = False
    written_s: float = 0.0
    token: int = -1
    ranks: set[int] = field(default_factory=set[int])


class Landing:
    """One store for all children of a run. Port LogStore, without delays."""

    def __init__(self, plan: LandingPlan, truth: Truth, trace: Trace) -> None:
        self.plan = plan
        self.info = LogInfo(APPLICATION, plan.layout, "parquet", "log")
        self.on_sleep: Callable[[str, str, float], None] = lambda _worker_id, _shard_id, _for_s: None
        self.on_begin: Callable[[str], None] = lambda _shard_id: None
        self.faults = Counter[str]()
        self.trouble = plan.trouble
        self._sleeps_s = list(plan.sleeps_s)
        self._full_s = plan.full_s
        self._old = plan.old
        self._calm_s: float | None = None
        self._truth = truth
        self._trace = trace
        self._objects: dict[str, bytes] = {}
        self._before: dict[str, bytes] = {}
        self._log: dict[str, ShardInLog] = {}
        self._gone: dict[str, float] = {}
        self._begins = 0
        self._segments: dict[str, list[Segment]] = {}
        self.writing: dict[int, ShardLanding[Any]] = {}

    # The store.

    def create(self, path: str, content: bytes | memoryview) -> bool:
        """As the port says."""
        if path in self._objects and not self.plan.replaces:
            return False
        self._objects[path] = bytes(content)
        self._trace.note("store", "created", path)
        if not path.startswith("_"):
            self._written(path, msgspec.json.decode(content, type=Segment))
        return True

    def replace(self, path: str, content: bytes) -> None:
        """As the port says."""
        if path in self._objects:
            self._before[path] = self._objects[path]
        self._objects[path] = content

    def read(self, path: str) -> bytes:
        """As the port says."""
        if path not in self._objects:
            raise NoObject(path)
        return self._objects[path]

    def read_before(self, path: str) -> bytes:
        """As it was before the last write: what a cache may give of what is rewritten."""
        return self._before[path] if path in self._before else self.read(path)

    def listing(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        """As the port says."""
        prefix = folder.rstrip("/") + "/" if folder else ""
        for path in sorted(each for each in self._objects if each.startswith(prefix) and each > after):
            yield StoredObject(path, len(self._objects[path]))

    def remove(self, paths: Sequence[str]) -> None:
        """As the port says."""
        for path in paths:
            self._objects.pop(path, None)

    @property
    def is_full(self) -> bool:
        """Whether it takes nothing now."""
        return any(begins <= now() < ends for begins, ends in self._full_s)

    def fate(self, chance: Chance) -> Fate:
        """What becomes of the next call."""
        trouble, draw = self.trouble, chance.random()
        for fate, probability in (
            (Fate.REFUSED, trouble.throttled),
            (Fate.LOST, trouble.lost),
            (Fate.UNANSWERED, trouble.unanswered),
            (Fate.BELATED, trouble.belated),
            (Fate.SLOW, trouble.slow),
        ):
            if draw < probability:
                self.faults[_FAULTS[fate]] += 1
                return fate
            draw -= probability
        return Fate.DONE

    def is_old(self, path: str, chance: Chance) -> bool:
        """Whether this is read as it was before."""
        return path.startswith(MANIFESTS) and chance.happens(self._old)

    # Its writers.

    def about_to_write(self, worker_id: str, shard_id: str, chance: Chance) -> None:
        """A child has a segment ready. Perhaps its host stops just now."""
        if self._sleeps_s and chance.happens(_SLEEPS):
            self.on_sleep(worker_id, shard_id, self._sleeps_s.pop(0))

    def outlives_s(self, chance: Chance) -> float | None:
        """After so long what writes for a new child goes on when the child has ended; None: it ends with it."""
        return chance.uniform(0.0, chance.pick(_LATE_S)) if chance.happens(self.plan.outlives) else None

    def calm_down(self) -> None:
        """Nobody sleeps any more, and the store works."""
        self._sleeps_s.clear()
        self.trouble, self._full_s, self._old, self._calm_s = CALM, (), 0.0, now()

    def began(self, shard_id: str) -> None:
        """A writer has read where the log of a shard ends: for a former one the worst moment to wake, or soon after."""
        self._begins += 1
        if self._begins % 2:
            self.on_begin(shard_id)

    def let_go(self, writer: str) -> None:
        """It will write nothing any more."""
        self._gone.setdefault(writer, now())

    # The rules.

    def begins_anew(self, shard: ShardTruth) -> None:
        """At the latest record, as no checkpoint is stored: what was given before is nobody's while nothing of it is landed."""
        if not self._log.setdefault(shard.shard_id, ShardInLog()).places:
            shard.passed.update(place for place, count in enumerate(shard.deliveries) if count)

    def _written(self, path: str, segment: Segment) -> None:
        footer = segment.footer
        log = self._log.setdefault(footer.shard, ShardInLog())
        shard = self._truth.shards[footer.shard]
        # Perhaps a former owner lands what it was given, after all.
        shard.passed.difference_update(shard.index[each] for each in segment.rows if each in shard.index)
        who = f"{path} of writer {footer.writer} with token {footer.token}"
        if footer.number != len(log.segments):
            report("number_twice", f"{who} was created where number {len(log.segments)} comes next")
        if place(footer.after) not in {log.last, max(log.last, self._stored_before(footer.shard))}:
            report("log_not_continued", f"{who} begins after {footer.after}, the log ends at {log.last}")
        if log.is_ended:
            report("written_after_end", f"{who} was created after the end of the shard")
        if segment.sent_s > self._gone.get(footer.writer, segment.sent_s):
            report("wrote_after_letting_go", f"{who} was sent {segment.sent_s:.3f} s")
        if not log.segments:
            self._check_parents(shard, who)
        if footer.children is not None:
            self._check_end(log, shard, footer, who)
        else:
            self._check_rows(log.places, shard, segment, who)
        if footer.token > log.token:
            log.token = footer.token
            self.on_begin(footer.shard)
        self._check_marks(log, shard, segment, who)
        log.places += len(segment.rows)
        log.upto.append(log.places)
        self.segments_of(footer.shard).append(segment)
        log.segments.append(path)
        log.last, log.is_ended, log.written_s = place(footer.last), footer.children is not None, now()

    def _check_marks(self, log: ShardInLog, shard: ShardTruth, segment: Segment, who: str) -> None:
        for number in () if shard.is_scan else segment.rows:
            at_ms = self._arrived_ms(shard, shard.index[number])
            if at_ms < log.stated_ms:
                report(
                    "mark_not_true",
                    f"{who} has {number}, which arrived {at_ms}; a mark said before that all until {log.stated_ms} is there",
                )

    def _arrived_ms(self, shard: ShardTruth, index: int) -> int:
        """When a record arrived, as the children say it."""
        at_s = EPOCH_S + shard.written_at_s[index] - self._truth.unreadable_s
        return stamped_ms(self.plan, shard.positions[index][0], int(at_s * 1000))

    def stated(self, shard_id: str, mark: Mark, who: str) -> None:
        """A mark is on its way to the store: it must be true already."""
        log, shard = self._log.setdefault(shard_id, ShardInLog()), self._truth.shards[shard_id]
        if mark.number >= len(log.upto):
            report("mark_before_segment", f"{who} states segment {mark.number} of {shard_id}")
        inside = 0 if mark.number < 0 else log.upto[mark.number]
        for index in sorted(set() if shard.is_scan else shard.owed - shard.passed)[inside:]:
            at_ms = self._arrived_ms(shard, index)
            if at_ms < mark.complete_ms:
                report(
                    "mark_not_true",
                    f"{who} states {mark} of {shard_id}; {shard.positions[index]}, which arrived {at_ms}, is not in it",
                )
        log.stated_ms = max(log.stated_ms, mark.complete_ms)

    def segments_of(self, shard_id: str) -> list[Segment]:
        """In order."""
        return self._segments.setdefault(shard_id, [])

    def _check_rows(self, first: int, shard: ShardTruth, segment: Segment, who: str) -> None:
        numbers = list(segment.rows)
        if shard.is_scan:
            self._check_scanned([shard.rank(number) for number in numbers], shard.shard_id, who)
            return
        if not numbers and place(segment.footer.last) == START:
            return  # another writer's name for it
        wanted = _wanted(shard)
        if numbers == wanted[first : first + len(numbers)] and numbers:
            if place(segment.footer.last) != segment.rows[-1] or segment.footer.rows != len(numbers):
                report("wrong_footer", f"{who} has other records than it says")
            return
        if set(numbers) & set(wanted[:first]):
            report(
                "repeated_in_log", f"{who} begins with {numbers[:1]}, the log ends with {wanted[first - 1]}"
            )
        report("missing_in_log", f"{who} begins with {numbers[:1]}, {wanted[first:][:1]} comes next")

    def _check_scanned(self, ranks: Sequence[int], shard_id: str, who: str) -> None:
        """Items come in the order of the scan, each once."""
        log = self._log[shard_id]
        if ranks != sorted(set(ranks)) or (ranks and log.ranks and ranks[0] <= max(log.ranks)):
            report("repeated_in_log", f"{who} has items that come before what the log of {shard_id} has")
        log.ranks.update(ranks)

    def _check_parents(self, shard: ShardTruth, who: str) -> None:
        for parent in shard.parents:
            before = self._truth.shards.get(parent)
            if before is not None and not (before.is_past or self._is_ended(parent)):
                report("child_before_marker", f"{who} was created before the end of {parent}")

    def _check_end(self, log: ShardInLog, shard: ShardTruth, footer: Footer, who: str) -> None:
        if not shard.is_closed or self._missing_of(shard, log):
            report("end_too_early", f"{who} has the end of a shard with {log.places} records in the log")
        if not shard.is_scan and sorted(footer.children or ()) != self.children_of(footer.shard):
            report("wrong_children", f"{who} names {footer.children}, not {self.children_of(footer.shard)}")

    def children_of(self, shard_id: str) -> list[str]:
        """The shards that follow."""
        children = (each.shard_id for each in self._truth.shards.values() if shard_id in each.parents)
        return sorted(key.rpartition(":")[2] for key in children)

    def row_written(self, write: RowWrite) -> None:
        """A checkpoint is never beyond what is in the log."""
        if write.after is None or write.key not in self._truth.shards:
            return
        log, stored = self._log.get(write.key, ShardInLog()), _checkpoint(write.after)
        if stored is None and not log.is_ended:
            report(
                "end_before_marker", f"{write.worker_id} stored the end of {write.key}, which the log has not"
            )
        if stored is not None and stored > max(log.last, self._stored_before(write.key)):
            report(
                "checkpoint_ahead",
                f"{write.worker_id} stored {stored}; the log of {write.key} ends at {log.last}",
            )

    def _stored_before(self, shard_id: str) -> Position:
        """What a fleet of the past has done without a log."""
        shard = self._truth.shards[shard_id]
        return shard.positions[shard.done_before - 1] if shard.done_before else START

    def holds(self, shard_id: str, size_bytes: int, batch_bytes: int) -> None:
        """A child has so much in memory, after a batch of such a size."""
        if size_bytes > self.plan.memory_bytes + batch_bytes:
            report("memory_bound", f"a child has {size_bytes} bytes of {shard_id} in memory")

    @property
    def landed(self) -> int:
        """How many segments the log has."""
        return sum(len(log.segments) for log in self._log.values())

    @property
    def missing(self) -> dict[str, int]:
        """How many records of a shard are not in the log, or that its end (0) is not."""
        found: dict[str, int] = {}
        for shard in self._truth.wanted:
            name, log = shard.shard_id, self._log.get(shard.shard_id, ShardInLog())
            missing = self._missing_of(shard, log)
            if missing or (shard.is_closed and not log.is_ended):
                found[name] = missing
        return found

    def _missing_of(self, shard: ShardTruth, log: ShardInLog) -> int:
        return len(shard.owed - log.ranks) if shard.is_scan else len(_wanted(shard)) - log.places

    def _is_ended(self, shard_id: str) -> bool:
        return self._log.get(shard_id, ShardInLog()).is_ended

    def look(self, bound_s: float) -> None:
        """A while after the last fault every shard's log goes on."""
        for name, missing in self.missing.items():
            log, shard = self._log.get(name, ShardInLog()), self._truth.shards[name]
            if not missing or shard.is_scan:
                continue
            place_now = shard.index[_wanted(shard)[log.places]]
            waits_since_s = max(shard.written_at_s[place_now], log.written_s, self._calm_s or 0.0)
            if self._are_ended(shard) and now() - waits_since_s > bound_s + self.plan.window_ms / 1000:
                report("log_stands_still", f"the log of {name} has {log.places} records, {missing} wait")

    def _are_ended(self, shard: ShardTruth) -> bool:
        before = (self._truth.shards.get(parent) for parent in shard.before)
        return all(each is None or each.is_past or self._is_ended(each.shard_id) for each in before)

    def judge(self, before_s: float | None = None) -> None:
        """What must be so at the very end, from the objects alone; before a time, all that was written then is there."""
        found: dict[str, list[Segment]] = {}
        for path, content in self._objects.items():
            if not path.startswith("_"):
                segment = msgspec.json.decode(content, type=Segment)
                found.setdefault(segment.footer.shard, []).append(segment)
        for shard in self._truth.wanted:
            name = shard.shard_id
            segments = sorted(found.get(name, []), key=lambda each: each.footer.number)
            if [each.footer.number for each in segments] != list(range(len(segments))):
                report("numbers_not_consecutive", f"{name}: {[each.footer.number for each in segments]}")
            numbers = [number for each in segments for number in each.rows]
            wanted = _wanted(shard)
            if shard.is_scan:
                continue
            if before_s is not None:
                owed = [each for each in wanted if shard.written_at_s[shard.index[each]] < before_s]
                wanted = wanted[: max(len(numbers), len(owed))]
            if numbers != wanted:
                report("wrong_log", f"{name}: {len(numbers)} records in the log, {len(wanted)} in the stream")


def _wanted(shard: ShardTruth) -> list[Position]:
    """Of the records that are for the log: with a filter not all."""
    unowed = shard.unowed | shard.passed
    if not unowed:
        return shard.positions
    return [position for place, position in enumerate(shard.positions) if place not in unowed]


def _checkpoint(row: Row) -> Position | None:
    """None: the end of the shard."""
    stored = str(row.get("checkpoint", ""))
    sub_number = row.get("checkpointSubSequenceNumber", 0)
    return None if stored == "SHARD_END" else position(stored, int(str(sub_number)))
