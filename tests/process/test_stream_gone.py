"""A whole daemon whose stream is deleted under it, and created again under its name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.process.daemon import PROCESSORS, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
QUICK: Final = {"idleTimeBetweenReadsInMillis": 200, "leasesRecoveryAuditorExecutionFrequencyMillis": 500}


def test_a_deleted_stream_is_one_error_and_its_leases_stay(local: Local, tmp_path: Path) -> None:
    with (
        application(local, tmp_path, "gone", shards=3) as app,
        app.daemon(CAREFUL, QUICK, worker="alpha") as alpha,
    ):
        app.put(2)
        app.wait_done()
        app.kinesis.delete_stream(StreamName=app.name, EnforceConsumerDeletion=True)
        alpha.wait_for("stream_gone")
        checkpoints = {key: row["checkpoint"] for key, row in app.rows().items()}
        app.kinesis.create_stream(StreamName=app.name, ShardCount=3)
        with app.daemon(CAREFUL, QUICK, worker="beta") as beta:
            beta.wait_for("worker_started")
            wait_until(lambda: len(set(app.owners().values())) > 1, "beta has leases")
            beta.wait_for("position_refused")
            beta.stop()
        alpha.stop()
        assert len(alpha.named("stream_gone")) == 1
        assert "advice" in alpha.named("stream_gone")[0]
        assert {key: row["checkpoint"] for key, row in app.rows().items()} == checkpoints
    assert len(alpha.loud()) < 20


def test_a_daemon_that_starts_on_another_stream_of_the_name_says_so_and_touches_nothing(
    local: Local, tmp_path: Path
) -> None:
    with application(local, tmp_path, "again", shards=2) as app:
        app.put(2)
        with app.daemon(CAREFUL, QUICK, worker="alpha") as alpha:
            app.wait_done()
            alpha.stop()
        app.kinesis.delete_stream(StreamName=app.name, EnforceConsumerDeletion=True)
        app.create_stream(2)
        before = {key: row["checkpoint"] for key, row in app.rows().items()}
        with app.daemon(CAREFUL, QUICK, worker="beta") as beta:
            beta.wait_for("stream_recreated")
            beta.stop()
        assert len(beta.named("stream_recreated")) == 1
        assert {key: row["checkpoint"] for key, row in app.rows().items()} == before
