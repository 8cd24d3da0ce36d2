"""Whole daemons that move an application from three tables into one while records flow (KCL 3.4 -> 3.5).

KCL's bake times are an hour and a day; here the dates in the row are set back by hand, as time would have done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process.daemon import PROCESSORS, Application, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
FLEET: Final = {
    "failoverTimeMillis": 2000,
    "leaderLeaseMillis": 3000,
    "leaderHeartbeatMillis": 500,
    # A report counts for three of these; its row bears whole seconds, so less than that cuts it short at random.
    "workerMetricsReporterFreqInMillis": 2000,
    "idleTimeBetweenReadsInMillis": 200,
}
MOVING: Final = {**FLEET, "migrateAllEntitiesToLeaseTable": "true"}
ROW: Final = "TableMigration3.5"
PREFIX: Final = "TABLE_MIGRATION_STATUS_"
# A leader that has just begun looks ten seconds later, and so often while it moves.
STEP_S: Final = 180.0


def old_rows(app: Application, table: str = "CoordinatorState") -> dict[str, Any]:
    """The rows of one of the old tables, by key."""
    items = app.dynamodb.scan(TableName=f"{app.name}-{table}", ConsistentRead=True)["Items"]
    key = "key" if table == "CoordinatorState" else "wid"
    return {item[key].get("S", ""): item for item in items}


def state(app: Application) -> str | None:
    """What the row says."""
    row = old_rows(app).get(ROW)
    return None if row is None else str(row["tm"]["S"]).removeprefix(PREFIX)


def set_row(app: Application, changes: dict[str, Any]) -> None:
    """Change the row by hand."""
    app.dynamodb.update_item(
        TableName=f"{app.name}-CoordinatorState",
        Key={"key": {"S": ROW}},
        AttributeUpdates={name: {"Value": value, "Action": "PUT"} for name, value in changes.items()},
    )


def shown(app: Application) -> dict[str, Any]:
    """What `kcl-daemon migrate status` says of the tables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "kcl_daemon", "migrate", "status", "--json", "w-1.properties"],
        cwd=app.directory,
        env={**kept, **app.local.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    reported: dict[str, Any] = json.loads(done.stdout)["tables"]
    return reported


def test_a_fleet_moves_into_one_table_while_records_flow(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "moves", shards=2) as app:
        app.put(3)
        with app.daemon(CAREFUL, FLEET, worker="w-1") as before:
            app.wait_done()
            wait_until(lambda: state(app) == "INIT", "every worker is known to know the single table", STEP_S)
            assert (shown(app)["layout"], shown(app)["owners_that_do_not_know_the_single_table"]) == (
                "separate",
                [],
            )
            before.stop()
        set_row(app, {"tm": {"S": f"{PREFIX}DEPLOYED"}})
        with (
            app.daemon(CAREFUL, MOVING, worker="w-1") as one,
            app.daemon(CAREFUL, MOVING, worker="w-2") as other,
        ):
            wait_until(lambda: state(app) == "PENDING", "the rows are in the lease table", STEP_S)
            assert set(old_rows(app)) == {"Leader", ROW}
            assert old_rows(app, "WorkerMetricStats") == {}
            # Whoever has begun late is in the new table with its first report.
            wait_until(
                lambda: {"Migration3.0", "w-1", "w-2"} <= set(app.rows()), "all are in the lease table"
            )
            assert shown(app)["migration"] == f"{PREFIX}PENDING"
            app.put(3)
            app.wait_done()

            set_row(app, {"mts": {"N": "1700000000000"}})  # long ago
            for daemon in (one, other):
                daemon.wait_for("table_migration_complete", within_s=STEP_S)
            wait_until(lambda: "Leader" in app.rows(), "somebody leads by the lease table", STEP_S)
            assert app.rows()[ROW].get("tm") == {"S": f"{PREFIX}COMPLETE"}
            assert set(old_rows(app)) == {ROW}

            with app.daemon(CAREFUL, FLEET, worker="w-3") as third:
                assert third.wait_for("table_layout_chosen")["layout"] == "single"
                third.wait_for("worker_started")
                app.put(3)
                app.wait_done()
                assert shown(app)["layout"] == "single"
                third.stop()
            for daemon in (one, other):
                assert daemon.named("table_migration_step_refused") == []
                daemon.stop()
        app.assert_account()
        assert {row.get("entityType", {}).get("S") for row in app.rows().values()} == {
            "LEASE",
            "CLIENT_VERSION_MIGRATION",
            "STREAM",  # daemon/capacity
            "TABLE_MIGRATION",
        }


def test_a_worker_that_is_set_to_move_too_early_says_what_to_do(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "early", shards=1) as app:
        with app.daemon(CAREFUL, FLEET, worker="w-1") as first:
            first.wait_for("worker_started")
            first.stop()
        with app.daemon(CAREFUL, MOVING, worker="w-2") as second:
            assert second.end() == 2
            (failed,) = second.named("daemon_failed")
            assert "set it to true when the row says" in str(failed)
