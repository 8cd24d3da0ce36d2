"""The real clock and real chance behave as their ports say."""

from __future__ import annotations

import ctypes
import resource

import anyio
import pytest

from kcl_daemon.children.platform import keep_freed_memory
from kcl_daemon.ports import Clock, Randomness
from kcl_daemon.system import ServiceClock, SystemClock, SystemRandomness


@pytest.mark.anyio
async def test_system_clock_and_randomness_meet_their_ports() -> None:
    clock: Clock = SystemClock()
    randomness: Randomness = SystemRandomness()
    began_s = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - began_s >= 0.009
    assert 1 <= randomness.uniform(1, 2) <= 2
    assert randomness.token() != randomness.token()


def test_wall_time_is_in_milliseconds() -> None:
    assert 1_700_000_000_000 < SystemClock().wall_ms() < 10_000_000_000_000


@pytest.mark.anyio
async def test_a_scope_ends_by_the_same_clock_and_none_is_without_end() -> None:
    clock = SystemClock()
    with clock.move_on_after(0) as scope:
        await clock.sleep(60)
    assert scope.cancelled_caught
    assert clock.move_on_after(None).deadline == float("inf")
    await clock.sleep(-1)


@pytest.mark.anyio
async def test_the_event_loop_counts_by_the_same_clock() -> None:
    assert abs(anyio.current_time() - SystemClock().monotonic()) < 60


@pytest.mark.parametrize("off_s", [-250.0, 250.0])
def test_the_services_clock_takes_the_time_of_day_that_it_is_told(off_s: float) -> None:
    clock, machine = ServiceClock(), SystemClock()
    assert abs(clock.wall_ms() - machine.wall_ms()) < 5_000
    clock.learn(machine.wall_ms() / 1000 + off_s)
    assert abs(clock.wall_ms() - machine.wall_ms() - off_s * 1000) < 5_000
    clock.learn(machine.wall_ms() / 1000 - 1.0)
    assert abs(clock.wall_ms() - machine.wall_ms()) < 500, "a second is what the header rounds off"


@pytest.mark.parametrize("off_s", [-3.0, 3.0, 250.0])
def test_a_time_that_has_passed_for_the_service_is_not_the_machines(off_s: float) -> None:
    clock, machine = ServiceClock(), SystemClock()
    assert abs(clock.passed_ms() - machine.wall_ms()) < 5_000
    told_s = int(machine.wall_ms() / 1000 + off_s)
    clock.learn(told_s)
    assert 0 <= clock.passed_ms() - told_s * 1000 < 500
    clock.learn(told_s - 1)
    assert 0 <= clock.passed_ms() - told_s * 1000 < 500, "it was later already"
    clock.learn(told_s - 60)
    assert clock.passed_ms() < told_s * 1000, "what was told before is not true"


@pytest.mark.parametrize("off_s", [-7200.0, 3.0, 7200.0])
def test_how_far_the_machine_is_ahead_is_known_while_the_service_answers(off_s: float) -> None:
    clock, machine = _Timed(), SystemClock()
    assert clock.machine_ahead_s() is None
    clock.learn(machine.wall_ms() / 1000 - off_s)
    assert clock.machine_ahead_s() == pytest.approx(off_s, abs=0.5)
    clock.passed_s = 599.0
    assert clock.machine_ahead_s() == pytest.approx(off_s, abs=0.5)
    clock.passed_s = 601.0
    assert clock.machine_ahead_s() is None


class _Timed(ServiceClock):
    passed_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_s


def faults_of_batches() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        assert len([bytes(1024) for _ in range(20_000)]) == 20_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_the_memory_of_a_batch_is_kept_for_the_next_one() -> None:
    assert keep_freed_memory()
    faults_of_batches()
    assert faults_of_batches() < 5_000  # one batch has 5,000 pages


def test_another_malloc_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not keep_freed_memory()
