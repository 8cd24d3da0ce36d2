"""The rules of rejected records: each is processed or a letter, never neither, and nothing else is a letter.

Owns what each child chose to do with each record. Knows nothing of how the daemon stores letters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from kcl_protocol.messages import Record
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.rules.truth import Position, Truth, position_of
from tests.simulator.violation import report


class RejectRules:
    """Of all shards of a run. Records are known by their place in their shard."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._processed: dict[str, set[int]] = defaultdict(set)
        self._asked: dict[str, set[int]] = defaultdict(set)
        self._letters: dict[str, set[int]] = defaultdict(set)
        self._neither: dict[str, set[int]] = defaultdict(set)
        self._stored: set[str] = set()
        self.stored = 0
        self.unstored = 0

    def chose(self, shard_id: str, records: Sequence[Record], rejected: Iterable[Record]) -> None:
        """A child processes these records but for those that it is going to reject."""
        index, neither = self._truth.shards[shard_id].index, self._neither[shard_id]
        # The items of a snapshot have no place.
        bad = {index[at] for each in rejected if (at := position_of(each)) in index}
        good = {index[at] for each in records if (at := position_of(each)) in index} - bad
        self._processed[shard_id] |= good
        neither -= good
        neither |= bad - self._processed[shard_id] - self._letters[shard_id]

    def begins_anew(self, shard_id: str) -> None:
        """It is read from the latest record on: if nothing was stored, what was given before is owed to nobody."""
        if shard_id not in self._stored:
            self._neither.pop(shard_id, None)

    def asked(self, shard_id: str, position: Position) -> None:
        """A child is about to reject a record."""
        place = self._truth.shards[shard_id].index.get(position)
        if place is not None:
            self._asked[shard_id].add(place)

    def answered(self, who: object, shard_id: str, position: Position, error: str | None) -> None:
        """A child was told what became of a record of its batch: if it is done, there is a letter."""
        if error is not None:
            self.unstored += 1
            return
        self.stored += 1
        place = self._truth.shards[shard_id].index.get(position)
        if place is not None and place not in self._letters[shard_id]:
            report("letter_missing", f"{who} was told that {position} of {shard_id} is a letter")

    def letter(self, shard_id: str, worker_id: str, position: Position, *, is_reject: bool) -> None:
        """A letter was stored."""
        place = self._truth.shards[shard_id].index[position]
        if is_reject and place not in self._asked[shard_id]:
            report(
                "good_record_set_aside",
                f"{worker_id} set {position} of {shard_id} aside, which nobody rejected",
            )
        self._letters[shard_id].add(place)
        self._neither[shard_id].discard(place)

    def is_letter(self, shard_id: str, place: int) -> bool:
        """Whether a record was stored as a letter."""
        return place in self._letters.get(shard_id, ())

    def checkpointed(self, shard_id: str, worker_id: str, position: ExtendedSequenceNumber) -> None:
        """A checkpoint is stored: it passes no record that is neither."""
        positions = self._truth.shards[shard_id].positions
        if not position.is_sentinel:
            self._stored.add(shard_id)
        for place in sorted(self._neither.get(shard_id, ())):
            if position.is_shard_end or (
                not position.is_sentinel and positions[place] <= position_of(position)
            ):
                report(
                    "neither",
                    f"{worker_id} passed {positions[place]} of {shard_id}: not processed, no letter",
                )
                return
