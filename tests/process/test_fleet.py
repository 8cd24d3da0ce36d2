"""Several whole daemons on one stream under load: sharing, joining, leaving and dying. Timings are printed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from kcl_local.demo.check import monotonic_s
from tests.process.daemon import (
    FAILOVER_MS,
    PROCESSORS,
    Application,
    Daemon,
    again_and_again,
    application,
    wait_until,
)
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
SHARDS: Final = 4
FLEET: Final = {
    "failoverTimeMillis": FAILOVER_MS,
    "leaderLeaseMillis": 3000,
    "leaderHeartbeatMillis": 500,
    "workerMetricsReporterFreqInMillis": 500,
    "idleTimeBetweenReadsInMillis": 200,
    # By number: all daemons of a test share one processor, and its load says nothing about any of them.
    "leaseAssignmentStrategy": "LEASE_COUNT_BASED",
}
LOAD_PERIOD_S: Final = 0.3
# For hangs. How quick a fleet is, `tests/benchmarks/test_fleet.py` holds it to, in virtual time; here it is printed.
SHARED_WITHIN_S: Final = 90.0
LEFT_WITHIN_S: Final = 90.0
KILLED_WITHIN_S: Final = 90.0
Record = Callable[[str, object], None]


def load(app: Application) -> AbstractContextManager[None]:
    """A record for each shard, three times a second, while the block lasts."""
    return again_and_again(app.put, LOAD_PERIOD_S)


def shares(app: Application) -> Counter[str | None]:
    """How many leases each worker owns."""
    return Counter(app.owners().values())


def readers(app: Application, since_s: float) -> dict[str, str]:
    """By shard: which worker was the last to get a record since then."""
    app.poll()
    assignment_epoch = [
        (worker, entry) for worker, entry in app.ledgers if entry.kind == "records" and entry.at_s > since_s
    ]
    return {
        entry.shard_id: worker for worker, entry in sorted(assignment_epoch, key=lambda each: each[1].at_s)
    }


def wait_shared(app: Application, *counts: int) -> float:
    """Wait until the leases are shared out like this and each owner reads what it owns; the seconds that took."""
    began_s = monotonic_s()

    def shared() -> bool:
        app.poll()
        now = shares(app)
        return None not in now and sorted(now.values()) == sorted(counts)

    wait_until(shared, lambda: f"shares {counts} of {shares(app)}", SHARED_WITHIN_S)
    wait_reading(app)
    return monotonic_s() - began_s


def wait_reading(app: Application) -> None:
    """Wait until a record that comes from now on reaches the owner of each shard."""
    now_s = monotonic_s()

    wait_until(lambda: readers(app, now_s) == app.owners(), "every owner reads", SHARED_WITHIN_S)


def taken_over_s(app: Application, by: str, since_s: float, within_s: float) -> float:
    """Wait until one worker gets records of all shards; seconds to the last of their first ones."""

    def of_heir() -> dict[str, float]:
        app.poll()
        first: dict[str, float] = {}
        for worker, entry in app.ledgers:
            if worker == by and entry.kind == "records" and entry.at_s > since_s:
                first.setdefault(entry.shard_id, entry.at_s)
        return first

    wait_until(lambda: len(of_heir()) == SHARDS, f"{by} reads every shard", within_s)
    return max(of_heir().values()) - since_s


def finish(app: Application, *daemons: Daemon) -> None:
    """Everything that was written arrives, then all stop well."""
    app.wait_done()
    for daemon in daemons:
        daemon.stop()


def test_leases_share_themselves_and_a_stop_repeats_nothing(
    local: Local, tmp_path: Path, record_property: Record
) -> None:
    with (
        application(local, tmp_path, "fleet-stop", shards=SHARDS) as app,
        app.daemon(CAREFUL, FLEET, worker="alpha") as alpha,
        app.daemon(CAREFUL, FLEET, worker="beta") as beta,
    ):
        with load(app):
            shared_s = wait_shared(app, 2, 2)
            stopped_s = monotonic_s()
            alpha.stop()
            ended_s = monotonic_s() - stopped_s
            taken_s = taken_over_s(app, "beta", stopped_s, LEFT_WITHIN_S)
        assert shares(app) == {"beta": SHARDS}
        finish(app, beta)
        app.assert_account(repeated=0)
    reported = f"2/2 after {shared_s:.1f} s; SIGTERM: ended in {ended_s:.2f} s, all with the other in {taken_s:.2f} s"
    record_property("fleet_stop", reported)
    print(reported, f"; {app.checker.written} records, 0 repeated, 0 lost")  # noqa: T201


@pytest.mark.parametrize("role", ["leader", pytest.param("follower", marks=pytest.mark.prove)])
def test_a_killed_daemon_is_replaced_and_loses_nothing(
    local: Local, tmp_path: Path, record_property: Record, role: str
) -> None:
    with (
        application(local, tmp_path, f"fleet-kill-{role}", shards=SHARDS) as app,
        app.daemon(CAREFUL, FLEET, worker="alpha") as alpha,
        app.daemon(CAREFUL, FLEET, worker="beta") as beta,
    ):
        with load(app):
            wait_shared(app, 2, 2)
            victim, first_owner, name = (
                (alpha, beta, "beta")
                if bool(alpha.named("leadership_taken")) is (role == "leader")
                else (beta, alpha, "alpha")
            )
            killed_s = monotonic_s()
            victim.signal(signal.SIGKILL)
            assert victim.end() == -signal.SIGKILL
            taken_s = taken_over_s(app, name, killed_s, KILLED_WITHIN_S)
        finish(app, first_owner)
        app.assert_account()
        verdict = app.checker.verdict()
    reported = f"SIGKILL of the {role}: all with the other in {taken_s:.2f} s"
    record_property("fleet_kill", reported)
    print(reported, f"; {verdict.written} records, {verdict.repeated} repeated, 0 lost")  # noqa: T201


@pytest.mark.prove  # the simulator has fleets that grow, every day
def test_a_third_daemon_gets_its_share_and_nothing_is_repeated(
    local: Local, tmp_path: Path, record_property: Record
) -> None:
    with (
        application(local, tmp_path, "fleet-join", shards=SHARDS) as app,
        app.daemon(CAREFUL, FLEET, worker="alpha") as alpha,
        app.daemon(CAREFUL, FLEET, worker="beta") as beta,
    ):
        with load(app):
            wait_shared(app, 2, 2)
            with app.daemon(CAREFUL, FLEET, worker="gamma") as gamma:
                joined_s = wait_shared(app, 2, 1, 1)
                assert shares(app)["gamma"] == 1
                found = gamma.named("lease_taken")
                assert len(found) == 1  # not to and fro
                reported = f"a third joins: 2/1/1 after {joined_s:.1f} s"
                gamma.stop()
                wait_until(lambda: set(app.owners().values()) == {"alpha", "beta"}, "gamma's is taken over")
                wait_reading(app)
        finish(app, alpha, beta)
        app.assert_account(repeated=0)
    record_property("fleet_join", reported)
    print(reported, f"; {app.checker.written} records, 0 repeated, 0 lost")  # noqa: T201
