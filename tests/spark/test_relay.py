"""The relay as a process: passes everything on, stays small, and ends with either side."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import kcl_landing
from kcl_landing.relay import CLOSED, EXIT_ENGINE_GONE

RELAY = Path(kcl_landing.__file__).with_name("relay.py")
MOST_BYTES = 15 * 1024 * 1024


class Pair:
    """A relay between this test as the daemon and this test as the engine."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "engine"
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", RELAY, self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def accept(self) -> socket.socket:
        """Be an engine that starts after the relay."""
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.listener.settimeout(90)
        engine, _ = self.listener.accept()
        engine.settimeout(90)
        return engine

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait(90)
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.listener.close()


@pytest.fixture
def pair(tmp_path: Path) -> Generator[Pair, None, None]:
    made = Pair(tmp_path)
    yield made
    made.end()


def test_lines_pass_both_ways_and_memory_stays_small(pair: Pair) -> None:
    with pair.accept() as engine:
        line = b"x" * 8_000_000 + b"\n"
        process = psutil.Process(pair.process.pid)
        with ThreadPoolExecutor(1) as daemon:
            sent = daemon.submit(pair.send, line)
            received = 0
            while received < len(line):
                received += len(engine.recv(1024 * 1024))
            sent.result(90)
        engine.sendall(b"status\n")
        assert pair.process.stdout is not None
        assert pair.process.stdout.readline() == b"status\n"
        assert process.memory_info().rss < MOST_BYTES


def test_it_waits_for_an_engine_and_ends_with_the_daemon(pair: Pair) -> None:
    pair.send(b"early\n")
    with pair.accept() as engine:
        assert engine.recv(100) == b"early\n"
        pair.close_stdin()
        assert engine.recv(100) == b""
    assert pair.process.wait(90) == 0


def test_it_says_when_the_engine_is_gone(pair: Pair) -> None:
    with pair.accept():
        pair.send(b"a line\n")
    assert pair.process.wait(90) == EXIT_ENGINE_GONE


def test_it_does_not_wait_for_an_engine_that_will_not_come(pair: Pair) -> None:
    pair.path.with_suffix(CLOSED).touch()
    assert pair.process.wait(90) == 0


def test_without_an_engine_it_ends_with_the_daemon(pair: Pair) -> None:
    pair.close_stdin()
    assert pair.process.wait(90) == 0
