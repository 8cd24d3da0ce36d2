from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.capacity.estimate import estimate
from kcl_daemon.capacity.figures import Bound, Capacity, CapacityTargets, FleetState, ShardLoad, WorkerLoad
from kcl_daemon.capacity.picture import HELD, fewest, peak
from kcl_daemon.leases.lease import LeaseKey, WorkerId
from tests.examples import examples

MINUTE_MS = 60_000
START_MS = 1_790_000_000_000
KIB = 1024.0


def state(
    minute: float, *, cpu: float | None = 0.1, workers: int = 2, shards: int = 8, behind_s: float | None = 0.0,
    speed: float | None = 1.0, bound: Bound = Bound.NOTHING, silent: int = 0,
) -> FleetState:  # fmt: skip
    rows = tuple(
        ShardLoad(LeaseKey(f"s{number}"), behind_s, speed, 100 * KIB, 100 * KIB, 0.5, bound)
        for number in range(shards)
    )
    now_ms = START_MS + int(minute * MINUTE_MS)
    loads = tuple(
        WorkerLoad(WorkerId(f"w{each}"), now_ms, cpu, rows[each::workers]) for each in range(workers)
    )
    return FleetState(now_ms, loads, {each.key: None for each in rows}, workers + silent, silent)


def after(*states: FleetState, targets: CapacityTargets | None = None) -> list[int]:
    previous, found = None, []
    for each in states:
        previous = estimate(each, targets or CapacityTargets(), previous, by=WorkerId("w0"))
        found.append(previous.wanted)
    return found


def late(minute: float, bound: Bound, cpu: float = 0.97, speed: float = 0.5, **more: int) -> FleetState:
    return state(minute, cpu=cpu, behind_s=300, speed=speed, bound=bound, **more)


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        (state(0, cpu=0.3), 2),
        (state(0, cpu=0.69), 2),
        (state(0, cpu=0.8), 3),
        (state(0, cpu=0.8, workers=8), 8),
        (late(0, Bound.HOST_CPU), 5),
        (late(0, Bound.HOST_CPU, speed=0.9, workers=1), 2),
        (late(0, Bound.HOST_CPU, speed=1.9), 2),
        (late(0, Bound.MEMORY, cpu=0.3, speed=0.9), 3),
        *(
            (late(0, bound, cpu=0.3, speed=0.9), 2)
            for bound in (Bound.CHILD, Bound.READ_QUOTA, Bound.HOT_KEY)
        ),
        *((late(0, bound, cpu=0.3, speed=0.0), 2) for bound in (Bound.PAUSE, Bound.LIMIT, Bound.DOWNSTREAM)),
        (late(0, Bound.FAILING, cpu=0.3, speed=0.0), 2),
        *((late(0, bound, workers=1), 1) for bound in HELD),
        *((late(0, bound), 2) for bound in HELD),
        (late(0, Bound.HOST_CPU, workers=8, shards=8), 8),
        (state(0, cpu=0.3, workers=8, shards=3), 3),
        (late(0, Bound.HOST_CPU, workers=1, shards=1), 1),
        (state(0, cpu=0.8, silent=1), 4),
    ],
)
def test_how_many_are_wanted_at_first(now: FleetState, wanted: int) -> None:
    assert after(now) == [wanted]


def test_one_that_is_alone_on_a_host_does_not_make_the_others_more() -> None:
    assert (fewest([0.9, 0.1, 0.1], 0.7, 8), fewest([0.9, 0.9], 0.7, 8), fewest([], 0.7, 8)) == (2, 2, 1)
    assert (fewest([0.3] * 8, 0.7, 8), fewest([0.3] * 8, 0.7, 3)) == (4, 3)
    assert peak([0.3] * 8, 3) == pytest.approx(0.9)
    assert peak([], 3) == 0


def test_the_next_raise_waits_three_minutes() -> None:
    minutes = (0, 0.5, 2.5, 3, 3.5)
    assert after(*(late(minute, Bound.HOST_CPU, speed=0.3, shards=16) for minute in minutes)) == [
        5,
        5,
        5,
        11,
        11,
    ]


def test_a_fall_waits_until_fewer_are_enough_for_a_quarter_of_an_hour() -> None:
    quiet = [state(minute, cpu=0.1, workers=4) for minute in (0, 14, 15, 16, 29, 30, 45, 90)]
    assert after(*quiet) == [4, 4, 3, 3, 3, 2, 1, 1]
    disturbed = [state(14, cpu=0.1, workers=4, behind_s=90, bound=Bound.CHILD)]
    assert after(quiet[0], *disturbed, *quiet[2:4]) == [4, 4, 4, 4]


