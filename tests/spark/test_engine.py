"""The engine as a process, with a real Spark: results, resharding, failures, refusals, the end of a scheduled job."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from kcl_spark.engine import EXIT_PIPELINE, EXIT_REFUSED
from kcl_spark.positions import START
from tests.spark.crashes import hold_at
from tests.spark.daemon import BASE, Daemon, EngineProcess, Relay, Shard, wait_for

WITHIN_S = 240

pytestmark = pytest.mark.timeout(900)


def prepared(folder: Path, *shards: Shard) -> Daemon:
    shutil.copy(Path(__file__).with_name("jobs.py"), folder / "jobs.py")
    return Daemon(folder, list(shards), most_records=300, pace_s=0.01)


def newest_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of an output in batches, of each key only the last."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    batches = [each for each in folder.glob("batch_id=*") if list(each.glob("*.parquet"))]
    for batch in sorted(batches, key=lambda each: int(each.name.partition("=")[2])):
        for row in ds.dataset([str(each) for each in batch.glob("*.parquet")]).to_table().to_pylist():
            found[row["window"]["start"], row["shard_id"]] = row
    return list(found.values())


def newest_figures(engine: EngineProcess) -> dict[str, Any]:
    return next(each for each in reversed(engine.events) if each["event"] == "spark_figures")


def open_shards(daemon: Daemon) -> set[str]:
    return {shard.shard_id for shard in daemon.shards if not shard.ends}


def test_windows_over_a_reshard_are_those_of_a_batch_computation(tmp_path: Path) -> None:
    parent = Shard("shardId-000000000000", 3_000, ends=True)
    with prepared(tmp_path, parent, Shard("shardId-000000000001", 2_000)) as daemon:
        daemon.start_engine(pipeline="jobs:windows")
        daemon.start_relays()
        wait_for(lambda: parent.finished, WITHIN_S)
        child = Shard("shardId-000000000002", 1_000)
        daemon.shards.append(child)
        daemon.relays.append(Relay(daemon, child))
        wait_for(daemon.is_done, WITHIN_S)
        engine = daemon.engine
        assert engine is not None
        wait_for(lambda: newest_figures(engine)["shards"].keys() == open_shards(daemon), WITHIN_S)
        assert newest_figures(engine)["queries"]["windows"]["state_rows"] > 0
        daemon.drain()
        wait_for(lambda: newest_figures(engine)["shards"] == {}, WITHIN_S)
        assert engine.stop() == 0
        expected = Counter(
            (number // 1000, shard.shard_id) for shard in daemon.shards for number in range(shard.count)
        )
        found = {
            (int(row["window"]["start"].timestamp()) - 1_735_689_600, row["shard_id"]): row["count"]
            for row in newest_rows(tmp_path / "out" / "windows")
        }
        assert found == dict(expected)


def test_rows_that_spark_drops_as_late_are_counted_and_said_once(tmp_path: Path) -> None:
    """A shard that comes when all others are done, with records of long ago."""
    with prepared(tmp_path, Shard("shardId-000000000000", 9_000)) as daemon:
        engine = daemon.start_engine(pipeline="jobs:impatient")
        daemon.start_relays()
        wait_for(daemon.is_done, WITHIN_S)
        latecomer = Shard("shardId-000000000001", 1_000)
        daemon.shards.append(latecomer)
        daemon.relays.append(Relay(daemon, latecomer))
        wait_for(daemon.is_done, WITHIN_S)
        wait_for(lambda: (newest_figures(engine)["queries"]["impatient"]["late_rows"] or 0) > 0, WITHIN_S)
        daemon.drain()
        assert engine.stop() == 0
        assert engine.event("spark_rows_late")["query"] == "impatient"
        assert sum(each["event"] == "spark_rows_late" for each in engine.events) == 1


def test_a_replay_is_told_and_a_scheduled_job_ends_and_foreign_state_is_refused(tmp_path: Path) -> None:
    shard = Shard("shardId-000000000000", 2_000)
    with prepared(tmp_path, shard) as daemon:
        standing = hold_at(daemon, "in_batch")
        (tmp_path / "hold").write_text("in_batch")
        daemon.start_engine(pipeline="jobs:noted")
        daemon.start_relays()
        wait_for(standing, WITHIN_S)
        assert daemon.engine is not None
        daemon.engine.kill()
        engine = daemon.start_engine(pipeline="jobs:noted", trigger="availableNow")
        daemon.start_relays()
        wait_for(lambda: engine.has("caught_up"), WITHIN_S)
        daemon.drain()
        assert engine.stop() == 0
        noted = [line.split() for line in (tmp_path / "noted").read_text().splitlines()]
        (first, again), later = noted[:2], noted[2:]
        assert first[:3] == ["0", "noted", "False"]
        assert again == ["0", "noted", "True", *first[3:]]
        assert [line[2] for line in later] == ["False"] * len(later)
        assert sum(int(line[3]) for line in noted[1:]) == 2_000
        assert shard.checkpoint == (BASE + 1_999, 0)

        shutil.rmtree(tmp_path / "state")
        engine = daemon.start_engine(pipeline="jobs:noted")
        daemon.start_relays()
        assert engine.process.wait(WITHIN_S) == EXIT_REFUSED
        engine.close()
        assert "sparkStateReset=true" in engine.event("engine_refused")["error"]


def test_a_pipeline_that_fails_holds_the_stream_and_says_where(tmp_path: Path) -> None:
    shard = Shard("shardId-000000000000", 500)
    with prepared(tmp_path, shard) as daemon:
        engine = daemon.start_engine(pipeline="jobs:failing", query_retries=1)
        daemon.start_relays()
        assert engine.process.wait(WITHIN_S) == EXIT_PIPELINE
        engine.close()
        failed = engine.event("query_failed")
        assert failed["query"] == "poisoned"
        assert shard.shard_id in failed["ranges"]
        assert f"cannot digest batch {failed['batch']}" in engine.event("pipeline_failed")["error"]
        assert shard.checkpoint == START
