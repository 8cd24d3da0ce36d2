"""The rules of delivery: what children may be given, in which order, and what their checkpoints may say.

Owns the record of every child that was started and of all it was told. Knows nothing of how the daemon works; of the
lease table it sees only the rows as they are (`LeaseRows`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor, inf
from typing import Final, Protocol
from zlib import crc32

from kcl_daemon.config.children import ConcurrencySettings, PoisonRecordPolicy
from kcl_daemon.ports import ChildLane
from kcl_daemon.records.dead_letter import LetterCause
from kcl_protocol.messages import Record
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.behaviour import is_poison
from tests.simulator.faults.network import CALM
from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import now
from tests.simulator.plans.plan import CutOff, Pause, Plan
from tests.simulator.rules.lanes import LaneRules
from tests.simulator.rules.rejects import RejectRules
from tests.simulator.rules.truth import Position, ShardTruth, Truth, position_of
from tests.simulator.trace import Trace
from tests.simulator.violation import report

# Dates are whole milliseconds.
_ROUNDED_S: Final = 0.0015
# Until a worker that waits looks again, and with a clock that is wrong.
_PAUSE_SEEN_S: Final = 5.0


class LeaseRows(Protocol):
    """The checkpoints as the lease table has them."""

    def was_passed_by(self, shard_id: str) -> bool:
        """Whether nobody need read it, as reading began behind it."""
        ...

    def was_forgotten(self, shard_id: str) -> bool:
        """Whether what was stored of it has been deleted from outside."""
        ...

    def checkpoint_of(self, shard_id: str) -> ExtendedSequenceNumber | None:
        """Of a shard's row; None: there is no row."""
        ...

    def claimed_with(self, shard_id: str, token: object) -> RowWrite | None:
        """The write that made this the fencing token of a shard; None: there was none."""
        ...


@dataclass(slots=True, eq=False)
class Incarnation:
    """One child process and what it was told.

    Args:
        number: counts the children of a run.
        shard_id: its shard.
        worker_id: who started it.
        started_at_s: virtual time.
        reported: position given with `initialize`; None: not yet.
        next_place: place in the shard of the record it must be given next; None where any may come first.
        largest: position of the last record it was given.
        lane: which of several children of the shard; None: the only one.
        lanes: how many they are.
        places: of the records that it was given and has not checkpointed; only where there are lanes.
        is_gone: its process has ended.
        token: the fencing token that it was given; None: none, as by Java.
        by_key: of several children it is for some keys; otherwise for whatever it is given.
        began: it has said by itself where it is.
        process_s: when the process of its worker began.
        handed_s: when it was handed the message that it read last.
        complete_s: it was told that it has all records with an earlier date; virtual time.
        works_between: it also works when it has answered, and reads what it is handed when it is done.
    """

    number: int
    shard_id: str
    worker_id: str
    started_at_s: float
    reported: ExtendedSequenceNumber | None = None
    next_place: int | None = None
    largest: ExtendedSequenceNumber | None = None
    lane: int | None = None
    lanes: int = 1
    places: list[int] = field(default_factory=list[int])
    is_gone: bool = False
    token: int | None = None
    by_key: bool = True
    began: bool = False
    process_s: float = 0.0
    handed_s: float = 0.0
    works_between: bool = False
    complete_s: float = -inf
    asked: list[ExtendedSequenceNumber] = field(default_factory=list[ExtendedSequenceNumber])

    def __str__(self) -> str:
        lane = "" if self.lane is None else f", lane {self.lane}"
        return f"child {self.number} of {self.worker_id} for {self.shard_id}{lane}"

    @property
    def keeps_order(self) -> bool:
        """Whether it must be given its records in order, without a gap."""
        return self.lane is None or self.by_key

    def is_for(self, key: str) -> bool:
        """Whether records of this key are its own: the hash of a key is worked out here again."""
        return self.lane is None or not self.by_key or crc32(key.encode()) % self.lanes == self.lane

    @property
    def position(self) -> ExtendedSequenceNumber:
        """What a checkpoint without a sequence number means to it."""
        return self.largest or self.reported or TRIM_HORIZON


