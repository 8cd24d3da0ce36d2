"""What an observer may conclude from standing counters and changing rows."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.expiry import Watchbook
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.stats import WorkerRow, report, worker_from_row
from kcl_daemon.leases.table import Value, apply_update
from kcl_protocol.sequence import TRIM_HORIZON

A, B = WorkerId("a"), WorkerId("b")
LEASE = Lease(LeaseKey("s"), 1, TRIM_HORIZON, lease_owner=A)


def test_a_lease_seen_for_the_first_time_does_not_stand_still() -> None:
    assert Watchbook().still_s(LEASE, now_s=99.0) == 0.0
    assert Watchbook().look([LEASE], [], now_s=10.0, failover_s=10.0).still_s(LEASE, now_s=10.0) == 0.0


def test_an_unmoved_lease_grows_old_and_a_moved_one_is_young_again() -> None:
    book = (
        Watchbook()
        .look([LEASE], [], now_s=10.0, failover_s=10.0)
        .look([LEASE], [], now_s=18.0, failover_s=10.0)
    )
    assert book.still_s(LEASE, now_s=21.0) == 11.0
    moved = replace(LEASE, lease_counter=2)
    assert book.look([moved], [], now_s=22.0, failover_s=10.0).still_s(moved, now_s=23.0) == 1.0


def test_the_beginning_of_a_handoff_is_no_sign_of_life_of_the_owner() -> None:
    handed = replace(LEASE, lease_owner=B, checkpoint_owner=A)
    book = (
        Watchbook()
        .look([LEASE], [], now_s=0.0, failover_s=10.0)
        .look([handed], [], now_s=5.0, failover_s=10.0)
    )
    assert book.still_s(handed, now_s=11.0) == 11.0


def test_a_new_owner_has_its_own_time() -> None:
    given = replace(LEASE, lease_owner=B)
    book = (
        Watchbook()
        .look([LEASE], [], now_s=0.0, failover_s=10.0)
        .look([given], [], now_s=5.0, failover_s=10.0)
    )
    assert book.still_s(given, now_s=6.0) == 1.0


def test_a_counter_that_went_back_belongs_to_a_new_row() -> None:
    book = (
        Watchbook()
        .look([replace(LEASE, lease_counter=9)], [], now_s=0.0, failover_s=10.0)
        .look([LEASE], [], now_s=50.0, failover_s=10.0)
    )
    assert book.still_s(LEASE, now_s=51.0) == 1.0


def test_a_handoff_is_timed_from_its_beginning_through_all_renewals() -> None:
    handed = replace(LEASE, lease_owner=B, checkpoint_owner=A)
    book = Watchbook().look([LEASE], [], now_s=0.0, failover_s=10.0)
    for second in range(10, 50, 10):
        book = book.look([replace(handed, lease_counter=second)], [], now_s=float(second), failover_s=10.0)
    assert book.handoff_s(handed, now_s=55.0) == 45.0
    assert book.look([LEASE], [], now_s=60.0, failover_s=10.0).handoff_s(LEASE, now_s=70.0) == 0.0


def test_a_vanished_row_is_forgotten() -> None:
    book = (
        Watchbook()
        .look([LEASE], [WorkerRow(A, 5)], now_s=0.0, failover_s=10.0)
        .look([], [], now_s=1.0, failover_s=10.0)
    )
    assert book == Watchbook()


def test_a_worker_counts_as_reporting_by_its_own_time_at_first_sight() -> None:
    book = Watchbook().look([], [WorkerRow(A, 1000), WorkerRow(B, 900)], now_s=0.0, failover_s=10.0)
    assert book.reporting(now_s=1.0, wall_s=1010.0, active_s=60.0) == {A}


def test_a_worker_with_a_wrong_clock_counts_once_its_row_is_seen_to_change() -> None:
    book = Watchbook().look([], [WorkerRow(A, 5)], now_s=0.0, failover_s=10.0)
    assert book.reporting(now_s=1.0, wall_s=9000.0, active_s=60.0) == set()
    book = book.look([], [WorkerRow(A, 35)], now_s=30.0, failover_s=10.0)
    assert book.reporting(now_s=89.0, wall_s=9000.0, active_s=60.0) == {A}
    assert book.reporting(now_s=91.0, wall_s=9000.0, active_s=60.0) == set()


def test_a_worker_whose_clock_runs_ahead_does_not_live_for_ever() -> None:
    book = Watchbook().look([], [WorkerRow(A, 5000)], now_s=0.0, failover_s=10.0)
    assert book.reporting(now_s=100.0, wall_s=1000.0, active_s=60.0) == set()


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 20.0)), min_size=1, max_size=30))
def test_a_lease_never_looks_older_than_it_is(steps: list[tuple[int, float]]) -> None:
    book, now_s, last_moved_s, counter = Watchbook(), 0.0, 0.0, 0
    for moves, pause_s in steps:
        if moves:
            counter, last_moved_s = counter + moves, now_s
        lease = replace(LEASE, lease_counter=counter)
        book = book.look([lease], [], now_s=now_s, failover_s=10.0)
        assert book.still_s(lease, now_s=now_s) <= now_s - last_moved_s
        now_s += pause_s


def test_a_report_is_the_row_of_a_worker_without_metrics() -> None:
    row = apply_update(report(A, now_s=1770000000), None, key_attribute="wid").row
    assert row == {
        "wid": "a",
        "entityType": "WORKER_METRIC_STATS",
        "lut": 1770000000,
        "sts": {},
        "opr": {},
        "sup": 1,
        "slu": 1770000000,
    }
    assert row is not None
    worker = worker_from_row(row, key_attribute="wid")
    assert worker is not None
    assert (worker.worker_id, worker.last_update_s) == (A, 1770000000)


def test_rows_that_are_no_valid_report_are_not_workers() -> None:
    good: dict[str, Value] = {"wid": "a", "lut": 5}
    bad: list[dict[str, Value]] = [
        {"wid": "a"},
        {"lut": 5},
        {**good, "entityType": "LEASE"},
        {**good, "sts": {"C": (1,)}, "opr": {}},
        {**good, "sts": "x"},
    ]
    assert worker_from_row(good, key_attribute="wid") == WorkerRow(A, 5)
    assert [worker_from_row(row, key_attribute="wid") for row in bad] == [None] * len(bad)


def test_a_worker_that_lets_a_lease_stand_still_is_under_suspicion_until_it_reports_anew() -> None:
    def look(book: Watchbook, now_s: float, report_s: int, lease: Lease = LEASE) -> Watchbook:
        return book.look([lease], [WorkerRow(A, report_s)], now_s=now_s, failover_s=10.0)

    def living(book: Watchbook, now_s: float) -> frozenset[WorkerId]:
        return book.reporting(now_s=now_s, wall_s=1000.0 + now_s, active_s=60.0)

    book = look(look(Watchbook(), 0.0, 1000), 10.5, 1000)
    assert living(book, 10.5) == set()
    given_away = replace(LEASE, lease_owner=B, lease_counter=2)
    book = look(book, 12.5, 1000, given_away)
    assert living(book, 12.5) == set()  # it has no lease any more, and a fresh row, and is dead all the same
    assert living(look(book, 14.5, 1014, given_away), 14.5) == {A}


def test_a_lease_that_moves_again_ends_the_suspicion() -> None:
    book = Watchbook()
    for now_s, counter in ((0.0, 1), (11.0, 1), (13.0, 2)):
        book = book.look(
            [replace(LEASE, lease_counter=counter)], [WorkerRow(A, 1000)], now_s=now_s, failover_s=10.0
        )
    assert book.reporting(now_s=13.0, wall_s=1013.0, active_s=60.0) == {A}
