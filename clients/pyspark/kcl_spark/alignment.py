"""The horizon: how far shards may run ahead of each other in arrival time.

A shard that left has reached what batches took of it. A silent shard holds the others back for a limited time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kcl_landing.control import EmitEvent
from kcl_spark.conversation import ShardState
from kcl_spark.segments import CLOSED_MS, OPEN_MS
from kcl_spark.spool import Spool

SETTLE_S: Final = 2.0
"""Then all shards are here."""
TIP_REACH_MS: Final = 10_000
"""The time between two reads, and on the way."""
_SEGMENT: Final = re.compile(r"snapshot-\d{13}-\d{4}-\d{4}$")
_REPORT_AFTER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ShardPace:
    """`reached_ms`: all its records up to there are in the spool; or in batches, if it left.

    `reach_ms`: others may be ahead of that by so much, or by `max_skew_ms` if it is more; None: it holds nobody.
    `silent_s`: the daemon has delivered nothing; 0 while it waits for us.
    """

    shard_id: str
    reached_ms: int | None
    reach_ms: int | None = 0
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
    until: dict[ShardPace, int] = {}
    left: set[str] = set()
    for each in pacers:
        if each.reach_ms is None:
            continue
        if each.silent_s >= limits.wait_s:
            left.add(each.shard_id)
        elif each.reached_ms is None:
            until[each] = CLOSED_MS
        else:
            until[each] = min(OPEN_MS, each.reached_ms + max(limits.max_skew_ms, each.reach_ms))
    slowest = min(until, key=until.__getitem__, default=None)
    return HorizonDecision(OPEN_MS if slowest is None else until[slowest], slowest, frozenset(left))


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
        self._is_told = False
        self._away: dict[str, tuple[ShardPace, float]] = {}
        self._horizon_ms = CLOSED_MS
        self._waits: set[str] = set()
        self._left: frozenset[str] = frozenset()

    def horizon_ms(
        self, served: Sequence[ShardPace], away: Sequence[ShardPace], now_s: float, *, stops: bool = False
    ) -> int:
        """`away`: shards without a relay. `stops`: nobody runs further alone."""
        self._see(served, away, now_s)
        if self._limits.wait_s <= 0:
            return OPEN_MS
        settle_s = min(SETTLE_S, self._limits.wait_s)
        if not self._settled and (not self._known or now_s - self._newest_s < settle_s):
            return CLOSED_MS
        self._settled = True
        gone = [
            replace(pace, silent_s=now_s - since_s, reach_ms=pace.reach_ms or 0)
            for pace, since_s in self._away.values()
        ]
        decision = decide([*self._served.values(), *gone], self._limits)
        self._report_result(decision)
        self._horizon_ms = min(decision.horizon_ms, self._horizon_ms if stops else OPEN_MS)
        return self._horizon_ms

    def _see(self, served: Sequence[ShardPace], away: Sequence[ShardPace], now_s: float) -> None:
        here = {each.shard_id: each for each in served}
        if here.keys() - self._known:
            self._known |= here.keys()
            self._newest_s = now_s
        for each in away:
            _, since_s = self._away.get(each.shard_id, (each, now_s))
            self._away[each.shard_id] = each, since_s
        for name, each in here.items():
            if each.ended and name not in self._finished:
                self._finished.add(name)
                if not _SEGMENT.search(name):
                    self._away[name] = each, now_s
        self._served = {name: each for name, each in here.items() if not each.ended}
        for name, (pace, since_s) in list(self._away.items()):
            # The parent is unknown: any shard that starts later counts as its child.
            followed = pace.ended and self._newest_s > since_s and now_s - self._newest_s >= SETTLE_S
            if name in self._served or followed or now_s - since_s >= 2 * self._limits.wait_s:
                del self._away[name]

    def set_horizon(self, states: Sequence[ShardState], spool: Spool, now_s: float) -> None:
        states = [replace(each) for each in states]
        served = [self._pace(each, spool, now_s) for each in states]
        gone = self._served.keys() | {name for name, (pace, _) in self._away.items() if not pace.ended}
        gone = (gone if self._settled else gone | spool.left()) - {each.shard_id for each in states}
        away = [
            self._pace(ShardState(name, behind_ms=0 if name in self._tips else None), spool, now_s)
            for name in gone
        ]
        running = [each for each in states if not (each.is_last or each.ended)]
        stops = bool(running) and all(each.is_drained for each in running)
        spool.set_horizon(self.horizon_ms(served, away, now_s, stops=stops))

    def _pace(self, state: ShardState, spool: Spool, now_s: float) -> ShardPace:
        name, arrived = state.shard_id, spool.arrived(state.shard_id)
        self._is_told |= arrived.complete_ms is not None
        if state.behind_ms != 0 or arrived.has_left:
            self._tips.discard(name)
        elif arrived.all_on_disk:
            self._tips.add(name)
        at_tip = name in self._tips and not state.is_last
        before_ms = [] if arrived.complete_ms is None else [arrived.complete_ms]
        if arrived.reached_ms is not None:
            whole = state.ended or state.is_last or arrived.is_full
            before_ms.append(arrived.reached_ms + whole)
        return ShardPace(
            name,
            max(before_ms) - 1 if before_ms else None,
            reach_ms=0 if not at_tip else TIP_REACH_MS if self._is_told else None,
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
