"""What a follower takes from the leader's row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from kcl_daemon.fleet.discovery import AssignmentNotifier
from kcl_daemon.leases.leader import LeaderLock
from kcl_daemon.leases.lease import WorkerId
from tests.simulator.loop import run_virtual
from tests.unit.fleet.contexts import worker_context


def lock(assignment_epoch: str | None, version: str = "v") -> LeaderLock:
    return LeaderLock(WorkerId("leader"), version, 30_000, assignment_epoch=assignment_epoch)


def kept(notifier: AssignmentNotifier) -> bool:
    """Now; a function, because type checkers take a property for something that stays."""
    return notifier.is_kept


def fresh(notifier: AssignmentNotifier) -> bool:
    """The same."""
    return notifier.is_recent


def play(scene: Callable[[AssignmentNotifier, list[float]], Awaitable[None]]) -> None:
    async def main() -> None:
        heard = list[float]()
        notifier = AssignmentNotifier(
            worker_context(), on_assigned=lambda: heard.append(anyio.current_time())
        )
        await scene(notifier, heard)

    run_virtual(main)


def test_each_change_is_heard_once_and_heartbeats_are_not() -> None:
    async def scene(notifier: AssignmentNotifier, heard: list[float]) -> None:
        for version, assignment_epoch in (("v1", "a"), ("v2", "a"), ("v3", "b"), ("v4", "b")):
            notifier.read(lock(assignment_epoch, version))
            await anyio.sleep(5.0)
        assert heard == [0.0, 10.0]

    play(scene)


def test_it_is_kept_only_while_the_row_tells_and_is_read() -> None:
    async def scene(notifier: AssignmentNotifier, heard: list[float]) -> None:
        assert not kept(notifier)
        notifier.read(lock("a"))
        assert kept(notifier)
        await anyio.sleep(27.0)
        assert not kept(notifier)
        notifier.read(lock("a"))
        assert kept(notifier)
        notifier.read(lock(None))  # a Java worker has taken over
        assert not kept(notifier)
        assert len(heard) == 2

    play(scene)


def test_no_leader_and_a_row_that_cannot_be_read_are_reasons_to_look() -> None:
    async def scene(notifier: AssignmentNotifier, heard: list[float]) -> None:
        notifier.read(lock("a"))
        notifier.read(None)
        assert not kept(notifier)
        notifier.read(lock("a"))
        notifier.unreadable()
        assert not kept(notifier)
        assert len(heard) == 4

    play(scene)


def test_news_are_fresh_for_a_while_because_the_index_may_be_behind() -> None:
    async def scene(notifier: AssignmentNotifier, _: list[float]) -> None:
        await anyio.sleep(10.0)
        notifier.read(lock("a"))
        await anyio.sleep(4.9)
        assert fresh(notifier)
        await anyio.sleep(0.2)
        assert not fresh(notifier)

    play(scene)
