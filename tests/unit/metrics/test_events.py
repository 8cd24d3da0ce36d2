"""What the log is told is counted: warnings and errors all, and some events wherever they appear."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

import kcl_daemon
from kcl_daemon.metrics import own
from kcl_daemon.telemetry.logs import build_log, parse_levels
from kcl_daemon.telemetry.recorder import OF_EVENTS, CountedLog
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.metrics.stage import Gathered

SOURCE = Path(kcl_daemon.__file__).parent


def test_every_line_comes_through_with_its_fields() -> None:
    log = MemoryLog()
    counted = CountedLog(log, Gathered().meters).bind(worker_id="w").bind(shard_id="s")
    for level in ("debug", "info", "warning", "error"):
        getattr(counted, level)("something_happened", number=1)
    fields = {"worker_id": "w", "shard_id": "s", "number": 1}
    assert log.lines == [
        (level, "something_happened", fields) for level in ("debug", "info", "warning", "error")
    ]


def test_warnings_and_errors_are_counted_by_event() -> None:
    gathered = Gathered()
    log = CountedLog(MemoryLog(), gathered.meters)
    log.info("lease_taken")
    log.warning("lease_lost")
    log.warning("lease_lost")
    log.error("lease_row_malformed")
    assert gathered.value(own.EVENTS, level="warning", event="lease_lost") == 2.0
    assert gathered.value(own.EVENTS, level="error", event="lease_row_malformed") == 1.0
    assert gathered.value(own.EVENTS, level="info", event="lease_taken") is None


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_an_event_with_a_metric_counts_at_every_level(level: str) -> None:
    gathered = Gathered()
    getattr(CountedLog(MemoryLog(), gathered.meters), level)("child_stray_output", text="hello")
    assert gathered.value(own.STRAY_LINES) == 1.0


def test_events_are_written_as_they_are_counted() -> None:
    source = "\n".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py") if path.name != "events.py")
    unknown = {event for event in OF_EVENTS if f'"{event}"' not in source}
    assert unknown == set()


class StillClock(LoopClock):
    def wall_ms(self) -> int:
        return 1_770_000_000_000

    def monotonic(self) -> float:
        return 0.0


def test_levels_by_component_hold_for_a_counted_log() -> None:
    stream = StringIO()
    levels = parse_levels("error,kcl_daemon.fleet=warning")
    log = CountedLog(
        build_log(level=levels, form="json", stream=stream, clock=StillClock()), Gathered().meters
    )
    for module in ("kcl_daemon.fleet.lease_renewer", "kcl_daemon.retrieval.polling"):
        exec('log.bind(number=1).warning("lease_lost", who=__name__)', {"log": log, "__name__": module})
    (line,) = stream.getvalue().splitlines()
    assert '"who":"kcl_daemon.fleet.lease_renewer"' in line
