"""Worker rows: as Java writes and reads them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Row, Value
from kcl_daemon.leases.worker_row import (
    CPU,
    FAILED,
    MAX_AVERAGES,
    MEMORY,
    Incarnation,
    MetricName,
    WorkerRow,
    incarnation_of,
    is_worker_row,
    report,
    unchanged,
    worker_from_row,
    workers_of,
)
from tests.simulator.memory.updates import apply_update, holds

ME = WorkerId("w-1")
JAVA: Row = {
    "leaseKey": "w-1",
    "entityType": "WORKER_METRIC_STATS",
    "lut": 1770000000,
    "slu": 1770000000,
    "sup": 1,
    "sts": {"C": (0, Decimal("17.25"))},
    "opr": {"C": (100,)},
}


def java(**changed: Value) -> Row:
    return {**JAVA, **changed}


def read(row: Row) -> WorkerRow | None:
    return worker_from_row(row, key_attribute="leaseKey")


def test_a_row_of_java_is_read() -> None:
    assert read(JAVA) == WorkerRow(
        ME, 1770000000, {CPU: (0.0, 17.25)}, {CPU: 100}, 1, 1770000000, is_java=True
    )


def test_of_the_rows_of_a_table_those_that_can_be_read_are_workers() -> None:
    assert workers_of([JAVA, java(lut="soon"), {}], "leaseKey") == [read(JAVA)]


def test_our_row_is_javas_row() -> None:
    update = report(ME, now_s=1770000000, metrics={CPU: (0.0, 17.25)})
    assert apply_update(update, None, key_attribute="leaseKey").row == JAVA
    assert not update.require


def test_a_row_of_an_older_java_has_no_support_code() -> None:
    row = {name: value for name, value in JAVA.items() if name not in {"entityType", "sup", "slu"}}
    worker = read(row)
    assert worker is not None
    assert (worker.support_code, worker.support_update_s) == (None, None)


def test_the_legacy_tables_key_is_read() -> None:
    row = {**{name: value for name, value in JAVA.items() if name != "leaseKey"}, "wid": "w-1"}
    worker = worker_from_row(row, key_attribute="wid")
    assert worker is not None
    assert worker.worker_id == ME


def test_without_metrics_both_maps_are_written_empty() -> None:
    put = report(ME, now_s=7).put
    assert (put["sts"], put["opr"]) == ({}, {})
    worker = read({**put, "leaseKey": ME})
    assert worker is not None
    assert worker.metrics == {}
    assert not worker.is_failing


def test_averages_are_written_half_up_to_six_decimals_as_decimals() -> None:
    put = report(ME, now_s=7, metrics={CPU: (1.0000005, 2.0000004, FAILED)}).put
    assert put["sts"] == {"C": (Decimal("1.000001"), Decimal("2.000000"), Decimal(-1))}


def test_only_the_last_ten_averages_are_written() -> None:
    put = report(ME, now_s=7, metrics={CPU: [float(n) for n in range(12)]}).put
    assert put["sts"] == {"C": tuple(Decimal(n) for n in range(2, 12))}


def test_a_metric_without_averages_is_left_out() -> None:
    put = report(ME, now_s=7, metrics={CPU: (), MEMORY: (3.0,)}).put
    assert (set(put["sts"]), set(put["opr"])) == ({"M"}, {"M"})  # type: ignore[arg-type]  # they are maps


def test_an_operating_range_is_written_as_an_integer() -> None:
    put = report(ME, now_s=7, metrics={CPU: (3.0,)}).put
    assert put["opr"] == {"C": (100,)}


@pytest.mark.parametrize(
    "row",
    [
        java(lut="soon"),
        {name: value for name, value in JAVA.items() if name != "lut"},
        {name: value for name, value in JAVA.items() if name != "leaseKey"},
        java(entityType="LEASE"),
        java(opr={}),
        java(opr={"C": ()}),
        java(opr={"C": (0,)}),
        java(opr={"C": (Decimal("0.5"),)}),
        java(opr={"C": (-5,)}),
        java(sts="none"),
        java(opr="none"),
        java(sts={"C": 5}),
        java(sts={"C": (5, "many")}),
    ],
)
def test_a_row_that_is_no_valid_report_is_no_worker(row: Row) -> None:
    assert read(row) is None


@pytest.mark.parametrize(
    "row",
    [
        java(sts={}, opr={}),
        {name: value for name, value in JAVA.items() if name not in {"sts", "opr"}},
        java(sts={"THROUGHPUT": (5,)}, opr={}),
        java(opr={"THROUGHPUT": ()}),
    ],
)
def test_default_metrics_are_valid_and_no_figures(row: Row) -> None:
    worker = read(row)
    assert worker is not None
    assert worker.metrics == {}


def test_metrics_that_we_do_not_know_are_read() -> None:
    worker = read(java(sts={"X": (5,)}, opr={"X": (50,), "C": (100,)}))
    assert worker is not None
    assert worker.metrics == {MetricName("X"): (5.0,)}
    assert worker.operating_ranges == {MetricName("X"): 50, CPU: 100}


@pytest.mark.parametrize(
    ("averages", "failing"), [((5, -1), True), ((-1, 5), False), ((), False), ((Decimal("-1.0"),), True)]
)
def test_only_the_latest_failed_capture_counts(averages: tuple[int | Decimal, ...], failing: bool) -> None:
    worker = read(java(sts={"C": averages}))
    assert worker is not None
    assert worker.is_failing == failing


def test_the_row_of_one_long_gone_is_deleted_only_if_it_has_not_reported_since() -> None:
    worker = WorkerRow(WorkerId("w"), 1000)
    (condition,) = unchanged(worker)
    assert holds(condition, {"wid": "w", "lut": 1000})
    assert not holds(condition, {"wid": "w", "lut": 1030})


@given(
    st.dictionaries(
        st.sampled_from([CPU, MEMORY]), st.lists(st.floats(-1, 100), min_size=1, max_size=12), max_size=2
    )
)
def test_reported_metrics_are_read_back(metrics: dict[MetricName, list[float]]) -> None:
    written = apply_update(report(ME, now_s=9, metrics=metrics), None, key_attribute="leaseKey").row
    assert written is not None
    worker = read(written)
    assert worker is not None
    assert worker.metrics.keys() == metrics.keys() == worker.operating_ranges.keys()
    for name, averages in metrics.items():
        assert worker.metrics[name] == pytest.approx(averages[-MAX_AVERAGES:], abs=0.0000005)


def test_the_host_whose_cpu_is_reported_is_kept_and_taken_away() -> None:
    me = WorkerId("w-1")
    row = apply_update(report(me, now_s=1, host="boot-1"), None, key_attribute="wid").row
    assert row is not None
    found = worker_from_row(row, key_attribute="wid")
    assert (found and found.host) == "boot-1"
    row = apply_update(report(me, now_s=2), row, key_attribute="wid").row
    found = worker_from_row(row or {}, key_attribute="wid")
    assert found == WorkerRow(me, 2, support_code=1, support_update_s=2, is_java=True)


def test_whether_a_worker_stands_by_is_in_its_row() -> None:
    row = apply_update(report(ME, now_s=1, stands_by=True), None, key_attribute="leaseKey").row
    found = read(row or {})
    assert found is not None
    assert found.stands_by
    after = apply_update(report(ME, now_s=2), row, key_attribute="leaseKey").row
    assert "daemonStandby" not in (after or {})
    assert not WorkerRow(ME, 1).stands_by


def test_the_load_that_a_worker_reports_is_in_its_row_until_it_reports_none() -> None:
    row = apply_update(report(ME, now_s=1, load="[1,2]"), None, key_attribute="leaseKey").row
    found = read(row or {})
    assert found is not None
    assert (found.load, (row or {})["daemonLoad"]) == ("[1,2]", "[1,2]")
    after = apply_update(report(ME, now_s=2), row, key_attribute="leaseKey").row
    assert "daemonLoad" not in (after or {})


def test_a_process_is_known_by_what_it_wrote_about_itself() -> None:
    written = report(ME, now_s=5, incarnation=Incarnation(7, "nonce"), run_until_ms=9)
    row = apply_update(written, None, key_attribute="leaseKey").row
    assert row is not None
    assert incarnation_of(row) == Incarnation(7, "nonce")
    started = next(name for name, value in row.items() if value == 7)
    untimed = {name: value for name, value in row.items() if name != started}
    assert incarnation_of(untimed) == Incarnation(0, "nonce")
    nonce = next(name for name, value in row.items() if value == "nonce")
    assert [incarnation_of({**row, nonce: value}) for value in ("", 7)] == [None, None]
    assert incarnation_of(JAVA) is None


def test_where_a_run_ends_is_reported_and_taken_away_by_a_run_without_an_end() -> None:
    bounded = apply_update(report(ME, now_s=5, run_until_ms=9), None, key_attribute="leaseKey").row
    assert bounded is not None
    worker = read(bounded)
    assert worker is not None
    assert worker.run_until_ms == 9
    endless = apply_update(report(ME, now_s=6), bounded, key_attribute="leaseKey").row
    assert endless is not None
    assert bounded.keys() - endless.keys() == {name for name, value in bounded.items() if value == 9}


@pytest.mark.parametrize("entity", ["LEASE", "WORKER_METRIC_STATS_2", None])
def test_a_worker_row_says_that_it_is_one(entity: str | None) -> None:
    assert is_worker_row(JAVA)
    assert not is_worker_row({} if entity is None else java(entityType=entity))


def test_of_several_ranges_the_first_counts_and_one_percent_is_one() -> None:
    for ranges, first in (((80, 100), 80), ((80, 0), 80), ((1, 100), 1)):
        worker = read(java(opr={"C": ranges}))
        assert worker is not None
        assert worker.operating_ranges == {CPU: first}
    assert read(java(opr={"C": (0, 100)})) is None
