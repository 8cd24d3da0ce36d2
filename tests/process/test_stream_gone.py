"""A whole daemon whose stream is deleted under it, and created again under its name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from kcl_local.demo.check import Checker
from tests.process.commands import run_command
from tests.process.daemon import FAILOVER_MS, PROCESSORS, application
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
# What alpha finds where the test takes so long that it looks again, a minute after it saw that the stream was gone.
A_MINUTE_LATER: Final = {"stream_recreated", "iterator_renewed", "position_refused"}
QUICK: Final = {
    "failoverTimeMillis": FAILOVER_MS,
    "workerMetricsReporterFreqInMillis": 500,
    "leaseAssignmentStrategy": "LEASE_COUNT_BASED",
    "idleTimeBetweenReadsInMillis": 200,
    "leasesRecoveryAuditorExecutionFrequencyMillis": 500,
}


def test_a_deleted_stream_is_one_error_and_its_leases_stay(local: Local, tmp_path: Path) -> None:
    with (
        application(local, tmp_path, "gone", shards=3) as app,
        app.daemon(CAREFUL, QUICK, worker="alpha") as alpha,
    ):
        app.put(2)
        app.wait_done()
        app.delete_stream()
        alpha.wait_for("stream_gone")
        checkpoints = {key: row["checkpoint"] for key, row in app.rows().items()}
        app.kinesis.create_stream(StreamName=app.name, ShardCount=3)
        with app.daemon(CAREFUL, QUICK, worker="beta") as beta:
            assert beta.end() == 2
            assert "deleted and created again" in beta.named("daemon_failed")[0]["error"]
        alpha.stop()
        (gone,) = alpha.named("stream_gone")
        assert (gone["level"], gone["stream"]) == ("error", "gone")
        assert "reset its leases" in gone["advice"]
        assert {key: row["checkpoint"] for key, row in app.rows().items()} == checkpoints
    assert {each["event"] for each in alpha.loud()} - A_MINUTE_LATER == {"stream_gone"}


def test_a_daemon_that_starts_on_another_stream_of_the_name_ends_and_touches_nothing(
    local: Local, tmp_path: Path
) -> None:
    """Until somebody starts over: then it reads the new stream from its beginning."""
    with application(local, tmp_path, "again", shards=2) as app:
        app.put(2)
        with app.daemon(CAREFUL, QUICK, worker="alpha") as alpha:
            app.wait_done()
            alpha.stop()
        app.delete_stream()
        app.create_stream(2)
        before = app.rows()
        with app.daemon(CAREFUL, QUICK, worker="beta") as beta:
            assert beta.end() == 2
            assert "leases reset" in beta.named("daemon_failed")[0]["error"]
        assert app.rows() == before
        words = ("leases", "reset", "beta.properties", "--to", "TRIM_HORIZON", "--yes")
        done = run_command(*words, directory=tmp_path, environment=local.environment)
        assert done.returncode == 0, done.stderr
        app.checker = Checker()
        app.put(1)
        with app.daemon(CAREFUL, QUICK, worker="beta") as beta:
            app.wait_done()
            beta.stop()
