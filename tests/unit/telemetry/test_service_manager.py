"""The service manager is told over a real datagram socket; time is virtual."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from kcl_daemon.cli.run import START_EXTENDED_S, ServiceManaged, ServiceManager
from kcl_daemon.telemetry.snapshot import Snapshot
from tests.simulator.loop import run_virtual
from tests.unit.admin.stage import READING, READY, STALLED
from tests.unit.fakes import LoopClock, MemoryLog

EXTENDS = f"EXTEND_TIMEOUT_USEC={START_EXTENDED_S * 1e6:.0f}"


class Manager:
    """The other end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def heard(self) -> list[str]:
        """The first line of all that came since the last time."""
        found: list[str] = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode("ascii").partition("\n")[0])
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Manager]:
    is_path = request.param == "path"
    found = Manager(str(tmp_path / "n") if is_path else f"@kcl-test-{os.getpid()}-{tmp_path.name}")
    yield found
    found.close()


def told_of(environment: dict[str, str]) -> tuple[ServiceManager, MemoryLog]:
    log = MemoryLog()
    return ServiceManager.of(environment, log, pid=77), log


def test_the_service_manager_is_told_ready_alive_and_stopping(manager: Manager) -> None:
    reported, log = told_of({"NOTIFY_SOCKET": manager.address})
    reported.alive()
    reported.ready()
    reported.alive()
    reported.stopping()
    assert manager.heard() == [EXTENDS, "READY=1", "WATCHDOG=1", "STOPPING=1"]
    assert log.lines == []


def test_children_do_not_inherit_its_variables() -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "77", "PATH": "/bin"}
    told_of(environment)
    assert environment == {"PATH": "/bin"}


def test_without_a_manager_nothing_is_said_and_nothing_is_wrong() -> None:
    reported, log = told_of({})
    reported.ready()
    reported.alive()
    reported.stopping()
    assert log.lines == []


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative"])
def test_a_socket_that_is_not_of_this_machine_is_reported_and_not_used(address: str) -> None:
    reported, log = told_of({"NOTIFY_SOCKET": address})
    reported.ready()
    assert [(level, event) for level, event, _ in log.lines] == [("warning", "service_manager_not_notified")]


def test_a_manager_that_is_gone_is_a_warning(tmp_path: Path) -> None:
    reported, log = told_of({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    reported.ready()
    assert [event for _, event, _ in log.lines] == ["service_manager_not_notified"]


@pytest.mark.parametrize(
    ("more", "pings"),
    [
        ({"WATCHDOG_USEC": "10000000"}, 4),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "77"}, 4),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "78"}, 1),
        ({"WATCHDOG_USEC": "0"}, 1),
        ({"WATCHDOG_USEC": "soon"}, 1),
        ({}, 1),
    ],
)
def test_pings_come_twice_in_each_period(manager: Manager, more: dict[str, str], pings: int) -> None:
    reported, _ = told_of({"NOTIFY_SOCKET": manager.address, **more})

    async def some_time() -> None:
        reported.ready()
        with anyio.move_on_after(START_EXTENDED_S / 3 - 1):
            await reported.run_watchdog(LoopClock())

    run_virtual(some_time)
    assert manager.heard() == ["READY=1", *["WATCHDOG=1"] * pings]


class Work:
    """Starts late and ends when it is asked to."""

    def __init__(self, starts_after_s: float, fails: Exception | None = None) -> None:
        self.started = anyio.Event()
        self._starts_after_s = starts_after_s
        self._fails = fails
        self._asked = anyio.Event()

    async def run(self) -> None:
        await anyio.sleep(self._starts_after_s)
        self.started.set()
        if self._fails is not None:
            raise self._fails
        await self._asked.wait()

    def request_stop(self) -> None:
        self._asked.set()


def managed(
    work: Work, manager: ServiceManager, log: MemoryLog, snapshot: Snapshot = READY
) -> ServiceManaged:
    return ServiceManaged(
        work,
        started=work.started,
        manager=manager,
        clock=LoopClock(),
        snapshot=lambda: snapshot,
        grace_s=20,
        log=log,
    )


def stop_in(seconds: float, snapshot: Snapshot) -> MemoryLog:
    """The log of a worker whose stop takes so long."""
    reported, _ = told_of({})
    log = MemoryLog()

    class Slow(Work):
        async def run(self) -> None:
            await super().run()
            await anyio.sleep(seconds)

    async def a_life() -> None:
        work = Slow(starts_after_s=0)
        runnable = managed(work, reported, log, snapshot)
        async with anyio.create_task_group() as group:
            group.start_soon(runnable.run)
            await anyio.sleep(1)
            runnable.request_stop()

    run_virtual(a_life)
    return log


def test_a_stop_that_waits_says_for_whom() -> None:
    two = replace(READING, shard_id="shardId-000000000007")
    for shards, reason in (
        ((READING, STALLED), "up to 20 s for 1 child (shard 1)"),
        ((READING, two), "up to 20 s for 2 children (shards 1 and 7)"),
    ):
        ((level, event, fields),) = stop_in(5, replace(READY, shards=shards)).lines
        assert (level, event, fields["reason"]) == ("info", "stop_waits", reason)
        assert fields["advice"] == "press Ctrl-C again to end it now"


def test_a_quick_stop_and_one_without_children_say_nothing() -> None:
    assert stop_in(0.5, READY).lines == []
    assert stop_in(5, replace(READY, shards=(STALLED,))).lines == []


def test_a_long_start_asks_for_time_and_the_stop_is_reported(manager: Manager) -> None:
    reported, _ = told_of({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000000"})

    async def a_life() -> None:
        work = Work(starts_after_s=50)
        runnable = managed(work, reported, MemoryLog())
        async with anyio.create_task_group() as group:
            group.start_soon(runnable.run)
            await anyio.sleep(65)
            runnable.request_stop()

    run_virtual(a_life)
    # At 0, 15, 30 and 45 s; then the start; then at 60 s.
    assert manager.heard() == [*[EXTENDS] * 4, "READY=1", "WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_worker_that_fails_fails(tmp_path: Path) -> None:
    reported, _ = told_of({})

    async def a_life() -> None:
        work = Work(starts_after_s=1, fails=ValueError("no table"))
        await managed(work, reported, MemoryLog()).run()

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="no table")):
        run_virtual(a_life)
