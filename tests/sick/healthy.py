"""Fleets that are well: nothing may fire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.sick.rules import Firing, firings
from tests.sick.stage import Stage, kill
from tests.simulator.fleet.stream import STREAM_NAME
from tests.simulator.loop import run_virtual

HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Healthy:
    """What happens every `every_s` to a fleet that is well."""

    name: str
    act: Callable[[Stage, int], Awaitable[None]]
    every_s: float = 1200.0


async def _nothing(_stage: Stage, _turn: int) -> None:
    pass


async def _deploy(stage: Stage, _turn: int) -> None:
    for worker in stage.living:
        worker.stop()
        stage.fleet.start()
        await stage.run(stage.at_s + 60.0)


async def _fail_over(stage: Stage, _turn: int) -> None:
    kill([stage.leader])
    await stage.run(stage.at_s + 30.0)
    stage.fleet.start()


async def _reshard(stage: Stage, turn: int) -> None:
    stage.model.handle(
        "UpdateShardCount",
        {
            "StreamName": STREAM_NAME,
            "TargetShardCount": 4 if turn % 2 else 8,
            "ScalingType": "UNIFORM_SCALING",
        },
    )


HEALTHY: Final = (
    Healthy("quiet", _nothing),
    Healthy("deploys", _deploy),
    Healthy("fail-overs", _fail_over),
    Healthy("reshards", _reshard, 3 * HOUR_S),
)


def alarms(healthy: Healthy, hours: float) -> tuple[Firing, ...]:
    """In so many virtual hours."""
    stage = run_virtual(partial(_played, healthy, hours * HOUR_S))
    return firings(stage.store, hours * HOUR_S)


async def _played(healthy: Healthy, until_s: float) -> Stage:
    stage = Stage(healthy.name)
    stage.shown_from_s = until_s
    stage.records_per_s = 1
    await stage.begin()
    await stage.run(300.0)
    turn = 0
    while stage.at_s < until_s:
        await healthy.act(stage, turn)
        await stage.run(min(until_s, stage.at_s + healthy.every_s))
        turn += 1
    return stage
