"""The rules of progress: what must be so again a while after the last fault.

Owns for how long each thing has not been in order. Knows nothing of why; it looks at the table, the stream and who lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulator.loop import now
from tests.simulator.rules.deliveries import Deliveries
from tests.simulator.rules.rows import LeaseTableRules, LeaseView
from tests.simulator.rules.truth import ShardTruth, Truth, position_of
from tests.simulator.violation import report

LOOK_S: Final = 2.0
_PASSED_S: Final = 60.0


class Liveness:
    """Looks at the fleet now and then.

    Args:
        living: names of the workers that live.
        bound_s: how long anything may be out of order.
        may_age: a checkpoint stays where nothing is for the children, as with a landing log.
    """

    def __init__(
        self,
        *,
        truth: Truth,
        rules: LeaseTableRules,
        deliveries: Deliveries,
        living: Callable[[], list[str]],
        bound_s: float,
        may_age: bool = False,
    ) -> None:
        self._may_age = may_age
        self._truth = truth
        self._rules = rules
        self._deliveries = deliveries
        self._living = living
        self._bound_s = bound_s
        self._since: dict[tuple[str, str], float] = {}
        self._seen: list[tuple[str, str]] = []
        self.worst_s = 0.0
        """For how long something had been out of order at the last look, at most."""

    def poll(self) -> None:
        """Report what has been out of order for too long."""
        self._seen, self.worst_s = [], 0.0
        living = self._living()
        views = self._rules.views
        for key, view in views.items():
            if not view.checkpoint.is_shard_end and self._truth.gone_for_s(key, now()) is None:
                self._look_at_lease(key, view, living)
        for shard in self._truth.wanted:
            if self._parents_finished(shard, views):
                self._look_at_shard(shard, views.get(shard.shard_id))
        self._since = {key: self._since[key] for key in self._seen}

    def _look_at_lease(self, key: str, view: LeaseView, living: list[str]) -> None:
        if view.reader not in living:
            self._wrong("lease_orphaned", key, f"{key} belongs to {view.reader}, who does not live")
        if view.checkpoint_owner is not None:
            self._wrong(
                "handoff_stuck", key, f"{key} is on its way from {view.checkpoint_owner} to {view.owner}"
            )

    def _look_at_shard(self, shard: ShardTruth, view: LeaseView | None) -> None:
        name = shard.shard_id
        if view is None and name not in self._rules.deleted:
            self._wrong("lease_missing", name, f"{name} has no lease although its parents are finished")
        if not shard.all_delivered:
            number, written_s = shard.missing
            waiting_since = max(written_s, self._deliveries.last_delivery_s.get(name, 0.0))
            self._wrong("shard_stalled", name, f"{name} does not get on, {number} comes next", waiting_since)
        if view is not None and not (view.checkpoint.is_shard_end or self._may_age) and shard.left_out:
            self._look_at_age(shard, view)
        if shard.all_delivered and shard.is_closed and view is not None and not view.checkpoint.is_shard_end:
            self._wrong("shard_end_missing", name, f"{name} was delivered to its end but is not finished")

    def _look_at_age(self, shard: ShardTruth, view: LeaseView) -> None:
        """Where nothing is left for the children, the checkpoint goes on by itself."""
        at = view.checkpoint
        place = 0 if at.is_sentinel else shard.place_after(position_of(at))
        # Records of other shards move no checkpoint.
        end = max((each for each in shard.left_out if each not in shard.strays), default=-1) + 1
        left = range(place, len(shard.positions)) if place < end else range(0)
        if left and now() - shard.written_at_s[place] > _PASSED_S and shard.left_out.issuperset(left):
            self._wrong(
                "checkpoint_aged",
                shard.shard_id,
                f"{shard.shard_id} stays at {at}",
                shard.written_at_s[place],
            )

    def _parents_finished(self, shard: ShardTruth, views: dict[str, LeaseView]) -> bool:
        finished = (parent not in views or views[parent].checkpoint.is_shard_end for parent in shard.before)
        known = (
            parent in views
            or parent in self._rules.deleted
            or parent not in self._truth.shards
            or self._truth.shards[parent].is_past
            for parent in shard.before
        )
        return all(finished) and all(known)

    def _wrong(self, name: str, key: str, detail: str, since_s: float | None = None) -> None:
        """Something is out of order now: too long, if it was so at each look until `bound_s` ago."""
        noted = self._since.setdefault((name, key), now())
        self._seen.append((name, key))
        since = noted if since_s is None else max(noted, since_s)
        self.worst_s = max(self.worst_s, now() - since)
        if now() - since > self._bound_s:
            report(name, f"{detail}, for {now() - since:.0f} s now")
