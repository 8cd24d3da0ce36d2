"""Figures of queries and shards: counted in the spool, told by the engine, understood by the daemon, gone with the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.helper_process import FORGOTTEN_S
from kcl_daemon.spark import SparkEngine
from kcl_daemon.telemetry.helper_views import SparkQueryView, SparkShardView, SparkView
from kcl_landing.positions import START
from kcl_spark.conversation import CommitProgress, ShardState
from kcl_spark.figures import (
    FIGURES_S,
    QueryFigures,
    ReportKey,
    figure_reporter,
    late_rows,
    query_figures,
)
from kcl_spark.positions import QueryLog
from kcl_spark.spool import ShardFigures, Spool, SpoolCounters
from kcl_spark.stores import FolderStore
from tests.simulator.loop import run_virtual
from tests.spark.daemon import SETTINGS
from tests.spark.parts import ME, OTHER, SHARD, at, fill, plan, positions, rows, segment
from tests.unit.fakes import LoopClock, MemoryLog

BEFORE = QueryFigures(running=True, batch_s=7.0)
ROOMY = 10**9


def spool_at(folder: Path) -> Spool:
    return Spool(FolderStore(folder), max_bytes=ROOMY)


def counted(spool: Spool, shard_id: str = SHARD) -> tuple[int, int, int]:
    """Handed over, committed, waiting."""
    figures = spool.figures()[shard_id]
    return figures.rows, figures.committed, figures.waiting


# --- in the spool


def test_rows_wait_from_their_arrival_until_all_queries_have_committed_them(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    spool.grant(SHARD, START, ME)
    assert counted(spool) == (0, 0, 0)
    spool.add(SHARD, rows(0, 9), at(9), ME)
    assert counted(spool) == (0, 0, 10)  # in memory: no batch can take them yet
    spool.flush(SHARD)
    assert counted(spool) == (10, 0, 10)
    fill(spool, 10, 14)
    spool.reported(positions({SHARD: 14}), positions({SHARD: 9}))
    assert counted(spool) == (15, 10, 5)
    spool.reported(positions({SHARD: 14}), positions({SHARD: 14}))
    assert counted(spool) == (15, 15, 0)
    assert spool.figures()[SHARD].lag_s == 0.0
    assert spool.figures()[SHARD].size_bytes > 15
    assert spool.figures()[SHARD].spooled_bytes == 0


def test_records_dropped_with_a_lease_wait_no_more_and_those_kept_do(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    spool.grant(SHARD, START, ME)
    fill(spool, 0, 9)
    spool.add(SHARD, rows(10, 19), at(19), ME)
    spool.revoke(SHARD, ME)
    assert counted(spool) == (10, 0, 10)
    spool.grant(SHARD, at(4), ME)
    assert counted(spool) == (10, 0, 10)


def test_records_that_another_host_has_committed_are_not_counted_here(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    spool.grant(SHARD, START, ME)
    fill(spool, 0, 9)
    spool.revoke(SHARD, ME)
    spool.grant(SHARD, at(29), ME)  # another host was further
    spool.reported({}, positions({SHARD: 29}))
    assert counted(spool) == (10, 0, 0)


def test_records_that_an_engine_before_left_count_when_they_are_taken_over(tmp_path: Path) -> None:
    before = spool_at(tmp_path)
    before.grant(SHARD, START, ME)
    fill(before, 0, 9)
    fill(before, 10, 19)
    spool = spool_at(tmp_path)
    spool.reported(positions({SHARD: 19}), positions({SHARD: 9}))
    assert counted(spool) == (0, 0, 0)
    spool.grant(SHARD, START, ME)
    assert counted(spool) == (10, 0, 10)
    spool.reported(positions({SHARD: 19}), positions({SHARD: 19}))
    assert counted(spool) == (10, 10, 0)


def test_the_lag_is_that_of_the_oldest_row_that_waits() -> None:
    tally = SpoolCounters()
    tally.arrived(3, 10.0)
    tally.arrived(3, 11.0)
    assert tally.figures(12.0, 0).lag_s == 2.0
    tally.written(segment(0, 6))
    tally.arrived(1, 15.0)
    assert tally.figures(16.0, 0) == ShardFigures(6, 100, 0, 7, 6.0, 0)
    tally.done(at(6))
    assert tally.figures(16.0, 0) == ShardFigures(6, 100, 6, 1, 1.0, 0)
    tally.forgotten()
    assert tally.figures(16.0, 0).lag_s == 0.0


@given(st.lists(st.tuples(st.sampled_from(["arrive", "write", "commit"]), st.integers(1, 50)), max_size=60))
def test_while_a_shard_is_held_nothing_is_counted_twice_or_lost(steps: list[tuple[str, int]]) -> None:
    tally, arrived, written, done = SpoolCounters(), 0, 0, 0
    for step, number in steps:
        if step == "arrive":
            tally.arrived(number, 0.0)
            arrived += number
        elif step == "write" and arrived > written:
            tally.written(segment(written, arrived))
            written = arrived
        elif step == "commit":
            done = min(written, done + number)
            tally.done(at(done))
    tally.done(at(written))
    figures = tally.figures(0.0, 0)
    assert (figures.rows, figures.committed, figures.waiting) == (written, written, arrived - written)


# --- what Spark tells


def told_by_spark(**change: Any) -> dict[str, Any]:
    return {
        "durationMs": {"addBatch": 400, "triggerExecution": 1_500},
        "inputRowsPerSecond": 20.5,
        "processedRowsPerSecond": 30.5,
        "stateOperators": [],
        **change,
    }


@pytest.mark.parametrize(
    ("reported", "figures"),
    [
        (None, QueryFigures(True, 2)),
        (told_by_spark(), QueryFigures(True, 2, 20.5, 30.5, 1.5)),
        (
            told_by_spark(
                durationMs={"latestOffset": 3, "triggerExecution": 5}
            ),  # it looked; nothing was there
            QueryFigures(True, 2, 20.5, 30.5, 7.0),
        ),
        (
            told_by_spark(inputRowsPerSecond="NaN", processedRowsPerSecond=None),
            QueryFigures(True, 2, 0.0, 0.0, 1.5),
        ),
        (
            told_by_spark(stateOperators=[{"numRowsTotal": 4}, {"numRowsTotal": 5}]),
            QueryFigures(True, 2, 20.5, 30.5, 1.5, 9),
        ),
    ],
    ids=["nothing", "a batch", "a look", "no number", "state"],
)
def test_a_query_is_as_spark_described_it_last(
    reported: Mapping[str, Any] | None, figures: QueryFigures
) -> None:
    assert query_figures(reported, BEFORE, 2) == figures


def report(batch: int, *dropped: int, run: str = "a") -> dict[str, Any]:
    return {
        "runId": run,
        "batchId": batch,
        "timestamp": f"2026-01-01T00:00:{batch:02}Z",
        "stateOperators": [{"numRowsDroppedByWatermark": each} for each in dropped],
    }


def test_rows_that_spark_drops_as_late_are_added_up_once_over_all_reports_and_starts() -> None:
    seen: ReportKey = ()
    for newest_first, expected in (
        ([], None),
        ([report(0)], None),  # it keeps no state
        ([report(2, 0, 3), report(1, 4), report(0)], 7),
        ([report(2, 0, 3), report(1, 4)], None),
        ([report(3, 0), report(2, 0, 3)], 0),
        ([report(3, 5, run="b")], 5),  # the query was started again
    ):
        more, seen = late_rows(newest_first, seen)
        assert more == expected


def test_the_time_since_a_commit_begins_anew_with_each(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    progress = CommitProgress(spool_at(tmp_path / "spool"), {"counts": QueryLog(folder)})
    assert progress.ages_s() == {}
    progress.poll()
    first_s = progress.ages_s()["counts"]
    progress.poll()
    assert progress.ages_s()["counts"] >= first_s
    before_s = progress.ages_s()["counts"]
    plan(folder, 0, positions({SHARD: 9}), committed=True)
    progress.poll()
    assert progress.ages_s()["counts"] < before_s


# --- from the engine to the daemon


class Pipe:
    """The control pipe: what is told comes out as JSON has it."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []

    def __call__(self, level: str, event: str, /, **fields: object) -> None:
        assert (level, event) == ("debug", "spark_figures")
        self.figures.append(json.loads(json.dumps(fields)))