@dataclass(slots=True)
class Reached:
    """How far the children of one worker have been given a shard, by lane (None: there is one child).

    Args:
        places: of the record that comes next.
        at_s: virtual time at which it came so far.
        done: how many records they have checkpointed; only with lanes.
        batches: how many each lane was given.
        letters: of records that they rejected.
    """

    places: dict[int | None, int] = field(default_factory=dict[int | None, int])
    at_s: dict[int | None, float] = field(default_factory=dict[int | None, float])
    done: int = 0
    batches: Counter[int | None] = field(default_factory=Counter[int | None])
    letters: int = 0

    @property
    def state(self) -> tuple[object, ...]:
        """Another one if it got on."""
        return (self.done, self.letters, *self.places.items())


class Deliveries:
    """All children of a run; each method reports a violation where its rule is broken."""

    def __init__(
        self, truth: Truth, rows: LeaseRows, trace: Trace, concurrency: ConcurrencySettings | None = None
    ) -> None:
        self._lanes = LaneRules(truth, concurrency or ConcurrencySettings())
        self._truth = truth
        self._rows = rows
        self._trace = trace
        self._children = 0
        self.poison_every = 0
        self.max_age_s = 0.0
        self.is_in_doubt = True
        """Whether the service may fail to say that keys choose the shards: then records of other shards are delivered."""
        self.rejects = RejectRules(truth)
        self._set_aside: dict[str, set[int]] = {}
        self._asked: dict[tuple[str, str], set[ExtendedSequenceNumber]] = {}
        self.last_delivery_s: dict[str, float] = {}
        self.last_aside_s = 0.0
        """When a record that no child was to process was passed over for the first time: each takes a search of its own."""
        self.reached: dict[tuple[str, str], Reached] = {}
        self.latency_most_s = 0.0
        self.accepted = 0
        self.refused: dict[str, int] = {}
        self.token_of: Callable[[str], object] = lambda _shard_id: None
        """The fencing token that the lease of a shard has now."""
        self._given: set[tuple[str, str, object]] = set()
        self._promised: set[str] = set()
        self.ahead_most_s: Callable[[str], float] = lambda _worker_id: 0.0
        """How far the date of a worker was ahead of the true one at most."""
        self.skips_poison = False
        self.attempts: int | None = None
        self._met: dict[tuple[str, Position], Record] = {}
        self._pauses_until_s: dict[str, float] = {}
        self.seen = Counter[str]()
        """How often children met what a factor of `pairs` is about."""
        self.on_work: Callable[[Incarnation], None] = lambda _child: None
        self.on_stop: Callable[[Incarnation], None] = lambda _child: None
        self.on_delivered: Callable[[Incarnation, int], None] = lambda _child, _records: None
        self.on_anew: Callable[[ShardTruth], None] = lambda _shard: None
        """The owner of a shard reads it from its latest record on, as nothing of it is stored."""
        self.on_records: Callable[[Sequence[Record]], None] = lambda _records: None
        self.on_record: Callable[[Incarnation, ShardTruth, int, Record], None] = lambda *_: None
        self.text_of: Callable[[str, Record], str] = lambda _shard_id, record: record.data
        """What is compared with the data that was written."""
        self.take_segment: Callable[[Incarnation, ShardTruth, Sequence[Record]], bool] = lambda *_: False
        """Whether the records are of a part of a scan, which has rules of its own."""
        self.take_letter: Callable[[str, Record, bool], bool] = lambda *_: False
        """The same of a record that is a letter now; whether a child was given and rejected it."""

    def play(self, plan: Plan) -> None:
        """What it makes of records and of failures."""
        self.poison_every = plan.children_plan.poison_every
        self.max_age_s = (plan.failures.max_age_ms or 0) / 1000
        self.is_in_doubt = plan.kinesis is not CALM or any(
            isinstance(each.what, CutOff | Pause) for each in plan.events
        )
        self.attempts = plan.failures.attempts
        self.skips_poison = plan.failures.poison is PoisonRecordPolicy.SKIP

    def started(self, shard_id: str, worker_id: str, lane: ChildLane | None = None) -> Incarnation:
        """A child was started."""
        if shard_id not in self._truth.shards:
            report(
                "unknown_shard", f"{worker_id} started a child for {shard_id}, which the stream does not have"
            )
        self._children += 1
        child = Incarnation(self._children, shard_id, worker_id, now())
        if lane is not None:
            child.lane, child.lanes = lane.number, lane.count
            self.seen["child with lanes"] += 1
        self._lanes.started(child)
        return child

    def initialized(self, child: Incarnation, position: ExtendedSequenceNumber) -> None:
        """It was told where it starts: never behind a record that nobody has finished with."""
        child.reported = position
        claim = self._rows.claimed_with(child.shard_id, child.token)
        is_own = claim is not None and claim.worker_id == child.worker_id and claim.at_s >= child.process_s
        if child.token is not None and not is_own:
            report("foreign_token", f"{child} was given the token {child.token}, which is of {claim}")
        self._trace.note(child.worker_id, "child_initialized", f"{child.shard_id} at {position}")
        stored = self._rows.checkpoint_of(child.shard_id)
        shard = self._truth.shards[child.shard_id]
        if self._rows.was_forgotten(child.shard_id) or (stored is None and shard.gone_s is not None):
            pass  # its row is deleted by hand or with its stream, perhaps just now: it was true a moment ago
        elif stored is None:
            report("no_lease", f"{child} started although there is no lease row")
        elif position > stored and child.lane is None:
            report("started_ahead", f"{child} starts at {position}, the lease row says {stored}")
        if position == LATEST and shard.latest_s == -inf:
            shard.latest_s = now()
        elif position == TRIM_HORIZON:
            child.next_place = 0
        elif not position.is_sentinel:
            child.next_place = shard.place_after(position_of(position))
        self.on_work(child)

    def reads_latest(self, worker_id: str, shard_id: str) -> None:
        """A worker asks to read from the latest record on: it may as long as it gave none since it has the lease.

        Nor may it if any child of the shard was told that its checkpoint is accepted: what comes after that is owed.
        """
        shard, token = self._truth.shards.get(shard_id), self.token_of(shard_id)
        is_begun = (shard_id, worker_id, token) in self._given
        if shard is None or is_begun:
            return
        claim = self._rows.claimed_with(shard_id, token)
        is_owner = claim is not None and claim.worker_id == worker_id
        if is_owner and shard_id in self._promised and not self._rows.was_forgotten(shard_id):
            report("latest_after_checkpoint", f"{worker_id} begins {shard_id} anew, which had a checkpoint")
        shard.excuse_all()
        self.rejects.begins_anew(shard_id)
        if is_owner:
            self.on_anew(shard)
            self._lanes.begins_after(shard_id, len(shard.positions))

    def begins_at(self, child: Incarnation, position: ExtendedSequenceNumber) -> None:
        """It answers that it has stored all up to there by itself: it need not be given that, and the lease may follow."""
        child.reported, child.began = position, True
        self.seen["child began at its own position"] += 1
        child.next_place = self._truth.shards[child.shard_id].place_after(position_of(position))
        self.asked(child, position)

    def delivered(self, child: Incarnation, records: Sequence[Record]) -> None:
        """It was given records: the next ones of its shard, unaltered, none left out."""
        shard = self._truth.shards[child.shard_id]
        if child.largest is None:
            self._check_parents(child)
        self.last_delivery_s[child.shard_id] = now()
        self.seen["empty batch"] += not records
        if not self.take_segment(child, shard, records):
            self._check_records(child, shard, records)
        if child.token is None:  # Java rejects nothing
            self.rejects.chose(child.shard_id, records, ())
        if records:
            self.on_records(records)
            child.largest = _position(records[-1])
            self._given.add((child.shard_id, child.worker_id, self.token_of(child.shard_id)))
            self._reach(child)
            self.on_work(child)
        self.on_delivered(child, len(records))
        self._trace.note(child.worker_id, "delivered", f"{child.shard_id} {len(records)} to {child.largest}")

    def completed(self, child: Incarnation, complete_ms: int) -> None:
        """It was told that all records with an earlier date have been sent to it, or are before where it began."""
        shard = self._truth.shards[child.shard_id]
        child.complete_s = max(child.complete_s, complete_ms / 1000 - EPOCH_S)
        if child.next_place is None or not child.keeps_order:
            return
        place = self._next_of(child, child.next_place, len(shard.positions))
        if place < len(shard.positions):
            self._check_complete(child, shard, place)

    def _check_complete(self, child: Incarnation, shard: ShardTruth, place: int) -> None:
        dated_s = shard.written_at_s[place] - self._truth.unreadable_s
        if shard.latest_s <= dated_s < child.complete_s - _ROUNDED_S:
            report(
                "not_complete",
                f"{child} was told that it has all until {child.complete_s:.3f}, but not {shard.positions[place]} of {dated_s:.3f}",
            )

    def _check_records(self, child: Incarnation, shard: ShardTruth, records: Sequence[Record]) -> None:
        for index, record in enumerate(records):
            number = position_of(record)
            place = shard.index.get(number)
            if place is None:
                report("unknown_record", f"{child} was given {number}, which was never written")
                return
            self._check_is_for(child, shard, place)
            if child.next_place is None:
                shard.excuse_before(place)
            expected = place if child.next_place is None else self._next_of(child, child.next_place, place)
            if self._lanes.are_used:
                child.places.append(place)
            if place > expected:
                report(
                    "record_skipped",
                    f"{child} was given {number} where {shard.positions[expected]} comes next",
                )
            elif place < expected and child.keeps_order:
                last = _position(records[index - 1]) if index else child.largest
                report("out_of_order", f"{child} was given {number} again, after {last}")
            if self.text_of(shard.shard_id, record) != shard.data[place]:
                report("altered_record", f"{child}: {number} has other data than was written")
            if record.partition_key != shard.keys[place]:
                report("altered_record", f"{child}: {number} has the key {record.partition_key!r}")
            child.next_place = place + 1
            if not shard.deliveries[place]:
                self.latency_most_s = max(self.latency_most_s, now() - shard.written_at_s[place])
            self.on_record(child, shard, place, record)
            self._check_complete(child, shard, place)
            shard.delivered(place)

    def _check_is_for(self, child: Incarnation, shard: ShardTruth, place: int) -> None:
        number = shard.positions[place]
        if place < shard.done_before:
            report("checkpoint_lost", f"{child} was given {number}, which was checkpointed before the run")
        if place in shard.strays:
            if not self.is_in_doubt:
                report("stray_delivered", f"{child} was given {number}, which belongs to another shard")
        elif place in shard.left_out and child.token is not None:  # Java knows no filter
            report("filtered_record", f"{child} was given {number}, which is not for it")
        if not child.is_for(shard.lane_key(place)):
            report("wrong_lane", f"{child} was given {number}, whose key belongs to another")

    def shard_ended(self, child: Incarnation) -> None:
        """It was told that its shard has ended: everything was delivered, and to this child the last of it."""
        shard = self._truth.shards[child.shard_id]
        if not shard.is_closed:
            report("ended_too_early", f"{child} was told that its shard has ended, which is open")
        elif child.lane is None and not shard.all_delivered:
            report(
                "ended_too_early",
                f"{child} was told that its shard has ended before {shard.missing[0]} was delivered",
            )
        elif (
            child.next_place is not None
            and child.keeps_order
            and self._next_of(child, child.next_place, len(shard.positions)) < len(shard.positions)
        ):
            missing = shard.positions[child.next_place]
            report(
                "record_skipped", f"{child} was told that its shard has ended, {missing} comes next for it"
            )

    def set_aside(
        self, shard_id: str, worker_id: str, record: Record, cause: LetterCause, *, stream: str = ""
    ) -> None:
        """A worker has stored a record elsewhere: if no child rejected it, it may checkpoint it, and need not deliver it."""
        if self.take_letter(shard_id, record, cause is LetterCause.REJECTED):
            return
        number = position_of(record)
        shard = self._truth.having(stream, shard_id, number)
        place = None if shard is None else shard.index[number]
        if shard is None or place is None or self.text_of(shard.shard_id, record) != shard.data[place]:
            report("unknown_record", f"{worker_id} set {number} aside, which was never written so")
            return
        shard_id, is_reject = shard.shard_id, cause is LetterCause.REJECTED
        self.rejects.letter(shard_id, worker_id, number, is_reject=is_reject)
        self._trace.note(worker_id, "set_aside", f"{shard_id} {number}")
        if is_reject:
            return
        self.seen["record expired" if cause is LetterCause.EXPIRED else "poison set aside"] += 1
        if cause is LetterCause.EXPIRED:
            self._check_age(shard, worker_id, place)
        elif not self._may_be_poison(record, cause):
            report("good_record_set_aside", f"{worker_id} set {number} of {shard_id} aside")
        self._put_aside(shard, worker_id, place)

    def _may_be_poison(self, record: Record, cause: LetterCause) -> bool:
        """After enough attempts also what was delivered with it."""
        is_tried_enough = cause is LetterCause.ATTEMPTS and self.attempts is not None
        return bool(self.poison_every) and (is_tried_enough or is_poison(record.data, self.poison_every))

    def _put_aside(self, shard: ShardTruth, worker_id: str, place: int) -> None:
        aside = self._set_aside.setdefault(shard.shard_id, set())
        self.last_aside_s = self.last_aside_s if place in aside else now()
        aside.add(place)
        self._lanes.set_aside(shard.shard_id, place)
        number, sub_number = shard.positions[place]
        position = ExtendedSequenceNumber(str(number), sub_number)
        self._asked.setdefault((shard.shard_id, worker_id), set()).add(position)
        self.last_delivery_s[shard.shard_id] = now()
        shard.delivered(place)

    def asked_pause(self, child: Incarnation, pause_ms: int) -> None:
        """It wants no records for so long."""
        self.seen["child asked for a pause"] += 1
        self._pauses_until_s[child.shard_id] = now() + pause_ms / 1000 + _PAUSE_SEEN_S

    def is_paused(self, shard_id: str) -> bool:
        """Whether its children may be given nothing, as one asked for that."""
        return now() < self._pauses_until_s.get(shard_id, 0.0)

    def met_poison(self, child: Incarnation, record: Record) -> None:
        """It ends at this record."""
        self._met[child.shard_id, position_of(record)] = record

    def skipped(
        self, worker_id: str, shard_id: str, lane: int | None, number: Position, records: int
    ) -> None:
        """A worker passes over this record, and others that were delivered with it, as no child gets over it."""
        self.seen["poison set aside"] += 1
        poison, shard = self._met.get((shard_id, number)), self._truth.shards[shard_id]
        if not self.skips_poison or (poison is None and records == 1 and self.attempts is None):
            report("good_record_set_aside", f"{worker_id} skipped {number} of {shard_id}")
        if (
            poison is not None
            and self.take_letter(shard.shard_id.rpartition(":")[2], poison, False)
            and shard.is_scan
        ):
            return
        child = Incarnation(0, shard_id, worker_id, now(), lane=lane, lanes=self._lanes.count)
        child.by_key = self._lanes.are_by_key
        place = shard.index.get(number, len(shard.positions))
        while records and place < len(shard.positions):
            if place not in shard.unowed and child.is_for(shard.lane_key(place)):
                self._put_aside(shard, worker_id, place)
                records -= 1
            place += 1

    def _age_s(self, shard: ShardTruth, place: int, worker_id: str) -> float:
        """By its date, as a worker may see it."""
        dated_s = shard.written_at_s[place] - self._truth.unreadable_s
        dated_s = floor(dated_s) if shard.dates_whole else dated_s
        return now() - dated_s + self.ahead_most_s(worker_id)

    def is_aside(self, shard_id: str, place: int) -> bool:
        """Whether a record is a letter, or was skipped as its children could not process it."""
        return place in self._set_aside.get(shard_id, ()) or self.rejects.is_letter(shard_id, place)

    def _check_age(self, shard: ShardTruth, worker_id: str, place: int) -> None:
        """A letter is stored after it was decided on: the record is no younger then."""
        age_s = self._age_s(shard, place, worker_id)
        if age_s < self.max_age_s or not self.max_age_s:
            report(
                "young_record_expired",
                f"{worker_id} left {shard.positions[place]} of {shard.shard_id} out, which is {age_s:.1f} s old",
            )
        reached = self.reached.setdefault((worker_id, shard.shard_id), Reached())
        reached.letters += 1
        reached.at_s[None] = now()

    def _next_of(self, child: Incarnation, place: int, limit: int) -> int:
        """The first place from this one on that is for this child and was not set aside, `limit` at most."""
        if not child.keeps_order:
            return limit
        shard = self._truth.shards[child.shard_id]
        aside = self._set_aside.get(child.shard_id, set()) | shard.left_out | shard.excused
        place = max(place, min(limit, shard.trimmed))
        while place < limit and (place in aside or not child.is_for(shard.lane_key(place))):
            place += 1
        return place

    def asked(self, child: Incarnation, position: ExtendedSequenceNumber) -> None:
        """It asks for a checkpoint at this position."""
        self._asked.setdefault((child.shard_id, child.worker_id), set()).add(position)
        child.asked.append(position)

    def answered(self, child: Incarnation, position: ExtendedSequenceNumber, error: str | None) -> None:
        """It got its answer: no accepted checkpoint is missing in the table or lies where the child has not been."""
        self._trace.note(child.worker_id, "checkpoint_answered", f"{child.shard_id} {position} {error}")
        if error is not None:
            self.refused[error] = self.refused.get(error, 0) + 1
            return
        self.accepted += 1
        if not position.is_sentinel and child.token is not None:
            self._promised.add(child.shard_id)
        stored = self._rows.checkpoint_of(child.shard_id)
        if self._lanes.are_used:
            self._lanes.done(child, position)
            reached = self.reached.setdefault((child.worker_id, child.shard_id), Reached())
            reached.done = self._lanes.done_of(child.shard_id)
            reached.at_s[child.lane] = now()
        elif child.began and child.largest is None:
            pass  # it was stopped before its position was looked at, and nothing was delivered
        elif stored is not None and stored < position and not self._rows.was_forgotten(child.shard_id):
            report(
                "checkpoint_not_stored", f"{child} was told that {position} is stored, the row says {stored}"
            )
        if position != SHARD_END and position > child.position:
            report(
                "foreign_checkpoint_accepted", f"{child} may checkpoint {position} beyond {child.position}"
            )

    def legal_refused(self, child: Incarnation, position: ExtendedSequenceNumber, error: str) -> None:
        """A checkpoint that it may ask for was refused for good."""
        report("legal_checkpoint_refused", f"{child} at {position}: {error}")

    def rejected(self, child: Incarnation, number: Position, error: str | None) -> None:
        """It was told what became of a record that it rejected; a letter that is stored is one step on."""
        self.rejects.answered(child, child.shard_id, number, error)
        reached = self.reached.setdefault((child.worker_id, child.shard_id), Reached())
        if error is None:
            reached.letters += 1
            reached.at_s[child.lane] = now()

    def has_lanes(self, worker_id: str) -> bool:
        """Whether its children are some of several."""
        return self._lanes.has_lanes(worker_id)

    def has_finished(self, shard_id: str, worker_id: str, lane: int) -> bool:
        """Whether this lane of a worker is at the end of its shard, and its child gone."""
        return self._lanes.has_finished(shard_id, worker_id, lane)

    def was_asked(self, shard_id: str, worker_id: str, position: ExtendedSequenceNumber) -> bool:
        """Whether a child of this worker asked for this position of this shard; with lanes, whether all is done up to there."""
        self.rejects.checkpointed(shard_id, worker_id, position)
        if self._lanes.has_lanes(worker_id):
            return self._lanes.is_mark(shard_id, worker_id, position)
        self._lanes.stored(shard_id, position)
        return position in self._asked.get((shard_id, worker_id), ())

    def was_passed(
        self, shard_id: str, worker_id: str, before: ExtendedSequenceNumber, position: ExtendedSequenceNumber
    ) -> bool:
        """Whether no record is for a child between `before`, or what was asked for since, and this position, which has one."""
        shard = self._truth.shards[shard_id]
        if shard.is_scan:
            return True
        place = shard.index.get(position_of(position)) if not position.is_sentinel else None
        place = len(shard.positions) - 1 if position.is_shard_end else place
        if place is None:
            return False
        asked = self._asked.get((shard_id, worker_id), ())
        start = max([before, *(each for each in asked if each <= position)])
        first = 0 if start.is_sentinel else shard.place_after(position_of(start))
        passed = shard.unowed | self._set_aside.get(shard_id, set()) | self._lanes.done_places(shard_id)
        return passed.issuperset(range(first, place + 1))

    def _reach(self, child: Incarnation) -> None:
        reached = self.reached.setdefault((child.worker_id, child.shard_id), Reached())
        reached.batches[child.lane] += 1
        if child.next_place is not None and child.next_place > reached.places.get(child.lane, -1):
            reached.places[child.lane] = child.next_place
            reached.at_s[child.lane] = child.handed_s if child.works_between else now()

    def _check_parents(self, child: Incarnation) -> None:
        for parent in self._truth.shards[child.shard_id].before:
            shard = self._truth.shards.get(parent)
            if shard is None or (shard.is_past and self._rows.checkpoint_of(parent) is None):
                continue
            if self._rows.was_passed_by(parent):
                continue
            if not (shard.is_closed and shard.all_delivered):
                report("child_before_parent", f"{child} got records before all of {parent} were delivered")
            stored = self._rows.checkpoint_of(parent)
            if stored is not None and not stored.is_shard_end:
                report("child_before_parent", f"{child} got records while the row of {parent} says {stored}")


def _position(record: Record) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(record.sequence_number, record.sub_sequence_number)
