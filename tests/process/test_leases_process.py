"""`kcl-daemon leases` as a process, beside a real daemon on the local endpoints."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final

import pytest

from tests.process.commands import run_command
from tests.process.daemon import FAILOVER_MS, PROCESSORS, Application, application, wait_until
from tests.process.local import Local
from tests.unit.records.aggregates import aggregate

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
QUICK: Final = {"idleTimeBetweenReadsInMillis": 200, "failoverTimeMillis": FAILOVER_MS}
SHARDS: Final = 4


def leases(app: Application, *words: str) -> CompletedProcess[str]:
    """Run the command to its end."""
    return run_command("leases", *words, directory=app.directory, environment=app.local.environment)


def document(app: Application, *words: str) -> dict[str, Any]:
    done = leases(app, *words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


@pytest.mark.parametrize("more", [{}, {"metadataTableLayout": "single"}], ids=["separate", "single"])
def test_a_daemon_at_work_is_listed_and_explained(
    local: Local, tmp_path: Path, more: dict[str, object]
) -> None:
    name = f"leases-{len(more)}"
    with application(local, tmp_path, name, shards=SHARDS) as app:
        app.put(3)
        with app.daemon(CAREFUL, {**QUICK, **more}) as daemon:
            app.wait_done()
            text = leases(app, "list", "worker.properties", "--lag")
            assert (text.returncode, text.stderr) == (0, "")
            for shard in app.shards():
                assert shard["ShardId"] in text.stdout
            assert f"{SHARDS} leases: {SHARDS} with an owner, 0 without" in text.stdout
            assert "leader: worker" in text.stdout

            reported = document(app, "list", "-p", "worker.properties", "--lag")
            assert reported["layout"] == more.get("metadataTableLayout", "separate")
            assert [each["owner"] for each in reported["leases"]] == ["worker"] * SHARDS
            assert {each["lease"]: each["checkpoint"] for each in reported["leases"]} == app.last_written
            assert [each["lag_ms"] for each in reported["leases"]] == [0] * SHARDS
            (worker,) = reported["workers"]
            assert (worker["alive"], worker["leader"], worker["leases"]) == (True, True, SHARDS)

            plan = leases(app, "explain", "worker.properties")
            assert (plan.returncode, plan.stderr) == (0, "")
            assert "nothing to move" in plan.stdout
            assert "note: a single check" in plan.stdout
            daemon.stop()


def test_a_dead_worker_shows_by_watching_and_looking_writes_nothing(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "leases-dead", shards=SHARDS) as app:
        app.put(1)
        with app.daemon(CAREFUL, {**QUICK, "failoverTimeMillis": 2000}) as daemon:
            app.wait_done()
            daemon.process.kill()
            daemon.end()
        app.dynamodb.put_item(
            TableName=app.name, Item={"leaseKey": {"S": "odd"}, "leaseCounter": {"S": "many"}}
        )
        before = app.rows()
        reported = document(app, "explain", "-p", "worker.properties", "--watch", "3")
        assert reported["summary"]["abandoned"] == SHARDS
        assert reported["unplaced"] == reported["abandoned"]
        assert not [note for note in reported["notes"] if "--watch" in note]
        assert [row["key"] for row in reported["unreadable_rows"]] == ["odd"]
        assert app.rows() == before


def test_an_application_that_never_ran_is_one_clear_line_and_no_table_is_made(
    local: Local, tmp_path: Path
) -> None:
    with application(local, tmp_path, "leases-none", shards=0) as app:
        file = app.write_properties("worker", CAREFUL)
        for words in (["list"], ["explain", "--json"]):
            done = leases(app, *words, file)
            assert done.returncode == 1
            assert done.stdout == ""
            (line,) = done.stderr.splitlines()
            assert "no lease table leases-none" in line
            assert "check applicationName" in line
        assert not [table for table in app.all_tables() if "leases-none" in table]


def test_a_live_application_is_reset_and_reads_everything_again(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "leases-reset", shards=2) as app:
        app.put(5)
        with app.daemon(CAREFUL, QUICK) as daemon:
            app.wait_done()
            first = leases(app, "list", "worker.properties", "--json")
            before = {each["lease"]: each["checkpoint"] for each in json.loads(first.stdout)["leases"]}
            dry = leases(app, "reset", "worker.properties", "--to", "TRIM_HORIZON", "--dry-run")
            assert (dry.returncode, dry.stderr) == (0, "")
            assert dry.stdout.count("-> TRIM_HORIZON") == 2
            unsure = leases(app, "reset", "worker.properties", "--to", "TRIM_HORIZON")
            assert unsure.returncode == 1
            reported = document(app, "list", "-p", "worker.properties")
            assert {each["lease"]: each["checkpoint"] for each in reported["leases"]} == before

            done = leases(app, "reset", "worker.properties", "--to", "TRIM_HORIZON", "--yes")
            assert (done.returncode, done.stderr) == (0, "")
            assert "done: 2 leases" in done.stdout
            daemon.wait_for("lease_lost")
            shards = [str(shard["ShardId"]) for shard in app.shards()]
            wait_until(lambda: all(app.incarnations(shard) == 2 for shard in shards), "both begin anew")
            app.wait_done()
            daemon.stop()
        app.assert_account(repeated=10)


def test_leases_are_released_deleted_and_drawn(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "leases-hand", shards=2) as app:
        app.put(2)
        with app.daemon(CAREFUL, QUICK) as daemon:
            app.wait_done()
            daemon.process.kill()
            daemon.end()
        one, two = (str(shard["ShardId"]) for shard in app.shards())
        drawn = leases(app, "tree", "worker.properties")
        assert (drawn.returncode, drawn.stderr) == (0, "")
        assert f"{one}  at " in drawn.stdout
        freed = leases(app, "release", "worker.properties", "--worker", "worker", "--yes")
        assert (freed.returncode, freed.stderr) == (0, "")
        assert freed.stdout.count("release shardId") == 2
        assert {each["owner"] for each in document(app, "list", "worker.properties")["leases"]} == {None}
        gone = leases(app, "delete", "worker.properties", "--shard", one, "--yes")
        assert (gone.returncode, gone.stderr) == (0, "")
        assert [each["lease"] for each in document(app, "list", "worker.properties")["leases"]] == [two]
        missing = leases(app, "delete", "worker.properties", "--shard", one, "--yes")
        assert missing.returncode == 1
        assert f"there is no lease {one}" in missing.stderr


def test_records_are_skipped_and_times_are_found_inside_an_aggregate(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "leases-skip", shards=1) as app:
        app.put(2)
        with app.daemon(CAREFUL, QUICK) as daemon:
            app.wait_done()
            daemon.stop()
        (shard,) = (str(shard["ShardId"]) for shard in app.shards())
        users = aggregate(("key", f"user {number}".encode(), None) for number in range(10))
        put = app.kinesis.put_record(StreamName=app.name, Data=users, PartitionKey="key")
        number = put["SequenceNumber"]

        def checkpoint() -> tuple[str, int]:
            (lease,) = document(app, "list", "worker.properties")["leases"]
            return lease["checkpoint"], lease["sub_sequence_number"]

        words = ("skip", "worker.properties", "--shard", shard)
        dry = leases(app, *words, "--dry-run")
        assert (dry.returncode, dry.stderr) == (0, "")
        assert f"-> {number} " in dry.stdout
        assert "6 bytes: user 0" in dry.stdout
        assert leases(app, *words).returncode == 1, "nobody said yes"
        assert checkpoint() == (app.last_written[shard], 0)
        for more, sub_number in (([], 0), ([], 1), (["--record", f"{number}/5"], 5)):
            done = leases(app, *words, *more, "--yes")
            assert (done.returncode, done.stderr) == (0, "")
            assert checkpoint() == (number, sub_number)
        assert "3 records before it" in done.stdout
        wait_until(lambda: _reset_to_now(app) and checkpoint() == (number, 9), "the last of the aggregate")
        over = leases(app, *words, "--yes")
        assert over.returncode == 1
        assert "no record after the checkpoint" in over.stderr


def _reset_to_now(app: Application) -> bool:
    return leases(app, "reset", "worker.properties", "--to", "1s", "--yes").returncode == 0
