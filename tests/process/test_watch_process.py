"""`kcl-daemon watch` beside real daemons on the local endpoints: it speaks when they are dead, and when nobody can hold a shard."""

from __future__ import annotations

import json
import signal
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.process.commands import run_command
from tests.process.daemon import PROCESSORS, Application, application, run_daemon, wait_until
from tests.process.local import Local
from tests.process.test_fleet import FLEET

pytestmark = pytest.mark.timeout(240)

CAREFUL = f"{PROCESSORS}.careful"


def looked(app: Application, *more: str, code: int) -> dict[str, Any]:
    done = run_command(
        "watch",
        "alpha.properties",
        "--once",
        "--json",
        *more,
        directory=app.directory,
        environment=app.local.environment,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_dead_fleet_is_seen_by_exit_code_page_and_figures(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "watched", shards=2) as app:
        with app.daemon(CAREFUL, FLEET, worker="alpha") as alpha:
            app.put(3)
            app.wait_done()
            found = looked(app, code=0)
            assert (found["shards"], found["workers"], found["unread"]) == (2, 1, [])
            alpha.signal(signal.SIGKILL)
            alpha.end()
        found = looked(app, "--after", "5", code=3)
        assert {each["cause"] for each in found["unread"]} == {"silent owner"}
        assert found["workers"] == 0
        arguments = ("alpha.properties", "--every", "1", "--after", "1", "--serve", "127.0.0.1:0")
        with run_daemon(tmp_path, "watch", *arguments, environment=local.environment) as watch:
            wait_until(lambda: any("status_page_served" in line for line in watch.plain_lines), "it serves")
            url = next(line for line in watch.plain_lines if "url=" in line).split("url=")[1].split()[0]
            wait_until(lambda: len(unread_at(url)) == 2, "it sees both shards")
            with urlopen(f"{url}metrics", timeout=5) as answer:
                assert b'kcl_shards_unread_by_cause{cause="silent owner"} 2' in answer.read()


def test_a_shard_that_no_worker_may_hold_is_unread(local: Local, tmp_path: Path) -> None:
    with (
        application(local, tmp_path, "watched-room", shards=2) as app,
        app.daemon(CAREFUL, {**FLEET, "maxLeasesForWorker": 1}, worker="alpha") as alpha,
    ):
        alpha.wait_for("child_started")
        found = looked(app, "--after", "5", code=3)
        assert [each["cause"] for each in found["unread"]] == ["no owner"]
        assert found["workers"] == 1, found
        alpha.stop()


def unread_at(url: str) -> list[dict[str, Any]]:
    """None are known before the first look."""
    try:
        with urlopen(f"{url}watch.json", timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["unread"]
    except HTTPError as error:
        assert error.code == HTTPStatus.SERVICE_UNAVAILABLE, error.read()
        return []
    return found
