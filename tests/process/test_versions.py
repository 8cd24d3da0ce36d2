"""Workers of this version and of the one before it in one fleet, on the same tables: docs/versions.md says what may be mixed.

Everything here is played both ways. The everyday tier has none of it: two versions of everything take their time.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pytest

from kcl_local.demo.check import DIRECTORY_VARIABLE, monotonic_s
from tests.process.daemon import Application, Daemon, again_and_again, application, wait_until
from tests.process.local import Local
from tests.process.test_fleet import FLEET, shares
from tests.process.test_lag_process import port_of
from tests.process.test_landing_process import Stream, all_ended, reshard
from tests.process.test_poison_process import QUICK, put_poison
from tests.process.test_reshard_process import merge, open_shards, split
from tests.process.versions import THIS, Version, previous

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]

SHARDS: Final = 4
# More than other tests: a call may take a third of it, and eight interpreters start and work here at once.
FAILOVER_MS: Final = 12_000
LOAD_PERIOD_S: Final = 1.0
# For hangs only.
SETTLED_S: Final = 300.0


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return previous(tmp_path_factory.mktemp("previous"))


def both(order: str, old: Version) -> tuple[Version, Version]:
    return (old, THIS) if order == "old-first" else (THIS, old)


ORDERS: Final = pytest.mark.parametrize("order", ["old-first", "new-first"])
LAYOUTS: Final = pytest.mark.parametrize("layout", ["separate", "single"])


@dataclass
class Fleet:
    """Daemons of one application by the name of the worker, each of a version."""

    app: Application
    settings: Mapping[str, object]
    module: str = "careful"
    stack: ExitStack = field(default_factory=ExitStack)
    running: dict[str, tuple[Version, Daemon]] = field(default_factory=dict[str, tuple[Version, Daemon]])
    ever: list[tuple[str, Daemon]] = field(default_factory=list[tuple[str, Daemon]])

    def start(self, worker: str, version: Version) -> Daemon:
        program = version.program(self.module) if self.module else ""
        daemon = self.stack.enter_context(
            self.app.daemon(program, self.settings, worker=worker, python=version.python)
        )
        self.running[worker] = (version, daemon)
        self.ever.append((f"{worker} ({version.name})", daemon))
        return daemon

    def stop(self, worker: str) -> None:
        self.running.pop(worker)[1].stop()

    def kill(self, worker: str) -> None:
        _, daemon = self.running.pop(worker)
        daemon.signal(signal.SIGKILL)
        assert daemon.end() == -signal.SIGKILL

    def pause(self, worker: str, for_s: float) -> None:
        """As a machine that stands still: its leases are taken, and it finds that out."""
        _, daemon = self.running[worker]
        daemon.signal(signal.SIGSTOP)
        began_s = monotonic_s()
        wait_until(lambda: monotonic_s() - began_s > for_s, "it stands still")
        daemon.signal(signal.SIGCONT)

    def wait_shared(self) -> None:
        """Each worker that runs reads something, and nobody else does."""

        def is_shared() -> bool:
            self.app.poll()
            return set(shares(self.app)) == set(self.running)

        def told() -> str:
            tails = [f"{worker}:\n{daemon.tail()}" for worker, (_, daemon) in self.running.items()]
            return "\n".join((f"{set(self.running)} share: {shares(self.app)}", *tails))

        wait_until(is_shared, told, SETTLED_S)

    def assert_quiet(self) -> None:
        for name, daemon in self.ever:
            assert wrong_in(daemon) == [], name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.stack.close()


def wrong_in(daemon: Daemon) -> list[dict[str, Any]]:
    """Errors, and rows that could not be read for another reason than a call without an answer."""
    return [
        each
        for each in daemon.loud()
        if each["level"] != "warning"
        or (
            ("unreadable" in each["event"] or "malformed" in each["event"])
            and "no answer" not in str(each.get("error"))
        )
    ]


def settings_of(layout: str) -> dict[str, object]:
    more = {"metadataTableLayout": "single"} if layout == "single" else {}
    return {
        **FLEET,
        **more,
        "failoverTimeMillis": FAILOVER_MS,
        "leaderLeaseMillis": 6000,
        "leaderHeartbeatMillis": 1000,
        "workerMetricsReporterFreqInMillis": 1000,
        "varianceBalancingFrequency": 1,
        "retrievalMode": "POLLING",
        "leaseCleanupIntervalMillis": 500,
        "completedLeaseCleanupIntervalMillis": 500,
        "leasesRecoveryAuditorExecutionFrequencyMillis": 1000,
    }


def asked(app: Application, version: Version, *words: str) -> Any:
    """What a command of a version says as JSON."""
    file = min(app.directory.glob("*.properties")).name
    return version.json(
        *words, "--properties", file, directory=app.directory, environment=app.local.environment
    )


@ORDERS
@LAYOUTS
def test_a_fleet_of_both_loses_nothing_under_kills_stalls_and_stops(
    local: Local, tmp_path: Path, old: Version, order: str, layout: str
) -> None:
    first, second = both(order, old)
    with (
        application(local, tmp_path, f"versions-{order}-{layout}", shards=SHARDS) as app,
        Fleet(app, settings_of(layout)) as fleet,
    ):
        with again_and_again(app.put, LOAD_PERIOD_S):
            fleet.start("a1", first).wait_for("leadership_taken")
            fleet.start("b1", second)
            fleet.wait_shared()
            split(app, 0)
            fleet.kill("a1")  # it leads
            fleet.running["b1"][1].wait_for("leadership_taken")
            fleet.start("a2", first)
            fleet.wait_shared()
            fleet.pause("b1", 1.5 * FAILOVER_MS / 1000)
            fleet.running["a2"][1].wait_for("leadership_taken")
            fleet.wait_shared()
            merge(app, 1)
            fleet.start("b2", second).wait_for("worker_started")
            fleet.stop("a2")
            fleet.kill("b1")
            fleet.start("a3", first)
            fleet.wait_shared()
            for version in (first, second):
                listed = asked(app, version, "leases", "list")
                assert listed["unreadable_rows"] == []
                assert {each["worker"] for each in listed["workers"]} >= set(fleet.running)
                asked(app, version, "leases", "explain")
                asked(app, version, "capacity")
        wait_until(lambda: app.delivered(app.last_written), "all is delivered", SETTLED_S)
        app.wait_done([each["ShardId"] for each in open_shards(app)], SETTLED_S)
        for worker in list(fleet.running):
            fleet.stop(worker)
        app.assert_account()
        fleet.assert_quiet()


@ORDERS
def test_a_job_of_both_ends_at_one_time_in_all_shards(
    local: Local, tmp_path: Path, old: Version, order: str
) -> None:
    first, second = both(order, old)
    settings = {**settings_of("separate"), "runUntil": "tip", "maxRecords": 5}
    with (
        application(local, tmp_path, f"versions-job-{order}", shards=2) as app,
        Fleet(app, settings) as fleet,
    ):
        app.put(200)
        daemons = [fleet.start("a", first), fleet.start("b", second)]
        assert [daemon.end(SETTLED_S) for daemon in daemons] == [0, 0], daemons[0].tail()
        bounds = {each["until_ms"] for daemon in daemons for each in daemon.named("run_is_bounded")}
        assert len(bounds) == 1
        app.put(1)
        assert fleet.start("c", second).end(SETTLED_S) == 0
        app.wait_done(within_s=SETTLED_S)
        app.assert_account(repeated=0)
        fleet.assert_quiet()


@ORDERS
def test_a_program_on_one_version_of_the_client_works_below_a_daemon_of_the_other(
    local: Local, tmp_path: Path, old: Version, order: str
) -> None:
    daemon_version, client_version = both(order, old)
    with (
        application(local, tmp_path, f"versions-client-{order}", shards=1) as app,
        app.daemon(
            client_version.program("careful"),
            {**settings_of("separate"), "adminPort": 0},
            python=daemon_version.python,
        ) as daemon,
    ):
        app.put(20)
        app.wait_done(within_s=SETTLED_S)
        port = port_of(daemon)
        for version in (daemon_version, client_version):
            page = ("status", "--url", f"http://127.0.0.1:{port}")
            said = version.json(*page, directory=tmp_path, environment=local.environment)
            assert len(said["snapshot"]["shards"]) == 1
        daemon.stop()
        app.assert_account(repeated=0)
        assert wrong_in(daemon) == []


@ORDERS
def test_letters_of_one_version_are_replayed_by_the_other(
    local: Local, tmp_path: Path, old: Version, order: str
) -> None:
    writer, reader = both(order, old)
    dead = tmp_path / "dead.jsonl"
    more = {
        **QUICK,
        "poisonRecordPolicy": "deadletter",
        "poisonRecordMaxFailures": 1,
        "deadLetterDestination": f"file:{dead}",
    }
    with application(local, tmp_path, f"versions-letters-{order}", shards=1) as app:
        with app.daemon(writer.program("poisoned"), more, python=writer.python) as daemon:
            for number in (1, 2, 3):
                put_poison(app, f"poison {number}")
                daemon.wait_for("record_set_aside", times=number, within_s=SETTLED_S)
            daemon.stop()
        file = app.write_properties("again", reader.program("poisoned"), more)
        environment = {**local.environment, DIRECTORY_VARIABLE: str(tmp_path)}
        listed = reader.json("letters", "list", "-p", file, directory=tmp_path, environment=environment)
        assert [each["cause"] for each in listed["letters"]] == ["failed"] * 3

        def replayed(version: Version, module: str) -> str:
            words = ("letters", "replay", "-p", file, "--", *version.program(module).split())
            return version.command(*words, directory=tmp_path, environment=environment).stdout

        assert "0 done, 0 rejected, 3 failed" in replayed(writer, "poisoned")
        assert "3 done, 0 rejected, 0 failed" in replayed(reader, "careful")
        assert replayed(writer, "careful").startswith("3 letters done before")


# A batch of the data source, planned and read as Spark does it: the offset that it ends at, and its records.
BATCH: Final = """
import json, sys
import kcl_spark_source
from pyspark.sql.types import StringType, StructType
columns = StructType().add("shard_id", StringType()).add("sequence_number", StringType())
reader = kcl_spark_source.KclDataSource({"path": sys.argv[1], "maxSkewWaitMillis": "20000"}).streamReader(columns)
begun = json.loads(sys.argv[2]) or reader.initialOffset()
reader.prepareForTriggerAvailableNow()
end = reader.latestOffset(begun, kcl_spark_source.ReadAllAvailable())
parts = [] if end == begun else reader.partitions(begun, end)
rows = [list(row.values()) for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
print(json.dumps([end, rows]))
"""


@ORDERS
def test_both_write_one_landing_log_and_both_read_all_of_it_once(
    local: Local, tmp_path: Path, old: Version, order: str
) -> None:
    first, second = both(order, old)
    settings = {**settings_of("separate"), "landing": "landing", "landingWindowMillis": 300}
    with (
        application(local, tmp_path, f"versions-landing-{order}", shards=2) as app,
        Fleet(app, settings, module="") as fleet,
    ):
        stream = Stream(app)
        offset, seen = None, Counter[tuple[str, int]]()
        fleet.start("a1", first).wait_for("leadership_taken")
        fleet.start("b1", second).wait_for("lander_ready")
        fleet.wait_shared()

        def is_all_read(version: Version) -> bool:
            nonlocal offset
            done = version.run(
                "-c", BATCH, str(stream.folder), json.dumps(offset), directory=tmp_path, environment={}
            )
            assert done.returncode == 0, done.stderr
            offset, rows = json.loads(done.stdout.splitlines()[-1])
            seen.update((shard, int(number)) for shard, number in rows)
            return seen.keys() >= set(stream.put)

        def read(version: Version) -> None:
            stream.wait_landed()
            wait_until(
                lambda: is_all_read(version), f"the source of the {version.name} one has all", SETTLED_S
            )

        for version in (first, second):  # while the first one leads
            stream.write(20)
            read(version)
        reshard(stream)
        fleet.kill("a1")
        stream.write(20)
        read(second)
        fleet.start("a2", first).wait_for("lander_ready")
        fleet.stop("b1")
        stream.write(20)
        read(first)
        read(second)
        wait_until(lambda: all_ended(stream), "all ends are marked")
        stream.assert_once()
        for worker in list(fleet.running):
            fleet.stop(worker)
        for version in (second, first):
            read(version)
            status = version.json("landing", "status", "landing", directory=tmp_path, environment={})
            assert [each["trouble"] for each in status["shards"] if each["trouble"]] == []
            verified = version.command("landing", "verify", "landing", directory=tmp_path, environment={})
            assert "clean" in verified.stdout, verified.stdout + verified.stderr
        assert seen == Counter(stream.put)
        fleet.assert_quiet()
