"""The scenarios of DynamoDB streams.

Owns their draws; `scenarios` lists them with the others. Knows nothing of how a plan is carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.config.streams import StreamsSettings
from kcl_daemon.records.forms import ChangeForm, ShardOrder
from kcl_daemon.shards.lineage import StartAt
from tests.simulator.faults.life import Service
from tests.simulator.plans.draws import Draw, cuts, mixed_trouble
from tests.simulator.plans.plan import (
    ChangesPlan,
    Event,
    Kill,
    Pause,
    Plan,
    Planned,
    Roll,
    Split,
    Start,
    Stop,
    SwitchStream,
)

# A parent must be read, finished and noticed before its child begins, some generations in turn.
_BOUND_S: Final = 150.0
# A day, 24 times as fast, and how many shards are open at a time: six in turn make 2,000.
_DAY_S: Final = 3_600.0
_OPEN: Final = 334
_QUICK: Final = ShardSettings(
    cleanup_ms=2_000, cleanup_completed_ms=5_000, cleanup_garbage_ms=20_000, audit_ms=20_000
)


def dynamodb(draw: Draw) -> Plan:
    """Shards of tables' streams roll, split, end and are listed late; streams are switched off and on; workers die and stop."""
    chance = draw.chance
    plan = draw.plan(faults_s=150.0, bound_s=_BOUND_S, shards=(1, 4))
    from_latest = chance.happens(0.2)
    kind = chance.pick(("followed", "followed", "arn", "many", "mixed"))
    tables = chance.between(2, 4) if kind == "many" else 1 if kind == "followed" else chance.between(1, 2)
    changes = ChangesPlan(
        tables=1 if kind == "arn" else tables,
        items=chance.pick((5, 40, 300)),
        follows=kind == "followed",
        form=chance.pick(tuple(ChangeForm)),
        life_s=chance.pick((30.0, 60.0, 14_400.0)),
        late_s=chance.pick((0.0, 2.0, 10.0)),
        empty_every=chance.pick((0, 0, 5)),
    )
    return replace(
        plan,
        changes=changes,
        shards=draw.sizes.shards or (min(plan.shards, 2) if kind in {"many", "mixed"} else plan.shards),
        streams=("stream-0", "stream-1", "stream-2") if kind == "mixed" else (),
        streams_settings=StreamsSettings(refresh_ms=10_000),
        shard_settings=_QUICK,
        start_at=StartAt.LATEST if from_latest else StartAt.TRIM_HORIZON,
        events=(
            *(draw.arrivals(1) if from_latest else draw.arrivals(draw.workers(2, 4))),
            *_reshapes(draw, (2, 10), 140.0),
            *(_switches(draw, changes) if chance.happens(0.5) else ()),
            *([] if from_latest else _leaving(draw, 140.0)),
            *cuts(draw, Service.KINESIS, (0, 1)),
        ),
        dynamodb=mixed_trouble(chance, worst=chance.pick((0.0, 0.02))),
        kinesis=replace(
            mixed_trouble(chance, worst=chance.pick((0.0, 0.05))), expired=chance.pick((0.0, 0.05))
        ),
    )


def dynamodb_day(draw: Draw) -> Plan:
    """A day of 2,000 shards in an hour: shards of ten minutes, kept for an hour; the fleet may be away for the first half."""
    chance = draw.chance
    plan = draw.plan(faults_s=0.9 * _DAY_S, bound_s=_BOUND_S, shards=(_OPEN, _OPEN))
    comes_s = chance.pick((0.0, 0.5 * _DAY_S))
    events = [
        *(Planned(comes_s + each.at_s, each.what) for each in draw.arrivals(draw.workers(3, 5))),
        *(Planned(comes_s + each.at_s, each.what) for each in _leaving(draw, 0.4 * _DAY_S, count=(6, 20))),
        *draw.some(lambda: Split(chance.between(0, 1_000)), count=(0, 5), between_s=(60.0, 0.8 * _DAY_S)),
    ]
    return replace(
        plan,
        changes=ChangesPlan(items=2_000, life_s=_DAY_S / 6, kept_s=_DAY_S, open_most=True),
        events=tuple(events),
        records_per_s=5.0,
        backlog=0,
        ends_at_s=_DAY_S,
        ends_early=False,
        retrieval=replace(plan.retrieval, idle_time_between_reads_ms=10_000),
        calls_for_empty=False,
    )


