"""The rules of pauses and limits, and the scenario in which operators hold records back while everything else goes on.

Reads the row by its wire names, as its writers left it: what a worker of ours gives is judged by what the row has said for a
while. Java workers know nothing of it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.fleet.hold_watch import tell_holds, with_holds
from kcl_daemon.leases.holds import Hold, LimitUnit, counted
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.leases.row import Row, lease_from_row
from kcl_daemon.ports import Table
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.life import Service
from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import at_once, now
from tests.simulator.plans.draws import (
    Draw,
    bad_children,
    cuts,
    mixed_trouble,
    reshards,
    with_aggregates,
)
from tests.simulator.plans.plan import HoldBack, Kind, LetGo, Pause, Plan, Planned, Start, Stop
from tests.simulator.rules.deliveries import Incarnation
from tests.simulator.violation import report

HOLDS_KEY: Final = "daemon/holds"
# A read may fail a few times, each after the timeout of a call.
IN_FORCE_S: Final = 20.0
_ENDS_S: Final = 2.0
_WINDOW_S: Final = 10.0
_EXCESS: Final = 1.05
_JAVA_BOUND_S: Final = 500.0


@dataclass(frozen=True, slots=True)
class _Version:
    """What the row said from then on."""

    at_s: float
    holds: tuple[dict[str, Any], ...]


class HoldRules:
    """Watches the row, and what the children are given.

    Args:
        ahead_most_s: how far the date of a worker was ahead at most: for it, a pause ends so much earlier.
        is_java: whether a worker knows nothing of the row.
    """

    def __init__(self, *, ahead_most_s: Callable[[str], float], is_java: Callable[[str], bool]) -> None:
        self._ahead_most_s = ahead_most_s
        self._is_java = is_java
        self._versions = [_Version(0.0, ())]
        self._excused_until_s: dict[str, float] = {}
        self._given: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        self.judged = 0
        """Deliveries that a pause or a limit might have been broken by, and that kept it."""

    def row_written(self, write: RowWrite) -> None:
        """A worker may change the count of shards, and nothing else."""
        if write.key != HOLDS_KEY:
            return
        before = self._versions[-1].holds
        self.wrote(write.after)
        uncounted = [
            tuple({**each, "shards": 1} for each in holds) for holds in (before, self._versions[-1].holds)
        ]
        if uncounted[0] != uncounted[1]:
            report("hold_altered", f"{write.worker_id} made {uncounted[1]} of {uncounted[0]}")

    def wrote(self, row: Row | None) -> None:
        """The row is this now."""
        text = json.loads(str(row["streamId"])) if row is not None else {"holds": []}
        self._versions.append(_Version(now(), tuple(text["holds"])))

    def excuse(self, worker_id: str, for_s: float) -> None:
        """A worker stands still, or cannot read, for so long."""
        until_s = now() + for_s + IN_FORCE_S
        self._excused_until_s[worker_id] = max(until_s, self._excused_until_s.get(worker_id, 0.0))

    def delivered(self, child: Incarnation, records: int) -> None:
        """Judge what a child was given."""
        if (
            not records
            or self._is_java(child.worker_id)
            or now() < self._excused_until_s.get(child.worker_id, 0.0)
        ):
            return
        until_s = now() + self._ahead_most_s(child.worker_id) + _ENDS_S
        in_force = self._since(now() - IN_FORCE_S)
        if all(self._is_paused(version, child.shard_id, until_s) for version in in_force):
            report("given_while_paused", f"{child} was given {records} records")
        self._judge_limit(child, records)

    def may_be_held(self, shard_id: str) -> bool:
        """Whether a worker may say so now."""
        return any(self._covering(version, shard_id) for version in self._since(now() - IN_FORCE_S))

    def _since(self, at_s: float) -> Iterable[_Version]:
        """What was in force then, and all since."""
        first = bisect_right(self._versions, at_s, key=lambda version: version.at_s) - 1
        return self._versions[max(first, 0) :]

    def _covering(self, version: _Version, shard_id: str) -> list[dict[str, Any]]:
        return [hold for hold in version.holds if hold.get("leaseKey") in (None, shard_id)]

    def _is_paused(self, version: _Version, shard_id: str, until_s: float) -> bool:
        return any(
            "unit" not in hold and hold.get("untilMs", inf) / 1000 - EPOCH_S > until_s
            for hold in self._covering(version, shard_id)
        )

    def _share(self, version: _Version, shard_id: str) -> float:
        limits = (
            hold for hold in self._covering(version, shard_id) if "unit" in hold and "untilMs" not in hold
        )
        return min((hold["amount"] / hold.get("shards", 1) for hold in limits), default=inf)

    def _judge_limit(self, child: Incarnation, records: int) -> None:
        """By the highest share that was in force for a while before the window or in it; a part has one record at least."""
        given = self._given.setdefault((child.worker_id, child.shard_id), deque())
        given.append((now(), records))
        while given[0][0] < now() - _WINDOW_S:
            given.popleft()
        share = max(
            self._share(version, child.shard_id) for version in self._since(now() - _WINDOW_S - IN_FORCE_S)
        )
        if share == inf:
            return
        self.judged += 1
        most = share * _WINDOW_S * _EXCESS + 1
        total = sum(count for _, count in given)
        if total > most:
            report("limit_exceeded", f"{child}: {total} records in {_WINDOW_S:g} s, {most:.1f} are allowed")


def hold_back(
    table: Table, what: HoldBack | LetGo, rows: Iterable[Row], open_shards: list[str]
) -> Row | None:
    """Write it as the command does; the row afterwards."""
    since_ms = int((EPOCH_S + now()) * 1000)
    hold = Hold(by="operator@host", reason="a test", since_ms=since_ms)
    match what:
        case HoldBack(rank, limit, for_s):
            hold = replace_hold(hold, rank, limit, for_s, open_shards)
            (hold,) = counted((hold,), [lease_from_row(row) for row in rows])
            at_once(tell_holds(table, lambda before: with_holds(before, (hold,)), token=str(since_ms)))
        case LetGo():
            at_once(tell_holds(table, lambda _before: (), token=str(since_ms)))
    return at_once(table.get(HOLDS_KEY))


def replace_hold(
    hold: Hold, rank: int | None, limit: float | None, for_s: float | None, open_shards: list[str]
) -> Hold:
    """With the scope, the limit and the end of a happening."""
    return Hold(
        hold.by,
        hold.reason,
        hold.since_ms,
        None if for_s is None else hold.since_ms + int(for_s * 1000),
        lease_key=None if rank is None or not open_shards else open_shards[rank % len(open_shards)],
        unit=None if limit is None else LimitUnit.RECORDS,
        amount=limit or 0.0,
    )


def holds(draw: Draw) -> Plan:
    """Pauses and limits of shards and of all, while leader and owners die, reads of the row fail and shards split."""
    chance = draw.chance
    plan = with_aggregates(draw, draw.plan(faults_s=220.0, bound_s=120.0, shards=(1, 5)))

    def change() -> HoldBack | LetGo:
        if chance.happens(0.25):
            return LetGo()
        return HoldBack(
            rank=chance.pick((None, chance.between(0, 100))),
            limit=chance.pick((None, None, chance.uniform(1.0, 20.0))),
            for_s=chance.pick((None, None, chance.uniform(5.0, 90.0))),
        )

    leaving = draw.some(
        lambda: draw.kill(0.5, 10.0) if chance.happens(0.7) else Stop(draw.target(), 3.0),
        count=(1, 5),
        between_s=(20.0, 200.0),
    )
    pauses = draw.some(
        lambda: Pause(draw.target(), chance.uniform(2.0, 40.0)), count=(0, 1), between_s=(30.0, 180.0)
    )
    # A Java worker that comes first has troubles of its own, and a Java leader is missed for two minutes.
    java = [Planned(chance.uniform(60.0, 90.0), Start(Kind.JAVA))] if chance.happens(0.15) else []
    return replace(
        plan,
        events=(
            *draw.arrivals(draw.workers(1, 3)),
            *java,
            *draw.some(change, count=(2, 8), between_s=(15.0, 200.0)),
            *reshards(draw, (0, 3)),
            *leaving,
            *pauses,
            *cuts(draw, Service.DYNAMODB, (0, 1)),
        ),
        aggregates=None if java else plan.aggregates,
        backlog=chance.pick((0, 500, 3_000)),
        bound_s=_JAVA_BOUND_S if java else plan.bound_s,
        ends_at_s=plan.ends_at_s + (_JAVA_BOUND_S - plan.bound_s if java else 0.0),
        # Slow reads may all fail for as long as somebody waits here.
        dynamodb=replace(mixed_trouble(chance, worst=0.02), slow=0.0),
        kinesis=mixed_trouble(chance, worst=0.02),
        children_plan=bad_children(chance, worst=0.005),
        child_timeout_s=20.0,
        concurrency=ConcurrencySettings(lanes=LaneCounts(chance.pick((1, 1, 4)))),
        keys=chance.pick((20, 1 << 40)),
        tables=TablesSettings(layout=TableLayout.SEPARATE if java else chance.pick(tuple(TableLayout))),
        skew_s=chance.pick((1.0, 90.0)),
    )
