"""What every adapter of the ports `Child` and `Children` promises."""

from __future__ import annotations

import pytest
from anyio import CancelScope, create_task_group, move_on_after, wait_all_tasks_blocked

from kcl_daemon.errors import ChildExited, ChildStartFailed
from kcl_daemon.ports import Child
from tests.contract.children_backends import BACKENDS, ChildrenBackend, Program
from tests.process.children.support import SHARD, drained, receive_line

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

MEGABYTE = 1_000_000


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> ChildrenBackend:
    found = request.param
    assert isinstance(found, ChildrenBackend)
    return found


@pytest.fixture
def anyio_backend(backend: ChildrenBackend) -> tuple[str, dict[str, object]]:
    return backend.anyio_backend


async def test_children_have_process_ids_of_their_own(backend: ChildrenBackend) -> None:
    async with backend.open(Program.ECHO) as children:
        one, other = await children.start(SHARD), await children.start(SHARD)
        assert one.pid > 0
        assert other.pid > 0
        assert one.pid != other.pid
        await one.aclose()
        await other.aclose()


async def test_a_program_that_does_not_exist_fails_at_the_start(backend: ChildrenBackend) -> None:
    async with backend.open(Program.MISSING) as children:
        with pytest.raises(ChildStartFailed):
            await children.start(SHARD)


async def test_lines_go_there_and_come_back_in_order(backend: ChildrenBackend) -> None:
    async with backend.open(Program.ECHO) as children:
        child = await children.start(SHARD)
        for number in range(20):
            await child.send(b"line %d\n" % number)
            assert await receive_line(child) == b"line %d\n" % number
        await child.aclose()


async def test_a_line_larger_than_any_pipe_arrives_whole(backend: ChildrenBackend) -> None:
    line = b"x" * (3 * MEGABYTE) + b"\n"
    async with backend.open(Program.ECHO) as children:
        child = await children.start(SHARD)
        async with create_task_group() as tasks:
            tasks.start_soon(child.send, line)
            assert await receive_line(child) == line
        await child.aclose()


async def test_receive_waits_and_loses_nothing_when_cancelled(backend: ChildrenBackend) -> None:
    async with backend.open(Program.ECHO) as children:
        child = await children.start(SHARD)
        async with create_task_group() as tasks:
            tasks.start_soon(child.receive)
            await wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await child.send(b"kept\n")
        assert await receive_line(child) == b"kept\n"
        await child.aclose()


async def test_receive_is_empty_once_the_child_has_ended(backend: ChildrenBackend) -> None:
    async with backend.open(Program.EXIT_3) as children:
        child = await children.start(SHARD)
        assert await child.receive() == b""
        assert await child.receive() == b""
        await child.aclose()
        assert await child.receive() == b""


async def test_receive_is_empty_where_the_child_closed_its_stdout_but_lives(backend: ChildrenBackend) -> None:
    async with backend.open(Program.MUTE) as children:
        child = await children.start(SHARD)
        assert await child.receive() == b""
        await child.send(b"still read\n")
        await child.close_stdin()
        assert await child.wait() == 0
        await child.aclose()


async def test_output_of_a_child_can_be_read_after_its_end(backend: ChildrenBackend) -> None:
    async with backend.open(Program.ECHO) as children:
        child = await children.start(SHARD)
        await child.send(b"last words\n")
        await child.close_stdin()
        assert await child.wait() == 0
        assert await drained(child) == b"last words\n"
        await child.aclose()


async def test_send_waits_while_nobody_reads_and_can_be_cancelled(backend: ChildrenBackend) -> None:
    sent: list[int] = []

    async def send(child: Child) -> None:
        await child.send(b"x" * (3 * MEGABYTE) + b"\n")
        sent.append(1)

    async with backend.open(Program.DEAF) as children:
        child = await children.start(SHARD)
        async with create_task_group() as tasks:
            tasks.start_soon(send, child)
            await wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert not sent
        await child.aclose()
        assert await child.wait() == -9


async def test_nothing_may_follow_half_a_line(backend: ChildrenBackend) -> None:
    async with backend.open(Program.DEAF) as children:
        child = await children.start(SHARD)
        async with create_task_group() as tasks:
            tasks.start_soon(child.send, b"x" * (3 * MEGABYTE) + b"\n")
            await wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        with pytest.raises(ChildExited):
            await child.send(b"next\n")
        await child.aclose()


async def test_send_to_an_ended_child_tells_how_it_ended(backend: ChildrenBackend) -> None:
    async with backend.open(Program.EXIT_3) as children:
        child = await children.start(SHARD)
        await child.wait()
        with pytest.raises(ChildExited) as raised:
            await child.send(b"hello\n")
        assert raised.value.status == 3
        await child.aclose()


