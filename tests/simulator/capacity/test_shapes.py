"""Every shape of load holds; with a rule that is wrong some do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcl_daemon.capacity.figures import Capacity, CapacityTargets, FleetState
from tests.simulator.capacity.fluid import Rule, Shape, production
from tests.simulator.capacity.shapes import every, judge

SHAPES = {shape.name: shape for shape in every()}


def test_there_are_fifty_shapes_and_more() -> None:
    assert len(SHAPES) == len(every()) >= 50


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_of_load_is_met(name: str) -> None:
    assert not judge(SHAPES[name]).wrong


def _without_damping(state: FleetState, targets: CapacityTargets, previous: Capacity | None) -> Capacity:
    """As if the last change were long ago, and fewer had been enough for hours."""
    if previous is not None:
        falls_ms = None if previous.falls_since_ms is None else 0
        previous = replace(previous, since_ms=0, turned_ms=0, rises=None, falls_since_ms=falls_ms)
    return production(state, targets, previous)


def _in_bytes(state: FleetState, targets: CapacityTargets, previous: Capacity | None) -> Capacity:
    """The time to drain from bytes of now alone: as if as much came in as is finished."""
    loads = tuple(
        replace(
            load, shards=tuple(replace(each, speed=each.speed and 2 * each.speed) for each in load.shards)
        )
        for load in state.loads
    )
    return production(replace(state, loads=loads), targets, previous)


def _by_lag(state: FleetState, targets: CapacityTargets, previous: Capacity | None) -> Capacity:
    """More workers while something is behind, whatever holds it back and however many shards there are."""
    found = production(state, targets, previous)
    late = (found.whole.behind_s or 0) > targets.level_s
    return replace(found, wanted=min(state.live, len(state.leases)) + 2) if late else found


def _never(state: FleetState, targets: CapacityTargets, previous: Capacity | None) -> Capacity:
    return replace(production(state, targets, previous), wanted=previous.wanted if previous else state.live)


@pytest.mark.parametrize(
    ("rule", "name", "wrong"),
    [
        (_without_damping, "bursts of 15 min, every 70 min", "apart"),
        (_in_bytes, "retention near, slow children", "off"),
        (_by_lag, "one hot shard: child", "workers for one hot shard"),
        (_by_lag, "slow sink that does not", "more workers than leases"),
        (_never, "step up 8x, 8 shards", "late for"),
    ],
)
def test_a_wrong_rule_is_found(rule: Rule, name: str, wrong: str) -> None:
    shape: Shape = SHAPES[name]
    assert any(wrong in each for each in judge(shape, rule).wrong)
