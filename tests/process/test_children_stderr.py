"""The stderr of children: every line an event of its shard, bounded, and no burden on others."""

from __future__ import annotations

from itertools import pairwise

import psutil
import pytest
from anyio import create_task_group
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.children.pipes import MAX_LINE_BYTES, TAIL_LINES, LineBudget, LineCutter
from kcl_daemon.children.start import ChildOptions
from kcl_daemon.ports import Child
from tests.process.children.support import SHARD, RecordingLog, children_of, command, receive_line

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

MEGABYTE = 1024 * 1024


async def stderr_of(text: bytes) -> tuple[RecordingLog, tuple[str, ...], int]:
    """What is logged when a child writes this and ends; its tail; its process id."""
    log = RecordingLog()
    async with children_of(command("say", text.hex()), log) as children:
        child = await children.start(SHARD)
        assert await child.wait() == 0
        return log, child.stderr_tail, child.pid


async def round_trip(child: Child) -> None:
    """One line to an echo and back."""
    await child.send(b"ping\n")
    assert await receive_line(child) == b"ping\n"


async def test_each_line_is_an_event_at_info_with_shard_and_process_id() -> None:
    log, tail, pid = await stderr_of(b"one\ntwo\r\n\nthree")
    assert list(log.recorded.last) == [
        ("info", "child_stderr", {"shard_id": SHARD, "pid": pid, "line": line})
        for line in ("one", "two", "", "three")
    ]
    assert tail == ("one", "two", "", "three")


async def test_undecodable_bytes_are_replaced() -> None:
    log, _, _ = await stderr_of(b"caf\xe9 \xc3\xa9\n")
    assert log.recorded.lines() == ["caf\ufffd é"]


async def test_the_last_lines_are_kept() -> None:
    _, tail, _ = await stderr_of(b"".join(b"%d\n" % number for number in range(100)))
    assert tail == tuple(str(number) for number in range(100 - TAIL_LINES, 100))


async def test_a_long_line_comes_in_pieces() -> None:
    log, _, _ = await stderr_of(b"y" * (MAX_LINE_BYTES * 2 + 5) + b"\n")
    assert [len(str(line)) for line in log.recorded.lines()] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 5]


async def test_a_long_line_that_is_no_text_comes_in_pieces() -> None:
    log, _, _ = await stderr_of(b"\x80" * (MAX_LINE_BYTES + 5))
    assert [len(str(line)) for line in log.recorded.lines()] == [MAX_LINE_BYTES, 5]


async def test_a_flood_reaches_the_log_whole_and_takes_no_memory() -> None:
    log = RecordingLog()
    async with children_of(command("flood", "50"), log) as children:
        child = await children.start(SHARD)
        before = psutil.Process().memory_info().rss
        await child.send(b"through\n")
        assert await receive_line(child) == b"through\n"
        assert psutil.Process().memory_info().rss - before < 20 * MEGABYTE
        await child.close_stdin()
        assert await child.wait() == 0
        assert child.stderr_tail[-1] == "end of flood"
    assert log.recorded.count == 50 * 1024 + 1


async def test_other_children_are_served_while_one_floods() -> None:
    log = RecordingLog()
    async with (
        children_of(command("flood", "100000"), log) as flooding,
        children_of(command("echo")) as quiet,
    ):
        await flooding.start(SHARD)
        child = await quiet.start(SHARD)
        while log.recorded.count == 0:
            await round_trip(child)
        before = log.recorded.count
        rounds = 0
        while rounds < 20 or log.recorded.count == before:  # both go on
            await round_trip(child)
            rounds += 1


async def test_short_lines_are_logged_a_few_at_a_turn_of_the_loop() -> None:
    log = RecordingLog()
    seen = [0]
    async with children_of(command("say", (b"\n" * 20_000).hex()), log) as children:
        await children.start(SHARD)
        while seen[-1] < 20_000:
            await checkpoint()
            seen.append(log.recorded.count)
    assert max(after - before for before, after in pairwise(seen)) < 256


async def test_a_flood_that_is_closed_ends() -> None:
    async with children_of(command("flood", "100000")) as children:
        child = await children.start(SHARD)
        async with create_task_group() as tasks:
            tasks.start_soon(child.aclose)
        assert await child.wait() == -9


