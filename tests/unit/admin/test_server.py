"""The server against callers good, bad, slow and many; in virtual time, without a socket."""

from __future__ import annotations

from http import HTTPStatus

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.admin.server import MAX_HEAD_BYTES, AdminServer, ServerLimits
from kcl_daemon.admin.site import AdminRequest, AdminResponse, plain
from tests.examples import examples
from tests.simulator.loop import run_virtual
from tests.unit.admin.stage import calmly
from tests.unit.admin.wire import Wire
from tests.unit.fakes import LoopClock, MemoryLog

GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIMITS = ServerLimits(max_connections=3, head_within_s=10.0, sent_within_s=20.0)


class Echo:
    """Tells what was asked for; remembers it."""

    def __init__(self) -> None:
        self.asked: list[AdminRequest] = []

    async def answer(self, request: AdminRequest) -> AdminResponse:
        self.asked.append(request)
        if request.path == "/fault":
            raise ValueError("of ours")
        return plain(HTTPStatus.OK, f"{request.method} {request.path}")


def talk(*wires: Wire) -> tuple[Echo, MemoryLog, float]:
    """Let the server talk with these callers; what it was asked, what it logged, how long it took."""
    echo, log = Echo(), MemoryLog()

    async def main() -> float:
        server = AdminServer(echo.answer, clock=LoopClock(), log=log, limits=LIMITS)
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
    assert echo.asked == [AdminRequest("GET", "/livez", host="localhost")]


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
    assert echo.asked == [AdminRequest("GET", "/metrics", "h", "Bearer t", "x/y")]


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
def test_a_malformed_request_is_refused_and_ends_the_connection(said: bytes, status: int) -> None:
    wire = Wire(said)
    echo, log, _ = talk(wire)
    ((found, headers, body),) = wire.answers()
    assert (found, headers["connection"]) == (status, "close")
    assert body.endswith(b"\n")
    assert echo.asked == []
    assert log.events("error") == []


@pytest.mark.parametrize("more", [b"", GET, b"\x16\x03"])
def test_who_wants_a_tunnel_is_told_that_there_is_none(more: bytes) -> None:
    """h11 would take a good answer for the beginning of another protocol."""
    wire = Wire(b"CONNECT x:1 HTTP/1.1\r\nHost: a\r\n\r\n" + more)
    echo, log, _ = talk(wire)
    ((status, headers, _),) = wire.answers()
    assert (status, headers["allow"], headers["connection"]) == (405, "GET, HEAD", "close")
    assert (echo.asked, log.events("error")) == ([], [])


