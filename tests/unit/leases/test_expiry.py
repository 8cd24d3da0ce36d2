"""What an observer may conclude from standing counters and changing rows."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.expiry import LivenessLog, WorkerObservation, unclaimed_patience_s
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Value
from kcl_daemon.leases.worker_row import WorkerRow, report, worker_from_row
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.memory.updates import apply_update

A, B = WorkerId("a"), WorkerId("b")
LEASE = Lease(LeaseKey("s"), 1, TRIM_HORIZON, lease_owner=A)


def poll(
    at_s: float,
    leases: list[Lease],
    workers: list[WorkerRow] | None = None,
    *,
    book: LivenessLog | None = None,
    failover_s: float = 10.0,
) -> LivenessLog:
    """One more look, that takes no time."""
    before = book or LivenessLog()
    return before.poll(leases, workers or [], began_s=at_s, ended_s=at_s, failover_s=failover_s)


def living(book: LivenessLog, wall_s: float) -> frozenset[WorkerId]:
    return book.reporting(wall_s=wall_s, active_s=60.0)


def test_a_lease_seen_for_the_first_time_does_not_stand_still() -> None:
    assert LivenessLog().still_s(LEASE) == 0.0
    assert poll(10.0, [LEASE]).still_s(LEASE) == 0.0


def test_an_unmoved_lease_grows_old_and_a_moved_one_is_young_again() -> None:
    book = poll(21.0, [LEASE], book=poll(10.0, [LEASE]))
    assert book.still_s(LEASE) == 11.0
    moved = replace(LEASE, lease_counter=2)
    book = poll(23.0, [moved], book=poll(22.0, [moved], book=book))
    assert book.still_s(moved) == 1.0


def test_a_slow_reading_never_makes_a_lease_look_older() -> None:
    book = LivenessLog().poll([LEASE], [], began_s=0.0, ended_s=5.0, failover_s=10.0)
    book = book.poll([LEASE], [], began_s=12.0, ended_s=17.0, failover_s=10.0)
    assert book.still_s(LEASE) == 7.0


def test_the_beginning_of_a_handoff_is_no_sign_of_life_of_the_owner() -> None:
    handed = replace(LEASE, lease_owner=B, checkpoint_owner=A)
    assert poll(11.0, [handed], book=poll(0.0, [LEASE])).still_s(handed) == 11.0


def test_a_new_owner_has_its_own_time() -> None:
    given = replace(LEASE, lease_owner=B)
    assert poll(6.0, [given], book=poll(5.0, [given], book=poll(0.0, [LEASE]))).still_s(given) == 1.0


def test_a_counter_that_went_back_belongs_to_a_new_row() -> None:
    book = poll(50.0, [LEASE], book=poll(0.0, [replace(LEASE, lease_counter=9)]))
    assert poll(51.0, [LEASE], book=book).still_s(LEASE) == 1.0


def test_a_handoff_is_timed_from_its_beginning_through_all_renewals() -> None:
    handed = replace(LEASE, lease_owner=B, checkpoint_owner=A)
    book = poll(0.0, [LEASE])
    for second in range(10, 60, 10):
        book = poll(float(second), [replace(handed, lease_counter=second)], book=book)
    assert book.handoff_s(handed) == 40.0
    assert poll(60.0, [LEASE], book=book).handoff_s(LEASE) == 0.0


def test_a_lease_that_nobody_hands_on_or_has_seen_is_in_no_handoff() -> None:
    assert LivenessLog().handoff_s(LEASE) == 0.0
    assert poll(11.0, [LEASE], book=poll(0.0, [LEASE])).handoff_s(LEASE) == 0.0


def test_a_vanished_row_is_forgotten() -> None:
    book = poll(1.0, [], book=poll(0.0, [LEASE], [WorkerRow(A, 5)]))
    assert (book.leases, book.workers) == ({}, {})


def test_a_worker_counts_as_reporting_by_its_own_time_at_first_sight() -> None:
    assert living(poll(0.0, [], [WorkerRow(A, 1000), WorkerRow(B, 900)]), 1010.0) == {A}
    assert living(poll(0.0, [], [WorkerRow(A, 1000)]), 1060.0) == {A}
    assert living(poll(0.0, [], [WorkerRow(A, 1000)]), 1061.0) == set()


def test_a_worker_with_a_wrong_clock_counts_once_its_row_is_seen_to_change() -> None:
    book = poll(0.0, [], [WorkerRow(A, 5)])
    assert living(book, 9000.0) == set()
    book = poll(30.0, [], [WorkerRow(A, 35)], book=book)
    assert living(poll(90.0, [], [WorkerRow(A, 35)], book=book), 9000.0) == {A}
    assert living(poll(91.0, [], [WorkerRow(A, 35)], book=book), 9000.0) == set()


def test_a_worker_whose_clock_runs_ahead_does_not_live_for_ever() -> None:
    book = poll(100.0, [], [WorkerRow(A, 1000)], book=poll(0.0, [], [WorkerRow(A, 1000)]))
    assert living(book, 1000.0) == set()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 20.0), st.floats(0.0, 5.0)), min_size=1, max_size=30)
)
def test_a_lease_never_looks_older_than_it_is(steps: list[tuple[int, float, float]]) -> None:
    book, now_s, last_moved_s, counter = LivenessLog(), 0.0, 0.0, 0
    for moves, pause_s, reading_s in steps:
        if moves:
            counter, last_moved_s = counter + moves, now_s
        lease = replace(LEASE, lease_counter=counter)
        book = book.poll([lease], [], began_s=now_s, ended_s=now_s + reading_s, failover_s=10.0)
        assert book.still_s(lease) <= now_s - last_moved_s
        now_s += reading_s + pause_s


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
    assert worker_from_row(good, key_attribute="wid") == WorkerRow(A, 5, is_java=True)
    assert [worker_from_row(row, key_attribute="wid") for row in bad] == [None] * len(bad)


def test_a_worker_that_lets_a_lease_stand_still_is_under_suspicion_until_it_reports_anew() -> None:
    book = poll(10.5, [LEASE], [WorkerRow(A, 1000)], book=poll(0.0, [LEASE], [WorkerRow(A, 1000)]))
    assert living(book, 1010.0) == set()
    given_away = replace(LEASE, lease_owner=B, lease_counter=2)
    book = poll(12.5, [given_away], [WorkerRow(A, 1000)], book=book)
    assert (
        living(book, 1012.0) == set()
    )  # it has no lease any more, and a fresh row, and is dead all the same
    assert living(poll(14.5, [given_away], [WorkerRow(A, 1014)], book=book), 1014.0) == {A}


def test_a_lease_that_moves_again_ends_the_suspicion() -> None:
    book = LivenessLog()
    for now_s, counter in ((0.0, 1), (11.0, 1), (13.0, 2)):
        book = poll(now_s, [replace(LEASE, lease_counter=counter)], [WorkerRow(A, 1000)], book=book)
    assert living(book, 1013.0) == {A}


REPORTING = [WorkerRow(A, 100), WorkerRow(B, 100)]


def test_a_lease_given_to_a_worker_without_others_may_stand_still_for_longer() -> None:
    given = replace(LEASE, lease_owner=B)
    book = poll(1.0, [given], REPORTING, book=poll(0.0, [LEASE], REPORTING))
    later = poll(15.9, [given], REPORTING, book=book)
    assert later.abandoned(10.0) == frozenset()
    assert B in later.reporting(wall_s=100.0, active_s=60.0)
    too_late = poll(16.1, [given], REPORTING, book=later)
    assert too_late.abandoned(10.0) == {LEASE.lease_key}
    assert B not in too_late.reporting(wall_s=100.0, active_s=60.0)


def test_a_claimed_lease_expires_after_the_usual_time() -> None:
    given, claimed = replace(LEASE, lease_owner=B), replace(LEASE, lease_owner=B, lease_counter=3)
    book = poll(1.0, [given], REPORTING, book=poll(0.0, [LEASE], REPORTING))
    book = poll(2.0, [claimed], REPORTING, book=book)
    assert poll(12.0, [claimed], REPORTING, book=book).abandoned(10.0) == frozenset()
    assert poll(12.1, [claimed], REPORTING, book=book).abandoned(10.0) == {LEASE.lease_key}


def test_a_worker_that_renews_others_has_longer_as_well() -> None:
    """A Java worker writes what it was given for the first time up to 13.3 s later, whatever else it has."""

    def leases(renewals: int) -> list[Lease]:
        return [replace(LEASE, lease_owner=B), replace(OTHERS, lease_owner=B, lease_counter=renewals)]

    book = poll(1.0, leases(1), REPORTING, book=poll(0.0, [LEASE, *leases(1)[1:]], REPORTING))
    for second in range(2, 17):
        book = poll(float(second), leases(second), REPORTING, book=book)
        assert book.unclaimed == {LEASE.lease_key}
        assert B in book.reporting(wall_s=100.0, active_s=60.0)
        assert book.abandoned(10.0) == frozenset()
    assert poll(17.0, leases(17), REPORTING, book=book).abandoned(10.0) == {LEASE.lease_key}


def test_a_worker_whose_other_leases_stand_still_or_that_is_gone_has_the_usual_time() -> None:
    given = replace(LEASE, lease_owner=B)
    other = Lease(LeaseKey("t"), 1, TRIM_HORIZON, lease_owner=B)
    for leases, workers in (([other], REPORTING), ([], REPORTING[:1])):
        book = poll(1.0, [given, *leases], workers, book=poll(0.0, [LEASE, *leases], workers))
        assert LEASE.lease_key in poll(11.1, [given, *leases], workers, book=book).abandoned(10.0)


def test_a_lease_is_abandoned_when_it_has_an_owner_and_its_counter_stands_still() -> None:
    free = replace(LEASE, lease_owner=None)
    assert poll(99.0, [free], book=poll(0.0, [free])).abandoned(10.0) == frozenset()
    assert poll(10.0, [LEASE], book=poll(0.0, [LEASE])).abandoned(10.0) == frozenset()
    assert poll(10.1, [LEASE], book=poll(0.0, [LEASE])).abandoned(10.0) == {LEASE.lease_key}


def test_a_worker_without_leases_has_longer_for_its_first_ones_but_not_one_that_was_given_up() -> None:
    rows = [WorkerRow(A, 100), WorkerRow(B, 100)]
    given = replace(LEASE, lease_owner=B, lease_counter=5)
    fresh = poll(1.0, [given], rows, book=poll(0.0, [LEASE], rows))
    assert poll(12.0, [given], rows, book=fresh).abandoned(10.0) == frozenset()
    assert poll(17.0, [given], rows, book=fresh).abandoned(10.0) == {LEASE.lease_key}
    # B let another lease stand still, which was taken from it; somebody who stops gives it this one all the same.
    silent = Lease(LeaseKey("t"), 1, TRIM_HORIZON, lease_owner=B)
    book = poll(11.0, [LEASE, silent], rows, book=poll(0.0, [LEASE, silent], rows))
    taken = replace(silent, lease_owner=A, lease_counter=2)
    book = poll(12.0, [LEASE, taken], rows, book=book)
    book = poll(13.0, [given, taken], rows, book=book)
    assert LEASE.lease_key in poll(24.0, [given, taken], rows, book=book).abandoned(10.0)
    reported = [rows[0], WorkerRow(B, 101)]
    book = poll(14.0, [given, taken], reported, book=book)
    assert LEASE.lease_key not in poll(24.0, [given, taken], reported, book=book).abandoned(10.0)


def test_a_worker_that_looks_rarely_has_as_long_as_it_needs_for_a_lease_it_was_given() -> None:
    """leaseAssignmentIntervalMillis=60000: a Java worker looks every 30 s."""
    rows = [WorkerRow(A, 100), WorkerRow(B, 100)]
    given = replace(LEASE, lease_owner=B, lease_counter=5)
    patient = LivenessLog(unclaimed_s=45.0)
    fresh = poll(1.0, [given], rows, book=poll(0.0, [LEASE], rows, book=patient))
    assert poll(40.0, [given], rows, book=fresh).abandoned(10.0) == frozenset()
    assert poll(47.0, [given], rows, book=fresh).abandoned(10.0) == {LEASE.lease_key}


STUCK = replace(LEASE, lease_owner=B, checkpoint_owner=A)
OTHERS = Lease(LeaseKey("t"), 1, TRIM_HORIZON, lease_owner=A)


def watched(seconds: int, *, renews_until_s: float, reports_until_s: float) -> LivenessLog:
    """A look every 2 s at A: a lease of a hand-off that A cannot claim, another that it renews, its row each 30 s."""
    book = LivenessLog()
    for at_s in range(0, seconds + 1, 2):
        renewed = replace(OTHERS, lease_counter=int(min(at_s, renews_until_s)) // 4)
        row = WorkerRow(A, 1000 + int(min(at_s, reports_until_s)) // 30 * 30)
        book = poll(float(at_s), [STUCK, renewed], [row, WorkerRow(B, 900)], book=book)
    return book


def test_a_worker_that_renews_other_leases_is_no_suspect_for_one_that_it_cannot_claim() -> None:
    for seconds in range(20, 200, 2):
        book = watched(seconds, renews_until_s=9999, reports_until_s=9999)
        assert living(book, 1000.0 + seconds) == {A}
        assert STUCK.lease_key in book.abandoned(10.0)


def test_a_worker_that_reports_long_after_it_should_have_claimed_a_lease_lives() -> None:
    def seen(at_s: float, reported: int, book: LivenessLog | None = None) -> LivenessLog:
        return poll(at_s, [STUCK], [WorkerRow(A, reported)], book=book)

    book = seen(11.0, 1000, seen(0.0, 1000))
    assert living(book, 1011.0) == set()
    # The row may have been written a moment before the lease should have moved.
    assert living(seen(29.0, 1028, seen(9.0, 1000, seen(0.0, 1000))), 1029.0) == set()
    assert living(seen(31.0, 1030, book), 1031.0) == {A}
    later = seen(60.0, 1030, seen(31.0, 1030, book))
    assert living(later, 1060.0) == {A}


def test_rows_that_were_read_long_ago_prove_nothing() -> None:
    def seen(at_s: float, reported: int, read_s: float, book: LivenessLog | None = None) -> LivenessLog:
        rows = [WorkerRow(A, reported)]
        return (book or LivenessLog()).poll(
            [STUCK], rows, began_s=at_s, ended_s=at_s, failover_s=10.0, workers_read_s=read_s
        )

    book = seen(14.0, 1000, 5.0, seen(5.0, 1000, 5.0))
    # Read at 5 s and again at 16 s: it may have been written at 6 s, when the lease was young.
    assert living(seen(16.0, 1001, 16.0, book), 1016.0) == set()


def test_a_worker_that_dies_with_such_a_lease_is_suspected_by_its_others() -> None:
    assert living(watched(58, renews_until_s=50, reports_until_s=50), 1058.0) == {A}
    assert living(watched(60, renews_until_s=50, reports_until_s=50), 1060.0) == set()


def test_a_renewal_seen_after_an_outage_of_the_observer_does_not_prove_its_owner_alive() -> None:
    one, two = LEASE, OTHERS
    book = poll(1.0, [one, two], REPORTING, book=poll(0.0, [one, two], REPORTING))
    # A died at 1.5 s, just after it had renewed one of its leases; the observer saw that at 12 s only.
    book = poll(12.0, [one, replace(two, lease_counter=2)], REPORTING, book=book)
    assert A not in book.reporting(wall_s=100.0, active_s=60.0)


def test_a_lease_that_the_leader_gives_back_after_a_handoff_is_no_sign_of_life() -> None:
    given = replace(LEASE, lease_counter=2)
    book = poll(
        12.0, [given], REPORTING, book=poll(11.0, [STUCK], REPORTING, book=poll(0.0, [STUCK], REPORTING))
    )
    assert A not in book.reporting(wall_s=100.0, active_s=60.0)
    claimed = poll(13.0, [replace(given, lease_counter=3)], REPORTING, book=book)
    assert A in claimed.reporting(wall_s=100.0, active_s=60.0)
    assert claimed.has_lived_since(A, 11.0)
    assert claimed.has_lived_since(A, 12.0)
    assert not claimed.has_lived_since(A, 12.1)
    assert not claimed.has_lived_since(B, 0.0)


def test_a_dead_worker_stays_under_suspicion_however_often_one_looks() -> None:
    book = LivenessLog()
    for second in range(30):
        book = poll(float(second), [LEASE], [WorkerRow(A, 1000)], book=book)
        assert (A in living(book, 1000.0 + second)) is (second <= 10)


def test_a_lease_without_an_owner_hides_no_silent_owner_of_another() -> None:
    free = Lease(LeaseKey("first"), 1, TRIM_HORIZON)
    rows = [WorkerRow(A, 1000)]
    book = poll(11.0, [free, LEASE], rows, book=poll(0.0, [free, LEASE], rows))
    assert living(book, 1011.0) == set()


def test_a_clock_that_was_put_back_takes_no_sign_of_life_away() -> None:
    """A report counts because it differs, and a row made again by its owner as well."""
    suspected = poll(11.0, [LEASE], [WorkerRow(A, 1000)], book=poll(0.0, [LEASE], [WorkerRow(A, 1000)]))
    book = poll(13.0, [LEASE], [WorkerRow(A, 900)], book=suspected)
    assert book.has_lived_since(A, 11.0)
    assert living(book, 1013.0) == {A}
    again = poll(13.0, [replace(LEASE, lease_counter=0)], [WorkerRow(A, 1000)], book=suspected)
    assert again.has_lived_since(A, 11.0)


def test_who_was_last_seen_at_the_moment_when_its_lease_was_due_may_have_died_then() -> None:
    book = poll(10.0, [LEASE], [WorkerRow(A, 1000)], book=poll(0.0, [LEASE], [WorkerRow(A, 1000)]))
    book = poll(12.0, [LEASE], [WorkerRow(A, 1001)], book=book)
    assert book.has_lived_since(A, 10.0)
    assert living(book, 1012.0) == set()


def test_a_new_owner_may_be_slow_whoever_had_the_lease_before() -> None:
    for before in (None, A, B):
        owner = A if before == B else B
        given = replace(LEASE, lease_owner=owner, lease_counter=2)
        book = poll(0.0, [replace(LEASE, lease_owner=before)], REPORTING)
        assert poll(1.0, [given], REPORTING, book=book).unclaimed == {LEASE.lease_key}


def test_a_lease_is_claimed_by_its_owner_even_in_a_row_that_was_made_again() -> None:
    given = replace(LEASE, lease_owner=B, lease_counter=5)
    book = poll(1.0, [given], REPORTING, book=poll(0.0, [LEASE], REPORTING))
    assert poll(2.0, [replace(given, lease_counter=1)], REPORTING, book=book).unclaimed == frozenset()


def test_patience_is_a_half_more_than_the_failover_time_or_most_of_an_interval() -> None:
    assert unclaimed_patience_s(10.0, 20.0) == 15.0
    assert unclaimed_patience_s(10.0, 60.0) == 45.0
    given = replace(LEASE, lease_owner=B, lease_counter=5)
    book = poll(1.0, [given], REPORTING, book=poll(0.0, [LEASE], REPORTING), failover_s=0.2)
    assert poll(1.35, [given], REPORTING, book=book, failover_s=0.2).abandoned(0.2) == {LEASE.lease_key}


def test_a_worker_with_an_old_date_is_doubtful_until_it_was_watched_for_long_enough() -> None:
    seen = WorkerObservation(last_update_s=100, since_s=50.0, changed=False)
    assert seen.is_doubtful(wall_s=161.0, now_s=80.0, active_s=60.0)
    assert seen.is_doubtful(wall_s=161.0, now_s=110.0, active_s=60.0)
    assert not seen.is_doubtful(wall_s=161.0, now_s=110.1, active_s=60.0), "watched for long enough"
    assert not seen.is_doubtful(wall_s=160.0, now_s=80.0, active_s=60.0), "its date is young"
    assert not seen.is_doubtful(wall_s=150.0, now_s=80.0, active_s=60.0)
    assert not replace(seen, changed=True).is_doubtful(wall_s=161.0, now_s=80.0, active_s=60.0)


def test_a_worker_row_is_dated_by_the_clock_of_its_observer() -> None:
    row = replace(REPORTING[0], last_update_s=1000, support_update_s=900)
    seen = WorkerObservation(last_update_s=1000, since_s=50.0, changed=True)
    later = seen.redated(row, 1000.7)
    assert (later.last_update_s, later.support_update_s) == (1050, 950)
    assert seen.redated(replace(row, support_update_s=None), 1000.7).support_update_s is None


def test_a_worker_row_that_never_changed_is_not_dated_later() -> None:
    row = replace(REPORTING[0], last_update_s=1000, support_update_s=900)
    seen = WorkerObservation(last_update_s=1000, since_s=50.0, changed=False)
    assert seen.redated(row, 1000.7) == row
    earlier = seen.redated(row, 900.0)
    assert (earlier.last_update_s, earlier.support_update_s) == (950, 850)
