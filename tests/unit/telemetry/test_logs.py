"""The log: two forms, one line an event, never an exception and never a credential."""

from __future__ import annotations

import io
import json
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import anyio
import pytest

from kcl_daemon.ports import Log, LogLevel
from kcl_daemon.telemetry.logs import LogForm, Repeats, build_log
from kcl_daemon.text import MASK
from tests.simulator.clock import SimClock
from tests.simulator.faults.life import Life
from tests.simulator.loop import run_virtual


class FixedClock:
    """Stands still."""

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 1_735_689_600_250

    def passed_ms(self) -> int:
        return self.wall_ms()

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    def move_on_after(self, seconds: float | None) -> anyio.CancelScope:
        return anyio.move_on_after(seconds)


class SteppedClock(FixedClock):
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Nasty:
    """Cannot be turned into text."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def raised(text: str) -> ValueError:
    """An error that has been raised, and so has a traceback."""
    try:
        int(text)
    except ValueError as error:
        error.args = (text,)
        return error
    raise AssertionError("that was a number")


def log_to(stream: io.StringIO, *, form: LogForm = "json", level: LogLevel = "info") -> Log:
    return build_log(level=level, form=form, stream=stream, clock=FixedClock())


def one_event(**fields: object) -> dict[str, Any]:
    stream = io.StringIO()
    log_to(stream).info("something", **fields)
    event: dict[str, Any] = json.loads(stream.getvalue())
    return event


def test_an_event_is_one_line_of_json_that_begins_with_time_and_level() -> None:
    stream = io.StringIO()
    log_to(stream).bind(worker_id="w").info("lease_taken", shard_id="s", count=3, share=0.5, done=None)
    assert stream.getvalue() == (
        '{"timestamp":"2025-01-01T00:00:00.250Z","level":"info","event":"lease_taken","worker_id":"w",'
        '"shard_id":"s","count":3,"share":0.5,"done":null}\n'
    )


def test_binding_leaves_the_first_logger_alone() -> None:
    stream = io.StringIO()
    log = log_to(stream)
    log.bind(shard_id="s")
    log.info("something")
    assert "shard_id" not in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "written"),
    [("debug", "dbg nfo wrn err"), ("info", "nfo wrn err"), ("warning", "wrn err"), ("error", "err")],
)
def test_events_below_the_level_are_not_written(level: LogLevel, written: str) -> None:
    stream = io.StringIO()
    log = log_to(stream, level=level)
    log.debug("dbg")
    log.info("nfo")
    log.warning("wrn")
    log.error("err")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == written.split()


def test_credentials_are_masked_by_name_and_by_look() -> None:
    event = one_event(secret_key="x", line="key AKIAIOSFODNN7EXAMPLE", nested={"password": "p", "a": ["ok"]})
    assert event["secret_key"] == MASK
    assert event["line"] == f"key {MASK}"
    assert event["nested"] == {"password": MASK, "a": ["ok"]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2**70, str(2**70)),
        (-(2**70), str(-(2**70))),
        (True, True),
        (float("nan"), None),
        ("\ud800", "\\ud800"),
        (b"\xff", "b'\\xff'"),
        (
            {
                1: {
                    2,
                }
            },
            {"1": "{2}"},
        ),
        ((1, "a"), [1, "a"]),
        (Nasty(), "<Nasty without text: RuntimeError>"),
        ([Nasty()], ["<Nasty without text: RuntimeError>"]),
        (ValueError("why"), "why"),
        (LogLevel, str(LogLevel)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_can_be_logged(value: object, shown: object) -> None:
    assert one_event(value=value)["value"] == shown
    stream = io.StringIO()
    log_to(stream, form="console").info("something", value=value)
    assert stream.getvalue().count("\n") == 1


def test_a_value_that_contains_itself_can_be_logged() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert one_event(value=endless)["event"] == "something"


def test_an_exception_is_written_with_its_traceback() -> None:
    event = one_event(exc_info=raised("broken at AKIAIOSFODNN7EXAMPLE"))
    assert event["exception"].startswith("Traceback (most recent call last)")
    assert event["exception"].endswith(f"ValueError: broken at {MASK}")


def test_the_console_form_has_one_line_and_no_colours_away_from_a_terminal() -> None:
    stream = io.StringIO()
    log_to(stream, form="console").warning("child_stderr", line="\x1b[2Jtwo\nlines", more={"a": [1]})
    text = stream.getvalue()
    assert text.startswith("2025-01-01T00:00:00.250Z [warning")
    assert "child_stderr" in text
    assert "\\x1b[2Jtwo\\nlines" in text
    assert '{"a":[1]}' in text
    assert text.count("\n") == 1
    assert "\x1b" not in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(event: str, **fields: object) -> str:
    """What a person sees, without its colours."""
    stream = Terminal()
    log_to(stream, form="console").info(event, **fields)
    return re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())


def test_on_a_terminal_a_childs_line_stands_alone() -> None:
    shown = on_terminal(
        "child_stderr", line="order-3 a plum", shard_id="shardId-000000000003", pid=7, worker_id="w-1"
    )
    assert shown == "00:00:00 shard 3 | order-3 a plum\n"
    assert on_terminal("child_stderr", line="\x1b[2Jtwo\nlines") == "00:00:00 child | \\x1b[2Jtwo\\nlines\n"


def test_on_a_terminal_each_lease_and_the_workers_id_are_reported_once() -> None:
    shown = on_terminal("child_started", worker_id="w-1", shard_id="shardId-000000000003", to=None)
    assert shown.startswith("00:00:00 [info")
    assert "child_started" in shown
    assert "w-1" not in shown
    assert "None" not in shown
    assert "worker_id=w-1" in on_terminal("daemon_starting", worker_id="w-1")
    assert on_terminal("lease_taken", worker_id="w-1") == ""
    assert on_terminal("lease_assigned", worker_id="w-1", to="w-1") == ""
    assert "w-2" in on_terminal("lease_assigned", worker_id="w-1", to="w-2"), "a move is not a start"


def test_away_from_a_terminal_nothing_is_left_out() -> None:
    for form in ("console", "json"):
        stream = io.StringIO()
        log_to(stream, form=form).info("lease_taken", worker_id="w-1", to=None)
        assert "lease_taken" in stream.getvalue()
        assert "w-1" in stream.getvalue()
        assert "2025-01-01T00:00:00.250Z" in stream.getvalue()


def test_the_console_form_keeps_the_lines_of_a_traceback() -> None:
    stream = io.StringIO()
    log_to(stream, form="console").error("failed", exc_info=raised("broken"))
    assert stream.getvalue().rstrip().splitlines()[-1] == "ValueError: broken"


@pytest.mark.parametrize("form", ["console", "json"])
def test_in_the_journal_each_line_begins_with_its_priority(tmp_path: Path, form: LogForm) -> None:
    with (tmp_path / "journal").open("w+", encoding="utf-8") as stream:
        status = os.fstat(stream.fileno())
        log = build_log(
            level="debug",
            form=form,
            stream=stream,
            clock=FixedClock(),
            journal_stream=f"{status.st_dev}:{status.st_ino}",
        )
        log.debug("one")
        log.info("two")
        log.warning("three")
        log.error("four", exc_info=raised("five"))
        stream.seek(0)
        lines = stream.read().splitlines()
    assert [line[:3] for line in lines[:4]] == ["<7>", "<6>", "<4>", "<3>"]
    assert {line[:3] for line in lines[3:]} == {"<3>"}
    assert len(lines) == 4 if form == "json" else len(lines) > 4


@pytest.mark.parametrize("journal_stream", ["", "0:0", "no journal"])
def test_elsewhere_than_in_the_journal_lines_have_no_priority(tmp_path: Path, journal_stream: str) -> None:
    path = tmp_path / "log"
    with path.open("w", encoding="utf-8") as stream:
        log = build_log(
            level="info", form="json", stream=stream, clock=FixedClock(), journal_stream=journal_stream
        )
        log.warning("shard_stalled")
    assert json.loads(path.read_text("utf-8"))["event"] == "shard_stalled"


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_broken_stream_does_not_stop_the_work(form: LogForm) -> None:
    stream = io.StringIO()
    log = log_to(stream, form=form)
    stream.close()
    log.info("something")


def test_a_stream_that_cannot_write_a_character_does_not_stop_the_work() -> None:
    bytes_under = io.BytesIO()
    with io.TextIOWrapper(bytes_under, encoding="ascii") as stream:
        build_log(level="info", form="json", stream=stream, clock=FixedClock()).info("something", a="\u20ac")
        log_after = build_log(level="info", form="json", stream=stream, clock=FixedClock())
        log_after.info("next")
        assert b'"next"' in bytes_under.getvalue()


def test_a_warning_that_repeats_is_said_by_the_minute_with_its_count() -> None:
    clock, stream = SteppedClock(), io.StringIO()
    log = build_log(level="info", form="json", stream=stream, clock=clock).bind(worker_id="w")
    for second in range(0, 122, 2):
        clock.now_s = second
        log.warning("leases_without_worker", count=second, examples=["a"])
    said = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["count"], each.get("repeated")) for each in said] == [(0, None), (60, 29), (120, 29)]


def test_a_warning_that_comes_again_after_a_quiet_time_tells_what_was_left_out_before() -> None:
    clock, stream = SteppedClock(), io.StringIO()
    log = build_log(level="info", form="json", stream=stream, clock=clock)
    for clock.now_s in (0.0, 1.0, 500.0, 600.0):
        log.warning("leader_lock_unreachable", error="no answer")
    said = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each.get("repeated") for each in said] == [None, 1, None]


@pytest.mark.parametrize(
    ("level", "fields"),
    [
        ("error", {}),
        ("info", {}),
        ("warning", {"shard_id": "shardId-000000000000"}),
    ],
)
def test_an_error_and_what_is_of_one_shard_are_always_said(level: str, fields: dict[str, str]) -> None:
    stream = io.StringIO()
    log = log_to(stream).bind(**fields)
    for _ in range(3):
        getattr(log, level)("something", reason="a")
    assert len(stream.getvalue().splitlines()) == 3


def test_another_cause_or_name_is_another_warning() -> None:
    stream = io.StringIO()
    log = log_to(stream)
    for event, reason in (("one", "a"), ("one", "b"), ("two", "a"), ("one", "a")):
        log.warning(event, reason=reason)
    assert len(stream.getvalue().splitlines()) == 3


def test_warnings_without_end_need_no_memory() -> None:
    stream = io.StringIO()
    log = log_to(stream)
    tracemalloc.start()
    for number in range(20_000):
        log.warning("request_refused", path=f"{number}" + "x" * 10_000)
        stream.seek(0)
        stream.truncate()
    assert tracemalloc.get_traced_memory()[0] < 1_000_000
    tracemalloc.stop()


def _said(stream: io.StringIO) -> list[tuple[object, object]]:
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [(each["count"], each.get("repeated")) for each in lines]


def test_a_warning_that_stops_repeating_is_said_with_its_count_within_the_next_minute() -> None:
    clock, stream = SimClock(Life("w")), io.StringIO()
    repeats = Repeats(clock)
    log = build_log(level="info", form="json", stream=stream, clock=clock, repeats=repeats).bind(
        worker_id="w"
    )

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(repeats.run)
            for count in range(5):
                log.warning("leases_without_worker", count=count)
            await clock.sleep(300.0)
            group.cancel_scope.cancel()

    run_virtual(run)
    assert _said(stream) == [(0, None), (4, 3)]


def test_a_warning_that_is_forgotten_for_others_or_at_the_end_is_said_with_its_count() -> None:
    clock, stream = SteppedClock(), io.StringIO()
    repeats = Repeats(clock)
    log = build_log(level="info", form="json", stream=stream, clock=clock, repeats=repeats)
    for count in range(3):
        log.warning("first", count=count)
    for number in range(256):
        log.warning("other", count=0, name=str(number))
    assert _said(stream)[-2] == (2, 1)
    for count in range(2):
        log.warning("last", count=count)
    repeats.tell()
    repeats.tell()
    assert _said(stream)[-2:] == [(0, None), (1, None)]
