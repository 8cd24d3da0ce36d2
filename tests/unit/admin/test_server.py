"""The server against callers good, bad, slow and many; in virtual time, without a socket."""

from __future__ import annotations

from http import HTTPStatus

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.admin.access import Answer, Request, plain
from kcl_daemon.admin.server import HEAD_BYTES_MOST, Limits, Server
from tests.simulator.loop import run_virtual
from tests.unit.admin.stage import calmly
from tests.unit.admin.wire import Wire
from tests.unit.fakes import LoopClock, MemoryLog

GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIMITS = Limits(connections_most=3, head_within_s=10.0, sent_within_s=20.0)


class Echo:
    """Tells what was asked for; remembers it."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        if request.path == "/fault":
            raise ValueError("of ours")
        return plain(HTTPStatus.OK, f"{request.method} {request.path}")


def talk(*wires: Wire) -> tuple[Echo, MemoryLog, float]:
    """Let the server talk with these callers; what it was asked, what it logged, how long it took."""
    echo, log = Echo(), MemoryLog()

    async def main() -> float:
        server = Server(echo.answer, clock=LoopClock(), log=log, limits=LIMITS)
        began_s = anyio.current_time()
        async with anyio.create_task_group() as group:
            for wire in wires:
                group.start_soon(server.converse, wire)
        return anyio.current_time() - began_s

    took_s = run_virtual(main)
    assert all(wire.closed for wire in wires)
    return echo, log, took_s


def test_a_request_is_answered_with_what_keeps_browsers_careful() -> None:
    wire = Wire(GET, finish=True)
    echo, _, _ = talk(wire)
    ((status, headers, body),) = wire.answers()
    assert (status, body) == (200, b"GET /livez\n")
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert not {"set-cookie", "server", "access-control-allow-origin"} & set(headers)
    assert echo.asked == [Request("GET", "/livez", host="localhost")]


def test_a_connection_serves_many_requests_however_they_are_cut() -> None:
    whole = GET * 3
    wire = Wire(*(whole[start : start + 7] for start in range(0, len(whole), 7)), finish=True)
    talk(wire)
    assert [status for status, _, _ in wire.answers("GET", "GET", "GET")] == [200, 200, 200]


def test_head_gets_the_head_alone() -> None:
    wire = Wire(b"HEAD /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET, finish=True)
    talk(wire)
    (_, head, empty), (_, _, body) = wire.answers("HEAD", "GET")
    assert (head["content-length"], empty, body) == ("12", b"", b"GET /livez\n")


def test_the_query_is_passed_over_and_the_headers_that_count_are_passed_on() -> None:
    wire = Wire(
        b"GET /metrics?a=b HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer t\r\nAccept: x/y\r\n\r\n", finish=True
    )
    echo, _, _ = talk(wire)
    assert echo.asked == [Request("GET", "/metrics", "h", "Bearer t", "x/y")]


def test_a_caller_of_http_1_0_is_answered_and_done() -> None:
    wire = Wire(b"GET /livez HTTP/1.0\r\n\r\n")
    _, _, took_s = talk(wire)
    ((status, headers, _),) = wire.answers()
    assert (status, headers["connection"], took_s) == (200, "close", 0.0)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"no HTTP at all\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # without a host
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ],
)
def test_what_is_no_request_is_refused_and_ends_the_connection(said: bytes, status: int) -> None:
    wire = Wire(said)
    echo, log, _ = talk(wire)
    ((found, headers, body),) = wire.answers()
    assert (found, headers["connection"]) == (status, "close")
    assert body.endswith(b"\n")
    assert echo.asked == []
    assert log.events("error") == []


def test_a_head_without_end_is_cut_off() -> None:
    line = b"X-Long: " + b"x" * 8000 + b"\r\n"
    wire = Wire(b"GET / HTTP/1.1\r\nHost: a\r\n", *[line] * 8)
    talk(wire)
    ((status, _, _),) = wire.answers()
    assert status == 431
    assert len(line) * 8 > HEAD_BYTES_MOST


@given(st.lists(st.binary(min_size=1, max_size=60) | st.sampled_from([GET, b"\r\n", b"GET /"]), max_size=6))
@calmly(max_examples=100)
def test_no_bytes_whatever_raise_or_hang(said: list[bytes]) -> None:
    wire = Wire(*said, finish=True)
    _, log, took_s = talk(wire)
    assert log.events("error") == []
    assert took_s <= LIMITS.head_within_s + LIMITS.sent_within_s


def test_a_caller_that_says_nothing_is_left_after_a_while_without_a_word() -> None:
    wire = Wire()
    _, _, took_s = talk(wire)
    assert (took_s, wire.heard) == (LIMITS.head_within_s, b"")


def test_a_caller_that_does_not_come_to_an_end_is_told_so() -> None:
    wire = Wire(GET, b"GET / HTT")
    _, _, took_s = talk(wire)
    first, second = wire.answers("GET", "GET")
    assert (first[0], second[0]) == (200, 408)
    assert LIMITS.head_within_s <= took_s <= LIMITS.head_within_s + 1


def test_a_caller_that_does_not_read_is_left_after_a_while() -> None:
    wire = Wire(GET)
    wire.stuck = True
    _, _, took_s = talk(wire)
    assert took_s == LIMITS.sent_within_s


def test_more_callers_than_there_is_room_for_are_turned_away() -> None:
    waiting = [Wire() for _ in range(LIMITS.connections_most)]
    late = Wire(GET)
    echo, _, _ = talk(*waiting, late)
    ((status, headers, _),) = late.answers()
    assert (status, headers["retry-after"]) == (503, "5")
    assert echo.asked == []


def test_a_caller_that_goes_makes_room_for_the_next() -> None:
    wires = [Wire(GET, finish=True) for _ in range(3)]
    for wire in wires:
        talk(wire)
    assert [wire.answers()[0][0] for wire in wires] == [200, 200, 200]


def test_a_fault_of_ours_is_an_answer_and_an_error_in_the_log() -> None:
    wire = Wire(b"GET /fault HTTP/1.1\r\nHost: a\r\n\r\n" + GET, finish=True)
    _, log, _ = talk(wire)
    first, second = wire.answers("GET", "GET")
    assert (first[0], second[0]) == (500, 200)
    assert b"of ours" not in wire.heard
    assert log.events("error") == ["status_page_failed"]


def test_a_caller_that_breaks_off_is_no_trouble() -> None:
    class Broken(Wire):
        async def receive(self, max_bytes: int = 65536) -> bytes:
            raise anyio.BrokenResourceError

    _, log, _ = talk(Broken())
    assert log.events("error") == []