ASCII = st.text("abcdefgh\r\n", max_size=40).map(str.encode)


@given(st.lists(st.one_of(st.binary(max_size=40), ASCII)), st.integers(4, 20))
def test_cutting_keeps_to_the_bound_whatever_comes(pieces: list[bytes], max_bytes: int) -> None:
    cutter = LineCutter(max_bytes)
    lines = [line for piece in pieces for line in cutter.feed(piece)] + cutter.finish()
    assert all(len(line) <= max_bytes for line in lines)


@given(st.lists(ASCII), st.integers(4, 20))
def test_cutting_loses_nothing_but_the_ends_of_lines(pieces: list[bytes], max_bytes: int) -> None:
    cutter = LineCutter(max_bytes)
    lines = [line for piece in pieces for line in cutter.feed(piece)] + cutter.finish()
    text = b"".join(pieces).decode().replace("\r\n", "\n").replace("\n", "")
    assert "".join(lines) == text


@given(
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), st.integers(4, 20), st.integers(1, 7)
)
def test_no_character_is_cut(text: str, max_bytes: int, step: int) -> None:
    cutter = LineCutter(max_bytes)
    data = text.encode()
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    lines = [line for piece in pieces for line in cutter.feed(piece)] + cutter.finish()
    assert "".join(lines) == text
    assert all(len(line.encode()) <= max_bytes for line in lines)


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=15)), st.integers(1, 7)
)
def test_short_lines_come_as_they_are(texts: list[str], step: int) -> None:
    cutter = LineCutter(60)
    data = "".join(f"{text}\n" for text in texts).encode()
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    assert [line for piece in pieces for line in cutter.feed(piece)] == texts
    assert cutter.finish() == []


def test_more_lines_than_a_second_allows_are_admitted_only_for_a_while() -> None:
    budget = LineBudget(10)
    admitted = [budget.admits(20, number / 100) for number in range(2000)]
    assert all(admitted[:100])
    assert sum(admitted) == pytest.approx(100 + 20 * 10, abs=2)
    assert budget.left_out == (2000 - sum(admitted), 20 * (2000 - sum(admitted)))


def test_large_lines_use_up_the_bytes_before_the_lines() -> None:
    budget = LineBudget(10)
    assert (
        sum(budget.admits(MAX_LINE_BYTES, 0.0) for _ in range(100)) == 7
    )  # of 16 KiB, where 100 KiB may come at once


@given(st.lists(st.tuples(st.integers(0, 20_000), st.floats(0, 3)), max_size=200), st.integers(1, 50))
def test_no_line_is_neither_admitted_nor_counted(lines: list[tuple[int, float]], per_s: int) -> None:
    budget, now_s, admitted, told = LineBudget(per_s), 0.0, 0, 0
    for size, pause_s in lines:
        now_s += pause_s
        admitted += budget.admits(size, now_s)
        told += (budget.to_tell(now_s) or (0, 0))[0]
    assert admitted + told + (budget.to_tell(float("inf")) or (0, 0))[0] == len(lines)
    assert admitted <= per_s * (now_s + 10) + 1


def test_without_a_limit_every_line_is_admitted() -> None:
    budget = LineBudget(0)
    assert all(budget.admits(10**6, 0.0) for _ in range(1000))
    assert budget.to_tell(1e9) is None


async def test_a_flood_above_the_limit_is_counted_and_its_end_is_kept() -> None:
    log = RecordingLog()
    async with children_of(command("flood", "5"), log, ChildOptions(stderr_lines_per_s=10)) as children:
        child = await children.start(SHARD)
        await child.close_stdin()
        assert await child.wait() == 0
        assert child.stderr_tail[-1] == "end of flood"
    logged = [fields for _, event, fields in log.recorded.last if event == "child_stderr"]
    left_out = [
        int(str(fields["lines"]))
        for _, event, fields in log.recorded.last
        if event == "child_stderr_left_out"
    ]
    assert len(logged) < 300
    assert len(logged) + sum(left_out) == 5 * 1024 + 1
