"""What counts as played: that both values of a pair were met in one run, not that they were planned."""

from __future__ import annotations

from dataclasses import replace

from tests.simulator.coverage import Coverage, happened
from tests.simulator.pairs.array import Row
from tests.simulator.runner import Outcome

ROW: Row = (("kills", "any moment"), ("filter", "some records"), ("read ahead", "none"))
RUN = Outcome("pairs", 1, 0.0, 0, 0, 0.0, 0, (), 0, "", None)


def test_a_fault_that_never_came_is_not_played() -> None:
    assert happened(ROW, RUN) == (("read ahead", "none"),)
    killed = replace(RUN, seen={"worker killed": 1})
    assert happened(ROW, killed) == (("kills", "any moment"), ("read ahead", "none"))


def test_a_pair_is_planned_each_time_and_played_where_both_were_met() -> None:
    coverage = Coverage(2)
    for seen in ({}, {"worker killed": 2, "record left out": 9}):
        coverage.plan(ROW)
        coverage.add(ROW, replace(RUN, seen=seen))
    pair = (("kills", "any moment"), ("filter", "some records"))
    assert (coverage.planned[pair], coverage.played[pair]) == (2, 1)
    assert "never played: filter: none + kills: none" in list(coverage.lines(whole=False))
