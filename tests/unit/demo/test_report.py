"""What the demo calls a success, and how it tells of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from kcl_local.demo.check import Checker, CheckResult, CountedRecord, LedgerEntry
from kcl_local.demo.screen import DemoOutcome, report, shards_not_saved

WORDS = Counter({"the": 30, "of": 20, "a": 10})
RIGHT = DemoOutcome(
    verdict=CheckResult(
        written=1_000,
        delivered=1_000,
        repeated=0,
        lost=0,
        unknown=0,
        out_of_order=0,
        before_parents=0,
        words_written=WORDS,
        words_delivered=WORDS,
    ),
    shards=7,
    load_s=2.0,
    first_record_s=1.25,
    delivering_s=2.0,
    daemon_exit_code=0,
    daemon_stop_s=0.5,
    not_saved=(),
)


def test_a_right_run_ends_with_lost_0() -> None:
    lines = list(report(RIGHT))
    assert lines[-1] == "lost 0"
    assert lines[-2].split() == ["result", "right"]
    assert any("1.25 s after the stream was ACTIVE" in line for line in lines)
    assert any("500 records/s" in line for line in lines)


@pytest.mark.parametrize(
    "verdict",
    [
        replace(RIGHT.verdict, lost=1),
        replace(RIGHT.verdict, unknown=1),
        replace(RIGHT.verdict, out_of_order=1),
        replace(RIGHT.verdict, before_parents=1),
    ],
)
def test_one_lost_or_wrong_record_makes_the_run_wrong(verdict: CheckResult) -> None:
    wrong = replace(RIGHT, verdict=verdict)
    assert not wrong.is_right
    assert list(report(wrong))[-2].split() == ["result", "WRONG"]


@pytest.mark.parametrize(
    "wrong",
    [
        replace(RIGHT, daemon_exit_code=1),
        replace(RIGHT, daemon_exit_code=-9),
        replace(RIGHT, not_saved=("shardId-000000000000",)),
        replace(RIGHT, verdict=replace(RIGHT.verdict, words_delivered=Counter({"the": 29}))),
    ],
)
def test_these_make_a_run_wrong_too(wrong: DemoOutcome) -> None:
    assert not wrong.is_right


@pytest.mark.parametrize(
    "fine",
    [replace(RIGHT, first_record_s=9.0), replace(RIGHT, verdict=replace(RIGHT.verdict, repeated=50))],
)
def test_being_slow_or_repeating_is_reported_but_right(fine: DemoOutcome) -> None:
    assert fine.is_right
    assert list(report(fine)) != list(report(RIGHT))


def test_the_most_frequent_words_come_in_order() -> None:
    reported = [line.split() for line in report(RIGHT)]
    assert reported.index(["30", "the"]) < reported.index(["20", "of"]) < reported.index(["10", "a"])


def test_a_run_without_any_delivery_can_be_reported() -> None:
    nothing = replace(RIGHT.verdict, delivered=0, lost=1_000, words_delivered=Counter[str]())
    lines = list(report(replace(RIGHT, verdict=nothing, first_record_s=None, delivering_s=0.0)))
    assert lines[-1] == "lost 1000"


def checker() -> Checker:
    reported = Checker()
    reported.lineage("closed", parents=(), is_open=False)
    reported.lineage("open", parents=("closed",), is_open=True)
    reported.lineage("unread", parents=("closed",), is_open=True)
    reported.reported(
        LedgerEntry("records", 1.0, "open", "process", (CountedRecord("7", {}), CountedRecord("8", {})))
    )
    return reported


def test_checkpoints_where_processing_ended_are_saved() -> None:
    assert shards_not_saved(checker(), {"closed": "SHARD_END", "open": "8", "unread": "TRIM_HORIZON"}) == ()


def test_a_finished_shard_may_have_lost_its_row() -> None:
    assert shards_not_saved(checker(), {"open": "8"}) == ()


@pytest.mark.parametrize(
    ("stored", "wrong"),
    [
        ({"closed": "SHARD_END", "open": "7"}, "open"),
        ({"closed": "SHARD_END"}, "open"),
        ({"closed": "TRIM_HORIZON", "open": "8"}, "closed"),
        ({"closed": "SHARD_END", "open": "8", "unread": "9"}, "unread"),
    ],
)
def test_any_other_checkpoint_is_named(stored: dict[str, str], wrong: str) -> None:
    assert shards_not_saved(checker(), stored) == (wrong,)
