"""The daemon's side of the lander: options, relays as children, figures, and what its end means. A few lines stand in."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from io import StringIO
from pathlib import Path

import anyio
import msgspec
import pytest

from kcl_daemon.admin.view import LATE_S, not_ready
from kcl_daemon.cli.landing_check import landing_finding
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.helper_process import EXIT_REFUSED, beside
from kcl_daemon.landing import Lander, Rosters, roster_line
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, StreamIdentity
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.helper_views import LandingTrouble, LandingView, landing_table
from kcl_daemon.telemetry.logs import build_log, parse_levels
from kcl_landing.lander import LanderOptions
from kcl_landing.log import LogInfo
from kcl_landing.manifests import open_log
from kcl_landing.store import open_store
from kcl_protocol.sequence import SHARD_END
from tests.simulator.loop import run_virtual
from tests.unit.config.helpers import read
from tests.unit.config.test_landing import BASE
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.metrics.snapshots import LANDER, shard, snapshot

pytestmark = pytest.mark.anyio


KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def settings(more: str = "", base: str = BASE) -> Settings:
    return read(more, base=base).settings


def made(code: str, log: MemoryLog) -> Lander:
    command = (sys.executable, "-c", code)
    return Lander(settings(), Path("/nowhere"), clock=SystemClock(), log=log, command=command)


def says(event: str, level: str = "info", **fields: object) -> str:
    line = json.dumps({"level": level, "event": event, **fields})
    return f"import sys; sys.stdin.readline(); print({line!r}, flush=True)"


async def seen(log: MemoryLog, event: str) -> None:
    while all(name != event for _, name, _ in log.lines):  # noqa: ASYNC110 - what a real process does
        await anyio.sleep(0.01)


async def test_the_lander_understands_what_the_daemon_writes() -> None:
    given = settings(
        "regionName = eu-west-1\nlandingProcesses = 3\nlandingEndpoint = http://127.0.0.1:9000\n"
        f"landing = s3://records/orders\nlandingEncryption = {KEY}\n",
        base=BASE.replace("landing = /var/lib/landing\n", ""),
    )
    options = msgspec.json.decode(Lander.options(given, Path("/tmp/s")), type=LanderOptions)
    assert options == LanderOptions(
        "s3://records/orders",
        "billing",
        "orders",
        "/tmp/s",
        given.worker_id,
        processes=3,
        endpoint="http://127.0.0.1:9000",
        region="eu-west-1",
        encryption=KEY,
    )


async def test_children_are_relays_with_time_to_flush() -> None:
    with anyio.fail_after(60):
        given = settings("timeoutInSeconds = 5\n")
        async with beside(Lander, given, clock=SystemClock(), log=MemoryLog()) as (mine, _):
            child = mine.child
    assert child.command[:3] == (sys.executable, "-I", "-S")
    assert child.command[3].endswith("kcl_landing/relay.py")
    assert child.timeout_s is None
    assert child.call_for_empty
    assert child.shutdown_grace_ms == 65_000


async def test_figures_are_there_while_the_lander_runs_and_go_with_it() -> None:
    log = MemoryLog()
    (reported,) = LANDER.shards
    figures = {
        "shards": {reported.name: msgspec.to_builtins(reported)},
        "trouble": msgspec.to_builtins(LANDER.trouble),
    }
    code = (
        says("landing_figures", "debug", **figures)
        + '; print(\'{"event": "lander_ready"}\', flush=True); sys.stdin.read()'
    )
    helper = made(code, log)
    async with anyio.create_task_group() as group:
        group.start_soon(helper.run)
        await seen(log, "lander_ready")
        view = helper.figures()
        await helper.stop()
        assert view is not None
        assert view.trouble is not None
        assert (view.trouble.cause, view.trouble.message) == ("full", "no space left")
        assert view.trouble.since_s >= 90
        assert [(each.name, each.rows, each.number) for each in view.shards] == [(reported.name, 900, 6)]
        assert view.shards[0].lag_s >= 2.5
        assert helper.figures() is None


def lease(shard: int, *parents: int, stream: StreamIdentity | None = None) -> Lease:
    key = f"shardId-{shard}" if stream is None else f"{stream}:shardId-{shard}"
    before = frozenset(ShardId(f"shardId-{each}") for each in parents)
    return Lease(LeaseKey(key), 1, SHARD_END, parent_shard_ids=before, stream=stream)


async def test_a_roster_names_all_leases_with_their_parents_by_stream() -> None:
    both = StreamIdentity("123456789012", "clicks", 1)
    leases = [lease(1), lease(2), lease(3, 2, 1), lease(4, stream=both)]
    assert json.loads(roster_line(leases, settings("failoverTimeMillis = 7000\n"))) == {
        "roster": {
            "orders": {"shardId-1": [], "shardId-2": [], "shardId-3": ["shardId-1", "shardId-2"]},
            "clicks": {"shardId-4": []},
        },
        "failoverMs": 7000,
    }


def test_a_roster_comes_when_it_changes_and_each_minute() -> None:
    async def main() -> list[tuple[float, int]]:
        rosters, came = Rosters(settings(), LoopClock()), list[tuple[float, int]]()
        now = [lease(1)]
        more = [lease(1), lease(2, 1)]
        changes = {5.0: None, 10.0: [lease(1)], 20.0: more, 30.0: None, 100.0: more}

        def leases() -> list[Lease] | None:
            nonlocal now
            at = max((each for each in changes if each <= anyio.current_time()), default=None)
            return now if at is None else changes[at]

        rosters.leases = leases
        with anyio.move_on_after(200):
            async for line in rosters.lines():
                came.append((anyio.current_time(), line.count(b"shardId-")))
        return came

    assert run_virtual(main) == [(1.0, 1), (20.0, 3), (100.0, 3), (160.0, 3)]


async def test_a_lander_that_does_not_read_holds_nobody_up_and_is_given_the_newest(tmp_path: Path) -> None:
    heard, waits = tmp_path / "heard", tmp_path / "go"
    code = (
        "import sys, time, pathlib\n"
        "sys.stdin.readline()\n"
        f"while not pathlib.Path({str(waits)!r}).exists(): time.sleep(0.01)\n"
        f"for line in sys.stdin: open({str(heard)!r}, 'a').write(line[-30:])\n"
    )
    helper, asked = made(code, MemoryLog()), 0

    class Many(Rosters):
        async def lines(self) -> AsyncGenerator[bytes, None]:
            nonlocal asked
            while True:
                await anyio.sleep(0.001)
                asked += 1
                yield b"x" * 1_000_000 + b" %d\n" % asked

    helper.rosters = Many(settings(), SystemClock())
    async with anyio.create_task_group() as group:
        group.start_soon(helper.run)
        await anyio.sleep(1.0)
        assert asked <= 3, "the pipe holds no more"
        waits.touch()
        while not heard.exists() or " 5\n" not in heard.read_text():  # noqa: ASYNC110 - what a real process does
            await anyio.sleep(0.01)
        await helper.stop()


async def test_a_level_set_for_the_lander_is_that_of_its_events() -> None:
    written = StringIO()
    levels = parse_levels("off,kcl_daemon.landing=debug")
    log = build_log(level=levels, form="json", stream=written, clock=SystemClock())
    helper = Lander(settings(), Path("/nowhere"), clock=SystemClock(), log=log)
    helper.take({"level": "debug", "event": "segment_written", "number": 7}, 4)
    (line,) = map(json.loads, written.getvalue().splitlines())
    assert (line["event"], line["number"], line["lander_pid"]) == ("segment_written", 7, 4)


async def test_a_lander_that_refuses_ends_the_daemon_with_its_words() -> None:
    log = MemoryLog()
    helper = made(
        says("landing_refused", "error", error="another application's log") + f"; sys.exit({EXIT_REFUSED})",
        log,
    )
    await helper.run()
    assert isinstance(helper.failure, ConfigurationError)
    assert str(helper.failure) == "the lander refuses to go on: another application's log"


async def test_a_lander_that_dies_is_started_again_and_its_odd_lines_do_no_harm(tmp_path: Path) -> None:
    log, once = MemoryLog(), tmp_path / "once"
    code = f"""