def engine_at(folder: Path, pipe: Pipe, *states: ShardState) -> Callable[[float], None]:
    """An engine with two queries, one of which has failed, and ten rows of which nothing is committed."""
    spool = spool_at(folder / "spool")
    for shard_id in (SHARD, OTHER):
        spool.grant(shard_id, START, ME)
    fill(spool, 0, 9)
    progress = CommitProgress(spool, {name: QueryLog(folder / name) for name in ("counts", "raw")})
    plan(folder / "counts", 0, positions({SHARD: 9}), committed=True)
    progress.poll()
    queries = {
        "counts": QueryFigures(True, 0, 1.0, 2.0, 0.5, 9, 2),
        "raw": QueryFigures(running=False, failures=3),
    }
    return figure_reporter(lambda: states, spool.figures, progress, lambda: queries, pipe)


def supervised(log: MemoryLog | None = None) -> SparkEngine:
    return SparkEngine(SETTINGS, Path("/nowhere"), clock=LoopClock(), log=log or MemoryLog())


def test_the_daemon_understands_what_the_engine_tells(tmp_path: Path) -> None:
    pipe = Pipe()
    state = ShardState(SHARD, behind_ms=40, trimmed=5)
    engine_at(tmp_path, pipe, state, ShardState(OTHER, ended=True))(100.0)

    async def heard() -> SparkView | None:
        helper = supervised()
        helper.take({"event": "spark_started", "ui": "http://127.0.0.1:4040"}, 1)
        helper.take({"event": "spark_figures", **pipe.figures[0]}, 1)
        return helper.figures()

    view = run_virtual(heard)
    assert view is not None
    assert view.ui == "http://127.0.0.1:4040"
    counts, raw = view.queries
    assert counts == SparkQueryView("counts", True, 0, 0, counts.since_commit_s, 1.0, 2.0, 0.5, 9, 2)
    assert raw == SparkQueryView("raw", False, 3, None, raw.since_commit_s, None, None, None, None, None)
    (shard,) = view.shards  # one that has ended is told no more
    size = shard.data_bytes
    assert size == shard.spooled_bytes > 0
    assert shard == SparkShardView(SHARD, 40, 10, size, 0, 5, 10, shard.lag_s, size)