@pytest.mark.parametrize(
    "body", [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
)
def test_a_refusal_of_head_has_no_body(body: bytes) -> None:
    wire = Wire(b"HEAD / HTTP/1.1\r\nHost: a\r\n" + body)
    _, log, _ = talk(wire)
    ((status, headers, empty),) = wire.answers("HEAD")
    assert (status, headers["connection"], empty) == (400, "close", b"")
    assert log.events("error") == []


@pytest.mark.parametrize(("more", "status"), [(b"\x00 no request\r\n\r\n", 400), (b"GET / HT", 408)])
def test_a_bad_request_after_head_is_answered_with_a_body(more: bytes, status: int) -> None:
    wire = Wire(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" + more)
    _, log, _ = talk(wire)
    _, (found, _, body) = wire.answers("HEAD", "GET")
    assert (found, body != b"") == (status, True)
    assert log.events("error") == []


def test_a_head_without_end_is_cut_off() -> None:
    line = b"X-Long: " + b"x" * 8000 + b"\r\n"
    wire = Wire(b"GET / HTTP/1.1\r\nHost: a\r\n", *[line] * 8)
    talk(wire)
    ((status, _, _),) = wire.answers()
    assert status == 431
    assert len(line) * 8 > MAX_HEAD_BYTES


@given(st.lists(st.binary(min_size=1, max_size=60) | st.sampled_from([GET, b"\r\n", b"GET /"]), max_size=6))
@calmly(max_examples=examples(100))
def test_a_connection_with_any_bytes_ends_in_time_without_an_error(said: list[bytes]) -> None:
    wire = Wire(*said, finish=True)
    _, log, took_s = talk(wire)
    assert log.events("error") == []
    assert took_s <= LIMITS.head_within_s + LIMITS.sent_within_s


def request_line(method: str, target: str, version: str) -> bytes:
    return f"{method} {target} HTTP/{version}\r\n".encode()


REQUEST_LINES = st.builds(
    request_line,
    st.sampled_from(["GET", "HEAD", "CONNECT", "OPTIONS"]),
    st.sampled_from(["/livez", "*", "x:1", "http://a/"]),
    st.sampled_from(["1.1", "1.0", "0.9", "2.0"]),
)
FRAGMENTS = REQUEST_LINES | st.sampled_from(
    [
        b"Host: a\r\n",
        b"Connection: close\r\n",
        b"Connection: keep-alive, upgrade\r\n",
        b"Upgrade: websocket\r\n",
        b"Expect: 100-continue\r\n",
        b"Content-Length: 3\r\n",
        b"Content-Length: 0\r\n",
        b"Content-Length: " + b"9" * 30 + b"\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Authorization: Basic \xff\r\n",
        b" folded\r\n",
        b"\r\n",
        b"\n",
        b"abc",
        b"0\r\n\r\n",
        b"\x00",
    ]
)
WHOLE = st.tuples(REQUEST_LINES, st.lists(FRAGMENTS, max_size=3)).map(
    lambda parts: parts[0] + b"Host: a\r\n" + b"".join(parts[1]) + b"\r\n"
)


@given(st.lists(FRAGMENTS | WHOLE, max_size=8), st.booleans())
@calmly(max_examples=examples(300))
def test_odd_requests_are_answered_without_an_error_in_the_log(said: list[bytes], finish: bool) -> None:
    wire = Wire(*said, finish=finish)
    _, log, _ = talk(wire)
    assert log.events("error") == []
    assert not wire.heard or wire.heard.startswith(b"HTTP/1.1 ")


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


def staged(*steps: tuple[float, Wire], echo: Echo | None = None) -> tuple[Echo, MemoryLog, list[Wire]]:
    """Let callers come one after the other, each after so many seconds; which the server has closed when the last is done."""
    echo, log, closed = echo or Echo(), MemoryLog(), list[Wire]()

    async def main() -> None:
        server = AdminServer(echo.answer, clock=LoopClock(), log=log, limits=LIMITS)
        async with anyio.create_task_group() as group:
            for pause_s, wire in steps:
                await anyio.sleep(pause_s)
                group.start_soon(server.converse, wire)
            await anyio.sleep(0.5)
            closed.extend(wire for _, wire in steps if wire.closed)
            group.cancel_scope.cancel()

    run_virtual(main)
    return echo, log, closed


def test_where_all_is_full_who_keeps_it_waiting_longest_makes_room() -> None:
    """Or whoever reaches the port could keep the probes from their answer, and the daemon would be killed for that."""
    slow = Wire(b"GET / HT")  # a part of a head is none
    slow.say(b"TP/1.1\r\n")
    first, second = Wire(), Wire()
    probe = Wire(GET, finish=True)
    _, log, closed = staged((0, slow), (1, first), (1, second), (1, probe))
    assert probe.answers()[0][0] == 200
    assert closed == [slow, probe]
    assert slow.heard == b""
    assert log.events("error") == []


def test_who_does_not_take_an_answer_makes_room_as_well() -> None:
    deaf = [Wire(GET) for _ in range(LIMITS.max_connections)]
    for wire in deaf:
        wire.stuck = True
    probe = Wire(GET, finish=True)
    _, _, closed = staged(*((1.0, wire) for wire in deaf), (1, probe))
    assert probe.answers()[0][0] == 200
    assert closed == [deaf[0], probe]


def test_nobody_from_elsewhere_puts_out_who_is_on_this_machine() -> None:
    here = [Wire(peer="127.0.0.1"), Wire(peer="::1")]
    there = [Wire(peer="10.1.2.3"), Wire(peer="fe80::1%eth0"), Wire(peer="10.1.2.3")]
    _, _, closed = staged(*((0.1, wire) for wire in (*here, *there)))
    assert closed == there[:2]
    late = Wire(GET, finish=True, peer="10.1.2.3")
    here = [Wire(peer="127.0.0.1") for _ in range(LIMITS.max_connections)]
    _, _, closed = staged(*((0.1, wire) for wire in (*here, late)))
    ((status, headers, _),) = late.answers()
    assert (status, headers["retry-after"], headers["connection"]) == (503, "5", "close")
    probe = Wire(GET, finish=True, peer="127.0.0.1")
    here = [Wire(peer="127.0.0.1") for _ in range(LIMITS.max_connections)]
    _, _, closed = staged(*((0.1, wire) for wire in (*here, probe)))
    assert probe.answers()[0][0] == 200
    assert closed == [here[0], probe]


def test_whose_answer_is_being_made_stays_and_others_are_turned_away() -> None:
    class Slow(Echo):
        async def answer(self, request: AdminRequest) -> AdminResponse:
            if request.path == "/livez":
                await anyio.sleep(60)
            return await super().answer(request)

    asking = [Wire(GET) for _ in range(LIMITS.max_connections)]
    late = Wire(b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n", finish=True)
    echo, _, closed = staged(*((0.1, wire) for wire in (*asking, late)), echo=Slow())
    assert late.answers()[0][0] == 503
    assert closed == [late]
    assert echo.asked == []


def test_a_caller_that_goes_makes_room_for_the_next() -> None:
    patient = Wire()  # who would be put out first if those who have gone kept their places
    callers = [Wire(GET, finish=True) for _ in range(2 * LIMITS.max_connections)]
    _, _, closed = staged((0, patient), *((0.1, wire) for wire in callers))
    assert [wire.answers()[0][0] for wire in callers] == [200] * len(callers)
    assert closed == callers


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
