"""`kcl-daemon migrate` as a process, beside a real daemon that comes from 2.x, on the local endpoints."""

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
SETTINGS: Final = {
    "idleTimeBetweenReadsInMillis": 200,
    "failoverTimeMillis": 2000,
    "clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X",
}


def migrate(app: Application, *words: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "kcl_daemon", "migrate", *words, "worker.properties"],
        cwd=app.directory,
        env={**kept, **app.local.environment},
        input=answer,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def document(app: Application) -> dict[str, Any]:
    done = migrate(app, "status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


@pytest.mark.parametrize("more", [{}, {"metadataTableLayout": "single"}], ids=["separate", "single"])
def test_a_fleet_of_2x_works_and_is_steered_back_and_forth(
    local: Local, tmp_path: Path, more: dict[str, object]
) -> None:
    with application(local, tmp_path, f"migrate-{len(more)}", shards=2) as app:
        app.put(3)
        with app.daemon(CAREFUL, {**SETTINGS, **more}):
            app.wait_done()  # every record was read by a worker that takes its leases itself
            wait_until(lambda: document(app)["ready"], lambda: str(document(app)))  # it has reported, too
            seen = document(app)
            assert seen["clientVersion"] == "CLIENT_VERSION_UPGRADE_FROM_2X"
            assert (seen["ready"], seen["leases"], seen["index"]) == (True, 2, "active")

            unsure = migrate(app, "rollback", "--no-index-deletion", answer="n\n")
            assert unsure.returncode == 1
            back = migrate(app, "rollback", "--no-index-deletion", "--yes")
            assert (back.returncode, back.stderr) == (0, "")
            seen = document(app)
            assert (seen["clientVersion"], seen["index"]) == ("CLIENT_VERSION_2X", "active")
            assert seen["modifiedBy"] == "KclMigrationTool-rollback"

            again = migrate(app, "rollback", "--yes")
            assert again.returncode == 1
            assert "has already rolled back" in again.stderr

            forward = migrate(app, "rollforward", answer="y\n")
            assert forward.returncode == 0
            seen = document(app)
            assert seen["clientVersion"] == "CLIENT_VERSION_UPGRADE_FROM_2X"
            assert len(seen["history"]) == 3
