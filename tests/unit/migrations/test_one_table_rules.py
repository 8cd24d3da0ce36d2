"""The move from three tables to one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.layout import (
    TABLE_STATUS_CODEC,
    MigrationRow,
    PastState,
    StateRow,
    TableStatus,
    UnusableState,
    effective_status,
    followed,
)
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row
from kcl_daemon.leases.worker_row import WorkerRow
from kcl_daemon.migrations.one_table_rules import (
    MigrationReadiness,
    TableSide,
    fleet_support,
    migration_readiness,
)
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON

INIT, DEPLOYED, PENDING, COMPLETE = TableStatus
LEGACY, LEASES = TableSide
ME, OTHER = WorkerId("w-1"), WorkerId("w-2")
UNREADABLE = UnusableState("odd", "do")


def at(status: TableStatus, at_ms: int = 0) -> MigrationRow:
    return StateRow(status, "w-0", at_ms)


# The row


def test_the_row_is_javas() -> None:
    row = TABLE_STATUS_CODEC.row(at(INIT, 5).followed_by(DEPLOYED, by=ME, at_ms=9), key_attribute="key")
    assert row == {
        "key": "TableMigration3.5",
        "entityType": "TABLE_MIGRATION",
        "tm": "TABLE_MIGRATION_STATUS_DEPLOYED",
        "mb": "w-1",
        "mts": 9,
        "h": ({"tm": "TABLE_MIGRATION_STATUS_INIT", "mb": "w-0", "mts": 5},),
    }
    assert TABLE_STATUS_CODEC.read(row) == StateRow(DEPLOYED, ME, 9, (PastState(INIT.value, "w-0", 5),))


# Status


@pytest.mark.parametrize(
    ("row", "stays", "migrates"),
    [
        (None, INIT, None),
        (INIT, INIT, None),
        (DEPLOYED, DEPLOYED, PENDING),
        (PENDING, DEPLOYED, PENDING),
        (COMPLETE, COMPLETE, COMPLETE),
    ],
)
def test_the_status_of_a_worker_follows_from_the_row_and_its_setting(
    row: TableStatus | None, stays: TableStatus, migrates: TableStatus | None
) -> None:
    stored = None if row is None else at(row)
    assert effective_status(stored, migrate_all=False) is stays
    status = effective_status(stored, migrate_all=True)
    if migrates is None:
        assert isinstance(status, UnusableState)
        assert "migrateAllEntitiesToLeaseTable" in status.problem
        assert DEPLOYED in status.advice
    else:
        assert status is migrates


def test_a_row_that_cannot_be_read_stops_the_start() -> None:
    assert effective_status(UNREADABLE, migrate_all=False) is UNREADABLE


@given(st.sampled_from(TableStatus), st.booleans())
def test_a_running_worker_follows_the_row_but_never_leaves_complete(
    row: TableStatus, migrate_all: bool
) -> None:
    for seen in (None, at(row), UNREADABLE):
        assert followed(COMPLETE, seen, migrate_all=migrate_all) is COMPLETE
        assert followed(INIT, seen, migrate_all=migrate_all) == effective_status(
            seen, migrate_all=migrate_all
        )


# Support code


def leases(*owners: WorkerId | None) -> list[Lease]:
    return [Lease(LeaseKey(f"s-{n}"), 1, TRIM_HORIZON, lease_owner=owner) for n, owner in enumerate(owners)]


def worker(
    worker_id: WorkerId, last_update_s: int = 1000, *, code: int | None = 1, said_s: int | None = 1000
) -> WorkerRow:
    return WorkerRow(worker_id, last_update_s, support_code=code, support_update_s=said_s)


@pytest.mark.parametrize(
    ("workers", "code", "lacking"),
    [
        ([worker(ME), worker(OTHER)], 1, ()),
        ([worker(ME), worker(OTHER, code=3)], 1, ()),
        ([worker(ME)], 0, (OTHER,)),
        ([worker(ME), worker(OTHER, code=None, said_s=None)], 0, (OTHER,)),
        ([worker(ME), worker(OTHER, code=None)], 0, (OTHER,)),
        ([worker(ME), worker(OTHER, said_s=910)], 1, ()),
        ([worker(ME), worker(OTHER, said_s=909)], 0, (OTHER,)),
        ([worker(ME), worker(OTHER, said_s=1), worker(OTHER)], 1, ()),  # in both tables
        ([worker(ME), worker(OTHER), worker(OTHER, said_s=1)], 1, ()),
        ([worker(ME), worker(OTHER), worker(WorkerId("w-idle"), code=0)], 1, ()),  # owns nothing
    ],
)
def test_the_support_code_is_the_least_of_all_owners(
    workers: list[WorkerRow], code: int, lacking: tuple[WorkerId, ...]
) -> None:
    assert fleet_support(leases(ME, OTHER, None, ME), workers, wall_s=1000, report_s=30) == (code, lacking)


def test_rows_and_support_codes_count_for_periods_of_reporting() -> None:
    slow = [worker(ME, 880, said_s=820)]
    assert fleet_support(leases(ME), slow, wall_s=1000, report_s=60) == (1, ())
    assert fleet_support(leases(ME), slow, wall_s=1000, report_s=59) == (0, (ME,))
    for report_s, silent in ((60, ()), (59, (ME,))):
        seen = migration_readiness(
            row=None,
            leases=leases(ME),
            legacy_workers=slow,
            workers=[],
            legacy_rows=(),
            wall_s=1000,
            report_s=report_s,
        )
        assert seen.silent == silent


def test_without_owners_the_support_code_is_zero() -> None:
    assert fleet_support(leases(None), [worker(ME)], wall_s=1000, report_s=30) == (0, ())


def test_owners_of_finished_leases_only_are_not_waited_for() -> None:
    """A Java worker that has left owns what it finished until its child shards are read."""
    finished = [replace(lease, checkpoint=SHARD_END) for lease in leases(OTHER)]
    assert fleet_support([*leases(ME), *finished], [worker(ME)], wall_s=1000, report_s=30) == (1, ())


def test_a_survey_sums_up_what_was_read() -> None:
    stream: Row = {"key": "orders", "entityType": "STREAM"}
    seen = migration_readiness(
        row=at(DEPLOYED),
        leases=leases(ME, OTHER, WorkerId("w-3")),
        legacy_workers=[worker(OTHER, 940), worker(WorkerId("w-3"), 939)],
        workers=[worker(ME, 1000)],
        legacy_rows=[{"key": "Leader"}, stream, {"key": "TableMigration3.5"}],
        wall_s=1000,
        report_s=30,
    )
    assert seen == MigrationReadiness(
        at(DEPLOYED), 1, unsupporting=(), silent=(WorkerId("w-3"),), in_legacy=(OTHER,), legacy_rows=(stream,)
    )
