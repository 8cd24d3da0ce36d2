"""The state folder: one engine, one application, no JVM of an engine before. And the SQL of the upsert."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kcl_landing.control import Refused
from kcl_spark.api import Batch
from kcl_spark.queries import shortened
from kcl_spark.session import parse
from kcl_spark.sinks import iceberg_merge, jdbc_upsert, merge_statement, staging_table, statement
from kcl_spark.state import QueryChanges, StateInUse, open_state


def test_the_state_keeps_its_name(tmp_path: Path) -> None:
    with open_state(tmp_path / "state", "app") as first:
        assert first.state_id
    with open_state(tmp_path / "state", "app") as again:
        assert again.state_id == first.state_id


def test_one_engine_at_a_time(tmp_path: Path) -> None:
    with (
        open_state(tmp_path, "app"),
        pytest.raises(StateInUse, match="another engine runs"),
        open_state(tmp_path, "app", wait_s=0),
    ):
        pass


def test_another_applications_state_is_refused(tmp_path: Path) -> None:
    with open_state(tmp_path, "app"):
        pass
    with (
        pytest.raises(StateInUse, match="is the state of the application 'app'"),
        open_state(tmp_path, "other"),
    ):
        pass


def test_a_jvm_that_outlived_its_engine_is_ended_and_no_other_process(tmp_path: Path) -> None:
    sleeps = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with (
        subprocess.Popen(sleeps, stdin=subprocess.PIPE) as orphan,
        subprocess.Popen(sleeps, stdin=subprocess.PIPE) as stranger,
    ):
        with open_state(tmp_path, "app") as state:
            state.remember_jvm(orphan.pid)
            note = (tmp_path / "engine.json").read_text()
        (tmp_path / "engine.json").write_text(note)  # as after a kill
        with open_state(tmp_path, "app"):
            assert orphan.wait(60) == -9
        reused = {
            **json.loads(note),
            "pid": stranger.pid,
            "started": "1",
        }  # the number was given to another process since
        (tmp_path / "engine.json").write_text(json.dumps(reused))
        with open_state(tmp_path, "app"):
            assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize("left", ["", "{", "[]", '{"pid": "x", "started": "1"}', '{"pid": 1}'])
def test_a_note_of_the_jvm_that_a_crash_has_left_hollow_is_none(left: str, tmp_path: Path) -> None:
    with open_state(tmp_path, "app") as first:
        pass
    (tmp_path / "engine.json").write_text(left)
    with open_state(tmp_path, "app") as again:
        assert again.state_id == first.state_id
        assert not (tmp_path / "engine.json").exists()


def test_nothing_is_left_hollow_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(os, "fsync", full)
        with open_state(tmp_path, "app"):
            pass
    with open_state(tmp_path, "app") as state:
        assert state.state_id
        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
            patched.setattr(os, "fsync", full)
            state.remember_jvm(os.getpid())
        assert not (tmp_path / "engine.json").exists()


@pytest.mark.parametrize("left", ["", "[]", '{"id": "x"}'])
def test_state_that_nobody_can_name_is_refused_with_what_to_do(left: str, tmp_path: Path) -> None:
    with open_state(tmp_path, "app"):
        pass
    (tmp_path / "state.json").write_text(left)
    with (
        pytest.raises(Refused, match=r"state\.json cannot be read.*sparkStateReset"),
        open_state(tmp_path, "app"),
    ):
        pass


def test_it_says_which_queries_are_new_gone_or_back(tmp_path: Path) -> None:
    def run(*names: str) -> QueryChanges:
        """A run of these queries; Spark makes their folders."""
        with open_state(tmp_path, "app") as state:
            found = state.compare(names)
            for name in names:
                state.query_folder(name).mkdir(parents=True, exist_ok=True)
        return found

    nothing = QueryChanges([], [], [])
    assert run("a", "b") == run("a", "b") == nothing
    assert run("a", "c") == QueryChanges(added=["c"], put_back=[], removed=["b"])
    assert run("a", "c") == nothing
    assert run("a", "b", "c") == QueryChanges([], put_back=["b"], removed=[])
    (tmp_path / "queries.json").unlink()  # state of an older version
    assert run("b", "c") == QueryChanges([], [], removed=["a"])
    (tmp_path / "queries" / "c").rmdir()
    assert run("b", "c") == QueryChanges(added=["c"], put_back=[], removed=[])


def test_options_that_the_engine_does_not_know_are_an_error() -> None:
    with pytest.raises(ValueError, match="unknown options of the engine: colour"):
        parse(b'{"pipeline":"a:b","application":"a","stream":"s","socket":"/s","state_dir":".","colour":1}\n')


def test_an_upsert_replaces_rows_with_the_same_keys() -> None:
    database = sqlite3.connect(":memory:")
    database.executescript(
        "CREATE TABLE totals (day TEXT, shop TEXT, amount INTEGER, PRIMARY KEY (day, shop));"
        "CREATE TABLE staging (day TEXT, shop TEXT, amount INTEGER);"
        "INSERT INTO totals VALUES ('mon', 'a', 1);"
        "INSERT INTO staging VALUES ('mon', 'a', 5), ('tue', 'a', 2);"
    )
    sql = statement("totals", "staging", ["day", "shop", "amount"], ["day", "shop"])
    for _ in range(2):
        database.execute(sql)
    assert sorted(database.execute("SELECT * FROM totals")) == [("mon", "a", 5), ("tue", "a", 2)]
    database.close()


def test_an_upsert_by_newest_takes_the_newest_of_a_batch_and_replaces_no_newer_row() -> None:
    """Another host may have written later records of a key before this one comes to its older ones."""
    database = sqlite3.connect(":memory:")
    database.executescript(
        "CREATE TABLE totals (shop TEXT PRIMARY KEY, at INTEGER, amount INTEGER);"
        "CREATE TABLE staging (shop TEXT, at INTEGER, amount INTEGER);"
        "INSERT INTO totals VALUES ('a', 5, 1), ('b', 50, 1);"
        "INSERT INTO staging VALUES ('a', 7, 3), ('a', 6, 2), ('b', 49, 9), ('c', 1, 4);"
    )
    sql = statement("totals", "staging", ["shop", "at", "amount"], ["shop"], ["at"])
    for _ in range(2):
        database.execute(sql)
    assert sorted(database.execute("SELECT * FROM totals")) == [("a", 7, 3), ("b", 50, 1), ("c", 1, 4)]
    database.close()


def test_queries_and_hosts_have_staging_tables_of_their_own() -> None:
    def staging(table: str, state: str, query: str) -> str:
        return staging_table(table, Batch(0, query, {}, is_replay=False, state=state))

    names = {staging("totals", state, query) for state in ("one", "other") for query in ("a-b", "a_b")}
    assert len(names) == 4
    assert staging("totals", "one", "a-b") in names
    assert staging('shop."Daily totals"', "one", "q").startswith("shop._Daily_totals__kcl_")
    assert len(staging("t" * 63, "one", "q")) <= 63  # PostgreSQL cuts longer ones without a word


def test_a_long_error_of_a_query_keeps_its_cause() -> None:
    frames = "\n".join(
        f"\tat org.apache.spark.Class{number}.call(Class.scala:{number})" for number in range(300)
    )
    python = '  File "pipeline.py", line 5, in write\n    raise ValueError()\n' * 50
    long = f"[STREAM_FAILED] Query failed\n{python}ValueError: no room\n{frames}\nCaused by: no such table: totals\n{frames}"
    assert len(long) > 20_000
    assert (
        shortened(long)
        == "[STREAM_FAILED] Query failed\nValueError: no room\nCaused by: no such table: totals"
    )
    assert shortened("short\n\tat frame") == "short\n\tat frame"
    endless = shortened(f"begins{'x' * 10_000}ends")
    assert (endless[:6], endless[-4:], len(endless) < 4_100) == ("begins", "ends", True)


def test_an_upsert_needs_keys_that_are_columns() -> None:
    with pytest.raises(ValueError, match="at least one key"):
        jdbc_upsert("jdbc:postgresql://host/db", "totals", [])
    with pytest.raises(ValueError, match="shop is no column"):
        statement("totals", "staging", ["day"], ["shop"])


def test_a_merge_replaces_rows_of_the_same_keys_that_are_not_newer() -> None:
    """Tried with iceberg-spark-runtime-4.0_2.13:1.10.0 on Spark 4.0.1; there is none for the Spark that is installed here."""
    assert merge_statement("ice.db.t", "batch", ["day", "shop"], ["at"]) == (
        "MERGE INTO ice.db.t AS old USING batch AS new ON old.`day` <=> new.`day` AND old.`shop` <=> new.`shop` "
        "WHEN MATCHED AND (new.`at`) >= (old.`at`) THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    with pytest.raises(ValueError, match="at least one key"):
        iceberg_merge("ice.db.t", [])