async def test_the_end_of_the_child_ends_a_send_that_waits(backend: ChildrenBackend) -> None:
    async with backend.open(Program.DEAF) as children:
        child = await children.start(SHARD)
        async with create_task_group() as tasks:

            async def send() -> None:
                with pytest.raises(ChildExited):
                    await child.send(b"x" * (3 * MEGABYTE) + b"\n")

            tasks.start_soon(send)
            await wait_all_tasks_blocked()
            child.kill()
        await child.aclose()


async def test_the_end_of_stdin_reaches_one_child_only(backend: ChildrenBackend) -> None:
    async with backend.open(Program.ECHO) as children:
        one, other = await children.start(SHARD), await children.start(SHARD)
        await one.close_stdin()
        assert await one.wait() == 0
        await other.send(b"alive\n")
        assert await receive_line(other) == b"alive\n"
        await one.aclose()
        await other.aclose()


async def test_close_stdin_never_raises(backend: ChildrenBackend) -> None:
    async with backend.open(Program.ECHO) as children:
        child = await children.start(SHARD)
        await child.close_stdin()
        await child.close_stdin()
        await child.wait()
        await child.close_stdin()
        await child.aclose()
        await child.close_stdin()


async def test_wait_tells_the_exit_code_every_time(backend: ChildrenBackend) -> None:
    async with backend.open(Program.EXIT_3) as children:
        child = await children.start(SHARD)
        assert await child.wait() == 3
        assert await child.wait() == 3
        await child.aclose()
        assert await child.wait() == 3


async def test_wait_can_be_cancelled_and_harms_nothing(backend: ChildrenBackend) -> None:
    async with backend.open(Program.ECHO) as children:
        child = await children.start(SHARD)
        async with create_task_group() as tasks:
            tasks.start_soon(child.wait)
            await wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await child.send(b"alive\n")
        assert await receive_line(child) == b"alive\n"
        await child.close_stdin()
        assert await child.wait() == 0
        await child.aclose()


async def test_terminate_is_a_signal_the_child_may_die_of(backend: ChildrenBackend) -> None:
    async with backend.open(Program.ECHO) as children:
        child = await children.start(SHARD)
        await child.send(b"up\n")
        await receive_line(child)
        child.terminate()
        assert await child.wait() == -15
        await child.aclose()


async def test_who_ignores_terminate_and_the_end_of_stdin_dies_of_kill(backend: ChildrenBackend) -> None:
    async with backend.open(Program.STUBBORN) as children:
        child = await children.start(SHARD)
        assert await receive_line(child) == b"ready\n"
        await child.close_stdin()
        child.terminate()
        async with create_task_group() as tasks:
            tasks.start_soon(child.wait)
            await wait_all_tasks_blocked()
            child.kill()
        assert await child.wait() == -9
        await child.aclose()


async def test_signals_to_an_ended_child_have_no_effect(backend: ChildrenBackend) -> None:
    async with backend.open(Program.EXIT_3) as children:
        child = await children.start(SHARD)
        await child.wait()
        child.terminate()
        child.kill()
        assert await child.wait() == 3
        await child.aclose()
        child.kill()
        assert await child.wait() == 3


async def test_aclose_kills_reaps_and_may_be_repeated(backend: ChildrenBackend) -> None:
    async with backend.open(Program.STUBBORN) as children:
        child = await children.start(SHARD)
        await receive_line(child)
        await child.aclose()
        await child.aclose()
        assert await child.wait() == -9


async def test_aclose_does_its_work_under_cancellation(backend: ChildrenBackend) -> None:
    async with backend.open(Program.STUBBORN) as children:
        child = await children.start(SHARD)
        await receive_line(child)
        with CancelScope() as scope:
            scope.cancel()
            await child.aclose()
        assert await child.wait() == -9


async def test_the_end_of_the_context_is_the_end_of_its_children(backend: ChildrenBackend) -> None:
    async with backend.open(Program.STUBBORN) as children:
        child = await children.start(SHARD)
        await receive_line(child)
    assert await child.wait() == -9


async def test_a_child_that_reads_has_read_the_first_byte_and_gets_the_line_whole(
    backend: ChildrenBackend,
) -> None:
    async with backend.open(Program.ECHO) as children:
        child = await children.start(SHARD)
        await child.until_reading()
        for line in (b'{"action":"initialize"}\n', b'{"action":"leaseLost"}\n'):
            await child.send(line)
            assert await receive_line(child) == line
        await child.aclose()


async def test_a_child_that_does_not_read_is_waited_for_until_that_is_cancelled(
    backend: ChildrenBackend,
) -> None:
    async with backend.open(Program.DEAF) as children:
        child = await children.start(SHARD)
        with move_on_after(0.5) as scope:
            await child.until_reading()
        assert scope.cancelled_caught
        child.terminate()
        assert await child.wait() == -15
        await child.aclose()
