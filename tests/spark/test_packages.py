"""What needs packages of Maven: upserts into a real PostgreSQL, Delta, Avro and protocol buffers.

They are fetched by Spark's own client at the first run. `KCL_TESTS_OFFLINE=1` leaves these tests out, by name.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.dataset as ds
import pyspark
import pytest

from tests.spark.crashes import hold_at
from tests.spark.daemon import ROOT, Daemon, EngineProcess, Shard, wait_for
from tests.spark.packaged import LONG_SHOP, VERSIONS
from tests.spark.postgres import postgres, programs

DRIVER = "org.postgresql:postgresql:42.7.8"
SQLITE = "org.xerial:sqlite-jdbc:3.46.1.3"
DELTA = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}
"""By Spark's version, which Delta's packages must fit exactly; those for a new one come some time after it."""
RECORDS = 1_500
WITHIN_S = 400

pytestmark = [
    pytest.mark.prove,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.environ.get("KCL_TESTS_OFFLINE") == "1", reason="not run: it needs packages from Maven Central"
    ),
]


def run_with_a_kill_after_the_sink(folder: Path, **options: Any) -> Daemon:
    """Two shards through a pipeline whose engine is killed when a batch is written and not yet committed."""
    shutil.copy(Path(__file__).with_name("jobs.py"), folder / "jobs.py")
    shards = [Shard(f"shardId-{number:012}", RECORDS) for number in range(2)]
    with Daemon(folder, shards, most_records=120, pace_s=0.03) as daemon:
        stands = hold_at(daemon, "after_sink")
        engine = started(daemon, options)
        wait_for(lambda: stands() or engine.process.poll() is not None, WITHIN_S)
        assert engine.process.poll() is None, f"{engine.events}\n{daemon.engine_log()}"
        engine.kill()
        for relay in daemon.relays:
            relay.join(20)
        engine = started(daemon, options)
        wait_for(lambda: daemon.is_done() or engine.process.poll() is not None, WITHIN_S)
        daemon.drain()
        assert engine.stop() == 0, f"{engine.events}\n{daemon.engine_log()}"
        assert not engine.has("query_failed")
    return daemon


def started(daemon: Daemon, options: dict[str, Any]) -> EngineProcess:
    engine = daemon.start_engine(max_bytes_per_trigger=60_000, **options)
    assert engine.process.poll() is None, f"{engine.events}\n{daemon.engine_log()}"
    daemon.start_relays()
    return engine


def test_an_upsert_into_postgresql_is_right_after_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = programs()
    if found is None:
        pytest.skip("not run: it needs PostgreSQL's programs (initdb, postgres, psql)")
    with postgres(found) as database:
        monkeypatch.setenv("KCL_TEST_JDBC", database.url)
        database.query(
            "CREATE TABLE kcl_rows (shard_id text, number bigint, partition_key text, PRIMARY KEY (shard_id, number));"
            "CREATE TABLE kcl_newest (partition_key text PRIMARY KEY, shard_id text, number bigint);"
            f"INSERT INTO kcl_newest VALUES ('key-0', 'another host', {10 * RECORDS})"
        )
        daemon = run_with_a_kill_after_the_sink(tmp_path, pipeline="jobs:into_database", packages=DRIVER)
        rows = sorted(f"{shard}:{number}" for shard, number, _ in database.query("SELECT * FROM kcl_rows"))
        assert rows == daemon.expected()
        newest = {key: int(number) for key, _, number in database.query("SELECT * FROM kcl_newest")}
        last = {f"key-{number % 7}": number for number in range(RECORDS)}
        assert newest == {**last, "key-0": 10 * RECORDS}  # what another host wrote is newer
        left = database.query("SELECT tablename FROM pg_tables WHERE tablename LIKE '%_kcl_%'")
        assert left == []


def test_an_upsert_into_sqlite_is_right_after_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark has no dialect for SQLite."""
    file = tmp_path / "rows.db"
    monkeypatch.setenv("KCL_TEST_JDBC", f"jdbc:sqlite:{file}")
    with closing(sqlite3.connect(file)) as database:
        database.executescript(
            "CREATE TABLE kcl_rows (shard_id TEXT, number INTEGER, partition_key TEXT, PRIMARY KEY (shard_id, number));"
            "CREATE TABLE kcl_newest (partition_key TEXT PRIMARY KEY, shard_id TEXT, number INTEGER);"
        )
    daemon = run_with_a_kill_after_the_sink(tmp_path, pipeline="jobs:into_database", packages=SQLITE)
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("SELECT shard_id, number FROM kcl_rows").fetchall()
        assert sorted(f"{shard}:{number}" for shard, number in rows) == daemon.expected()
        newest = dict(database.execute("SELECT partition_key, number FROM kcl_newest").fetchall())
        assert newest == {f"key-{number % 7}": number for number in range(RECORDS)}
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        assert {name for (name,) in tables} == {"kcl_rows", "kcl_newest"}


def test_a_delta_table_takes_a_batch_once(tmp_path: Path) -> None:
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in DELTA:
        pytest.skip(f"not run: Delta has packages for Spark {', '.join(DELTA)}, and this is {version}")
    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    daemon = run_with_a_kill_after_the_sink(
        tmp_path, pipeline="jobs:into_delta", packages=DELTA[version], conf=conf
    )
    table = tmp_path / "out" / "delta"
    files: set[str] = set()
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files.add(unquote(action["add"]["path"]))
            assert "remove" not in action
    texts = ds.dataset([str(table / each) for each in files]).to_table(columns=["text"])["text"].to_pylist()
    assert sorted(text.rstrip("x").rstrip(":") for text in texts) == daemon.expected()


def decoded(kind: str) -> dict[str, list[list[Any]]]:
    """What the program prints; the test is left out, by name, where Maven Central has not got the package."""
    for version in VERSIONS:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.packaged", kind, version],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        if f"spark-{kind}_2.13;{version}: not found" not in done.stderr:
            assert done.returncode == 0, done.stderr[-3_000:]
            return dict(json.loads(done.stdout.splitlines()[-1]))
    pytest.skip(f"not run: Maven Central has no spark-{kind}_2.13 of {' or '.join(VERSIONS)}")


def test_avro_is_decoded_and_what_is_none_is_kept() -> None:
    reported = decoded("avro")
    large = len(LONG_SHOP)
    good, empty = [[1, 1, None], [2, large, None]], [None, None, None]
    assert reported["plain"] == [*good, empty, [None, None, "ffff"], [None, None, ""]]
    assert reported["glue"] == [[1, 1, None], [2, 2, None], [None, None, "78"]]
    assert reported["confluent"][0] == [1, 1, None]
    assert reported["confluent"][1][2] is not None


def test_protocol_buffers_are_decoded_and_what_is_none_is_kept() -> None:
    found = decoded("protobuf")["plain"]
    assert [row[2] for row in found[:3]] == [None, None, None]
    assert [row[:2] for row in found[:2]] == [[1, 1], [2, len(LONG_SHOP)]]
    assert [row[2] is None for row in found[3:]] == [False, False]
