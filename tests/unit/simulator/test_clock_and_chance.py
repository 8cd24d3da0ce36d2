"""Clocks that are wrong, and chance that repeats itself."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S, SimClock, drawn_clock
from tests.simulator.faults.life import Life, WorkerKilled
from tests.simulator.loop import current_loop, now, run_virtual


def test_a_drifting_clock_shows_and_sleeps_its_own_seconds() -> None:
    async def main() -> tuple[float, float]:
        clock = SimClock(Life("w"), monotonic_start_s=100.0, drift=0.01)
        await clock.sleep(101.0)
        return clock.monotonic(), now()

    own_s, true_s = run_virtual(main)
    assert own_s == pytest.approx(201.0)
    assert true_s == pytest.approx(100.0)


def test_a_deadline_of_a_drifting_clock_is_in_its_own_seconds() -> None:
    async def main() -> float:
        clock = SimClock(Life("w"), drift=0.01)
        with clock.move_on_after(101.0):
            await anyio.sleep_forever()
        return now()

    assert run_virtual(main) == pytest.approx(100.0)


def test_a_deadline_of_none_never_cancels() -> None:
    async def main() -> bool:
        with SimClock(Life("w")).move_on_after(None) as scope:
            await anyio.sleep(80_000)
        return scope.cancelled_caught

    assert run_virtual(main) is False


def test_the_date_is_skewed_and_may_jump_while_the_monotonic_clock_does_not() -> None:
    async def main() -> tuple[int, int, float]:
        clock = SimClock(Life("w"), wall_skew_s=60.0)
        before = clock.wall_ms()
        clock.step_wall(-120.0)
        return before, clock.wall_ms(), clock.monotonic()

    before, after, monotonic = run_virtual(main)
    assert before == int((EPOCH_S + 60) * 1000)
    assert after == int((EPOCH_S - 60) * 1000)
    assert monotonic == 0.0


def test_how_far_a_clock_was_ahead_at_most_counts_its_drift_and_its_jumps() -> None:
    async def main() -> tuple[float, float, float]:
        clock, slow = SimClock(Life("w"), wall_skew_s=20.0, drift=0.01), SimClock(Life("v"), drift=-0.01)
        await anyio.sleep(200.0)
        before_s = clock.ahead_most_s
        clock.step_wall(-60.0)
        await anyio.sleep(200.0)
        return before_s, clock.ahead_most_s, slow.ahead_most_s

    assert run_virtual(main) == pytest.approx((22.0, 22.0, 0.0))


def test_the_clock_of_a_killed_worker_ends_what_is_left_of_it() -> None:
    async def main() -> None:
        life = Life("w")
        current_loop().after(1.0, life.kill)
        await SimClock(life).sleep(5.0)

    with pytest.raises(WorkerKilled):
        run_virtual(main)


@given(st.integers())
def test_a_drawn_clock_is_wrong_by_no_more_than_asked(seed: int) -> None:
    async def main() -> tuple[float, float]:
        clock = drawn_clock(Chance(f"{seed}"), Life("w"), skew_s=30.0, drift=0.01)
        began_s = clock.monotonic()
        await anyio.sleep(1000.0)
        return clock.wall_ms() / 1000 - EPOCH_S - 1000.0, clock.monotonic() - began_s

    skew_s, passed_s = run_virtual(main)
    assert abs(skew_s) <= 30.0 + 10.0 + 0.001
    assert abs(passed_s - 1000.0) <= 10.0 + 1e-6


def test_the_same_name_gives_the_same_numbers_and_another_name_others() -> None:
    def draws(name: str) -> list[float]:
        chance = Chance(name)
        return [chance.random() for _ in range(20)]

    assert draws("a") == draws("a")
    assert draws("a") != draws("b")


def test_a_fork_does_not_depend_on_what_was_drawn_before() -> None:
    first, second = Chance("a"), Chance("a")
    second.random()
    assert first.fork("x").token() == second.fork("x").token()


def test_numbers_stay_within_their_bounds() -> None:
    chance = Chance("bounds")
    assert {chance.between(1, 3) for _ in range(200)} == {1, 2, 3}
    assert all(2.0 <= chance.uniform(2.0, 3.0) <= 3.0 for _ in range(200))
    assert {chance.pick("ab") for _ in range(100)} == {"a", "b"}
    assert not any(chance.happens(0.0) for _ in range(100))
    assert all(chance.happens(1.0) for _ in range(100))
