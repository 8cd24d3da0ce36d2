"""The rules of delivery and checkpoints where a shard has several children.

Owns which records are done. Knows nothing of the daemon's window.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from kcl_daemon.records.forms import ShardOrder
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber
from tests.simulator.rules.truth import Truth, position_of

if TYPE_CHECKING:
    from kcl_daemon.config.children import ConcurrencySettings
    from tests.simulator.rules.deliveries import Incarnation


class LaneRules:
    """Of all shards of a run; without lanes everything is allowed here."""

    def __init__(self, truth: Truth, settings: ConcurrencySettings) -> None:
        self._truth = truth
        self.count = settings.lanes.default
        self.are_used = self.count > 1
        self.are_by_key = settings.order is ShardOrder.KEY
        self._done: dict[str, set[int]] = defaultdict(set)
        self._done_before: dict[str, int] = defaultdict(int)
        self._with_lanes: set[str] = set()
        self._running: dict[tuple[str, str], list[Incarnation]] = defaultdict(list)

    def started(self, child: Incarnation) -> None:
        """A child was started."""
        child.by_key = self.are_by_key
        if child.lane is not None:
            self._with_lanes.add(child.worker_id)
        running = self._running[child.shard_id, child.worker_id]
        running[:] = [*(each for each in running if not each.is_gone), child]

    def has_lanes(self, worker_id: str) -> bool:
        """Whether the children of a worker are some of several."""
        return worker_id in self._with_lanes

    def has_finished(self, shard_id: str, worker_id: str, lane: int) -> bool:
        """Whether its child has said so and is gone."""
        children = [each for each in self._running[shard_id, worker_id] if each.lane == lane]
        return bool(children) and all(each.is_gone and SHARD_END in each.asked for each in children)

    def stored(self, shard_id: str, position: ExtendedSequenceNumber) -> None:
        """By a worker without lanes: other rules say whether it may."""
        positions = self._truth.shards[shard_id].positions if self.are_used else []
        for place in range(self._done_before[shard_id], len(positions)):
            if position.is_shard_end or (
                not position.is_sentinel and positions[place] <= position_of(position)
            ):
                self._done[shard_id].add(place)

    def done(self, child: Incarnation, position: ExtendedSequenceNumber) -> None:
        """It has checkpointed its records up to there."""
        positions = self._truth.shards[child.shard_id].positions
        ends = position.is_shard_end
        up_to = (0, 0) if position.is_sentinel else position_of(position)
        self._done[child.shard_id].update(
            place for place in child.places if ends or positions[place] <= up_to
        )
        child.places = [place for place in child.places if not ends and positions[place] > up_to]

    def begins_after(self, shard_id: str, places: int) -> None:
        """Reading begins at the latest record: a lane that had one before and no checkpoint cannot get it again."""
        self._done[shard_id].update(range(places))

    def done_places(self, shard_id: str) -> set[int]:
        """Of the records that its lanes are done with."""
        return self._done[shard_id]

    def done_of(self, shard_id: str) -> int:
        """How many records of a shard are done."""
        return len(self._done[shard_id])

    def set_aside(self, shard_id: str, place: int) -> None:
        """Nobody need be given this record."""
        self._done[shard_id].add(place)

    def is_mark(self, shard_id: str, worker_id: str, position: ExtendedSequenceNumber) -> bool:
        """Whether every record up to there is done; at the shard's end, whether every child of it has said so."""
        shard, done = self._truth.shards[shard_id], self._done[shard_id]
        positions, unowed = shard.positions, shard.unowed
        place = max(self._done_before[shard_id], shard.done_before)
        while place < len(positions) and (place in done or place in unowed):
            place += 1
        self._done_before[shard_id] = place
        if position.is_shard_end:
            children = self._running[shard_id, worker_id]
            begun = [child for child in children if not child.is_gone and child.reported is not None]
            return place == len(positions) and all(SHARD_END in child.asked for child in begun)
        return place == len(positions) or positions[place] > position_of(position)
