"""What a follower takes from the leader's row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from kcl_daemon.config.settings import LeaseSettings
from kcl_daemon.coordination.bulletin import Bulletin
from kcl_daemon.coordination.timings import timings
from kcl_daemon.leases.leader import LeaderLock
from kcl_daemon.leases.lease import WorkerId
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock


def lock(news: str | None, version: str = "v") -> LeaderLock:
    return LeaderLock(WorkerId("leader"), version, 30_000, news=news)


def kept(bulletin: Bulletin) -> bool:
    """Now; a function, because type checkers take a property for something that stays."""
    return bulletin.is_kept


def fresh(bulletin: Bulletin) -> bool:
    """The same."""
    return bulletin.is_fresh


def play(scene: Callable[[Bulletin, list[float]], Awaitable[None]]) -> None:
    async def main() -> None:
        bulletin, heard = Bulletin(clock=LoopClock(), timings=timings(LeaseSettings())), list[float]()
        bulletin.on_news(lambda: heard.append(anyio.current_time()))
        await scene(bulletin, heard)

    run_virtual(main)


def test_each_change_is_heard_once_and_heartbeats_are_not() -> None:
    async def scene(bulletin: Bulletin, heard: list[float]) -> None:
        for version, news in (("v1", "a"), ("v2", "a"), ("v3", "b"), ("v4", "b")):
            bulletin.read(lock(news, version))
            await anyio.sleep(5.0)
        assert heard == [0.0, 10.0]

    play(scene)


def test_it_is_kept_only_while_the_row_tells_and_is_read() -> None:
    async def scene(bulletin: Bulletin, heard: list[float]) -> None:
        assert not kept(bulletin)
        bulletin.read(lock("a"))
        assert kept(bulletin)
        await anyio.sleep(27.0)
        assert not kept(bulletin)
        bulletin.read(lock("a"))
        assert kept(bulletin)
        bulletin.read(lock(None))  # a Java worker has taken over
        assert not kept(bulletin)
        assert len(heard) == 2

    play(scene)


def test_no_leader_and_a_row_that_cannot_be_read_are_reasons_to_look() -> None:
    async def scene(bulletin: Bulletin, heard: list[float]) -> None:
        bulletin.read(lock("a"))
        bulletin.read(None)
        assert not kept(bulletin)
        bulletin.read(lock("a"))
        bulletin.unreadable()
        assert not kept(bulletin)
        assert len(heard) == 4

    play(scene)


def test_news_are_fresh_for_a_while_because_the_index_may_be_behind() -> None:
    async def scene(bulletin: Bulletin, _: list[float]) -> None:
        await anyio.sleep(10.0)
        bulletin.read(lock("a"))
        await anyio.sleep(4.9)
        assert fresh(bulletin)
        await anyio.sleep(0.2)
        assert not fresh(bulletin)

    play(scene)
