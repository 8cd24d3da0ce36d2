"""The rules of what the leader stores about capacity, and of what workers say about their shards.

Reads both by their wire names.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Final

from kcl_daemon.leases.row import Row
from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import now
from tests.simulator.rules.rows import LeaseTableRules
from tests.simulator.violation import report

CAPACITY_KEY: Final = "daemon/capacity"
_MOST_BYTES: Final = 4_096
# What is stored may be as old as a report period, with a leader that was paused meanwhile.
_OLD_S: Final = 300.0


def _is_open(row: Row | None) -> bool:
    return row is not None and row.get("checkpoint", "SHARD_END") != "SHARD_END"


class CapacityRules:
    """Watches the writes of the row; `judged` counts them."""

    def __init__(self, leases: LeaseTableRules) -> None:
        self._leases = leases
        self._unfinished: deque[tuple[float, int]] = deque()
        self.judged = 0

    def row_written(self, write: RowWrite) -> None:
        """Call it after the rules of leases."""
        if not self._unfinished or _is_open(write.before) != _is_open(write.after):
            count = sum(not view.checkpoint.is_shard_end for view in self._leases.views.values())
            self._unfinished.append((now(), count))
        while len(self._unfinished) > 1 and self._unfinished[1][0] < now() - _OLD_S:
            self._unfinished.popleft()
        if write.after is None:
            return
        said = write.after.get("daemonLoad")
        if isinstance(said, str) and len(said) > _MOST_BYTES:
            report("load_too_long", f"{write.worker_id} says {len(said)} characters about its shards")
        if write.key == CAPACITY_KEY:
            self._judge(write, str(write.after.get("streamId")))

    def _judge(self, write: RowWrite, text: str) -> None:
        said, most = json.loads(text), max(count for _, count in self._unfinished)
        self.judged += 1
        if not 1 <= said["wanted"] <= max(1, most):
            report("wanted_out_of_bounds", f"{write.worker_id} wants {said['wanted']}, {most} leases at most")
        if said["whole"]["shards"] > most or said["silent"] > said["workers"]:
            report("capacity_is_wrong", f"{write.worker_id} says {text[:500]}, {most} leases at most")
