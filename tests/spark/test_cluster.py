"""Spark elsewhere: a standalone cluster with both transports, and a server of Spark Connect; results as from one machine."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark.cluster import WORKER_MEMORY, connect_server, standalone_cluster
from tests.spark.crashes import Account, account, newest_rows
from tests.spark.daemon import Daemon, Relay, Shard, wait_for

WITHIN_S = 240
MINUTE_0 = 1_735_689_600
CLUSTER_CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": WORKER_MEMORY,
    "spark.default.parallelism": "2",
}

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]


def run(folder: Path, **options: Any) -> None:
    """A shard that ends, the one that follows it, and one beside; windows, the file sink and batches, all checked."""
    folder.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name("jobs.py"), folder / "jobs.py")
    parent = Shard("shardId-000000000000", 3_000, ends=True)
    with Daemon(
        folder, [parent, Shard("shardId-000000000001", 2_000)], most_records=300, pace_s=0.01
    ) as daemon:
        engine = daemon.start_engine(pipeline="jobs:everything", **options)
        assert engine.process.poll() is None, f"{engine.events}\n{daemon.engine_log()}"
        daemon.start_relays()
        wait_for(lambda: parent.finished or engine.process.poll() is not None, WITHIN_S)
        assert parent.finished, f"{engine.events[-5:]}\n{daemon.engine_log()}"
        child = Shard("shardId-000000000002", 1_000)
        daemon.shards.append(child)
        daemon.relays.append(Relay(daemon, child))
        wait_for(daemon.is_done, WITHIN_S)
        daemon.drain()
        assert engine.stop() == 0, engine.events
        assert not engine.has("query_failed"), engine.events
        for output in ("files", "batches"):
            assert account(daemon, folder / "out" / output) == Account(0, 0)
        expected = Counter(
            (number // 1000, shard.shard_id) for shard in daemon.shards for number in range(shard.count)
        )
        found = {
            (int(row["window"]["start"].timestamp()) - MINUTE_0, row["shard_id"]): row["count"]
            for row in newest_rows(folder / "out" / "windows")
        }
        assert found == dict(expected)


def test_a_cluster_is_fed_through_the_tasks_or_a_shared_folder(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path / "spark") as master:
        run(tmp_path / "inline", master=master, transport="inline", conf=CLUSTER_CONF)
        spool = (tmp_path / "mounted").as_uri()
        run(tmp_path / "shared", master=master, transport="shared", spool_dir=spool, conf=CLUSTER_CONF)
    assert not list((tmp_path / "inline" / "state" / "spool").rglob("*.arrow"))
    assert not list((tmp_path / "mounted").rglob("*.arrow"))


def test_a_server_of_spark_connect_runs_the_queries(tmp_path: Path) -> None:
    with connect_server(tmp_path / "spark") as remote:
        run(tmp_path / "job", remote=remote, transport="shared", spool_dir=str(tmp_path / "mounted"), conf={})