@pytest.mark.parametrize(
    "spoilt", [{"cpu": None}, {"silent": 1}, {"behind_s": None}, {"bound": Bound.PAUSE}, {"behind_s": 90.0}]
)
def test_the_wanted_number_does_not_fall_while_knowledge_is_incomplete(spoilt: dict[str, float]) -> None:
    states = [replace_known(minute, spoilt) for minute in (0, 20, 40, 300)]
    assert set(after(*states)) == {4 + int(spoilt.get("silent", 0))}


def replace_known(minute: float, spoilt: dict[str, float]) -> FleetState:
    return state(minute, **({"cpu": 0.1, "workers": 4} | spoilt))  # type: ignore[arg-type] # a table of cases


def test_after_a_raise_nothing_falls_for_an_hour_and_after_that_fall_nothing_rises_for_one() -> None:
    busy, calm = {"cpu": 0.8, "workers": 2}, {"cpu": 0.2, "workers": 3}
    plan = [(0, busy), (1, calm), (60, calm), (61, calm), (62, calm), (63, busy), (120, busy), (121, busy)]
    found = after(*(state(minute, **values) for minute, values in plan))  # type: ignore[arg-type] # a table of cases
    assert found == [3, 3, 3, 2, 2, 2, 2, 3]


def test_a_lower_wanted_number_is_announced_before_it_counts() -> None:
    found = estimate(state(0, cpu=0.1, workers=4), CapacityTargets(), None, by=WorkerId("w0"))
    assert found.reason == "1 worker would be enough; one fewer at 14:28, if that stays so"
    assert found.falls_since_ms == START_MS


def test_a_worker_that_was_woken_is_wanted_at_once() -> None:
    zero = CapacityTargets(scale_to_zero=True)
    quiet = state(0, cpu=0.05, speed=None)
    quiet = replace(quiet, loads=tuple(replace(load, quiet_s=700) for load in quiet.loads))
    assert after(quiet, state(1, cpu=0.1, workers=1), targets=zero) == [0, 1]


def test_a_leader_whose_clock_is_behind_the_last_ones_goes_on() -> None:
    assert after(state(600, cpu=0.8), state(0, cpu=0.97), state(4, cpu=0.97)) == [3, 3, 4]
    assert after(state(600, cpu=0.5), state(0, cpu=0.97)) == [2, 4]


Step = tuple[float, float, int, int, Bound, float | None, float | None]
"""Minutes, CPU, workers, leases, bound, behind, speed."""

steps_of = st.lists(
    st.tuples(
        *(st.floats(0, 40), st.floats(0, 1), st.integers(0, 6), st.integers(0, 10), st.sampled_from(Bound)),
        *(st.none() | st.floats(0, 1e6), st.none() | st.floats(0, 1e4)),
    ),
    min_size=3,
    max_size=12,
)


def play(steps: list[Step], *, zero: bool) -> list[tuple[FleetState, Capacity]]:
    minute, previous, found = 0.0, None, []
    for minutes, cpu, workers, leases, bound, behind_s, speed in steps:
        minute += minutes
        now = state(
            minute,
            cpu=cpu,
            workers=max(workers, 1),
            shards=leases,
            behind_s=behind_s,
            speed=speed,
            bound=bound,
        )
        if not workers:
            now = replace(now, loads=(), live=1, silent=1)
        previous = estimate(now, CapacityTargets(scale_to_zero=zero), previous, by=WorkerId("w"))
        found.append((now, previous))
    return found


@settings(max_examples=examples(200), deadline=None)
@given(steps_of, st.booleans())
def test_wanted_stays_between_one_and_the_number_of_leases(steps: list[Step], zero: bool) -> None:
    for now, found in play(steps, zero=zero):
        assert int(not zero) <= found.wanted <= max(len(now.leases), 1)
        whole = found.whole
        assert (whole.drains_s or 0) >= 0 and (whole.speed or 0) >= 0 and (whole.behind_s or 0) >= 0
        assert found.sentence and found.reason


@settings(max_examples=examples(300), deadline=None)
@given(steps_of)
def test_reversals_are_an_hour_apart(steps: list[Step]) -> None:
    turned_ms, rises, before = None, None, None
    for now, found in play([(*each[:3], 10, *each[4:]) for each in steps], zero=False):
        if before is not None and found.wanted != before:
            if rises is not None and rises is not (found.wanted > before):
                assert turned_ms is None or now.now_ms - turned_ms >= 60 * MINUTE_MS
                turned_ms = now.now_ms
            rises = found.wanted > before
        before = found.wanted
