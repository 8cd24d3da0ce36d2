"""The scenario of a fleet that moves from three tables into one (KCL 3.4 -> 3.5) while workers come, go and die.

Owns its ranges. The two bake times, an hour and a day, are shortened to about a minute; all other figures are real.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kcl_daemon.config.tables import TablesSettings
from tests.simulator.faults.life import Service
from tests.simulator.plans.draws import Draw, cuts, mixed_trouble
from tests.simulator.plans.plan import (
    BOUND_S,
    Event,
    Kill,
    MigrateTables,
    Pause,
    Plan,
    Planned,
    StartApart,
    Stop,
)

# The first state lasts about two minutes: support, the bake time, looks a minute apart.
_BEGINS_S: Final = 180.0
# Then all workers are deployed anew, one after the other, and what they left grows old.
_CALM_S: Final = 900.0


def table_migration(draw: Draw) -> Plan:
    """The move, with trouble in each of its states; some workers do not know the single table, some are set against it."""
    chance = draw.chance
    plan = draw.long_plan(faults_s=_CALM_S, bound_s=BOUND_S, shards=(2, 6))
    tables = TablesSettings(deploy_bake_s=chance.between(20, 90), complete_bake_s=chance.between(20, 120))

    def apart(*, supports: bool) -> StartApart:
        return StartApart(
            supports=supports, leaves_after_s=chance.uniform(20.0, 120.0), dies=chance.happens(0.5)
        )

    def leave() -> Event:
        kinds: tuple[Event, ...] = (
            Kill(draw.target(), chance.uniform(0.5, 30.0), keeps_name=chance.happens(0.3)),
            Stop(draw.target(), chance.uniform(0.0, 5.0)),
            Pause(draw.target(), chance.uniform(2.0, 60.0)),
        )
        return chance.pick(kinds)

    old = draw.some(lambda: apart(supports=False), count=(0, 2), between_s=(0.0, 120.0))
    against = draw.some(
        lambda: apart(supports=chance.happens(0.5)), count=(0, 2), between_s=(_BEGINS_S + 60.0, 700.0)
    )
    return replace(
        plan,
        records_per_s=min(plan.records_per_s, 3.0),
        tables=tables,
        events=(
            *draw.arrivals(draw.workers(2, 4)),
            *old,
            *against,
            *draw.some(leave, count=(2, 8), between_s=(10.0, _CALM_S - 100.0)),
            *cuts(draw, Service.DYNAMODB, (0, 2)),
            Planned(chance.uniform(_BEGINS_S, _BEGINS_S + 120.0), MigrateTables(chance.uniform(2.0, 30.0))),
        ),
        dynamodb=mixed_trouble(chance, worst=chance.pick((0.0, 0.03))),
        index_lag_s=(0.005, 0.1),
        moves_tables=True,
    )
