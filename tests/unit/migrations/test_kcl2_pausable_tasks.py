"""Loops that run only part of the time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from kcl_daemon.fleet.client_version import PausableTask
from tests.simulator.loop import run_virtual


class Counted:
    """A loop that counts its beginnings and whether it runs."""

    def __init__(self, *, returns: bool = False) -> None:
        self.begun = 0
        self.runs = False
        self._returns = returns

    async def run(self) -> None:
        self.begun += 1
        self.runs = True
        try:
            if not self._returns:
                await anyio.sleep_forever()
        finally:
            self.runs = False


def play(loop: Counted, scene: Callable[[PausableTask], Awaitable[None]]) -> None:
    async def main() -> None:
        gate = PausableTask(loop.run)
        async with anyio.create_task_group() as background:
            background.start_soon(gate.run)
            await anyio.sleep(1)
            await scene(gate)
            background.cancel_scope.cancel()

    run_virtual(main)


def test_a_loop_runs_while_its_gate_is_open_and_begins_anew_each_time() -> None:
    loop = Counted()

    async def scene(gate: PausableTask) -> None:
        assert (loop.begun, gate.is_open) == (0, False)
        gate.turn(True)
        gate.turn(True)
        await anyio.sleep(1)
        assert (loop.begun, loop.runs) == (1, True)
        gate.turn(False)
        gate.turn(False)
        await anyio.sleep(1)
        assert (loop.begun, loop.runs) == (1, False)
        gate.turn(True)
        await anyio.sleep(1)
        assert (loop.begun, loop.runs) == (2, True)

    play(loop, scene)
    assert not loop.runs


def test_a_gate_closed_and_opened_in_one_breath_restarts_its_loop() -> None:
    loop = Counted()

    async def scene(gate: PausableTask) -> None:
        gate.turn(True)
        await anyio.sleep(1)
        gate.turn(False)
        gate.turn(True)
        await anyio.sleep(1)
        assert (loop.begun, loop.runs) == (2, True)

    play(loop, scene)


def test_a_loop_that_returns_is_not_run_again_before_the_gate_was_closed() -> None:
    loop = Counted(returns=True)

    async def scene(gate: PausableTask) -> None:
        gate.turn(True)
        await anyio.sleep(1)
        assert loop.begun == 1
        gate.turn(False)
        gate.turn(True)
        await anyio.sleep(1)
        assert loop.begun == 2

    play(loop, scene)
