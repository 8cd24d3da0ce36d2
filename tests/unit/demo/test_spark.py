"""The demo's application on Spark: its growing output, its account, and how both are told."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from kcl_local.demo import spark
from kcl_local.demo.check import CheckResult
from kcl_local.demo.screen import DemoOutcome, DemoProgress, plain_line, progress_table, report
from kcl_local.demo.spark import SparkOutcome, SparkOutput

START = datetime(2025, 1, 1, tzinfo=UTC)
RIGHT = SparkOutcome(records=10, lost=0, repeated=0, windows=2, words_agree=True, exit_code=0)


def write_counts(folder: Path, batch: int, counts: dict[str, int], *, whole: bool = True) -> None:
    target = folder / "out" / "counts" / f"batch_id={batch}"
    target.mkdir(parents=True)
    rows = [{"start": START, "word": word, "count": count} for word, count in counts.items()]
    parquet.write_table(pa.Table.from_pylist(rows), target / "part.parquet")
    if whole:
        (target / "_SUCCESS").touch()


def write_seen(folder: Path, batch: int, numbers: list[str], *, logged: bool = True) -> None:
    target = folder / "out" / "seen"
    (target / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    path = target / f"{batch}.parquet"
    parquet.write_table(pa.Table.from_pylist([{"sequence_number": number} for number in numbers]), path)
    if logged:
        (target / "_spark_metadata" / str(batch)).write_text(f"v1\n{json.dumps({'path': path.as_uri()})}")


def test_of_a_word_in_a_window_the_newest_batch_counts(tmp_path: Path) -> None:
    output = SparkOutput(tmp_path)
    write_counts(tmp_path, 0, {"a": 1, "b": 2})
    output.poll()
    write_counts(tmp_path, 1, {"a": 5})
    write_counts(tmp_path, 2, {"a": 9}, whole=False)
    output.poll()
    start_s = int(START.timestamp())
    assert output.counts == {(start_s, "a"): 5, (start_s, "b"): 2}
    assert (output.batches, len(output.seen), output.windows) == (2, 0, 1)
    assert output.top() == [("a", 5), ("b", 2)]


def test_only_files_that_the_sinks_log_names_are_seen_and_each_once(tmp_path: Path) -> None:
    output = SparkOutput(tmp_path)
    write_seen(tmp_path, 0, ["1", "2"])
    write_seen(tmp_path, 1, ["3"], logged=False)
    output.poll()
    output.poll()
    assert output.seen == Counter({"1": 1, "2": 1})


def test_an_empty_output_folder_has_no_words(tmp_path: Path) -> None:
    output = SparkOutput(tmp_path)
    output.poll()
    assert output.seen == Counter()


def outcome(spark: SparkOutcome | None) -> DemoOutcome:
    verdict = CheckResult(10, 10, 0, 0, 0, 0, 0, Counter(), Counter())
    return DemoOutcome(verdict, 2, 1.0, 0.5, 1.0, 0, 0.5, (), spark)


def test_a_run_is_right_only_if_both_applications_are() -> None:
    assert outcome(None).is_right
    assert outcome(RIGHT).is_right
    for wrong in ({"lost": 1}, {"repeated": 1}, {"words_agree": False}, {"exit_code": 1}):
        assert not outcome(replace(RIGHT, **wrong)).is_right


def test_the_report_tells_of_spark_where_it_ran() -> None:
    reported = list(report(outcome(RIGHT)))
    assert "on Spark        10 records, lost 0, repeated 0" in reported
    assert reported[-1] == "lost 0"
    assert not any("Spark" in line for line in report(outcome(None)))


def test_the_screen_shows_where_spark_is() -> None:
    seen = Counter(map(str, range(1_200)))
    output = SparkOutput(Path("absent"), counts={(0, "the"): 20, (5, "the"): 30}, seen=seen, batches=3)
    progress = DemoProgress(1.0, (), output)
    assert plain_line(progress).endswith("spark 1,200 records in 3 batches, 2 windows: the 50")
    assert "1,200 records" in str(progress_table(progress).caption)


def test_two_looks_at_once_count_a_batch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen looks while the wait for the end does; a batch that both took in had the next one skipped."""
    output, read = SparkOutput(tmp_path), spark.rows_of
    both = Barrier(2)

    def slowly(files: list[Path]) -> list[dict[str, Any]]:
        with suppress(BrokenBarrierError):
            both.wait(0.3)
        return read(files)

    monkeypatch.setattr(spark, "rows_of", slowly)
    write_counts(tmp_path, 0, {"a": 1})
    with ThreadPoolExecutor(2) as threads:
        polls = [threads.submit(output.poll) for _ in range(2)]
    assert [poll.result() for poll in polls] == [None, None]
    assert output.batches == 1