def dynamodb_snapshot(draw: Draw) -> Plan:
    """A table is written while its segments are scanned, shards roll and split, and workers die: the copy is the table."""
    chance = draw.chance
    plan = draw.plan(faults_s=150.0, bound_s=_BOUND_S, shards=(1, 3))
    items, segments = chance.pick((3, 40, 300)), chance.pick((1, 2, 5, 8))
    changes = ChangesPlan(
        items=items,
        follows=chance.happens(0.7),
        form=chance.pick(tuple(ChangeForm)),
        life_s=chance.pick((25.0, 60.0, 14_400.0)),
        late_s=chance.pick((0.0, 5.0)),
        empty_every=chance.pick((0, 0, 5)),
        snapshot=True,
        segments=segments,
        read_units=chance.pick((max(2 * segments, items // 30), 500)),
        is_copied=True,
    )
    # What ended ten minutes before the scan is not read.
    comes_s = chance.pick((0.0, 20.0, 700.0))
    moved = [
        *draw.arrivals(draw.workers(2, 4)),
        *_leaving(draw, 140.0, pauses=False),
        *_reshapes(draw, (0, 8), 140.0),
    ]
    return replace(
        plan,
        changes=changes,
        events=(
            *(Planned(comes_s + each.at_s, each.what) for each in moved),
            *_reshapes(draw, (0, 4), 20.0),
        ),
        calm_at_s=plan.calm_at_s + comes_s,
        ends_at_s=plan.ends_at_s + comes_s,
        records_per_s=chance.uniform(0.5, 4.0),
        backlog=chance.pick((0, items, 3 * items)),
        shard_settings=_QUICK,
        dynamodb=mixed_trouble(chance, worst=chance.pick((0.0, 0.02))),
        kinesis=mixed_trouble(chance, worst=chance.pick((0.0, 0.02))),
    )


def dynamodb_trimmed(draw: Draw) -> Plan:
    """All workers are away for about as long as changes are kept: what is lost is said, and passed over only if it may be."""
    chance = draw.chance
    plan = draw.plan(faults_s=400.0, bound_s=_BOUND_S, shards=(2, 5))
    away_s, back_s = chance.uniform(30.0, 60.0), chance.uniform(110.0, 300.0)
    workers = draw.workers(1, 3)
    return replace(
        plan,
        changes=ChangesPlan(
            items=chance.pick((4, 40)),
            follows=chance.happens(0.5),
            life_s=chance.pick((25.0, 40.0)),
            kept_s=120.0,
            continues_trimmed=chance.pick((None, False, True)),
            is_whole=False,
        ),
        events=(
            *draw.arrivals(workers),
            *(Planned(away_s, Kill(0)) for _ in range(workers)),
            *(Planned(back_s, Start()) for _ in range(draw.workers(1, 3))),
        ),
        records_per_s=chance.uniform(0.1, 2.0),
        backlog=0,
        shard_settings=_QUICK,
    )


def quick_changes(draw: Draw, plan: Plan) -> Plan:
    """The plan with a table whose stream rolls quickly, instead of a stream of Kinesis."""
    chance = draw.chance
    changes = ChangesPlan(
        items=chance.pick((5, 40)),
        form=chance.pick(tuple(ChangeForm)),
        life_s=chance.pick((40.0, 14_400.0)),
        late_s=chance.pick((0.0, 2.0)),
        empty_every=chance.pick((0, 5)),
    )
    return replace(
        plan, changes=changes, shards=draw.sizes.shards or min(plan.shards, 2), shard_settings=_QUICK
    )


def quick_snapshot(draw: Draw, plan: Plan) -> Plan:
    """The same, and the table's items are read first."""
    plan = quick_changes(draw, plan)
    assert plan.changes is not None
    is_copied = plan.concurrency.order is ShardOrder.KEY  # else an older image may come last
    changes = replace(plan.changes, snapshot=True, segments=draw.chance.pick((1, 3)), is_copied=is_copied)
    return replace(plan, changes=changes)


def _reshapes(draw: Draw, count: tuple[int, int], until_s: float) -> list[Planned]:
    chance = draw.chance
    return draw.some(
        lambda: (Roll if chance.happens(0.7) else Split)(chance.between(0, 100)),
        count=count,
        between_s=(5.0, until_s),
    )


def _switches(draw: Draw, changes: ChangesPlan) -> list[Planned]:
    """Off, and on again where the next stream is read too."""
    off_s = draw.chance.uniform(20.0, 90.0)
    table = draw.chance.between(0, changes.tables - 1)
    off = Planned(off_s, SwitchStream(table, on=False))
    on = Planned(off_s + draw.chance.uniform(0.5, 40.0), SwitchStream(table, on=True))
    return [off, on] if changes.follows else [off]


def _leaving(
    draw: Draw, until_s: float, *, count: tuple[int, int] = (1, 5), pauses: bool = True
) -> list[Planned]:
    chance = draw.chance
    ways: tuple[Callable[[], Event], ...] = (
        lambda: draw.kill(0.5, 5.0, 20.0),
        lambda: Stop(draw.target(), chance.uniform(0.0, 5.0)),
        lambda: Pause(draw.target(), chance.uniform(1.0, 40.0)),
    )
    ways = ways if pauses else ways[:2]
    return [
        Planned(chance.uniform(10.0, until_s), chance.pick(ways)()) for _ in range(chance.between(*count))
    ]
