"""Signals: the first asks the worker to finish, the second ends it at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from signal import SIGHUP, SIGINT, SIGTERM, Signals

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from kcl_daemon.cli.run import SupervisedWorker, supervise
from kcl_daemon.errors import StreamNotFound
from kcl_daemon.ports import Log

pytestmark = pytest.mark.anyio


class Events:
    """A log that remembers."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def bind(self, **fields: object) -> Log:
        return self

    def _keep(self, event: str, /, **fields: object) -> None:
        self.names.append(event)

    debug = info = warning = error = _keep


class Work:
    """Runs until it is asked to stop, and then as long as it needs."""

    def __init__(self, *, needs: anyio.Event | None = None, fails: Exception | None = None) -> None:
        self.running = anyio.Event()
        self.stops = 0
        self.closed = False
        self._asked = anyio.Event()
        self._needs = needs
        self._fails = fails

    async def run(self) -> None:
        self.running.set()
        if self._fails is not None:
            raise self._fails
        await self._asked.wait()
        if self._needs is not None:
            await self._needs.wait()

    def request_stop(self) -> None:
        self.stops += 1
        self._asked.set()

    def open(self, gate: anyio.Event | None = None) -> AbstractAsyncContextManager[SupervisedWorker]:
        @asynccontextmanager
        async def opened() -> AsyncGenerator[SupervisedWorker]:
            try:
                if gate is not None:
                    await gate.wait()
                yield self
            finally:
                self.closed = True

        return opened()


Sender = MemoryObjectSendStream[Signals]
Receiver = MemoryObjectReceiveStream[Signals]


async def outcome(work: Work, *signals: Signals, log: Events | None = None) -> int:
    """The exit code after the worker has started and these signals came."""
    code: list[int] = []
    sender, receiver = anyio.create_memory_object_stream[Signals](10)

    async def go() -> None:
        code.append(await supervise(work.open, receiver, log or Events()))

    with anyio.fail_after(60):
        async with sender, receiver, anyio.create_task_group() as group:
            group.start_soon(go)
            await work.running.wait()
            for number in signals:
                await sender.send(number)
    return code[0]


@pytest.mark.parametrize("number", [SIGTERM, SIGINT, SIGHUP])
async def test_one_signal_stops_gracefully(number: Signals) -> None:
    work, log = Work(), Events()
    assert await outcome(work, number, log=log) == 0
    assert work.stops == 1
    assert work.closed
    assert log.names == ["stop_requested", "daemon_stopped"]


@pytest.mark.parametrize(("number", "code"), [(SIGTERM, 143), (SIGINT, 130), (SIGHUP, 129)])
async def test_a_second_signal_ends_it_at_once_with_its_own_code(number: Signals, code: int) -> None:
    work, log = Work(needs=anyio.Event()), Events()
    assert await outcome(work, SIGHUP, number, log=log) == code
    assert work.stops == 1
    assert work.closed
    assert log.names == ["stop_requested", "stopped_at_once"]


async def test_a_third_signal_changes_nothing() -> None:
    assert await outcome(Work(needs=anyio.Event()), SIGTERM, SIGINT, SIGTERM) == 130


async def test_a_signal_while_the_worker_is_opened_is_kept_for_it() -> None:
    work, gate, log = Work(), anyio.Event(), Events()
    sender, receiver = anyio.create_memory_object_stream[Signals](10)
    with anyio.fail_after(60):
        async with sender, receiver, anyio.create_task_group() as group:

            async def go() -> None:
                assert await supervise(lambda: work.open(gate), receiver, log) == 0

            group.start_soon(go)
            await sender.send(SIGTERM)
            await anyio.wait_all_tasks_blocked()
            assert log.names == ["stop_requested"]
            gate.set()
    assert work.stops == 1


async def test_a_worker_that_fails_is_an_error_that_says_why() -> None:
    work = Work(fails=StreamNotFound("no stream", operation="DescribeStreamSummary"))
    with pytest.RaisesGroup(pytest.RaisesExc(StreamNotFound, match="no stream"), flatten_subgroups=True):
        await outcome(work)
    assert work.closed
