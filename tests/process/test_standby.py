"""Shards that change hands while their program takes long to import: with real daemons and children."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from kcl_local.demo.check import monotonic_s
from tests.process.daemon import PROCESSORS, Application, again_and_again, application, wait_until
from tests.process.local import Local
from tests.process.test_fleet import finish, wait_reading, wait_shared

pytestmark = pytest.mark.timeout(300)

IMPORT_S: Final = float(os.environ.get("STANDBY_IMPORT_S", "4"))
PUT_S: Final = 0.05
# On a busy machine a worker may stand still for long, and must not lose its leases for it.
READS: Final = {
    "failoverTimeMillis": 20_000,
    "idleTimeBetweenReadsInMillis": 200,
    "leaseAssignmentStrategy": "LEASE_COUNT_BASED",
    "childStandbyMillis": 120_000,
}
# And as long as the shard that did not move: that was the machine.
GAP_MOST_S: Final = 1.0
Record = Callable[[str, object], None]


def gaps_s(app: Application, since_s: float, until_s: float) -> dict[str, float]:
    """By shard: for how long at most no process was given a record."""
    app.poll()
    moments: dict[str, list[float]] = {}
    for _, entry in app.ledgers:
        if entry.kind == "records" and since_s < entry.at_s < until_s:
            moments.setdefault(entry.shard_id, []).append(entry.at_s)
    return {
        shard_id: max(later - earlier for earlier, later in pairwise(sorted(of_shard)))
        for shard_id, of_shard in moments.items()
    }


def test_a_shard_that_is_handed_over_waits_for_no_import(
    local: Local, tmp_path: Path, record_property: Record
) -> None:
    program = f"{PROCESSORS}.importing {IMPORT_S}"
    with (
        application(local, tmp_path, "standby", shards=2) as app,
        app.daemon(program, READS, worker="alpha") as alpha,
        ExitStack() as joins,
    ):
        with again_and_again(app.put, PUT_S):
            wait_shared(app, 2)
            began_s = monotonic_s()
            beta = joins.enter_context(app.daemon(program, READS, worker="beta"))
            stands_by = beta.wait_for("child_stands_by")
            wait_shared(app, 1, 1)
            wait_reading(app)
            gaps = gaps_s(app, began_s, monotonic_s())
        finish(app, alpha, beta)
    app.assert_account(repeated=0)
    gap_s = gaps.pop(stands_by["shard_id"])
    stall_s = max(gaps.values())
    reported = f"import {IMPORT_S:g} s: stood still for {gap_s:.2f} s, the other shard for {stall_s:.2f} s"
    record_property("standby", reported)
    print(reported)  # noqa: T201
    assert stands_by["seconds"] >= IMPORT_S / 2
    assert gap_s <= GAP_MOST_S + stall_s
    assert beta.named("child_started", shard_id=stands_by["shard_id"], pid=stands_by["pid"])


def test_a_lease_that_does_not_come_ends_its_child_quietly(local: Local, tmp_path: Path) -> None:
    program = f"{PROCESSORS}.importing 20"
    with (
        application(local, tmp_path, "standby-left", shards=2) as app,
        app.daemon(f"{PROCESSORS}.careful", READS, worker="alpha") as alpha,
    ):
        app.put()
        wait_until(lambda: set(app.owners().values()) == {"alpha"}, "alpha has all")
        with app.daemon(program, READS, worker="beta") as beta:
            beta.wait_for("standby_child_started")
            beta.stop()
            assert beta.named("standby_child_ended", reason="its lease did not come")
            assert not beta.named("child_stderr")
            assert not [each for each in beta.loud() if "child" in each["event"]]
        finish(app, alpha)
