"""Whole daemons of two streams under one application name: the one that came second ends, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.process.commands import run_command
from tests.process.daemon import FAILOVER_MS, PROCESSORS, Application, Daemon, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
QUICK: Final = {
    "failoverTimeMillis": FAILOVER_MS,
    "workerMetricsReporterFreqInMillis": 500,
    "idleTimeBetweenReadsInMillis": 200,
}


def _tables(app: Application) -> Mapping[str, object]:
    """Every row of every table of the application."""
    names = [name for name in app.all_tables() if name.startswith(app.name)]
    return {name: app.dynamodb.scan(TableName=name)["Items"] for name in names}


def _ends_as_of_another_stream(daemon: Daemon, *names: str) -> None:
    assert daemon.end() == 2, daemon.tail()
    (failed,) = daemon.named("daemon_failed")
    assert "ConfigurationError" in failed["error"]
    assert all(name in failed["error"] for name in (*names, "applicationName", "leases adopt")), failed
    assert not daemon.named("worker_started")


def test_a_daemon_of_another_stream_ends_and_changes_no_row_of_a_stopped_application(
    local: Local, tmp_path: Path
) -> None:
    """The four leases of zero stay open; shards 2 and 3 were SHARD_END within a second."""
    with application(local, tmp_path, "zero", shards=4) as app:
        app.put(2)
        with app.daemon(CAREFUL, QUICK, worker="zero-0") as right:
            app.wait_done()
            right.stop()
        app.kinesis.create_stream(StreamName="leak", ShardCount=2)
        before = _tables(app)
        with app.daemon(CAREFUL, {**QUICK, "streamName": "leak"}, worker="moved") as wrong:
            _ends_as_of_another_stream(wrong, "stream/zero", "stream/leak")
        assert _tables(app) == before
        file = app.write_properties("moved", CAREFUL, {**QUICK, "streamName": "leak"})
        checked = run_command("check", file, "--with-aws", directory=tmp_path, environment=local.environment)
        assert "stream/zero" in checked.stdout
        app.put(1)
        with app.daemon(CAREFUL, QUICK, worker="zero-0") as right:
            app.wait_done()
            right.stop()
        app.assert_account()


@pytest.mark.parametrize("layout", ["separate", "single"])
def test_of_two_applications_with_one_name_one_reads_its_whole_stream(
    local: Local, tmp_path: Path, layout: str
) -> None:
    settings = {**QUICK, "metadataTableLayout": layout}
    with application(local, tmp_path, f"twoapps-{layout}", shards=4) as app:
        app.kinesis.create_stream(StreamName=f"twoapps2-{layout}", ShardCount=4)
        with app.daemon(CAREFUL, settings, worker="one") as one:
            one.wait_for("worker_started")
            with app.daemon(CAREFUL, {**settings, "streamName": f"twoapps2-{layout}"}, worker="two") as two:
                _ends_as_of_another_stream(two, f"stream/twoapps-{layout}", f"stream/twoapps2-{layout}")
            app.put(2)
            app.wait_done()
            one.stop()
        app.assert_account(repeated=0)


def test_an_application_goes_over_to_another_stream_only_on_purpose(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "before", shards=2) as app:
        app.put(1)
        with app.daemon(CAREFUL, QUICK) as daemon:
            app.wait_done()
            daemon.stop()
        app.kinesis.create_stream(StreamName="after", ShardCount=3)
        file = app.write_properties("moved", CAREFUL, {**QUICK, "streamName": "after"})

        def leases(*words: str) -> str:
            done = run_command("leases", *words, directory=tmp_path, environment=local.environment)
            return f"{done.returncode} {done.stdout}{done.stderr}"

        before = _tables(app)
        shard = ("--shard", "shardId-000000000001")
        for words in (
            ("reset", file, "--to", "TRIM_HORIZON", "--yes"),
            ("reset", file, "--to", "TRIM_HORIZON", *shard, "--yes"),
            ("skip", file, *shard, "--yes"),
        ):
            said = leases(*words)
            assert said.startswith("2 "), said
            assert "stream/before" in said
        dry = leases("adopt", file, "--dry-run")
        assert dry.startswith("0 from: arn:aws:kinesis:us-east-1:123456789012:stream/before of "), dry
        assert "the leases do not seem to be of it" in dry
        assert _tables(app) == before
        assert leases("adopt", file, "--yes").startswith("0 ")
        assert leases("reset", file, "--to", "TRIM_HORIZON", "--yes").startswith("0 ")
        with app.daemon(CAREFUL, {**QUICK, "streamName": "after"}, worker="moved") as daemon:
            wait_until(lambda: set(app.owners().values()) == {"moved"}, "it reads all shards")
            daemon.stop()
        assert len(app.rows()) == 3


@pytest.mark.parametrize("layout", ["separate", "single"])
def test_a_reset_writes_leases_only_where_no_row_names_the_stream(
    local: Local, tmp_path: Path, layout: str
) -> None:
    """A fleet of KCL 2.x has one table, in which its workers fail on other rows than leases."""
    with application(local, tmp_path, f"old-{layout}", shards=2) as app:
        with app.daemon(CAREFUL, QUICK) as daemon:
            wait_until(lambda: len(app.rows()) == 2, "it has leases")
            daemon.stop()
        for name in app.all_tables():
            if name.startswith(f"{app.name}-"):
                app.dynamodb.delete_table(TableName=name)
        file = app.write_properties("reset", CAREFUL, {**QUICK, "metadataTableLayout": layout})
        words = ("leases", "reset", file, "--to", "TRIM_HORIZON", "--yes")
        done = run_command(*words, directory=tmp_path, environment=local.environment)
        assert done.returncode == 0, done.stderr
        ((table, rows),) = _tables(app).items()
        assert table == app.name
        assert isinstance(rows, list)
        assert len(rows) == 2
