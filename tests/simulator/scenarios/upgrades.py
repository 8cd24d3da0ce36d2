"""Scenarios of an application that comes from KCL 2.x: upgraded, rolled back, upgraded again, while workers die and stop.

Owns the ranges of these. The figures of an upgrade (ten minutes of readiness, a look in each) are KCL's and are not
shortened, so these runs are long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kcl_daemon.config.balance import ClientVersionConfig, LeaseSettings
from kcl_daemon.fleet.client_version import ClientVersion
from tests.simulator.plans.draws import Draw, mixed_trouble, reshards
from tests.simulator.plans.plan import Configure, Kill, Plan, Planned, Steering, Stop

# A dead worker's leases are found by the second look, of which there is one in 20 s; then all is shared out again.
_BOUND_S: Final = 150.0
# Trouble in the first minutes; then all agree on a leader (a look in five minutes), ten minutes of readiness, some looks.
_TROUBLED_S: Final = 180.0
_UPGRADE_S: Final = 1400.0


def _plan(draw: Draw, *, faults_s: float) -> Plan:
    plan = draw.long_plan(faults_s=faults_s, bound_s=_BOUND_S, shards=(1, 6))
    return replace(
        plan,
        records_per_s=min(plan.records_per_s, 2.0),
        comes_from_2x=True,
        index_build_s=draw.chance.pick(((1.0, 20.0), (60.0, 300.0))),
        leases=LeaseSettings(client_version_config=ClientVersionConfig.V2X),
        dynamodb=mixed_trouble(draw.chance, worst=draw.chance.pick((0.0, 0.03))),
    )


def _leave(draw: Draw, between_s: tuple[float, float]) -> list[Planned]:
    """Some workers are killed, some stopped; each is replaced."""
    chance = draw.chance
    return draw.some(
        lambda: (
            Kill(draw.target(), chance.uniform(0.5, 30.0), keeps_name=chance.happens(0.3))
            if chance.happens(0.5)
            else Stop(draw.target(), chance.uniform(0.0, 5.0))
        ),
        count=(1, 4),
        between_s=between_s,
    )


def upgrade_2x(draw: Draw) -> Plan:
    """A fleet that takes leases becomes one whose leader assigns, and is then deployed for good."""
    plan = _plan(draw, faults_s=_UPGRADE_S + 500.0)
    workers = draw.workers(2, 4)
    final_s = _UPGRADE_S + 250.0
    deploy = [
        Planned(final_s, Configure(ClientVersionConfig.V3X)),
        *(Planned(final_s + 1.0 + 30.0 * number, Stop(0, 1.0)) for number in range(workers)),
    ]
    return replace(
        plan,
        events=(
            *draw.arrivals(workers),
            *_leave(draw, (10.0, _TROUBLED_S)),
            *_leave(draw, (_UPGRADE_S, final_s - 60.0)),
            *reshards(draw, (0, 3), between_s=(10.0, _UPGRADE_S)),
            *deploy,
        ),
        # Where the leader changed late, the last deploy came before the upgrade; then it takes one more to end in 3X.
        ends_in=frozenset({ClientVersion.V3X, ClientVersion.V3X_WITH_ROLLBACK}),
    )


def rolled_back(draw: Draw) -> Plan:
    """The way is taken back half way: before or after the switch; some fleets go forward again later."""
    chance = draw.chance
    back_s = chance.pick((chance.uniform(60.0, 600.0), chance.uniform(_UPGRADE_S, _UPGRADE_S + 100.0)))
    forward = chance.happens(0.5)
    steps = [Planned(back_s, Steering.ROLL_BACK)]
    if forward:
        steps.append(Planned(back_s + chance.uniform(130.0, 300.0), Steering.ROLL_FORWARD))
    ends_s = back_s + (_UPGRADE_S + 500.0 if forward else 400.0)
    plan = _plan(draw, faults_s=ends_s)
    return replace(
        plan,
        events=(
            *draw.arrivals(draw.workers(2, 4)),
            *_leave(draw, (10.0, _TROUBLED_S)),
            *_leave(draw, (back_s - 30.0, back_s + 200.0)),
            *reshards(draw, (0, 3), between_s=(10.0, ends_s)),
            *steps,
        ),
        ends_in=frozenset({ClientVersion.V3X_WITH_ROLLBACK if forward else ClientVersion.V2X}),
    )
