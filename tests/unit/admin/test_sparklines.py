"""The small lines of the page: of what there is, all over the same moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kcl_daemon.admin.page import sparklines
from kcl_daemon.admin.view import ThroughputHistory
from tests.unit.admin.stage import READING, READY


def lines(moments: Mapping[float, Mapping[str, float]], *, now_s: float) -> Callable[[str], str]:
    """Of moments with the throughput of leases by key."""
    history = ThroughputHistory()
    for at_s, throughput in moments.items():
        shards = tuple(
            replace(READING, key=key, bytes_per_s=bytes_per_s) for key, bytes_per_s in throughput.items()
        )
        history.remember(replace(READY, shards=shards), at_s)
    return sparklines(history, now_s)


def test_there_is_no_line_where_there_are_not_two_samples() -> None:
    assert sparklines(ThroughputHistory(), 0.0)("a") == ""
    drawn = lines({0.0: {"b": 1.0}, 3.0: {"a": 1.0, "b": 1.0}}, now_s=3.0)
    assert drawn("a") == drawn("nobody") == ""
    assert drawn("b") != ""


def test_a_sparkline_is_scaled_from_zero_to_its_own_maximum() -> None:
    drawn = lines({0.0: {"a": 0.0}, 30.0: {"a": 2048.0}, 60.0: {"a": 1024.0}}, now_s=60.0)("a")
    assert 'points="1,22.5 60,1.5 119,12.0"' in drawn
    assert 'aria-label="throughput in the last 60 s, at most 2.0 KiB/s"' in drawn


def test_lines_have_the_same_moments_below_each_other() -> None:
    drawn = lines({0.0: {"a": 7.0}, 60.0: {"a": 7.0, "b": 7.0}, 120.0: {"a": 7.0, "b": 7.0}}, now_s=120.0)
    assert 'points="1,1.5 60,1.5 119,1.5"' in drawn("a")
    assert 'points="60,1.5 119,1.5"' in drawn("b")
    assert "in the last 60 s" in drawn("b")


def test_where_nothing_comes_the_line_is_flat() -> None:
    drawn = lines({0.0: {"a": 0.0}, 30.0: {"a": 0.0}, 60.0: {"a": 0.0}}, now_s=60.0)("a")
    assert 'points="1,22.5 119,22.5"' in drawn
