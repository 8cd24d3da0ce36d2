"""Deaths at the end of a shard: waits for a worker to come as far as a plan says, then it dies with that write.

Owns the reading of shard ends from writes on lease rows. Knows nothing of workers; it names who dies.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.faults.ports import RowWrite
from tests.simulator.plans.plan import DieAtShardEnd, ShardEndStep


class ShardEndDeaths:
    """Watches the lease table.

    Args:
        table: its name.
        die: called with who dies and why, when the write has taken effect and before its writer hears of it.
    """

    def __init__(self, table: str, die: Callable[[str, DieAtShardEnd], None]) -> None:
        self._table = table
        self._die = die
        self._armed: list[tuple[DieAtShardEnd, int]] = []

    def arm(self, death: DieAtShardEnd) -> None:
        """One more death; each happens once."""
        self._armed.append((death, death.nth))

    def clear(self) -> None:
        """No more deaths."""
        self._armed.clear()

    def row_written(self, write: RowWrite) -> None:
        """Look at a write; the first death that waits for such a one takes place."""
        step = _step(write) if write.table == self._table else None
        for place, (death, left) in enumerate(self._armed):
            if death.step is not step:
                continue
            self._armed[place] = (death, left - 1)
            if left <= 1:
                del self._armed[place]
                self._die(write.worker_id, death)
            return


def _step(write: RowWrite) -> ShardEndStep | None:
    before, after = write.before, write.after
    if after is None:
        return None
    if before is None:
        return ShardEndStep.CHILD_CREATED if "parentShardId" in after else None
    if "childShardIds" in after and "childShardIds" not in before:
        return ShardEndStep.CHILDREN_NAMED
    is_finished = after.get("checkpoint") == "SHARD_END"
    if is_finished and before.get("checkpoint") != "SHARD_END":
        return ShardEndStep.FINISHED
    return (
        ShardEndStep.RELEASED
        if is_finished and "leaseOwner" in before and "leaseOwner" not in after
        else None
    )
