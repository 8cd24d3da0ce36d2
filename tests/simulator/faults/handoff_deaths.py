"""Deaths in the middle of a hand-off: waits for a hand-off to come as far as a plan says, then one side dies.

Owns the reading of hand-offs from writes on lease rows. Knows nothing of workers; it names who dies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import current_loop
from tests.simulator.plans.plan import DieInHandoff, Side, Step
from tests.simulator.rules.rows import LeaseView

# Only while a hand-off is under way has a row this attribute.
_NEXT: Final = "checkpointOwner"
# What only a lease has that somebody owns.
_OWNED: Final = frozenset({"leaseOwner", "checkpoint"})


class HandoffDeaths:
    """Watches the lease table.

    Args:
        table: its name.
        die: called with who dies and why, a while after the write.
        at_once: the leader makes the next owner the owner at once; that write is then its asking, and the passing on.
    """

    def __init__(
        self, table: str, die: Callable[[str, DieInHandoff], None], *, at_once: bool = False
    ) -> None:
        self._table = table
        self._die = die
        self._at_once = at_once
        self._armed: list[DieInHandoff] = []
        self._passed_on: dict[str, tuple[str, str]] = {}

    def arm(self, death: DieInHandoff) -> None:
        """One more death; each happens once."""
        self._armed.append(death)

    def clear(self) -> None:
        """No more deaths."""
        self._armed.clear()

    def row_written(self, write: RowWrite, *, leader: str | None) -> None:
        """Look at a write; the first death that waits for such a one takes place."""
        if write.table != self._table or write.before is None or write.after is None:
            return
        is_known = _NEXT in write.before or _NEXT in write.after or write.key in self._passed_on
        if not (is_known or (self._at_once and write.before.keys() & write.after.keys() >= _OWNED)):
            return
        before, after = LeaseView.of(write.before), LeaseView.of(write.after)
        found = self._step(write, before, after)
        if found is None:
            return
        step, old, new = found
        for death in self._armed:
            dying = {Side.OLD_OWNER: old, Side.NEW_OWNER: new, Side.LEADER: leader}[death.side]
            if step in _steps(death.step, at_once=self._at_once) and dying is not None:
                self._armed.remove(death)
                current_loop().after(death.after_s, self._die, dying, death)
                return

    def _step(self, write: RowWrite, before: LeaseView, after: LeaseView) -> tuple[Step, str, str] | None:
        """What a write on a lease shows of a hand-off: how far it is, the old and the new owner."""
        if after.checkpoint_owner is not None and after.owner is not None:
            if before.checkpoint_owner is None:
                return Step.ASKED, after.checkpoint_owner, after.owner
            if before.checkpoint != after.checkpoint:
                return Step.CHECKPOINTED, after.checkpoint_owner, after.owner
            return None
        giver = before.checkpoint_owner
        if giver is None and self._at_once and before.owner != after.owner:
            giver = before.owner
        if giver is not None and after.owner is not None:
            self._passed_on[write.key] = (giver, after.owner)
            return Step.PASSED_ON, giver, after.owner
        old, new = self._passed_on.pop(write.key, (None, None))
        if old is not None and new is not None and write.worker_id == new:
            return Step.CLAIMED, old, new
        return None


def _steps(wanted: Step, *, at_once: bool) -> tuple[Step, ...]:
    """Which of the steps that are seen count as this one."""
    return (Step.PASSED_ON,) if at_once and wanted is not Step.CLAIMED else (wanted,)
