"""The rules of what follows a killed worker: who may take what it held before its time, and how soon it is read again.

Owns the facts: which processes live, and on which machine. The daemon's own proof is not asked.
"""

from __future__ import annotations

from typing import Final

from tests.simulator.fleet.workers import Fleet, SimWorker
from tests.simulator.loop import current_loop, now
from tests.simulator.plans.plan import Plan
from tests.simulator.rules.leader import LeaderRules
from tests.simulator.rules.rows import LeaseTableRules
from tests.simulator.violation import report

_LOOK_S: Final = 0.05


class Succession:
    """Watches those that are replaced in place."""

    def __init__(self, plan: Plan, *, fleet: Fleet, rules: LeaseTableRules, leader: LeaderRules) -> None:
        self._fleet = fleet
        self._rules = rules
        self._leader = leader
        self._read_again_s = plan.read_again_s
        self._led_again_s = plan.led_again_s

    def may_succeed(self, writer: str, former: str) -> bool:
        """Whether the former worker is dead, and died on the machine of the writer."""
        named = [worker for worker in self._fleet.workers if worker.worker_id == former]
        if any(not worker.life.is_dead and not worker.ended.is_done for worker in named):
            return False
        machines = [worker.machine for worker in self._fleet.workers if worker.worker_id == writer]
        return any(worker.machine is machine for worker in named for machine in machines)

    def look_at_names(self) -> None:
        """Of processes with the same worker id one works; the others have no children."""
        at_work: dict[str, SimWorker] = {}
        for worker in self._fleet.living:
            if worker.children.running and not worker.life.is_paused:
                other = at_work.setdefault(worker.worker_id, worker)
                if other is not worker:
                    report("worker_id_twice", f"two processes with the name {worker.worker_id} read shards")

    def killed(self, worker: SimWorker) -> None:
        """It dies now and is replaced in place; what counts is what it read, and was not passing on to another."""
        if worker.watchdog is None:
            return  # it has not begun: its predecessor's death may not be proven
        read = sorted(
            child.identity.shard_id
            for child in worker.children.running
            if (view := self._rules.views.get(child.identity.shard_id)) is not None
            and view.owner == worker.worker_id
            and view.checkpoint_owner is None
        )
        if self._read_again_s is not None:
            current_loop().after(_LOOK_S, self._look_at_reading, set(read), now() + self._read_again_s)
            current_loop().after(self._read_again_s, self._look_at_owners, read, worker)
        if self._led_again_s is not None and self._leader.owner == worker.worker_id:
            current_loop().after(self._led_again_s, self._look_at_lead)

    def _look_at_reading(self, unread: set[str], ends_s: float) -> None:
        """Which of them have a reader now; later the leader may move them again."""
        now_read = {
            child.identity.shard_id for worker in self._fleet.living for child in worker.children.running
        }
        unread -= now_read
        unread -= {shard_id for shard_id in unread if self._was_given_away(shard_id)}
        if unread and now() < ends_s:
            current_loop().after(_LOOK_S, self._look_at_reading, unread, ends_s)
            return
        for shard_id in sorted(unread):
            view = self._rules.views.get(shard_id)
            if view is not None and not view.checkpoint.is_shard_end:
                report(
                    "read_again_late",
                    f"{shard_id} is not read {self._read_again_s:g} s after its worker was killed",
                )

    def _was_given_away(self, shard_id: str) -> bool:
        """Whether a leader elsewhere, which did not know of the death, has begun a hand-off: the next owner has time."""
        view = self._rules.views.get(shard_id)
        return view is not None and view.checkpoint_owner not in {None, self._leader.owner}

    def _look_at_owners(self, read: list[str], victim: SimWorker) -> None:
        """Nobody may have given them back to the dead one, whose row looks alive for a while."""
        if victim.worker_id in {worker.worker_id for worker in self._fleet.living}:
            return
        for shard_id in read:
            view = self._rules.views.get(shard_id)
            if view is not None and not view.checkpoint.is_shard_end and view.owner == victim.worker_id:
                report(
                    "given_to_dead",
                    f"{shard_id} belongs to {view.owner}, {self._read_again_s:g} s after it was killed",
                )

    def _look_at_lead(self) -> None:
        owner = self._leader.owner
        if owner not in {worker.worker_id for worker in self._fleet.living}:
            report(
                "led_again_late",
                f"{owner} is dead and still leads {self._led_again_s:g} s after it was killed",
            )
