"""The account of a soak: every record of every shard is delivered, in order and unaltered, in memory that does not grow.

Owns what was written, delivered and checkpointed, as counters: records number themselves, so that none need be kept. Knows
nothing of how the daemon works; of the lease table it sees the checkpoints only.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from kcl_daemon.ports import ChildLane
from kcl_protocol.messages import Record
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import now
from tests.simulator.rules.deliveries import Deliveries, Incarnation
from tests.simulator.rules.truth import Truth
from tests.simulator.trace import Trace
from tests.simulator.violation import report


def data_of(shard_id: str, serial: int, size_bytes: int) -> str:
    """Data of a shard's nth record, base64 text; no two are the same."""
    return b64encode(f"{shard_id} {serial} ".encode().ljust(size_bytes, b".")).decode()


@dataclass(slots=True)
class ShardAccount:
    """One shard.

    Args:
        written: number of its last record, which is the count of them.
        delivered: of the last one that a child was given; all before it were, too.
        done: of the last one that a child was told to be checkpointed: no child may begin before it.
        done_arrival_s: when that one arrived, epoch seconds.
        stored: the checkpoint in its lease row, which may be ahead of `done` where an answer was lost.
        stored_serial: of its record.
        given: position, number and arrival of the last record that its present child was given.
        asked: checkpoints asked for since `done`, with the number and the arrival of the record that they name.
    """

    written: int = 0
    delivered: int = 0
    done: int = 0
    done_arrival_s: float = 0.0
    stored: ExtendedSequenceNumber | None = None
    stored_serial: int = 0
    given: tuple[ExtendedSequenceNumber, int, float] | None = None
    asked: dict[ExtendedSequenceNumber, tuple[int, float]] = field(
        default_factory=dict[ExtendedSequenceNumber, tuple[int, float]]
    )

    @property
    def is_done(self) -> bool:
        """Whether all that was written is delivered and checkpointed."""
        return self.delivered == self.stored_serial == self.written


class NoRows:
    """The lease rows of nobody: the account keeps the checkpoints itself."""

    def was_passed_by(self, shard_id: str) -> bool:
        """No."""
        return False

    def was_forgotten(self, shard_id: str) -> bool:
        """No."""
        return False

    def checkpoint_of(self, shard_id: str) -> ExtendedSequenceNumber | None:
        """None."""
        return None

    def claimed_with(self, shard_id: str, token: object) -> RowWrite | None:
        """None."""
        return None


class SoakAccount(Deliveries):
    """What simulated children tell, checked and forgotten.

    Args:
        trace: of the run.
        lease_table: its name, to know its writes.
        record_bytes: of each record's data.

    Attributes:
        shards: by name.
        repeats: deliveries of records that had been delivered before.
        children: that were started.
    """

    def __init__(self, trace: Trace, *, lease_table: str, record_bytes: int) -> None:
        super().__init__(Truth(), NoRows(), trace)
        self._lease_table = lease_table
        self._record_bytes = record_bytes
        self.shards: dict[str, ShardAccount] = {}
        self.repeats = 0
        self.children = 0

    @property
    def written(self) -> int:
        """Records in all."""
        return sum(shard.written for shard in self.shards.values())

    @property
    def all_done(self) -> bool:
        """Whether nothing is left to do."""
        return all(shard.is_done for shard in self.shards.values())

    @property
    def done_before_s(self) -> float:
        """Epoch seconds before which nobody needs a record any more."""
        return min(shard.done_arrival_s for shard in self.shards.values())

    def put(self, shard_id: str) -> str:
        """The data of a shard's next record, which is written now."""
        shard = self.shards.setdefault(shard_id, ShardAccount())
        shard.written += 1
        return data_of(shard_id, shard.written, self._record_bytes)

    def row_written(self, write: RowWrite) -> None:
        """Note the checkpoint of a lease row: it never goes back."""
        if write.table != self._lease_table or write.after is None:
            return
        shard = self.shards.get(write.key)
        number = write.after.get("checkpoint")
        if shard is None or not isinstance(number, str):
            return
        sub_number = cast("Mapping[str, int]", write.after).get("checkpointSubSequenceNumber", 0)
        stored = ExtendedSequenceNumber(number, int(sub_number))
        if shard.stored is not None and stored < shard.stored:
            report("checkpoint_went_back", f"{write.key}: from {shard.stored} to {stored}")
        shard.stored = stored
        shard.stored_serial = shard.asked.get(stored, (shard.stored_serial, 0.0))[0]

    def started(self, shard_id: str, worker_id: str, lane: ChildLane | None = None) -> Incarnation:
        """A child was started."""
        if shard_id not in self.shards:
            report("unknown_shard", f"{worker_id} started a child for {shard_id}")
        self.children += 1
        return Incarnation(
            self.children, shard_id, worker_id, now(), lane=None if lane is None else lane.number
        )

    def initialized(self, child: Incarnation, position: ExtendedSequenceNumber) -> None:
        """It was told where it starts: at a checkpoint that is stored, and with that at a record that was delivered."""
        shard = self.shards[child.shard_id]
        child.reported = position
        if shard.stored is None or position > shard.stored:
            report("started_ahead", f"{child} starts at {position}, the lease row says {shard.stored}")
        if position == TRIM_HORIZON and not shard.done:
            child.next_place = 1
        elif position in shard.asked:
            child.next_place = shard.asked[position][0] + 1
        else:
            report("started_elsewhere", f"{child} starts at {position}, which no child asked for lately")

    def delivered(self, child: Incarnation, records: Sequence[Record]) -> None:
        """It was given records: the next ones of its shard, unaltered, none left out."""
        shard = self.shards[child.shard_id]
        for record in records:
            serial = child.next_place or 1
            if record.data != data_of(child.shard_id, serial, self._record_bytes):
                report(
                    "wrong_record", f"{child} was given {b64decode(record.data)!r} where {serial} comes next"
                )
                return
            child.next_place = serial + 1
            if serial <= shard.delivered:
                self.repeats += 1
            else:
                shard.delivered = serial
                self.latency_most_s = max(self.latency_most_s, EPOCH_S + now() - _arrival_s(record))
        if records:
            last = records[-1]
            child.largest = ExtendedSequenceNumber(last.sequence_number, last.sub_sequence_number)
            shard.given = (child.largest, (child.next_place or 1) - 1, _arrival_s(last))

    def shard_ended(self, child: Incarnation) -> None:
        """It was told that its shard has ended: none does in a soak."""
        report("ended_too_early", f"{child} was told that its shard has ended, which is open")

    def asked(self, child: Incarnation, position: ExtendedSequenceNumber) -> None:
        """It asks for a checkpoint: at the last record that it was given, or where it began."""
        shard = self.shards[child.shard_id]
        if shard.given is not None and position == shard.given[0]:
            shard.asked[position] = shard.given[1:]

    def answered(self, child: Incarnation, position: ExtendedSequenceNumber, error: str | None) -> None:
        """It got its answer; what was accepted is in the row."""
        shard = self.shards[child.shard_id]
        if error is not None:
            self.refused[error] = self.refused.get(error, 0) + 1
            return
        self.accepted += 1
        if shard.stored is None or shard.stored < position:
            report(
                "checkpoint_not_stored", f"{child} was told that {position} is, the row says {shard.stored}"
            )
        if position in shard.asked:
            shard.done, shard.done_arrival_s = shard.asked[position]
            shard.asked = {each: place for each, place in shard.asked.items() if each >= position}


def _arrival_s(record: Record) -> float:
    return (record.approximate_arrival_timestamp or 0) / 1000
