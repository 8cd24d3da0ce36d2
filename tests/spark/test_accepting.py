"""Relays come in again after a lack of descriptors or threads, and with descriptors of any number."""

from __future__ import annotations

import errno
import fcntl
import resource
import socket
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest

from kcl_landing.relays import RelayListener
from kcl_spark.conversation import RelayConversation, ShardState
from kcl_spark.uplink import pump
from tests.spark.daemon import wait_for
from tests.spark.parts import Told
from tests.spark.test_gate import echo, gate, relay, uplink, uplink_options

WITHIN_S = 30
BEYOND_SELECT = 1_100
"""A descriptor that select() does not know."""


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcl_spark.wire._PAUSE_S", 0.01)


def fails_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception, where: type, name: str, thread: str
) -> None:
    """Have a method fail the first time that it is called in, or of, a thread of this name."""
    real: Callable[..., Any] = getattr(where, name)
    left = [error]

    def call(self: Any, *given: Any) -> Any:
        of = self.name if isinstance(self, threading.Thread) else threading.current_thread().name
        if of == thread and left:
            raise left.pop()
        return real(self, *given)

    monkeypatch.setattr(where, name, call)


def no_descriptors(monkeypatch: pytest.MonkeyPatch, thread: str) -> None:
    error = OSError(errno.EMFILE, "Too many open files")
    fails_once(monkeypatch, error, socket.socket, "accept", thread)


def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_once(
        monkeypatch, RuntimeError("can't start new thread"), threading.Thread, "start", thread="kcl-shard"
    )


def speaks(folder: Path) -> bool:
    """Whether a relay is served."""
    with relay(folder) as connected, connected.makefile("rb") as lines:
        connected.settimeout(WITHIN_S)
        connected.sendall(b"one\n")
        return lines.readline() == b"ONE\n"


@pytest.mark.parametrize("thread", ["kcl-accept", "kcl-gate"])
def test_a_moment_without_descriptors_ends_neither_the_gate_nor_the_uplink(
    thread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_descriptors(monkeypatch, thread)
    reported = Told()
    with gate(tmp_path, echo, reported) as engine, uplink(uplink_options(tmp_path, engine.port), reported):
        assert speaks(tmp_path)
    assert reported.has("relay_not_accepted")


def test_a_moment_without_threads_costs_one_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_threads(monkeypatch)
    reported = Told()
    with gate(tmp_path, echo, reported) as engine, uplink(uplink_options(tmp_path, engine.port), reported):
        with relay(tmp_path) as connected:
            assert connected.recv(10) == b""
        assert speaks(tmp_path)
    assert reported.events.count("relay_not_accepted") == 1


@pytest.mark.parametrize("lacks", ["descriptors", "threads"])
def test_a_moment_without_either_does_not_end_the_listener(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacks == "threads":
        no_threads(monkeypatch)
    else:
        no_descriptors(monkeypatch, "kcl-accept")
    reported = Told()
    served = threading.Event()
    failures: list[Exception] = []

    class Talk:
        """As much of a conversation as this needs."""

        state = ShardState()

        def run(self) -> None:
            served.set()

    def converse(_relay: object) -> RelayConversation:
        return cast("RelayConversation", Talk())

    listener = RelayListener(tmp_path / "s", converse, reported, failures.append)
    with relay(tmp_path):
        if lacks == "threads":
            wait_for(lambda: reported.has("relay_not_accepted"), WITHIN_S)
            relay(tmp_path).close()
        assert served.wait(WITHIN_S)
    listener.close()
    assert reported.has("relay_not_accepted")
    assert failures == []


class Plain(socket.socket):
    """A connection without TLS where one with it is expected."""

    def pending(self) -> int:
        """Nothing is decrypted ahead."""
        return 0


@pytest.fixture
def many_descriptors() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_bytes_go_both_ways_whatever_the_numbers_of_the_descriptors() -> None:
    daemon, near = socket.socketpair()
    far, engine = socket.socketpair()
    with near, far:
        high = [
            Plain(fileno=fcntl.fcntl(each.fileno(), fcntl.F_DUPFD_CLOEXEC, BEYOND_SELECT))
            for each in (near, far)
        ]
    running = threading.Thread(target=pump, args=(high[0], high[1]))
    with daemon, engine, high[0], high[1]:
        running.start()
        daemon.settimeout(WITHIN_S)
        engine.settimeout(WITHIN_S)
        daemon.sendall(b"to the engine")
        assert engine.recv(100) == b"to the engine"
        engine.sendall(b"and back")
        assert daemon.recv(100) == b"and back"
        daemon.close()
        running.join(WITHIN_S)
        assert not running.is_alive()
