"""The scenarios of DynamoDB streams.

Owns their draws; `scenarios` lists them with the others. Knows nothing of how a plan is carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.config.streams import StreamsSettings
from kcl_daemon.records.changes import ChangeForm
from kcl_daemon.shards.lineage import StartAt
from tests.simulator.draws import Draw, cuts, mixed_trouble
from tests.simulator.life import Service
from tests.simulator.plan import ChangesPlan, Happening, Pause, Plan, Planned, Roll, Split, Stop, SwitchStream

# A parent must be read, finished and noticed before its child begins, some generations in turn.
_BOUND_S: Final = 150.0
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
    )
    return replace(
        plan,
        changes=changes,
        shards=min(plan.shards, 2) if kind in {"many", "mixed"} else plan.shards,
        streams=("stream-0", "stream-1", "stream-2") if kind == "mixed" else (),
        streams_settings=StreamsSettings(refresh_ms=10_000),
        shard_settings=_QUICK,
        start_at=StartAt.LATEST if from_latest else StartAt.TRIM_HORIZON,
        happenings=(
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


def _leaving(draw: Draw, until_s: float) -> list[Planned]:
    chance = draw.chance
    ways: tuple[Callable[[], Happening], ...] = (
        lambda: draw.kill(0.5, 5.0, 20.0),
        lambda: Stop(draw.target(), chance.uniform(0.0, 5.0)),
        lambda: Pause(draw.target(), chance.uniform(1.0, 40.0)),
    )
    leaves = chance.between(1, 5)
    return [Planned(chance.uniform(10.0, until_s), chance.pick(ways)()) for _ in range(leaves)]
