"""`kcl-daemon migrate` as a process, beside a real daemon that comes from 2.x, on the local endpoints."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final

import pytest

from tests.process.commands import run_command
from tests.process.daemon import PROCESSORS, Application, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
SETTINGS: Final = {
    "idleTimeBetweenReadsInMillis": 200,
    "failoverTimeMillis": 2000,
    "clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X",
}


def migrate(app: Application, *words: str, answer: str = "") -> CompletedProcess[str]:
    """Run the command to its end."""
    return run_command(
        *("migrate", *words, "worker.properties"),
        directory=app.directory,
        environment=app.local.environment,
        answer=answer,
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
            assert seen["client_version"] == "CLIENT_VERSION_UPGRADE_FROM_2X"
            assert (seen["ready"], seen["leases"], seen["index"]) == (True, 2, "active")

            unsure = migrate(app, "rollback", "--no-index-deletion", answer="n\n")
            assert unsure.returncode == 1
            back = migrate(app, "rollback", "--no-index-deletion", "--yes")
            assert (back.returncode, back.stderr) == (0, "")
            seen = document(app)
            assert (seen["client_version"], seen["index"]) == ("CLIENT_VERSION_2X", "active")
            assert seen["modified_by"] == "KclMigrationTool-rollback"

            again = migrate(app, "rollback", "--yes")
            assert again.returncode == 1
            assert "has already rolled back" in again.stderr

            forward = migrate(app, "rollforward", answer="y\n")
            assert forward.returncode == 0
            seen = document(app)
            assert seen["client_version"] == "CLIENT_VERSION_UPGRADE_FROM_2X"
            assert len(seen["history"]) == 3
