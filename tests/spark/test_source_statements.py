"""Marks and rosters as text, which others can write: what is read, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from kcl_spark_source import Host, Mark, Roster, host_of, roster_of, statements_of

SAID: dict[str, Any] = {"version": 1, "log": "log-1", "atMs": 5_000}
MARKS = {**SAID, "worker": "w", "windowMs": 2_000, "shards": {"s/a": [-1, 4_000, 7], "s/b": [12, 6_000, 7]}}
ROSTER = {**SAID, "stream": "s", "failoverMs": 10_000, "shards": {"a": [], "b": ["a"]}}


def test_marks_and_a_roster_are_read() -> None:
    host = host_of(json.dumps(MARKS).encode(), "log-1")
    assert host == Host(5_000, 2_000, {"s/a": Mark(-1, 4_000), "s/b": Mark(12, 6_000)})
    roster = roster_of(json.dumps(ROSTER).encode(), "log-1", "s")
    assert roster == Roster({"s/a": (), "s/b": ("s/a",)}, 10_000)
    said = statements_of([host, host._replace(at_ms=9_000, window_ms=500)], {"s": roster}, 10_000)
    assert said.marks["s/b"] == [Mark(12, 6_000)] * 2
    assert (said.window_ms, said.reach_ms, said.streams) == (500, 5_000, frozenset({"s"}))


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        ({"s/a": [0, 6_001, 7]}, "'s/a': its completeMs is no whole number from 0 to 6000: 6001"),
        ({"s/a": [0, -1, 7]}, "completeMs"),
        ({"s/a": [0, 4e3, 7]}, "completeMs"),
        ({"s/a": [0, True, 7]}, "completeMs"),
        ({"s/a": [-2, 4_000, 7]}, "'s/a': its number"),
        ({"s/a": ["0", 4_000, 7]}, "'s/a': its number"),
        ({"s/a": [0]}, "'s/a': not enough"),
        ({"s/a": None}, "'s/a': its mark is no list"),
        ({"s/": [0, 4_000, 7]}, "'s/' is no STREAM/SHARD"),
        ({"x" * 10_000: [0, 4_000, 7]}, "is no STREAM/SHARD"),
    ],
)
def test_a_mark_that_cannot_be_is_refused_and_the_others_count(marks: dict[str, Any], reason: str) -> None:
    host = host_of(json.dumps({**MARKS, "shards": {**marks, "s/b": [1, 2, 3]}}).encode(), "log-1")
    assert dict(host.marks) == {"s/b": Mark(1, 2)}
    (said,) = host.refused
    assert reason in said
    assert len(said) < 600


def read_marks(content: bytes) -> object:
    return host_of(content, "log-1")


def read_roster(content: bytes) -> object:
    return roster_of(content, "log-1", "s")


@pytest.mark.parametrize(("read", "whole"), [(read_marks, MARKS), (read_roster, ROSTER)])
@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"log": "another"},
        {"atMs": -1, "stream": "other"},
        {"windowMs": 0, "failoverMs": 0},
        {"windowMs": 10**9, "failoverMs": 10**9},
        {"windowMs": None, "failoverMs": None},
        {"shards": []},
        {"shards": None},
        {"failoverMs": "10000", "windowMs": "5000"},
    ],
)
def test_an_object_that_is_not_of_this_log_or_out_of_range_is_refused(
    read: Callable[[bytes], object], whole: dict[str, Any], change: dict[str, Any]
) -> None:
    read(json.dumps(whole).encode())
    with pytest.raises(ValueError, match=r"."):
        read(json.dumps({**whole, **change}).encode())


@pytest.mark.parametrize("parents", [[["a/b"]], [[""]], [[7]], ["a"], [None], [{}]])
def test_a_roster_with_parents_that_are_no_names_is_refused(parents: list[Any]) -> None:
    for each in parents:
        with pytest.raises(ValueError, match=r"."):
            roster_of(json.dumps({**ROSTER, "shards": {"b": each}}).encode(), "log-1", "s")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff" * 100,
        b"[" * 1_000_000,
        b'{"version":' * 100_000,
        b'{"version":' + b"1" * 1_000_000 + b"}",
        b'{"version":NaN}',
        b'{"atMs":1e999}',
        b"null",
    ],
)
def test_hostile_text_is_refused_in_bounded_time(content: bytes) -> None:
    begun_s = time.process_time()
    for read in (read_marks, read_roster):
        with pytest.raises(ValueError, match=r".") as caught:
            read(content)
        assert len(str(caught.value)) < 1_000
    assert time.process_time() - begun_s < 1.0
