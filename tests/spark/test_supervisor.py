"""The daemon's side of the engine: options, relays as children, and what its end means. Programs of a line stand in."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
import pytest

from kcl_daemon.config.load import interpret
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.helper_process import EXIT_REFUSED, beside, with_relays
from kcl_daemon.metrics import own
from kcl_daemon.spark import EXIT_PIPELINE, PipelineFailed, SparkEngine
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.recorder import CountedLog
from kcl_spark.session import parse
from tests.unit.fakes import MemoryLog
from tests.unit.metrics.stage import Gathered

FILE = b"""
applicationName = orders
streamName = clicks
sparkPipeline = job:counts
sparkConf.spark.ui.enabled = false
sparkTrigger = 2 seconds
"""

pytestmark = pytest.mark.anyio


class Worker:
    """A worker that only notes that it was asked to stop."""

    def __init__(self, asked: anyio.Event) -> None:
        self._asked = asked

    async def run(self) -> None:
        await self._asked.wait()

    def request_stop(self) -> None:
        self._asked.set()


def settings(more: str = "") -> Settings:
    return interpret(FILE + more.encode(), file="app.properties", default_worker_id="w").settings


def reported(log: MemoryLog, event: str) -> list[dict[str, object]]:
    """The fields of all events of a name."""
    return [fields for _, name, fields in log.lines if name == event]


async def seen(log: MemoryLog, event: str) -> None:
    while not reported(log, event):  # noqa: ASYNC110 - what a real process does
        await anyio.sleep(0.01)


def engine(code: str, log: MemoryLog, socket: Path = Path("/nowhere"), *, more: str = "") -> SparkEngine:
    """An engine that is a few lines of Python."""
    command = (sys.executable, "-c", code)
    return SparkEngine(settings(more), socket, clock=SystemClock(), log=log, command=command)


def says(event: str, **fields: object) -> str:
    line = json.dumps({"level": "info", "event": event, **fields})
    return f"import sys; sys.stdin.readline(); print({line!r}, flush=True)"


async def test_the_engine_understands_what_the_daemon_writes() -> None:
    reported = parse(SparkEngine.options(settings("sparkStateDir = /var/lib/state\n"), Path("/tmp/s")))
    assert (reported.pipeline, reported.application, reported.stream) == ("job:counts", "orders", "clicks")
    assert reported.conf == {"spark.ui.enabled": "false"}
    assert (reported.trigger, reported.state_dir, reported.socket) == (
        "2 seconds",
        "/var/lib/state",
        "/tmp/s",
    )


async def test_children_are_relays_that_are_given_empty_batches_and_time_to_drain() -> None:
    given = with_relays(settings(), relay=Path("/lib/relay.py"), socket=Path("/tmp/s"), drain_ms=90_000)
    child = given.child
    assert child.command == (sys.executable, "-I", "-S", "/lib/relay.py", "/tmp/s")
    assert child.call_for_empty
    assert child.shutdown_grace_ms == 95_000


@pytest.mark.parametrize(("inherits", "seen"), [("true", "k"), ("false", "None")])
async def test_a_pipeline_finds_the_daemons_credentials_only_where_it_may(
    monkeypatch: pytest.MonkeyPatch, inherits: str, seen: str
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "k")
    log = MemoryLog()
    code = "import os, sys; print(os.environ.get('AWS_SECRET_ACCESS_KEY'), file=sys.stderr); sys.exit(78)"
    await engine(code, log, more=f"childInheritCredentials = {inherits}\n").run()
    assert [each["line"] for each in reported(log, "spark_output")] == [seen]


async def test_events_and_lines_of_the_engine_are_logged() -> None:
    log = MemoryLog()
    asked = anyio.Event()
    each = engine(says("caught_up", shards=3) + "; print('hello', file=sys.stderr); sys.stdin.read()", log)
    each.background(Worker(asked))
    async with anyio.create_task_group() as group:
        group.start_soon(each.run)
        await asked.wait()
        await seen(log, "spark_output")
        await each.stop()
    assert reported(log, "caught_up")[0]["shards"] == 3
    assert [each["line"] for each in reported(log, "spark_output")][:1] == ["hello"]
    assert each.failure is None


async def test_figures_are_there_while_the_engine_runs_and_go_with_it() -> None:
    log = MemoryLog()
    query = {
        **dict.fromkeys(("input_rows_per_s", "processed_rows_per_s", "batch_s", "state_rows", "late_rows")),
        "running": True,
        "failures": 0,
        "batch": 4,
        "since_commit_s": 0.5,
    }
    code = "\n".join(
        (
            says("spark_started", ui="http://127.0.0.1:4040"),
            says("spark_figures", queries={"counts": query}, shards={}),
            says("engine_ready") + "; sys.stdin.read()",
        )
    ).replace("import sys; sys.stdin.readline();", "import sys;")
    each = engine(code, log)
    assert each.figures() is None
    view = None
    async with anyio.create_task_group() as group:
        group.start_soon(each.run)
        await seen(log, "engine_ready")
        view = each.figures()
        await each.stop()
    assert view is not None
    assert view.ui == "http://127.0.0.1:4040"
    assert [(query.name, query.batch) for query in view.queries] == [("counts", 4)]
    assert each.figures() is None


async def test_warnings_of_an_engine_that_runs_already_are_counted(tmp_path: Path) -> None:
    log, gathered, go = MemoryLog(), Gathered(), tmp_path / "go"
    line = json.dumps({"level": "warning", "event": "query_failed"})
    code = f"""
