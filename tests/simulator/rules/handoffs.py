"""The rule of planned hand-offs: while both sides live and stand by, a shard hardly ever stands still.

Owns the time from the old child's last record to the new one's first. Knows nothing of how the daemon manages that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import now
from tests.simulator.rules.deliveries import Incarnation
from tests.simulator.rules.rows import LeaseView
from tests.simulator.rules.truth import Truth
from tests.simulator.violation import report


@dataclass(slots=True)
class _Move:
    old: str
    new: str
    stopped_s: float | None = None
    passed_on: bool = False


class HandoffGaps:
    """Watches the lease table and the children.

    Args:
        table: name of the lease table.
        most_s: how long a shard may stand still; None: it is only measured.
    """

    def __init__(self, table: str, truth: Truth, *, most_s: float | None) -> None:
        self._table = table
        self._truth = truth
        self._most_s = most_s
        self._moves: dict[str, _Move] = {}
        self.measured_s: list[float] = []
        self.stands_by: Callable[[str], bool] = lambda _worker: False
        """Whether a worker lives and starts its children before their leases come."""

    def row_written(self, write: RowWrite) -> None:
        """Look at a write."""
        if write.table != self._table or write.before is None or write.after is None:
            return
        if "leaseCounter" not in write.before or "leaseCounter" not in write.after:
            return
        before, after = LeaseView.of(write.before), LeaseView.of(write.after)
        if after.checkpoint_owner is not None and before.checkpoint_owner is None:
            assert after.owner is not None
            if all(map(self.stands_by, (write.worker_id, after.checkpoint_owner, after.owner))):
                self._moves[write.key] = _Move(after.checkpoint_owner, after.owner)
        elif before.checkpoint_owner is not None and after.checkpoint_owner is None:
            move = self._moves.get(write.key)
            if move is not None and (write.worker_id, after.owner) == (move.old, move.new):
                move.passed_on = True
            else:
                self._moves.pop(write.key, None)

    def stop_requested(self, child: Incarnation) -> None:
        """The old child gets no more records."""
        move = self._moves.get(child.shard_id)
        if move is not None and child.worker_id == move.old:
            move.stopped_s = now()

    def works(self, child: Incarnation) -> None:
        """A child was told where it starts, or was given records."""
        move = self._moves.get(child.shard_id)
        if move is None or not move.passed_on or child.worker_id != move.new:
            return
        if child.largest is None and not self._truth.shards[child.shard_id].all_delivered:
            return  # a record waits
        del self._moves[child.shard_id]
        if move.stopped_s is None or not (self.stands_by(move.old) and self.stands_by(move.new)):
            return
        gap_s = now() - move.stopped_s
        self.measured_s.append(gap_s)
        if self._most_s is not None and gap_s > self._most_s:
            report("handoff_gap", f"{child.shard_id} stood still for {gap_s:.2f} s, {move.old} to {move.new}")
