"""Each client library's processor under the real daemon: records in are records out, with a reshard and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dropin.libraries import LIBRARIES, Library
from tests.process.daemon import Application, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

SHARDS: Final = 2
QUICK: Final = {
    "failoverTimeMillis": 2000,
    "leaderLeaseMillis": 3000,
    "leaderHeartbeatMillis": 500,
    "workerMetricsReporterFreqInMillis": 500,
    "idleTimeBetweenReadsInMillis": 200,
    "parentShardPollIntervalMillis": 200,
    "leaseAssignmentStrategy": "LEASE_COUNT_BASED",
    "cleanupLeasesUponShardCompletion": "false",
}


def open_shards(app: Application) -> list[str]:
    """The shards that take records."""
    return [
        shard["ShardId"]
        for shard in app.shards()
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    ]


def split(app: Application, shard_id: str) -> None:
    """Split a shard in the middle, and wait until it has been done."""
    (hashes,) = (shard["HashKeyRange"] for shard in app.shards() if shard["ShardId"] == shard_id)
    middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"])) // 2
    app.kinesis.split_shard(StreamName=app.name, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
    wait_until(lambda: len(open_shards(app)) == SHARDS + 1, "the shard is split")


def is_finished(app: Application, shard_id: str) -> bool:
    """Whether the lease of a shard is at its end."""
    return app.rows().get(shard_id, {}).get("checkpoint", {}).get("S") == "SHARD_END"


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_records_in_are_records_out_with_a_reshard_and_a_restart(
    local: Local, tmp_path: Path, library: Library
) -> None:
    command = library.command()
    name = f"dropin-{library.name.lower().replace(' ', '-').strip('.*')}"
    with application(local, tmp_path, name, shards=SHARDS) as app:
        app.put(20)
        with app.daemon(command, QUICK, worker="first") as daemon:
            app.wait_done()
            parent = open_shards(app)[0]
            split(app, parent)
            app.put(20)
            app.wait_done(open_shards(app))
            wait_until(lambda: is_finished(app, parent), "the parent is finished")
            daemon.stop()
            assert not daemon.named("child_failed")
            assert not daemon.named("child_stray_output")
        app.put(20)
        with app.daemon(command, QUICK, worker="second") as daemon:
            app.wait_done(open_shards(app))
            daemon.stop()
        app.assert_account(repeated=0)
        kinds = {(entry.kind, entry.shard_id) for _, entry in app.ledgers}
        assert ("ended", parent) in kinds
        assert {shard_id for kind, shard_id in kinds if kind == "stopping"} == set(open_shards(app))
        assert {shard_id for kind, shard_id in kinds if kind == "lost"} == set(open_shards(app))
