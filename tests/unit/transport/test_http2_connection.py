"""Many streams on one connection: what breaks or holds up one of them, and what all of them. In virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import anyio
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as some

from kcl_daemon.transport.connection import ConnectionBroken
from kcl_daemon.transport.frames import Event, FrameReader
from kcl_daemon.transport.http2_connection import (
    CONNECTION_WINDOW_BYTES,
    PING_S,
    STREAM_WINDOW_BYTES,
    Http2Connection,
    NotHttp2,
)
from kcl_daemon.transport.http2_stream import Http2Stream, Unprocessed
from kcl_local.kinesis.frames import event_frame
from tests.simulator.loop import run_virtual
from tests.unit.transport.http2_peer import HEADERS, OK, Peer, Socket

MIB = 2**20


async def one(stream: Http2Stream) -> bytes:
    """The next piece of a body."""
    async with aclosing(stream.pieces()) as pieces:
        return await anext(pieces)


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test)

    run.__name__ = test.__name__
    return run


@in_virtual_time
async def test_who_takes_nothing_holds_up_only_his_own_stream() -> None:
    peer = Peer()
    # All that they leave lying is more than the connection's window.
    slow = [peer.open() for _ in range(CONNECTION_WINDOW_BYTES // STREAM_WINDOW_BYTES + 8)]
    for stream in slow:
        assert peer.push(stream, bytes(MIB)) == STREAM_WINDOW_BYTES

    fast, got = peer.open(), 0
    while got < 2 * CONNECTION_WINDOW_BYTES:
        assert peer.push(fast, bytes(STREAM_WINDOW_BYTES // 2)) == STREAM_WINDOW_BYTES // 2
        got += len(await one(fast))
        peer.talk()
    assert peer.push(slow[0], b"x") == 0

    assert len(await one(slow[0])) == STREAM_WINDOW_BYTES
    peer.talk()
    assert peer.push(slow[0], bytes(MIB)) == STREAM_WINDOW_BYTES


@in_virtual_time
async def test_streams_that_are_left_take_nothing_of_the_connections_window_with_them() -> None:
    peer = Peer()
    for _ in range(3 * CONNECTION_WINDOW_BYTES // STREAM_WINDOW_BYTES):
        stream = peer.open()
        peer.h2.send_data(stream.number, bytes(250_000))
        peer.connection.leave(stream)  # before that has come
        peer.talk()
        assert peer.resets()[-1] == stream.number
    assert peer.h2.outbound_flow_control_window > CONNECTION_WINDOW_BYTES // 8
    assert peer.push(peer.open(), b"more") == 4


@in_virtual_time
async def test_a_reset_breaks_one_stream_after_what_came_before() -> None:
    peer = Peer()
    broken, other = peer.open(), peer.open()
    peer.push(broken, b"before")
    peer.h2.reset_stream(broken.number, ErrorCodes.INTERNAL_ERROR)
    peer.talk()
    peer.push(other, b"after")

    assert await one(broken) == b"before"
    with pytest.raises(ConnectionBroken, match="INTERNAL_ERROR") as raised:
        await one(broken)
    assert not isinstance(raised.value, Unprocessed)
    assert await one(other) == b"after"


@in_virtual_time
async def test_a_request_that_was_refused_may_be_sent_again_elsewhere() -> None:
    peer = Peer()
    stayed = peer.open()
    refused = peer.connection.open(HEADERS, b"{}", silence_s=30.0)
    peer.talk()
    peer.h2.reset_stream(refused.number, ErrorCodes.REFUSED_STREAM)
    peer.talk()
    with pytest.raises(Unprocessed, match="REFUSED_STREAM"):
        await refused.answer()
    assert not peer.has_room(), "it takes no more than it has"
    assert (await stayed.answer()).status == 200


@in_virtual_time
async def test_streams_go_on_after_a_friendly_goaway_and_the_last_one_closes() -> None:
    peer = Peer()
    stream = peer.open()
    late = peer.connection.open(HEADERS, b"{}", silence_s=30.0)
    peer.talk()
    peer.go_away(last_stream=stream.number)

    with pytest.raises(Unprocessed, match="NO_ERROR"):
        await late.answer()
    assert not peer.has_room()
    peer.push(stream, b"more")
    assert await one(stream) == b"more"
    assert not peer.is_over()
    peer.h2.end_stream(stream.number)
    peer.talk()
    assert [piece async for piece in stream.pieces()] == []
    assert peer.is_over()
    assert peer.socket.is_aborted


@in_virtual_time
async def test_a_goaway_for_an_error_breaks_all_streams() -> None:
    peer = Peer()
    streams = [peer.open() for _ in range(3)]
    peer.go_away(code=ErrorCodes.ENHANCE_YOUR_CALM)
    for stream in streams:
        with pytest.raises(ConnectionBroken, match="ENHANCE_YOUR_CALM"):
            await one(stream)


@in_virtual_time
async def test_a_stream_that_is_silent_breaks_alone() -> None:
    peer = Peer()
    silent, other = peer.open(silence_s=30.0), peer.open()

    async def keep_talking() -> None:
        while True:
            await anyio.sleep(1)
            peer.push(other, b"x")

    async with anyio.create_task_group() as group:
        group.start_soon(keep_talking)
        began_s = anyio.current_time()
        with pytest.raises(ConnectionBroken, match="nothing came for 30 s"):
            await one(silent)
        assert anyio.current_time() - began_s == pytest.approx(30.0)
        assert len(await one(other)) >= 29
        group.cancel_scope.cancel()
    assert peer.has_room()


@pytest.mark.parametrize("somebody_waits", [True, False])
def test_a_peer_that_is_gone_without_a_word_is_noticed(somebody_waits: bool) -> None:
    async def main() -> None:
        peer = Peer()
        streams = [peer.open() for _ in range(2)]
        peer.answers_ping = False
        began_s = anyio.current_time()
        if somebody_waits:
            with pytest.raises(ConnectionBroken, match="not even an answer to PING"):
                await one(streams[0])
            assert anyio.current_time() - began_s == pytest.approx(2 * PING_S)
        else:
            await anyio.sleep(2 * PING_S)
        assert peer.is_over()
        with pytest.raises(ConnectionBroken):
            await one(streams[1])

    run_virtual(main)


@in_virtual_time
async def test_a_peer_that_answers_ping_is_alive_however_slow_the_taker() -> None:
    peer = Peer()
    stream = peer.open(silence_s=5.0)
    peer.push(stream, b"kept")
    for _ in range(200):
        await anyio.sleep(1)
        peer.talk()
    assert await one(stream) == b"kept"


@in_virtual_time
async def test_a_connection_that_nobody_needs_is_closed_after_a_while() -> None:
    peer = Peer()
    peer.connection.leave(peer.open())
    await anyio.sleep(10)
    stream = peer.open()
    await anyio.sleep(10)
    peer.talk()
    assert not peer.is_over()
    peer.connection.leave(stream)
    await anyio.sleep(40)
    assert peer.is_over()


@in_virtual_time
async def test_no_more_streams_than_the_peer_takes() -> None:
    peer = Peer({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    await peer.connection.ready()
    first, _ = peer.open(), peer.open()
    assert not peer.has_room()
    peer.connection.leave(first)
    assert peer.has_room()
    peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
    peer.talk()
    assert not peer.has_room()


@in_virtual_time
async def test_a_request_waits_for_the_peers_window() -> None:
    peer = Peer({SettingCodes.INITIAL_WINDOW_SIZE: 5})
    stream = peer.connection.open(HEADERS, b"0123456789", silence_s=30.0)
    peer.talk()
    assert peer.body() == b"01234"
    peer.h2.increment_flow_control_window(3, stream.number)
    peer.talk()
    assert peer.body() == b"01234567"
    peer.h2.increment_flow_control_window(100, stream.number)
    peer.talk()
    assert peer.body() == b"0123456789"


@in_virtual_time
async def test_an_answer_before_the_request_is_whole_leaves_no_stream_behind() -> None:
    peer = Peer({SettingCodes.INITIAL_WINDOW_SIZE: 1, SettingCodes.MAX_CONCURRENT_STREAMS: 1})
    stream = peer.connection.open(HEADERS, b"{}", silence_s=30.0)
    peer.talk()
    peer.h2.send_headers(stream.number, [(":status", "400")], end_stream=True)
    peer.talk()
    assert (await stream.answer()).status == 400
    assert [piece async for piece in stream.pieces()] == []
    assert peer.resets() == [stream.number]
    assert peer.has_room()


@in_virtual_time
async def test_another_protocol_is_told_as_such() -> None:
    connection = Http2Connection()
    connection.connection_made(Socket())
    connection.data_received(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(NotHttp2, match=r"HTTP/1\.1 400"):
        await connection.ready()


@in_virtual_time
async def test_a_lost_connection_breaks_all_streams() -> None:
    peer = Peer()
    stream = peer.open()
    peer.connection.connection_lost(ConnectionResetError("reset by peer"))
    with pytest.raises(ConnectionBroken, match="reset by peer"):
        await one(stream)
    with pytest.raises(ConnectionBroken):
        peer.connection.open(HEADERS, b"{}", silence_s=1.0)


async def _events(stream: Http2Stream) -> list[Event]:
    reader, found = FrameReader(), list[Event]()
    async for piece in stream.pieces():
        found += [each for each in reader.feed(piece) if isinstance(each, Event)]
    reader.close()
    return found


@settings(max_examples=40, deadline=None)
@given(
    payloads=some.lists(some.binary(max_size=2000), max_size=5),
    sizes=some.lists(some.integers(1, 3000), min_size=1, max_size=8),
    cuts=some.lists(some.integers(0, 5000), max_size=8),
    padding=some.integers(0, 255),
)
def test_events_come_whole_whatever_carries_them(
    payloads: list[bytes], sizes: list[int], cuts: list[int], padding: int
) -> None:
    async def main() -> None:
        peer = Peer()
        stream = peer.open()
        data = b"".join(event_frame("SubscribeToShardEvent", payload) for payload in payloads)
        number = 0
        while data:
            size = sizes[number % len(sizes)]
            number += 1
            piece, data = data[:size], data[size:]
            peer.h2.send_data(stream.number, piece, pad_length=padding)
        peer.h2.end_stream(stream.number)
        peer.talk(cuts)
        assert [event.payload for event in await _events(stream)] == payloads

    run_virtual(main)


@settings(max_examples=150, deadline=None)
@given(
    frames=some.lists(
        some.tuples(
            some.integers(0, 10), some.integers(0, 255), some.integers(0, 4), some.binary(max_size=40)
        ),
        max_size=6,
    ),
    cuts=some.lists(some.integers(0, 400), max_size=6),
)
def test_whatever_comes_the_connection_goes_on_or_is_closed(
    frames: list[tuple[int, int, int, bytes]], cuts: list[int]
) -> None:
    async def main() -> None:
        peer = Peer()
        streams = [peer.open(silence_s=1.0), peer.open(silence_s=1.0)]
        data = b"".join(
            len(payload).to_bytes(3) + bytes([kind, flags]) + number.to_bytes(4) + payload
            for kind, flags, number, payload in frames
        )
        for at in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
            piece, data = data[:at], data[at:]
            if piece and not peer.is_over():
                peer.connection.data_received(piece)
        for stream in streams:
            try:
                async for _ in stream.pieces():
                    pass
            except ConnectionBroken:
                pass
            peer.connection.leave(stream)
        assert peer.is_over() == peer.socket.is_aborted

    run_virtual(main)


def test_the_headers_of_an_answer_are_those_that_came() -> None:
    async def main() -> None:
        assert (await Peer().open().answer()).headers == dict(OK[1:])

    run_virtual(main)
