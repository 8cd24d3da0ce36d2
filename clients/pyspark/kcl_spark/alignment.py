"""Limits how far shards run ahead of each other in arrival time.

Spark drops records behind its watermark, which follows the newest record of all shards. So no batch takes a
record that arrived later than the slowest shard has reached. A silent shard holds the others back only for a
limited time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kcl_landing.control import EmitEvent
from kcl_spark.conversation import ShardState
from kcl_spark.segments import CLOSED_MS, OPEN_MS
from kcl_spark.spool import Spool

SETTLE_S: Final = 2.0
"""If no new shard appears for this time, all are here."""
_SEGMENT: Final = re.compile(r"snapshot-\d{13}-\d{4}-\d{4}$")
"""A part of a snapshot of a DynamoDB table."""
_REPORT_AFTER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ShardPace:
    """The progress of one shard.

    Args:
        reached_ms: all its records up to this arrival time are in the spool.
        at_tip: all records of the stream are here.
        silent_s: how long the daemon has delivered nothing; 0 while it waits for us.
    """

    shard_id: str
    reached_ms: int | None
    at_tip: bool = False
    silent_s: float = 0.0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SkewLimits:
    """`wait_s` 0: no shard waits."""

    max_skew_ms: int = 0
    wait_s: float = 60.0


@dataclass(frozen=True, slots=True)
class HorizonDecision:
    horizon_ms: int
    held_by: ShardPace | None = None
    left_behind: frozenset[str] = frozenset()


def decide(pacers: Sequence[ShardPace], limits: SkewLimits) -> HorizonDecision:
    behind = [each for each in pacers if not each.at_tip]
    left = frozenset(each.shard_id for each in behind if each.silent_s >= limits.wait_s)
    holding = [each for each in behind if each.shard_id not in left]
    if not holding:
        return HorizonDecision(OPEN_MS, None, left)
    slowest = min(holding, key=lambda each: CLOSED_MS if each.reached_ms is None else each.reached_ms)
    if slowest.reached_ms is None:
        return HorizonDecision(CLOSED_MS, slowest, left)
    return HorizonDecision(min(OPEN_MS, slowest.reached_ms + limits.max_skew_ms), slowest, left)


class Alignment:
    def __init__(self, limits: SkewLimits, log_event: EmitEvent) -> None:
        self._limits = limits
        self._log_event = log_event
        self._known: set[str] = set()
        self._newest_s = 0.0
        self._settled = False
        self._served: dict[str, ShardPace] = {}
        self._finished: set[str] = set()
        self._tips: set[str] = set()
        self._away: dict[str, tuple[ShardPace, float]] = {}
        """The last pace of a shard that left, and when it left."""
        self._waits: set[str] = set()
        self._left: frozenset[str] = frozenset()

    def horizon_ms(
        self, served: Sequence[ShardPace], reached_ms: Mapping[str, int | None], now_s: float
    ) -> int:
        """`reached_ms`: for shards without a relay, the arrival time that batches have taken."""
        self._see(served, now_s)
        if self._limits.wait_s <= 0:
            return OPEN_MS
        settle_s = min(SETTLE_S, self._limits.wait_s)
        if not self._settled and (not self._known or now_s - self._newest_s < settle_s):
            return CLOSED_MS
        self._settled = True
        away = [
            replace(
                pace,
                at_tip=pace.at_tip and not pace.ended,
                silent_s=now_s - since_s,
                reached_ms=pace.reached_ms if pace.ended or pace.at_tip else reached_ms.get(name),
            )
            for name, (pace, since_s) in self._away.items()
        ]
        decision = decide([*self._served.values(), *away], self._limits)
        self._report_result(decision)
        return decision.horizon_ms

    def _see(self, served: Sequence[ShardPace], now_s: float) -> None:
        here = {each.shard_id: each for each in served}
        if here.keys() - self._known:
            self._known |= here.keys()
            self._newest_s = now_s
        for name, before in self._served.items():
            if name not in here:
                self._away[name] = _last_pace(before, served), now_s
        for name, each in here.items():
            if each.ended and name not in self._finished:
                self._finished.add(name)
                if not _SEGMENT.search(name):  # what follows a segment comes when all are over
                    self._away[name] = each, now_s
        self._served = {name: each for name, each in here.items() if not each.ended}
        for name, (pace, since_s) in list(self._away.items()):
            # The parent is unknown: any shard that starts after the end counts as its child.
            followed = pace.ended and self._newest_s > since_s and now_s - self._newest_s >= SETTLE_S
            if name in self._served or followed or now_s - since_s >= 2 * self._limits.wait_s:
                del self._away[name]

    def set_horizon(self, states: Sequence[ShardState], spool: Spool, now_s: float) -> None:
        served = [self._pace(replace(state), spool, now_s) for state in states]
        spool.set_horizon(self.horizon_ms(served, spool.taken_ms(), now_s))

    def _pace(self, state: ShardState, spool: Spool, now_s: float) -> ShardPace:
        name, arrived = state.shard_id, spool.arrived(state.shard_id)
        if state.behind_ms != 0:
            self._tips.discard(name)
        elif arrived.all_on_disk:
            self._tips.add(name)
        reached_ms = arrived.reached_ms
        if reached_ms is not None and not (state.ended or state.is_last or arrived.is_full):
            reached_ms -= 1  # more records of the same millisecond may come
        return ShardPace(
            name,
            reached_ms,
            at_tip=name in self._tips and not state.is_last,
            silent_s=0.0 if state.asked_s is None else now_s - state.asked_s,
            ended=state.ended,
        )

    def _report_result(self, decision: HorizonDecision) -> None:
        holder, left = decision.held_by, decision.left_behind
        waits = {holder.shard_id} if holder and holder.silent_s >= _REPORT_AFTER_S else set[str]()
        for name in sorted(left - self._left):
            self._log_event("warning", "spark_shard_left_behind", shard_id=name, waited_s=self._limits.wait_s)
        for name in waits - self._waits:
            self._log_event("info", "spark_waits_for_shard", shard_id=name, at_most_s=self._limits.wait_s)
        self._waits, self._left = waits | left, left


def _last_pace(before: ShardPace, served: Sequence[ShardPace]) -> ShardPace:
    """A shard at its tip has everything that had arrived."""
    if not before.at_tip:
        return before
    return replace(before, reached_ms=max(each.reached_ms or 0 for each in (before, *served)))
