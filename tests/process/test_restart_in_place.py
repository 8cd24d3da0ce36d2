"""`kill -9` under a supervisor: the daemon that is started again half a second later reads on at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from kcl_daemon.children import platform
from kcl_daemon.system import SystemClock
from kcl_local.demo.check import monotonic_s
from tests.process.daemon import PROCESSORS, Application, Daemon, again_and_again, application, wait_until
from tests.process.local import Local

CAREFUL: Final = f"{PROCESSORS}.careful"
SHARDS: Final = 8
LOAD_PERIOD_S: Final = 0.2
# RestartSec of a supervisor that does not wait.
RESTART_S: Final = 0.5
# Lease, fail-over and lock times are the defaults: without the proof this takes 10 s and more.
SETTINGS: Final = {"idleTimeBetweenReadsInMillis": 200, "retrievalMode": "POLLING"}
READ_WITHIN_S: Final = 3.0
LED_WITHIN_S: Final = 4.0
Record = Callable[[str, object], None]


def first_records(app: Application, worker: str) -> dict[str, float]:
    """By shard: when a child of this daemon was first given records."""
    app.poll()
    first: dict[str, float] = {}
    for name, entry in app.ledgers:
        if name == worker and entry.kind == "records":
            first.setdefault(entry.shard_id, entry.at_s)
    return first


def wall_s(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def kill_and_restart(
    app: Application, stack: ExitStack, victim: Daemon, name: str
) -> tuple[Daemon, float, float]:
    """The next daemon, the longest gap of a shard and the time until it leads, both from the kill."""
    killed_s, killed_at = monotonic_s(), SystemClock().wall_ms() / 1000
    victim.signal(signal.SIGKILL)
    assert victim.end() == -signal.SIGKILL
    Event().wait(RESTART_S)
    daemon = stack.enter_context(app.daemon(CAREFUL, SETTINGS, worker=name, fresh=True))
    wait_until(lambda: len(first_records(app, name)) == SHARDS, f"{name} reads every shard")
    leader_seen = daemon.wait_for("leadership_taken")
    return daemon, max(first_records(app, name).values()) - killed_s, wall_s(leader_seen) - killed_at


def play(local: Local, tmp_path: Path, name: str, kills: int) -> list[tuple[float, float]]:
    figures: list[tuple[float, float]] = []
    with application(local, tmp_path, name, shards=SHARDS) as app, ExitStack() as stack:
        daemon = stack.enter_context(app.daemon(CAREFUL, SETTINGS, worker="daemon-0"))
        with again_and_again(app.put, LOAD_PERIOD_S):
            wait_until(lambda: len(first_records(app, "daemon-0")) == SHARDS, "every shard is read")
            for number in range(1, kills + 1):
                daemon, gap_s, led_s = kill_and_restart(app, stack, daemon, f"daemon-{number}")
                figures.append((gap_s, led_s))
                # Elsewhere nothing proves that the other one has ended: its leases expire.
                assert bool(daemon.named("predecessor_taken_over", leases=SHARDS)) is platform.LINUX
        app.wait_done()
        daemon.stop()
        app.assert_account()
    return figures


def reported(figures: list[tuple[float, float]]) -> str:
    gaps, leads = (sorted(each) for each in zip(*figures, strict=True))
    return (
        f"kill -9, {len(figures)} times, {SHARDS} shards: longest gap of a shard {gaps[-1]:.2f} s "
        f"(median {gaps[len(gaps) // 2]:.2f} s), leader again after {leads[-1]:.2f} s at most"
    )


@pytest.mark.timeout(300)
def test_a_killed_daemon_that_is_started_again_reads_on_without_waiting_for_its_leases(
    local: Local, tmp_path: Path, record_property: Record
) -> None:
    figures = play(local, tmp_path, "restart-short", 1)
    record_property("restart_in_place", reported(figures))
    print(reported(figures))  # noqa: T201


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_ten_kills_under_a_supervisor_leave_no_gap_of_more_than_three_seconds(
    local: Local, tmp_path: Path, record_property: Record
) -> None:
    figures = play(local, tmp_path, "restart-long", 10)
    record_property("restart_in_place", reported(figures))
    print(reported(figures))  # noqa: T201
    assert max(gap_s for gap_s, _ in figures) <= READ_WITHIN_S
    assert max(led_s for _, led_s in figures) <= LED_WITHIN_S