import os, sys, time
print("it runs", file=sys.stderr)
while not os.path.exists({str(go)!r}):
    time.sleep(0.01)
print({line!r})
print("no event")
sys.exit(78)
"""
    each = engine(code, log)
    async with anyio.create_task_group() as group:
        group.start_soon(each.run)
        await seen(log, "spark_output")
        each.log_to(CountedLog(log, gathered.meters))
        go.touch()
    assert gathered.value(own.EVENTS, level="warning", event="query_failed") == 1.0
    assert gathered.value(own.EVENTS, level="warning", event="spark_event_not_read") == 1.0


async def test_figures_that_cannot_be_read_are_a_warning_and_nothing_more() -> None:
    log = MemoryLog()
    await engine(says("spark_figures", shards=7) + "; sys.exit(78)", log).run()
    (warned,) = reported(log, "spark_figures_not_read")
    assert "shards" in str(warned["error"])


@pytest.mark.parametrize(
    ("code", "event", "kind"),
    [
        (EXIT_REFUSED, "engine_refused", ConfigurationError),
        (EXIT_PIPELINE, "pipeline_failed", PipelineFailed),
    ],
)
async def test_an_engine_that_must_not_go_on_ends_the_worker(
    code: int, event: str, kind: type[Exception]
) -> None:
    asked = anyio.Event()
    each = engine(
        says(event, level="error", error="give the query a path") + f"; sys.exit({code})", MemoryLog()
    )
    each.background(Worker(asked))
    await each.run()
    assert asked.is_set()
    assert isinstance(each.failure, kind)
    assert "give the query a path" in str(each.failure)


async def test_an_engine_that_dies_is_started_again(tmp_path: Path) -> None:
    log = MemoryLog()
    mark = tmp_path / "once"
    dies_once = (
        "import os, pathlib, sys, signal; sys.stdin.readline(); "
        f"p = pathlib.Path({str(mark)!r}); first = not p.exists(); p.touch(); "
        "os.kill(os.getpid(), signal.SIGKILL) if first else sys.exit(78)"
    )
    each = engine(dies_once, log)
    await each.run()
    assert [each["code"] for each in reported(log, "spark_engine_ended")] == [-9]
    assert len(reported(log, "spark_engine_started")) == 2


@pytest.mark.parametrize("leaves", ["pass", "os.setsid()"])
async def test_an_engine_that_died_is_noticed_whoever_holds_its_pipes(leaves: str) -> None:
    """Such as a worker of Spark, or what the pipeline has started."""
    log = MemoryLog()
    dies = f"""
import os, signal, sys
sys.stdin.readline()
print('{{"event": "last"}}', flush=True)
reading, writing = os.pipe()
if os.fork() == 0:
    {leaves}
    os.write(writing, b"left")
    sys.stdin.read()
    os._exit(0)
os.read(reading, 4)
os.kill(os.getpid(), signal.SIGKILL)
"""
    each = engine(dies, log)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(each.run)
            await seen(log, "spark_engine_ended")
            await each.stop()
    assert [ended["code"] for ended in reported(log, "spark_engine_ended")] == [-9]
    assert reported(log, "last")


async def test_a_stop_finds_an_engine_that_is_just_being_started() -> None:
    log = MemoryLog()
    each = engine("import sys; sys.stdin.readline(); sys.stdin.read()", log)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(each.run)
            await anyio.lowlevel.checkpoint()
            await each.stop()
    assert len(reported(log, "spark_engine_started")) <= 1
    assert reported(log, "spark_engine_ended") == []


async def test_an_engine_is_ended_with_the_task_that_listens() -> None:
    log = MemoryLog()
    each = engine("import os, sys; print(os.getpid(), file=sys.stderr); sys.stdin.read()", log)
    async with anyio.create_task_group() as group:
        group.start_soon(each.run)
        await seen(log, "spark_output")
        group.cancel_scope.cancel()
    pid = int(str(reported(log, "spark_output")[0]["line"]))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_line_that_is_no_event_stops_neither_the_engine_nor_the_daemon() -> None:
    log = MemoryLog()
    code = (
        'import sys; sys.stdin.readline(); print(\'{"event": "x", "v": NaN}\'); print(\'x\' * 9_000_000);'
        f"print({json.dumps({'event': 'still_here'})!r}, flush=True); sys.exit(78)"
    )
    await engine(code, log).run()
    assert [str(each["line"])[:5] for each in reported(log, "spark_event_not_read")] == ['{"eve', "xxxxx"]
    assert len(reported(log, "still_here")) == 1


async def test_a_stop_before_the_engine_is_ready_waits_for_nothing(tmp_path: Path) -> None:
    log = MemoryLog()
    never_ready = "import sys, time; print('starting', file=sys.stderr); time.sleep(600)"
    each = engine(never_ready, log, tmp_path / "socket")
    worker = each.background(Worker(anyio.Event()))
    with anyio.fail_after(90):
        async with anyio.create_task_group() as group:
            group.start_soon(each.run)
            await seen(log, "spark_output")
            worker.request_stop()
            await worker.run()
            assert (tmp_path / "socket.closed").exists()  # where waiting relays look
            await each.stop()


async def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        """Nothing is installed."""

    monkeypatch.setattr("kcl_daemon.helper_process.find_spec", missing)
    with pytest.raises(ConfigurationError, match=r"pip install 'kcl-daemon\[spark\]'"):
        async with beside(SparkEngine, settings(), clock=SystemClock(), log=MemoryLog()):
            pass
