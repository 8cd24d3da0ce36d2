"""An application as `kcl-daemon leases` may see it; shared by the tests of that command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kcl_daemon.assignment.plan import Fleet, LeaseLimits
from kcl_daemon.cli.application import TableOrigin
from kcl_daemon.cli.leases.look import LeaderView, LeaseLag, ObservedFleet, UnreadableRow
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.leases.lease import HashRange, Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.leases.worker_row import CPU, FAILED, WorkerRow
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber

NOW_S: Final = 1_770_000_000
ONE, TWO, OLD = WorkerId("w-1"), WorkerId("w-2"), WorkerId("w-old")
NUMBER: Final = "49659999999999999999999999999999999999999999000000123456"
KEYS: Final = tuple(LeaseKey(f"shardId-{number:012d}") for number in range(5))
ENDED, HELD, MOVING, FREE, ORPHAN = KEYS

LEASES: Final = (
    Lease(
        FREE,
        2,
        TRIM_HORIZON,
        parent_shard_ids=frozenset({ShardId(ENDED)}),
        hash_range=HashRange(0, 2**127),
    ),
    Lease(ENDED, 90, SHARD_END, child_shard_ids=frozenset({ShardId(HELD), ShardId(FREE)})),
    Lease(HELD, 412, ExtendedSequenceNumber(NUMBER, 3), lease_owner=ONE, throughput_kbps=12.34),
    Lease(MOVING, 7, ExtendedSequenceNumber(NUMBER), lease_owner=TWO, checkpoint_owner=ONE),
    Lease(ORPHAN, 5, TRIM_HORIZON, lease_owner=OLD, owner_switches_since_checkpoint=4),
)
LEADER: Final = LeaderView(ONE, 30.0, released=False, silent_s=0.0)
ROWS: Final = {
    ONE: WorkerRow(ONE, NOW_S - 4, {CPU: (10.0, 12.4)}, {CPU: 100}),
    TWO: WorkerRow(TWO, NOW_S - 400, {CPU: (10.0, FAILED)}, {CPU: 100}),
}
FLEET: Final = Fleet(
    leases=LEASES,
    abandoned=frozenset(),
    overdue=frozenset(),
    workers=frozenset({ONE}),
    limits=LeaseLimits(1000),
    stats=ROWS,
)


def seen(
    *,
    fleet: Fleet = FLEET,
    leader: LeaderView | None = LEADER,
    unreadable: tuple[UnreadableRow, ...] = (),
    lags: Mapping[LeaseKey, LeaseLag] | None = None,
    watched_s: float = 0.0,
) -> ObservedFleet:
    """The stage, as one look shows it unless told otherwise."""
    tables = ("billing", "billing-WorkerMetricStats", "billing-CoordinatorState")
    origin = TableOrigin("billing", "orders", TableLayout.SEPARATE, "the coordinator table exists", tables)
    return ObservedFleet(origin, leader, fleet, unreadable, lags, float(NOW_S), watched_s, 10.0)


def abandoned(*keys: LeaseKey) -> Fleet:
    """The fleet with owners that have gone silent."""
    return replace(FLEET, abandoned=frozenset(keys))