def test_figures_are_reported_from_time_to_time(tmp_path: Path) -> None:
    pipe = Pipe()
    report_when_due = engine_at(tmp_path, pipe)
    for now_s in (100.0, 100.1, 100.0 + FIGURES_S, 100.0 + 1.5 * FIGURES_S):
        report_when_due(now_s)
    assert len(pipe.figures) == 2
    assert pipe.figures[0]["shards"] == {}  # nobody serves them


def test_times_go_on_and_figures_are_forgotten_when_the_engine_falls_silent(tmp_path: Path) -> None:
    pipe = Pipe()
    engine_at(tmp_path, pipe, ShardState(SHARD))(0.0)

    async def play() -> None:
        helper = supervised()
        assert helper.figures() is None
        helper.take({"event": "spark_figures", **pipe.figures[0]}, 1)
        first = helper.figures()
        await anyio.sleep(FORGOTTEN_S - 1)
        last = helper.figures()
        assert first is not None
        assert last is not None
        for before, after in zip(first.queries, last.queries, strict=True):
            assert after.since_commit_s == pytest.approx(before.since_commit_s + FORGOTTEN_S - 1)
        assert last.shards[0].lag_s == pytest.approx(first.shards[0].lag_s + FORGOTTEN_S - 1)
        await anyio.sleep(2)
        assert helper.figures() is None

    run_virtual(play)


def test_figures_of_another_version_are_no_figures() -> None:
    async def play() -> None:
        log = MemoryLog()
        helper = supervised(log)
        helper.take({"event": "spark_figures", "shards": {}}, 1)
        assert helper.figures() is None
        (_, event, fields) = log.lines[-1]
        assert (event, "queries" in str(fields["error"])) == ("spark_figures_not_read", True)

    run_virtual(play)
