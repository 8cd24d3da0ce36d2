"""How much memory children take."""

from __future__ import annotations

import os

import anyio
import pytest

from kcl_daemon.telemetry.snapshot import ResidentMemory, resident_bytes
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock


def test_a_process_that_runs_has_some_and_one_that_does_not_has_none() -> None:
    own_bytes = resident_bytes(os.getpid())
    assert own_bytes is not None
    assert own_bytes > 2**20
    assert resident_bytes(2**22 + 1) is None


def test_a_call_reads_no_more_than_some_and_the_next_ones_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(pid: int) -> int:
        read.append(pid)
        return pid

    monkeypatch.setattr("kcl_daemon.telemetry.snapshot.resident_bytes", counted)

    async def course() -> None:
        memory = ResidentMemory(LoopClock())
        pids = list(range(1, 101))
        first = memory.of(pids)
        assert len(read) == sum(figure is not None for figure in first.values()) == 64
        assert memory.of(pids) == {pid: pid for pid in pids}
        assert len(read) == 100
        memory.of(pids)
        assert len(read) == 100, "they are good for some seconds"
        await anyio.sleep(16)
        memory.of(pids)
        assert len(read) == 164
        memory.of([])
        assert memory.of([1]) == {1: 1}
        assert len(read) == 165, "what was not asked for is forgotten"

    run_virtual(course)
