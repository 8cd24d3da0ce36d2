"""When a fleet from KCL 2.x is ready for 3.x, and the tool that steers it."""

from __future__ import annotations

import pytest

from kcl_daemon.fleet.client_version import CLIENT_VERSION_CODEC, ClientVersion, VersionRow
from kcl_daemon.leases.layout import PastState, StateRow, UnusableState
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row, RowUpdate
from kcl_daemon.leases.worker_row import WorkerRow
from kcl_daemon.migrations.kcl2_rules import (
    NotReady,
    Upgrade,
    UpgradeReadiness,
    VersionChange,
    consider_upgrade,
    rollback,
    rollforward,
    upgrade_readiness,
)
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.memory.updates import apply_update

_, UPGRADE, WITH_ROLLBACK, V2X, V3X = ClientVersion
ME, OTHER = WorkerId("w-1"), WorkerId("w-2")


def at(version: ClientVersion) -> VersionRow:
    return StateRow(version, "w-0", 1000)


def read(row: Row | None) -> VersionRow:
    state = CLIENT_VERSION_CODEC.read(row)
    assert isinstance(state, StateRow)
    return state


class OneRow:
    """The row in a table, which takes updates."""

    def __init__(self, key: str, version: ClientVersion) -> None:
        self.key = key
        self.row: Row | None = CLIENT_VERSION_CODEC.row(at(version), key_attribute=key)

    def write(self, update: RowUpdate) -> bool:
        written = apply_update(update, self.row, key_attribute=self.key)
        self.row = written.row
        return written.applied


def leases(*owners: WorkerId | None) -> list[Lease]:
    return [Lease(LeaseKey(f"s-{n}"), 1, TRIM_HORIZON, lease_owner=owner) for n, owner in enumerate(owners)]


def worker(worker_id: WorkerId, last_update_s: int) -> WorkerRow:
    return WorkerRow(worker_id, last_update_s)


def test_all_is_ready_when_the_index_is_active_and_every_owner_reports() -> None:
    rows = [worker(ME, 941), worker(OTHER, 2000)]
    ready = upgrade_readiness(leases(ME, OTHER, ME), rows, index_active=True, wall_s=1000.5, report_s=30)
    assert ready.is_met
    assert ready.missing == ""


def test_a_report_counts_for_less_than_a_minute() -> None:
    assert upgrade_readiness(
        leases(ME), [worker(ME, 941)], index_active=True, wall_s=1000, report_s=30
    ).is_met
    late = upgrade_readiness(leases(ME), [worker(ME, 940)], index_active=True, wall_s=1000, report_s=30)
    assert late.silent == (ME,)


def test_a_report_counts_for_less_than_two_periods_of_reporting() -> None:
    """workerMetricsReporterFreqInMillis=60000: each row is a minute old once in a minute."""
    rows = [worker(ME, 881)]
    assert upgrade_readiness(leases(ME), rows, index_active=True, wall_s=1000, report_s=60).is_met
    assert not upgrade_readiness(leases(ME), rows, index_active=True, wall_s=1000, report_s=59).is_met


def test_an_upgrade_that_is_not_ready_names_index_workers_and_leases() -> None:
    ready = upgrade_readiness(
        leases(ME, None, OTHER), [worker(ME, 1000)], index_active=False, wall_s=1000, report_s=30
    )
    assert ready == UpgradeReadiness(False, (OTHER,), (LeaseKey("s-1"),))
    assert not ready.is_met
    for part in ("index", "w-2", "s-1"):
        assert part in ready.missing


READY, UNREADY = UpgradeReadiness(True), UpgradeReadiness(False)


def ask(
    since_s: float | None,
    now_s: float,
    *,
    ready: UpgradeReadiness = READY,
    leads: bool = True,
    version: ClientVersion = UPGRADE,
) -> NotReady | Upgrade:
    return consider_upgrade(
        at(version), ready, since_s, leads=leads, me=ME, now_s=now_s, now_ms=5000, key_attribute="key"
    )


def test_ten_minutes_without_a_break_upgrade_the_fleet() -> None:
    first = ask(None, 100)
    assert isinstance(first, NotReady)
    assert first.ready_since_s == 100
    assert isinstance(ask(first.ready_since_s, 699), NotReady)
    decision = ask(first.ready_since_s, 700)
    assert isinstance(decision, Upgrade)
    table = OneRow("key", UPGRADE)
    assert table.write(decision.update)
    assert read(table.row) == StateRow(WITH_ROLLBACK, ME, 5000, (PastState(UPGRADE.value, "w-0", 1000),))
    assert not table.write(decision.update)  # once


@pytest.mark.parametrize(
    "decision",
    [
        ask(100, 2000, ready=UNREADY),
        ask(100, 2000, leads=False),
        ask(100, 2000, version=V2X),
        ask(100, 2000, version=WITH_ROLLBACK),
    ],
)
def test_an_unready_fleet_starts_the_time_of_readiness_anew(decision: NotReady | Upgrade) -> None:
    assert isinstance(decision, NotReady)
    assert decision.ready_since_s is None
    assert decision.reason


def test_an_upgrade_is_refused_once_somebody_rolled_back() -> None:
    decision = ask(0, 600)
    assert isinstance(decision, Upgrade)
    assert not OneRow("key", V2X).write(decision.update)


# The tool


@pytest.mark.parametrize("version", [UPGRADE, WITH_ROLLBACK])
@pytest.mark.parametrize("key", ["key", "leaseKey"])
def test_an_upgrade_is_rolled_back_and_forward(version: ClientVersion, key: str) -> None:
    table = OneRow(key, version)
    back = rollback(read(table.row), now_ms=2000, key_attribute=key)
    assert isinstance(back, VersionChange)
    assert back.remove_index_after_s == 120
    assert table.write(back.update)
    forward = rollforward(read(table.row), now_ms=3000, key_attribute=key)
    assert isinstance(forward, VersionChange)
    assert forward.remove_index_after_s is None
    assert table.write(forward.update)
    assert read(table.row) == StateRow(
        UPGRADE,
        "KclMigrationTool-rollforward",
        3000,
        (PastState(V2X.value, "KclMigrationTool-rollback", 2000), PastState(version.value, "w-0", 1000)),
    )


@pytest.mark.parametrize(
    ("decision", "problem"),
    [
        (rollback(at(V2X), now_ms=1, key_attribute="key"), "already"),
        (rollback(at(V3X), now_ms=1, key_attribute="key"), "complete"),
        (rollback(None, now_ms=1, key_attribute="key"), "no row"),
        (rollback(UnusableState("odd", "do"), now_ms=1, key_attribute="key"), "odd"),
        (rollforward(at(UPGRADE), now_ms=1, key_attribute="key"), "not rolled back"),
        (rollforward(at(V3X), now_ms=1, key_attribute="key"), "not rolled back"),
        (rollforward(None, now_ms=1, key_attribute="key"), "no row"),
        (rollforward(UnusableState("odd", "do"), now_ms=1, key_attribute="key"), "odd"),
    ],
)
def test_the_tool_refuses_with_a_reason_and_advice(
    decision: VersionChange | UnusableState, problem: str
) -> None:
    assert isinstance(decision, UnusableState)
    assert problem in decision.problem
    assert decision.advice
