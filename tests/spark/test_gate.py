"""Relays of other hosts: TLS and a token at the gate, bytes both ways through the uplink, and what either refuses."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kcl_daemon.spark.supervisor import engine_options
from kcl_landing.control import Refused, pause
from kcl_landing.records import Message
from kcl_landing.relays import RelayConnection, RelayGone
from kcl_protocol.messages import Status
from kcl_spark.listener import TlsListener, open_tls_listener
from kcl_spark.session import EngineOptions, parse
from kcl_spark.uplink import Uplink, UplinkOptions
from kcl_spark.wire import read_line, write_line
from tests.ports import free_port
from tests.spark.daemon import SETTINGS, wait_for
from tests.spark.parts import Told, no_tell
from tests.unit.transport.certificate import write_certificate

WITHIN_S = 90
TOKEN = "a secret that is long enough"

Serve = Callable[[socket.socket], None]


def options(folder: Path, **more: str) -> EngineOptions:
    """An engine that listens on some port."""
    (folder / "token").write_text(f"{TOKEN}\n")
    return replace(
        parse(engine_options(SETTINGS, folder / "unused")),
        state_dir=str(folder),
        certificate=more.get("certificate", str(write_certificate(folder))),
        token_file=more.get("token_file", str(folder / "token")),
        listen=more.get("listen", "localhost:0"),
    )


@contextmanager
def gate(folder: Path, serve: Serve, reported: Told | None = None) -> Generator[TlsListener]:
    opened = open_tls_listener(options(folder), serve, reported or no_tell)
    assert opened is not None
    try:
        yield opened
    finally:
        opened.close()


def uplink_options(folder: Path, port: int) -> UplinkOptions:
    return UplinkOptions(
        engine=f"localhost:{port}",
        authority=str(folder / "localhost.pem"),
        token_file=str(folder / "token"),
        application="app",
        stream="words",
        socket=str(folder / "s"),
    )


@contextmanager
def uplink(given: UplinkOptions, reported: Told | None = None) -> Generator[tuple[Uplink, threading.Thread]]:
    made = Uplink(given, reported or no_tell)
    running = threading.Thread(target=_run_quietly, args=(made,))
    running.start()
    try:
        wait_for(Path(given.socket).exists, WITHIN_S)
        yield made, running
    finally:
        made.stop()
        running.join(WITHIN_S)


def _run_quietly(made: Uplink) -> None:
    try:
        made.run()
    except Refused:
        return


def relay(folder: Path) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(str(folder / "s"))
    connected.settimeout(WITHIN_S)
    return connected


def echo(connection: socket.socket) -> None:
    """Answer every line until there are no more."""
    with connection, suppress(OSError), connection.makefile("rb") as lines:
        for line in lines:
            connection.sendall(line.upper())


def test_lines_go_both_ways_and_the_engine_sees_the_end(tmp_path: Path) -> None:
    large = b"x" * 3_000_000 + b"\n"
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        echo(connection)
        ended.set()

    with (
        gate(tmp_path, serve) as engine,
        uplink(uplink_options(tmp_path, engine.port)),
        relay(tmp_path) as connected,
        connected.makefile("rb") as lines,
    ):
        sending = threading.Thread(target=connected.sendall, args=(b"one\n" + large,))
        sending.start()
        assert lines.readline() == b"ONE\n"
        assert lines.readline() == large.upper()
        sending.join()
        connected.shutdown(socket.SHUT_WR)
        assert lines.readline() == b""
        assert ended.wait(WITHIN_S)


def test_when_the_engine_goes_the_relay_sees_it(tmp_path: Path) -> None:
    with (
        gate(tmp_path, lambda connection: connection.close()) as engine,
        uplink(uplink_options(tmp_path, engine.port)),
        relay(tmp_path) as connected,
    ):
        assert connected.recv(10) == b""


def test_a_relay_waits_for_an_engine_that_is_not_there_yet(tmp_path: Path) -> None:
    made = options(tmp_path)
    port = free_port()
    with (
        uplink(uplink_options(tmp_path, port)),
        relay(tmp_path) as connected,
        connected.makefile("rb") as lines,
    ):
        connected.sendall(b"early\n")
        pause(0.3)
        opened = open_tls_listener(replace(made, listen=f"localhost:{port}"), echo, no_tell)
        assert opened is not None
        assert lines.readline() == b"EARLY\n"
        opened.close()


def test_a_relay_that_leaves_before_the_engine_is_there_is_let_go(tmp_path: Path) -> None:
    options(tmp_path)
    with uplink(uplink_options(tmp_path, free_port())), relay(tmp_path) as connected:
        connected.shutdown(socket.SHUT_WR)
        assert connected.recv(10) == b""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"application": "another"}, "the application of this engine is another"),
        ({"stream": "another"}, "the stream of this engine is another"),
        ({"token_file": "wrong"}, "the token is not that of this engine"),
        ({"authority": ""}, "cannot prove who it is"),
        ({"engine": "127.0.0.1"}, "cannot prove who it is"),
    ],
)
def test_who_does_not_belong_is_refused_on_both_sides(
    change: dict[str, str], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text("another secret of good length")
    if "token_file" in change:
        change = {"token_file": str(tmp_path / "wrong")}
    reported = Told()
    with gate(tmp_path, _never, reported) as engine:
        if "engine" in change:  # the certificate holds another name
            change = {"engine": f"127.0.0.1:{engine.port}"}
        given = replace(uplink_options(tmp_path, engine.port), **change)
        with uplink(given) as (made, running), relay(tmp_path) as connected:
            assert connected.recv(10) == b""
            running.join(WITHIN_S)
            assert made.refusal is not None
            assert reason in str(made.refusal)
        wait_for(lambda: reported.has("relay_refused"), WITHIN_S)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b'"a"\n', b"x" * 5_000])
def test_nothing_of_what_a_stranger_says_reaches_the_engine(said: bytes, tmp_path: Path) -> None:
    reported = Told()
    with gate(tmp_path, _never, reported) as engine:
        context = ssl.create_default_context(cafile=str(tmp_path / "localhost.pem"))
        with (
            socket.create_connection(("localhost", engine.port), timeout=WITHIN_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as stranger,
        ):
            if said:
                stranger.sendall(said)
            else:
                stranger.close()
            wait_for(lambda: reported.has("relay_refused"), WITHIN_S)


def test_without_tls_nothing_is_heard_at_all(tmp_path: Path) -> None:
    reported = Told()
    with (
        gate(tmp_path, _never, reported) as engine,
        socket.create_connection(("localhost", engine.port), timeout=WITHIN_S) as plain,
    ):
        plain.sendall(write_line({"token": TOKEN, "application": "app", "stream": "words"}))
        wait_for(lambda: reported.has("relay_refused"), WITHIN_S)
        with pytest.raises((OSError, ValueError)):
            read_line(plain)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token_file": "nowhere"}, "sparkEngineTokenFile"),
        ({"token_file": "short"}, "at least 16"),
        ({"certificate": "short"}, "PEM files"),
        ({"listen": "203.0.113.1:1"}, "sparkEngineListen"),
    ],
)
def test_what_cannot_be_used_is_named(change: dict[str, str], reason: str, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("secret")
    if change.get("listen") is None:
        change = {name: str(tmp_path / value) for name, value in change.items()}
    with pytest.raises(Refused, match=reason):
        open_tls_listener(options(tmp_path, **change), _never, no_tell)


def test_the_uplink_is_a_program_like_the_engine(tmp_path: Path) -> None:
    """The daemon starts either in the same way, and heeds the same events and exit codes."""
    with gate(tmp_path, _never) as engine:
        given = replace(uplink_options(tmp_path, engine.port), application="another")
        reported = asdict(given)
        running = subprocess.Popen(
            [sys.executable, "-m", "kcl_spark.uplink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(json.dumps(reported).encode() + b"\n")
        running.stdin.flush()
        assert json.loads(running.stdout.readline())["event"] == "engine_ready"
        with relay(tmp_path) as connected:
            assert connected.recv(10) == b""
        last = json.loads(running.stdout.readlines()[-1])
        assert running.wait(WITHIN_S) == 78
        assert last["event"] == "engine_refused"
        running.stdin.close()
        running.stdout.close()


def test_half_a_line_of_a_relay_that_was_killed_is_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b'{"action":"initialize"}\n{"action":"processRec')
        theirs.close()
        relayed = RelayConnection(ours)
        assert [relayed.receive(), relayed.receive()] == [Message("initialize"), None]
        with pytest.raises(RelayGone):
            relayed.send(Status("initialize"))


def _never(_connection: socket.socket) -> None:
    raise AssertionError("a stranger was let in")