import os, pathlib, signal, sys
sys.stdin.readline()
print("no event")
print('{{"event": "landing_figures", "shards": 7}}', flush=True)
once = pathlib.Path({str(once)!r})
if once.exists():
    sys.exit({EXIT_REFUSED})
once.touch()
os.kill(os.getpid(), signal.SIGKILL)
"""
    await made(code, log).run()
    names = [name for _, name, _ in log.lines]
    assert names.count("lander_started") == 2
    assert names.count("lander_ended") == 1
    assert {"lander_event_not_read", "landing_figures_not_read"} <= set(names)


async def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kcl_daemon.helper_process.find_spec", lambda name: None if name == "pyarrow" else name
    )
    with pytest.raises(
        ConfigurationError, match=r"landing needs pyarrow: pip install 'kcl-daemon\[landing\]'"
    ):
        async with beside(Lander, settings(), clock=SystemClock(), log=MemoryLog()):
            pass


async def test_trouble_of_the_store_is_shown_and_when_it_lasts_the_worker_is_not_ready() -> None:
    seen = snapshot(shard(2), landing=LANDER)
    assert "landing store takes nothing: full since 90 s: no space left" in "\n".join(not_ready(seen))
    assert landing_table(LANDER).title == "Landing log, store: full since 90 s: no space left"
    brief = LandingView((), LandingTrouble("slow down", "503", LATE_S / 2))
    assert not any("store" in reason for reason in not_ready(snapshot(shard(2), landing=brief)))


async def test_a_check_says_whose_log_is_there(tmp_path: Path) -> None:
    place = str(tmp_path / "log")
    given = read(base=BASE.replace("/var/lib/landing", place)).settings
    assert landing_finding(given) == (True, f"landing {place}: no log yet; the daemon creates it")
    open_log(open_store(place), LogInfo("billing", "log", "parquet", "1"))
    assert landing_finding(given) == (True, f"landing {place}: the log is there (billing, log, parquet)")
    other = read("landingLayout = dated\n", base=BASE.replace("/var/lib/landing", place)).settings
    good, said = landing_finding(other)
    assert not good
    assert "another log (billing, log, parquet), not billing, dated, parquet" in said
