"""What children of sick fleets tell, judged by nobody: whether records are lost is for the simulator's scenarios to say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kcl_daemon.ports import ChildLane
from kcl_daemon.records.dead_letter import LetterCause
from kcl_protocol.messages import Record
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import now
from tests.simulator.rules.deliveries import Deliveries, Incarnation
from tests.simulator.rules.landing import Landing, Segment
from tests.simulator.rules.rejects import RejectRules
from tests.simulator.rules.truth import Position, Truth
from tests.simulator.soak.account import NoRows
from tests.simulator.trace import Trace


class _AnyRejects(RejectRules):
    def chose(self, shard_id: str, records: Sequence[Record], rejected: Iterable[Record]) -> None:
        """Any may be."""

    def asked(self, shard_id: str, position: Position) -> None:
        """Any may be."""


class AnyLanding(Landing):
    """Its segments are not compared with the stream."""

    def _written(self, path: str, segment: Segment) -> None:
        pass


class Account(Deliveries):
    """Remembers of each child where it is, which is what it checkpoints."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(Truth(), NoRows(), trace)
        self.rejects = _AnyRejects(Truth())
        self._born = 0
        self.letters = 0

    def row_written(self, write: RowWrite) -> None:
        """Nothing is kept."""

    def started(self, shard_id: str, worker_id: str, lane: ChildLane | None = None) -> Incarnation:
        """A child was started."""
        self._born += 1
        return Incarnation(self._born, shard_id, worker_id, now(), lane=None if lane is None else lane.number)

    def initialized(self, child: Incarnation, position: ExtendedSequenceNumber) -> None:
        """It was told where it starts."""
        child.reported = position

    def begins_at(self, child: Incarnation, position: ExtendedSequenceNumber) -> None:
        """Its log ends there."""
        child.reported = position

    def reads_latest(self, worker_id: str, shard_id: str) -> None:
        """Anybody may."""

    def delivered(self, child: Incarnation, records: Sequence[Record]) -> None:
        """It was given records."""
        if records:
            last = records[-1]
            child.largest = ExtendedSequenceNumber(last.sequence_number, last.sub_sequence_number)

    def completed(self, child: Incarnation, complete_ms: int) -> None:
        """Nothing is kept."""

    def shard_ended(self, child: Incarnation) -> None:
        """Nothing is kept."""

    def set_aside(
        self,
        shard_id: str,
        worker_id: str,
        record: Record,
        cause: LetterCause,
        *,
        stream: str | None = None,
    ) -> None:
        """A letter was stored."""
        self.letters += 1

    def asked_pause(self, child: Incarnation, pause_ms: int) -> None:
        """Nothing is kept."""

    def met_poison(self, child: Incarnation, record: Record) -> None:
        """Nothing is kept."""

    def asked(self, child: Incarnation, position: ExtendedSequenceNumber) -> None:
        """Nothing is kept."""

    def answered(self, child: Incarnation, position: ExtendedSequenceNumber, error: str | None) -> None:
        """Nothing is kept."""

    def legal_refused(self, child: Incarnation, position: ExtendedSequenceNumber, error: str) -> None:
        """A table may be gone."""

    def rejected(self, child: Incarnation, number: Position, error: str | None) -> None:
        """Nothing is kept."""
