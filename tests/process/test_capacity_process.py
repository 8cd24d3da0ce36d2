"""`kcl-daemon capacity` beside real daemons on the local endpoints: what it says is true, also when nobody works any more."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from threading import Event
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kcl_local.demo.check import monotonic_s
from tests.process.commands import run_command
from tests.process.daemon import PROCESSORS, Application, again_and_again, application, run_daemon, wait_until
from tests.process.local import Local
from tests.process.test_fleet import FLEET
from tests.process.test_lag_process import done_in, port_of, put

pytestmark = pytest.mark.timeout(300)

SLOW: Final = f"{PROCESSORS}.slow"
# The child finishes ten records a second; small batches, so that it gets on evenly.
EACH_S: Final = 10
SETTINGS: Final = {
    **FLEET,
    "maxRecords": 5,
    "serviceLevelMillis": 5000,
    "shutdownGraceMillis": 500,
    "workerMetricsReporterFreqInMillis": 1000,
}
LEVEL_S: Final = 5.0
BACKLOG_S: Final = 90.0
HALF: Final = 0.5
TOLERANCE: Final = 0.2


def asked(app: Application, *more: str, code: int = 0, worker: str = "alpha") -> str:
    """What the command prints."""
    done = run_command(
        "capacity",
        "--properties",
        f"{worker}.properties",
        *more,
        directory=app.directory,
        environment=app.local.environment,
    )
    assert done.returncode == code, done.stderr or done.stdout
    return done.stdout


def said(app: Application, worker: str = "alpha") -> dict[str, Any]:
    """The same as JSON; empty before anything is known."""
    done = run_command(
        "capacity",
        "--json",
        f"{worker}.properties",
        directory=app.directory,
        environment=app.local.environment,
    )
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_the_time_to_drain_is_true_within_a_fifth_at_half_time(local: Local, tmp_path: Path) -> None:
    """Not quite five records a second come in, ten are finished: 90 s behind are 5 s behind after some 80 s."""
    with application(local, tmp_path, "capacity-drain", shards=1) as app:
        put_s: list[float] = []

        def put_one() -> None:
            put(app, b"a record", 1)
            put_s.append(monotonic_s())

        def behind_s() -> float:
            done = done_in(tmp_path)
            return monotonic_s() - put_s[done] if done < len(put_s) else 0.0

        with again_and_again(put_one, 2 / EACH_S):
            Event().wait(BACKLOG_S)
            with app.daemon(SLOW, SETTINGS) as daemon:
                daemon.wait_for("child_started")
                wait_until(
                    lambda: 0 < behind_s() < HALF * (BACKLOG_S + LEVEL_S) + 3, "half of it is done", 150.0
                )
                found, at_s = said(app, "worker"), monotonic_s()
                wait_until(lambda: behind_s() <= LEVEL_S, "it is within the service level", 150.0)
                took_s = monotonic_s() - at_s
                expected_s = found["whole"]["drainsS"] - found["ageSeconds"]
                print(f"{found['sentence']}: {expected_s:.1f} s, took {took_s:.1f} s")  # noqa: T201 - seen with `pytest -s`
                assert expected_s == pytest.approx(took_s, rel=TOLERANCE, abs=1.0)
                daemon.stop()


def test_the_last_word_of_a_dead_leader_stands_until_the_next_one_speaks(
    local: Local, tmp_path: Path
) -> None:
    with application(local, tmp_path, "capacity-fleet", shards=2) as app:
        with app.daemon(SLOW, {**SETTINGS, "adminPort": 0}, worker="alpha") as alpha:
            alpha.wait_for("leadership_taken")
            alpha.wait_for("child_started", times=2)
            with app.daemon(SLOW, {**SETTINGS, "adminPort": 0}, worker="beta") as beta:
                beta.wait_for("child_started")
                app.put(100)
                wait_until(
                    lambda: (said(app).get("whole", {}).get("behindS") or 0.0) > LEVEL_S, "it is behind"
                )
                wait_until(lambda: said(app)["workers"] == 2, "both are seen")
                found = said(app)
                assert (found["by"], found["isLastWord"]) == ("alpha", False)
                assert 1 <= found["workersWanted"] <= 2
                assert " ago by worker alpha" in asked(app)
                for daemon in (alpha, beta):
                    with urlopen(f"http://127.0.0.1:{port_of(daemon)}/capacity.json", timeout=5) as answer:
                        assert json.load(answer)["by"] == "alpha"
                alpha.signal(signal.SIGKILL)
                alpha.end()
                wait_until(lambda: said(app)["isLastWord"] or said(app)["by"] == "beta", "alpha is missed")
                wait_until(lambda: said(app)["by"] == "beta", "the next leader speaks")
                assert not said(app)["isLastWord"]
                beta.signal(signal.SIGKILL)
                beta.end()
        wait_until(lambda: said(app)["isLastWord"], "nobody lives")
        assert "the last word of leader beta" in asked(app)


def test_no_worker_is_wanted_until_there_is_something_to_read(local: Local, tmp_path: Path) -> None:
    careful, settings = f"{PROCESSORS}.careful", {**SETTINGS, "scaleToZero": True}
    with application(local, tmp_path, "capacity-zero", shards=2) as app:
        with app.daemon(careful, settings, worker="alpha") as alpha:
            app.put(3)
            app.wait_done()
            alpha.stop()
        wait_until(lambda: said(app)["workersWanted"] == 0, "nothing is left")
        with run_daemon(
            tmp_path, "capacity", "alpha.properties", "--serve", "127.0.0.1:0", environment=local.environment
        ) as server:
            wait_until(lambda: any("status_page_served" in line for line in server.plain_lines), "it serves")
            url = next(line for line in server.plain_lines if "url=" in line).split("url=")[1].split()[0]
            assert "no worker runs, and nothing is left to read in 2 shards" in asked(app)
            app.put(1)
            wait_until(lambda: _served(url)["workersWanted"] == 1, "it sees the new records")
        found = said(app)
        assert found["workersWanted"] == 1
        assert "has new records" in found["reason"]


def _served(url: str) -> dict[str, Any]:
    try:
        with urlopen(f"{url}capacity.json", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        raise AssertionError(error.read()) from error
    return found
