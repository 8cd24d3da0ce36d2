"""Rows that are watched because a lease is on its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from kcl_daemon.errors import Unavailable
from kcl_daemon.fleet.discovery import PendingHandoffs
from kcl_daemon.leases.lease import LeaseKey
from tests.simulator.loop import run_virtual
from tests.unit.fleet.contexts import worker_context

KEY = LeaseKey("shard-1")


class Stage:
    """Handovers over rows that arrive when a scene says so."""

    def __init__(self) -> None:
        self.polls: list[tuple[float, LeaseKey]] = []
        self.arrived: set[LeaseKey] = set()
        self.over: list[LeaseKey] = []
        self.trouble = 0
        self.hangs = False
        self.handoffs = PendingHandoffs(worker_context(), arrived=self._poll, on_over=self.over.append)

    async def _poll(self, key: LeaseKey) -> bool:
        self.polls.append((anyio.current_time(), key))
        if self.hangs:
            await anyio.sleep_forever()
        if self.trouble:
            self.trouble -= 1
            raise Unavailable("no answer", operation="GetItem")
        return key in self.arrived


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        stage = Stage()
        async with anyio.create_task_group() as background:
            background.start_soon(stage.handoffs.run)
            await scene(stage)
            background.cancel_scope.cancel()

    run_virtual(main)


def test_a_lease_of_a_handoff_is_seen_a_fraction_of_a_second_after_it_arrives() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(20.0)
        stage.handoffs.expect(KEY)
        stage.handoffs.expect(KEY)
        await anyio.sleep(2.0)
        assert 7 <= len(stage.polls) <= 8
        stage.arrived.add(KEY)
        await anyio.sleep(0.26)
        assert not stage.handoffs.is_expecting(KEY)
        polls = len(stage.polls)
        await anyio.sleep(60.0)
        assert len(stage.polls) == polls

    play(scene)


def test_a_long_handoff_is_polled_less_and_less_and_not_for_ever() -> None:
    async def scene(stage: Stage) -> None:
        stage.handoffs.expect(KEY)
        await anyio.sleep(200.0)
        assert not stage.handoffs.is_expecting(KEY)
        assert len(stage.polls) < 52
        # The next child may take 40 s to start, the hand-off 30 s more, and it is forced 10 s later.
        assert 75.0 < stage.polls[-1][0] < 90.0
        assert stage.over == [KEY]

    play(scene)


def test_a_crowd_costs_no_more_than_so_many_reads_a_second() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(400):
            stage.handoffs.expect(LeaseKey(f"shard-{number}"))
        await anyio.sleep(5.01)
        assert len(stage.polls) <= 5 * 4 * 40
        assert len({key for _, key in stage.polls}) == 400

    play(scene)


def test_a_row_that_cannot_be_read_or_does_not_answer_is_looked_at_again() -> None:
    async def scene(stage: Stage) -> None:
        stage.trouble = 3
        stage.handoffs.expect(KEY)
        await anyio.sleep(0.6)
        stage.hangs = True
        await anyio.sleep(1.0)
        stage.hangs = False
        stage.arrived.add(KEY)
        await anyio.sleep(4.0)
        assert not stage.handoffs.is_expecting(KEY)

    play(scene)
