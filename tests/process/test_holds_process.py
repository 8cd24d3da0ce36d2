"""`kcl-daemon pause`, `resume` and `limit` beside real daemons on the local endpoints."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from kcl_daemon.system import SystemClock
from kcl_local.demo.check import monotonic_s
from tests.process.commands import run_command
from tests.process.daemon import PROCESSORS, Application, application, wait_until
from tests.process.local import Local
from tests.process.test_fleet import FLEET, readers

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
SHARDS: Final = 2
# What the command promises.
IN_FORCE_S: Final = 5.0
LIMIT: Final = 40.0
MEASURED_S: Final = 10.0


def held(app: Application, *words: str) -> list[dict[str, Any]]:
    """Run a command; what is held back afterwards."""
    command, *options = words
    done = run_command(
        command,
        "--properties",
        "alpha.properties",
        *options,
        "--json",
        directory=app.directory,
        environment=app.local.environment,
    )
    assert done.returncode == 0, done.stderr
    holds: list[dict[str, Any]] = json.loads(done.stdout)["holds"]
    return holds


def given(app: Application, since_s: float) -> list[tuple[float, str]]:
    """When records were given since then, one entry for each, and the worker."""
    app.poll()
    return sorted(
        (entry.at_s, worker)
        for worker, entry in app.ledgers
        if entry.kind == "records" and entry.at_s > since_s
        for _ in entry.records
    )


@pytest.mark.parametrize("more", [{}, {"metadataTableLayout": "single"}], ids=["separate", "single"])
def test_a_pause_outlives_leader_and_owner_and_all_records_come_after_it(
    local: Local, tmp_path: Path, more: dict[str, object]
) -> None:
    settings = {**FLEET, **more}
    with application(local, tmp_path, f"hold-pause-{len(more)}", shards=SHARDS) as app:
        with app.daemon(CAREFUL, settings, worker="alpha") as alpha:
            app.put(3)
            app.wait_done()
            (hold,) = held(app, "pause", "--reason", "the sink is down")
            assert (hold["kind"], hold["reason"], hold["until"]) == ("pause", "the sink is down", None)
            alpha.wait_for("hold_begun", what="pause")
            paused_s = monotonic_s()
            app.put(5)
            alpha.signal(signal.SIGKILL)
            assert alpha.end() == -signal.SIGKILL
        with app.daemon(CAREFUL, settings, worker="beta") as beta:
            beta.wait_for("leadership_taken")
            beta.wait_for("child_started", times=SHARDS)
            began_s = monotonic_s()
            wait_until(lambda: monotonic_s() - began_s > 3.0, "some time passes")
            assert given(app, paused_s) == []
            listed = run_command(
                "leases",
                "list",
                "beta.properties",
                directory=app.directory,
                environment=app.local.environment,
            )
            assert "all shards: paused until it is ended" in listed.stdout
            part = run_command(
                "resume",
                "beta.properties",
                "--shard",
                "shardId-000000000000",
                directory=app.directory,
                environment=app.local.environment,
            )
            assert part.returncode == 1
            assert "is paused with all shards" in part.stderr
            assert held(app, "resume") == []
            app.wait_done()
            assert set(readers(app, paused_s).values()) == {"beta"}
            beta.stop()
            assert not beta.named("shard_stalled")
        app.assert_account()


def test_a_limit_holds_within_five_percent(local: Local, tmp_path: Path) -> None:
    with (
        application(local, tmp_path, "hold-limit", shards=SHARDS) as app,
        app.daemon(CAREFUL, FLEET, worker="alpha") as alpha,
    ):
        app.put(1)
        app.wait_done()
        (hold,) = held(app, "limit", f"{LIMIT:g}/s", "--reason", "the sink is slow")
        assert (hold["perSecond"], hold["shards"], hold["perShard"]) == (LIMIT, SHARDS, LIMIT / SHARDS)
        alpha.wait_for("hold_begun")
        app.put(int(LIMIT * (MEASURED_S + 5) / SHARDS))
        began_s = monotonic_s()
        wait_until(lambda: monotonic_s() - began_s > MEASURED_S + 2.0, "it is measured")
        times = [at_s for at_s, _ in given(app, began_s)]
        counted = sum(times[0] + 0.5 <= each < times[0] + 0.5 + MEASURED_S for each in times)
        assert counted == pytest.approx(LIMIT * MEASURED_S, rel=0.05)
        assert held(app, "limit", "off") == []
        app.wait_done()
        alpha.stop()
        app.assert_account(repeated=0)


def test_a_pause_beside_a_java_worker_says_that_it_goes_on(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "hold-java", shards=SHARDS) as app:
        with app.daemon(CAREFUL, FLEET, worker="alpha") as alpha:
            alpha.wait_for("child_started", times=SHARDS)
            alpha.stop()
        app.dynamodb.put_item(
            TableName=f"{app.name}-WorkerMetricStats",
            Item={
                "wid": {"S": "java-1"},
                "lut": {"N": str(SystemClock().wall_ms() // 1000)},
                "sts": {"M": {"C": {"L": [{"N": "12.5"}]}}},
                "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
            },
        )
        app.dynamodb.update_item(
            TableName=app.name,
            Key={"leaseKey": {"S": "shardId-000000000000"}},
            UpdateExpression="SET leaseOwner = :java",
            ExpressionAttributeValues={":java": {"S": "java-1"}},
        )
        (hold,) = held(app, "pause", "--reason", "the database is moved")
        said = f"in force for {SHARDS - 1} of {SHARDS} leases: java-1 is a Java worker and goes on"
        assert hold["notHeld"] == said
        assert held(app, "resume") == []
