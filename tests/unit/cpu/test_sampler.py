"""The loop that captures: `kcl_daemon.cpu.sources`."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import anyio
import psutil
import pytest

from kcl_daemon.cpu.sources import CpuSampler, HostCpu
from kcl_daemon.errors import CpuUnreadable
from tests.simulator.loop import run_virtual
from tests.unit.cpu.machine import Machine
from tests.unit.fakes import CalmChance, LoopClock, MemoryLog


class LateChance(CalmChance):
    """Always the upper end."""

    def uniform(self, low: float, high: float) -> float:
        return high


class ScriptedCpu:
    """Gives what a function makes of the number of the call, counted from 0."""

    def __init__(self, script: Callable[[int], float | None]) -> None:
        self.calls: list[float] = []
        self._script = script

    @property
    def name(self) -> str:
        return "script"

    async def sample(self) -> float | None:
        self.calls.append(anyio.current_time())
        return self._script(len(self.calls) - 1)


class SilentCpu(ScriptedCpu):
    """Never answers."""

    async def sample(self) -> float | None:
        await super().sample()
        await anyio.sleep_forever()
        return None


def _fails(call: int) -> float | None:
    raise CpuUnreadable(f"/proc/stat: reading {call} is odd")


def _sampler(cpu: ScriptedCpu | HostCpu, log: MemoryLog | None = None, *, late: bool = False) -> CpuSampler:
    chance = LateChance() if late else CalmChance()
    return CpuSampler(cpu=cpu, clock=LoopClock(), randomness=chance, log=log or MemoryLog())


def _run(sampler: CpuSampler, seconds: float) -> None:
    async def main() -> None:
        with anyio.move_on_after(seconds):
            await sampler.run()

    run_virtual(main)


def test_the_sampler_captures_cpu_each_second() -> None:
    cpu = ScriptedCpu(float)
    sampler = _sampler(cpu)
    _run(sampler, 9.5)
    assert [later - sooner for sooner, later in zip(cpu.calls, cpu.calls[1:], strict=False)] == [1.0] * 9
    assert sampler.averages() == (Decimal("4.5"),)


def test_it_starts_after_a_random_part_of_the_first_second() -> None:
    soon, late = ScriptedCpu(lambda _: 1.0), ScriptedCpu(lambda _: 1.0)
    _run(_sampler(soon), 0.5)
    _run(_sampler(late, late=True), 1.5)
    assert len(soon.calls) == 1
    assert len(late.calls) == 1
    assert late.calls[0] - soon.calls[0] == 1.0


def test_each_report_has_one_more_average() -> None:
    sampler = _sampler(ScriptedCpu(lambda call: 10.0 if call < 30 else 20.0))
    seen: list[tuple[Decimal, ...]] = []

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sampler.run)
            for _ in range(2):
                await anyio.sleep(29.5 if not seen else 30)
                seen.append(sampler.averages())
            tasks.cancel_scope.cancel()

    run_virtual(main)
    assert seen == [(Decimal(10),), (Decimal(10), Decimal(20))]


def test_a_report_before_the_first_figure_has_no_metric() -> None:
    sampler = _sampler(ScriptedCpu(lambda _: None))
    assert sampler.averages() == ()
    _run(sampler, 1.5)
    assert sampler.averages() == ()
    assert sampler.failures == 0


def test_the_first_failure_is_reported_with_its_reason_and_the_rest_are_counted() -> None:
    log = MemoryLog()
    sampler = _sampler(ScriptedCpu(_fails), log)
    _run(sampler, 9.5)
    assert sampler.failures == 10
    [(level, event, fields)] = log.lines
    assert (level, event) == ("warning", "cpu_capture_failed")
    assert fields["source"] == "script"
    assert fields["error"] == "/proc/stat: reading 0 is odd"
    assert "disableWorkerMetrics" in str(fields["advice"])


def test_a_window_of_failures_after_a_figure_is_minus_one() -> None:
    sampler = _sampler(ScriptedCpu(lambda call: 30.0 if call == 0 else _fails(call)))
    _run(sampler, 0.5)
    assert sampler.averages() == (Decimal(30),)
    _run(sampler, 2.5)
    assert sampler.averages() == (Decimal(30), Decimal(-1))


def test_a_fault_of_the_adapter_does_not_end_the_loop() -> None:
    log = MemoryLog()
    sampler = _sampler(ScriptedCpu(lambda call: 1 / call), log)
    _run(sampler, 1.5)
    assert sampler.averages() == (Decimal(1),)
    assert "ZeroDivisionError" in str(log.lines[0][2]["error"])


def test_a_capture_that_never_answers_is_a_failed_one() -> None:
    log = MemoryLog()
    cpu = SilentCpu(lambda _: None)
    sampler = _sampler(cpu, log)
    _run(sampler, 11.5)
    assert sampler.failures == 2
    assert len(cpu.calls) == 2
    assert log.lines[0][2]["error"] == "no answer within 5 s"


def test_missing_and_malformed_files_make_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    log = MemoryLog()
    Machine("host_busy", tmp_path)
    stat = tmp_path / "proc/stat"
    sampler = _sampler(HostCpu(), log)
    stat.write_text("cpu ?\n")
    _run(sampler, 1.5)
    stat.unlink()
    _run(sampler, 1.5)
    assert log.events() == ["cpu_capture_failed"]
    assert sampler.failures == 4
    assert sampler.averages() == ()
