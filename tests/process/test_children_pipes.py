"""Lines and bytes through the pipes of real children: large, slow, blocked, cut short, rubbish."""

from __future__ import annotations

import tracemalloc

import pytest
from anyio import create_task_group, wait_all_tasks_blocked

from kcl_daemon.errors import ChildExited
from kcl_daemon.ports import Child
from tests.process.children.support import SHARD, children_of, command, receive_line

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

MEGABYTE = 1024 * 1024


async def test_a_large_line_through_a_slow_child_takes_no_memory_but_the_line() -> None:
    line = bytes(range(1, 10)) * (20 * MEGABYTE // 9) + b"\n"
    received = 0
    async with children_of(command("slow_echo")) as children:
        child = await children.start(SHARD)
        tracemalloc.start()
        try:
            async with create_task_group() as tasks:
                tasks.start_soon(child.send, line)
                while received < len(line):
                    piece = await child.receive()
                    assert piece == line[received : received + len(piece)]
                    received += len(piece)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < MEGABYTE


async def test_many_lines_in_a_row_arrive_in_order() -> None:
    count = 2000
    async with children_of(command("echo")) as children:
        child = await children.start(SHARD)

        async def send() -> None:
            for number in range(count):
                await child.send(b"%d " % number * 50 + b"\n")
            await child.close_stdin()

        text = bytearray()
        async with create_task_group() as tasks:
            tasks.start_soon(send)
            while piece := await child.receive():
                text += piece
        assert text == b"".join(b"%d " % number * 50 + b"\n" for number in range(count))


async def test_a_hundred_megabytes_without_a_line_come_in_bounded_pieces() -> None:
    received = 0
    async with children_of(command("one_line", "100")) as children:
        child = await children.start(SHARD)
        while piece := await child.receive():
            assert len(piece) <= 64 * 1024
            received += len(piece)
        assert await child.wait() == 0
    assert received == 100 * MEGABYTE


async def test_a_child_that_is_not_read_waits_and_is_read_later() -> None:
    async with children_of(command("one_line", "2")) as children:
        child = await children.start(SHARD)
        await wait_all_tasks_blocked()
        received = 0
        while piece := await child.receive():
            received += len(piece)
        assert received == 2 * MEGABYTE


async def test_half_a_line_closes_stdin_so_that_the_child_sees_its_end() -> None:
    line = b"x" * (4 * MEGABYTE) + b"\n"
    async with children_of(command("slow_echo")) as children:
        child = await children.start(SHARD)
        async with create_task_group() as tasks:
            tasks.start_soon(child.send, line)
            assert await child.receive()
            await wait_all_tasks_blocked()  # nobody reads on, so both sides are stuck
            tasks.cancel_scope.cancel()
        rest = 0
        while piece := await child.receive():
            rest += len(piece)
        assert 0 < rest < len(line)
        assert await child.wait() == 0
        with pytest.raises(ChildExited):
            await child.send(b"next\n")


async def test_a_send_cancelled_before_its_first_byte_has_sent_nothing() -> None:
    async with children_of(command("echo")) as children:
        child = await children.start(SHARD)
        async with create_task_group() as tasks:
            tasks.cancel_scope.cancel()
            await child.send(b"never sent\n")
        await child.send(b"sent\n")
        assert await receive_line(child) == b"sent\n"


@pytest.mark.parametrize("way", ["close_stdin", "aclose"])
async def test_closing_ends_a_send_and_a_receive_that_wait(way: str) -> None:
    outcomes: list[str] = []

    async def send(child: Child) -> None:
        with pytest.raises(ChildExited) as raised:
            await child.send(b"x" * (4 * MEGABYTE))
        outcomes.append(str(raised.value.doing))

    async def receive(child: Child) -> None:
        outcomes.append(repr(await child.receive()))

    async with children_of(command("deaf")) as children:
        child = await children.start(SHARD)
        async with create_task_group() as tasks:
            tasks.start_soon(send, child)
            if way == "aclose":
                tasks.start_soon(receive, child)
            await wait_all_tasks_blocked()
            await getattr(child, way)()
    assert sorted(outcomes) == (["b''", "send"] if way == "aclose" else ["send"])


async def test_an_empty_send_sends_nothing() -> None:
    async with children_of(command("echo")) as children:
        child = await children.start(SHARD)
        await child.send(b"")
        await child.send(b"one\n")
        assert await receive_line(child) == b"one\n"
