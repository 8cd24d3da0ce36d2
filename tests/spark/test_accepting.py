"""Relays come in again after a lack of descriptors or threads."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kcl_landing.records import Message
from kcl_landing.relays import RelayConnection, RelayGone, RelayListener
from kcl_protocol.messages import Status
from kcl_spark.conversation import RelayConversation, ShardState
from tests.spark.daemon import wait_for
from tests.spark.parts import Told

WITHIN_S = 30


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcl_landing.relays._PAUSE_S", 0.01)


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


def test_half_a_line_of_a_relay_that_was_killed_is_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b'{"action":"initialize"}\n{"action":"processRec')
        theirs.close()
        relayed = RelayConnection(ours)
        assert [relayed.receive(), relayed.receive()] == [Message("initialize"), None]
        with pytest.raises(RelayGone):
            relayed.send(Status("initialize"))


def relay(folder: Path) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(str(folder / "s"))
    return connected


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
