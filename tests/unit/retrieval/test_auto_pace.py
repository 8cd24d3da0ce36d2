"""`idleTimeBetweenReadsInMillis=auto`: the pace of one shard, and of several applications on one shard, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from statistics import fmean
from typing import Final

import pytest

from kcl_daemon.retrieval.auto_pace import AutoPace
from kcl_daemon.retrieval.polling import PollPace, PollResult
from kcl_local.kinesis.arguments import ReadLimits
from kcl_local.kinesis.stream import ReadTraffic
from tests.simulator.chance import Chance

LIMITS: Final = ReadLimits()
FULL: Final = PollResult(1, 100, 0)


@dataclass(eq=False)
class Reader:
    """One application, whose every answer has a record. Without `auto` it reads every `idle_s`."""

    auto: AutoPace | None = field(default_factory=AutoPace)
    idle_s: float = 0.2
    leaves_s: float = float("inf")
    pace: PollPace = field(default_factory=lambda: PollPace(0.2))
    read: list[float] = field(default_factory=list[float])
    refused: list[float] = field(default_factory=list[float])

    def pause_s(self, now_s: float, chance: float, *, is_refused: bool) -> float:
        (self.refused if is_refused else self.read).append(now_s)
        self.pace = self.pace.failed(throttled=True) if is_refused else self.pace.succeeded()
        pace = replace(self.pace, idle_s=self.idle_s)
        if self.auto is not None:
            self.auto = self.auto.refused(now_s) if is_refused else self.auto.answered(1, 0)
            pace = replace(
                self.pace, idle_s=self.auto.idle_s(chance), share_s=self.auto.share_s(now_s, chance)
            )
        return pace.pause_s(None if is_refused else FULL, elapsed_s=0.0, chance=chance)

    def count(self, from_s: float, to_s: float) -> int:
        return sum(from_s <= at_s < to_s for at_s in self.read)


def play(readers: Sequence[Reader], until_s: float, seed: int) -> None:
    """One shard with the service's limit; a read takes 2 to 10 ms to arrive."""
    chance, traffic = Chance(f"auto pace {seed}"), ReadTraffic()
    turns = [(chance.uniform(0.0, 0.3), number) for number in range(len(readers))]
    heapify(turns)
    while turns:
        now_s, number = heappop(turns)
        reader = readers[number]
        if now_s > min(until_s, reader.leaves_s):
            continue
        arrives_s = now_s + chance.uniform(0.002, 0.01)
        is_refused = not traffic.allows(arrives_s, LIMITS)
        if not is_refused:
            traffic.count(arrives_s, 100, LIMITS)
        heappush(turns, (now_s + reader.pause_s(now_s, chance.random(), is_refused=is_refused), number))


def jain(shares: Sequence[int]) -> float:
    """1: all equal; 1/n: one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_applications_on_one_shard_get_equal_shares_of_its_reads(count: int) -> None:
    fair, refused, used = list[float](), list[float](), list[float]()
    for seed in range(20):
        readers = [Reader() for _ in range(count)]
        play(readers, 180.0, seed)
        for from_s in (60.0, 120.0):
            shares = [reader.count(from_s, from_s + 60.0) for reader in readers]
            fair.append(jain(shares))
            used.append(sum(shares) / 60)
        # All begin at once, each with all five reads; that is over after some seconds.
        lost = sum(at_s >= 60.0 for reader in readers for at_s in reader.refused)
        refused.append(lost / (lost + sum(reader.count(60.0, 180.0) for reader in readers)))
    assert fmean(fair) >= 0.95
    assert min(fair) >= 0.75
    assert fmean(refused) <= 0.15
    assert fmean(used) >= 3.5


def test_one_application_reads_five_times_a_second_and_is_never_refused() -> None:
    alone = Reader()
    play([alone], 60.0, seed=1)
    assert not alone.refused
    assert 4.5 <= len(alone.read) / 60 <= 5


def test_an_application_with_the_default_keeps_its_reads() -> None:
    default, auto = Reader(None, idle_s=1.5), Reader()
    play([default, auto], 120.0, seed=1)
    assert default.count(60.0, 120.0) >= 35
    assert auto.count(60.0, 120.0) >= 150


def test_an_application_that_knows_no_limit_does_not_starve_the_others() -> None:
    greedy, auto = Reader(None, idle_s=0.2), Reader()
    play([greedy, auto], 120.0, seed=1)
    assert auto.count(60.0, 120.0) >= 20


def test_when_the_others_have_left_all_reads_are_ours_again_after_a_minute() -> None:
    stays = Reader()
    play([stays, *(Reader(leaves_s=120.0) for _ in range(4))], 240.0, seed=1)
    assert stays.count(60.0, 120.0) <= 90
    assert stays.count(190.0, 240.0) >= 4.4 * 50


def test_a_silent_shard_is_read_less_often_than_by_default() -> None:
    pace, now_s, reads = AutoPace(), 0.0, 0
    while now_s < 60.0:
        pace, reads = pace.answered(0, 0), reads + 1
        now_s += pace.idle_s(0.5)
    assert 30 <= reads < 40
    assert pace.idle_s(0.0) == pace.idle_s(1.0) == 2.0


def test_the_first_record_makes_a_silent_shard_quick_again() -> None:
    silent = AutoPace(empties=20)
    assert silent.answered(1, 0) == AutoPace()
    assert silent.answered(0, 5_000) is silent
    assert AutoPace().idle_s(0.0) == 0.2


@pytest.mark.parametrize(("every_s", "most_s"), [(0.5, 0.20), (1.0, 0.25), (2.0, 0.35), (10.0, 1.1)])
def test_a_record_now_and_then_does_not_wait_for_long(every_s: float, most_s: float) -> None:
    chance, pace, now_s, found_to_s, waits = Chance("now and then"), AutoPace(), 0.0, 0.0, list[float]()
    moments = [each * every_s + chance.uniform(0.0, every_s) for each in range(200)]
    while now_s < 200 * every_s:
        found = [now_s - at_s for at_s in moments if found_to_s < at_s <= now_s]
        waits += found
        pace, found_to_s = pace.answered(len(found), 0), now_s
        now_s += pace.idle_s(chance.random())
    assert fmean(waits) <= most_s


def test_no_refusal_makes_a_shard_wait_for_more_than_two_seconds() -> None:
    pace = AutoPace()
    assert pace.share_s(0.0, 1.0) == 0.0
    for second in range(100):
        pace = pace.refused(float(second) / 10)
    assert pace.share_s(10.0, 1.0) == pytest.approx(2.0, rel=0.01)
    assert pace.share_s(10.0, 0.0) >= 0.2
    assert pace.share_s(100.0, 1.0) == 0.0
    assert pace.answered(0, 0).reads_per_s(10.0) == pace.reads_per_s(10.0)


@pytest.mark.parametrize(
    ("empties", "chance", "idle_s"),
    [
        (0, 0.0, 0.2),
        (0, 1.0, 0.22),
        (1, 0.0, 0.25),
        (4, 0.5, 0.2 * 1.25**4 * 1.05),
        (10, 0.0, 1.8626),
        (11, 0.0, 2.0),
    ],
)
def test_each_empty_answer_makes_the_pause_longer_by_a_quarter(
    empties: int, chance: float, idle_s: float
) -> None:
    pace = AutoPace()
    for _ in range(empties):
        pace = pace.answered(0, 0)
    assert pace.idle_s(chance) == pytest.approx(idle_s, rel=1e-4)


def test_empty_answers_are_counted_to_twenty_and_no_record_is_counted() -> None:
    pace = AutoPace()
    for _ in range(30):
        pace = pace.answered(0, None)
    assert pace == AutoPace(empties=20)
    assert (pace.answered(7, 0), AutoPace().answered(7, 0)) == (AutoPace(), AutoPace())


@pytest.mark.parametrize(
    ("since_s", "rate"),
    [(0, 4.65), (10, 4.65 * 1.04 + 0.015), (15, 4.65 * 1.06 + 1.5e-5 * 15**3), (30, 5.0)],
)
def test_after_a_refusal_reads_come_back_slowly_and_then_quickly(since_s: float, rate: float) -> None:
    pace = AutoPace(empties=3).refused(100.0)
    assert (pace.empties, pace.refused_s) == (3, 100.0)
    assert pace.reads_per_s(100.0 + since_s) == pytest.approx(rate)


@pytest.mark.parametrize(("chance", "part"), [(0.0, 0.6), (0.5, 1.0), (1.0, 1.4)])
def test_pauses_of_a_share_are_spread_around_their_mean(chance: float, part: float) -> None:
    pace = AutoPace(rate=1.0, refused_s=100.0)
    assert pace.share_s(100.0, chance) == pytest.approx(part)
    assert pace.refused(100.0).rate == pytest.approx(0.93)
    assert pace.refused(110.0).rate == pytest.approx((1.04 + 0.015) * 0.93)


def test_a_share_of_all_reads_is_no_share() -> None:
    assert AutoPace(rate=5.0, refused_s=100.0).share_s(100.0, 1.0) == 0.0
    assert AutoPace(rate=4.9, refused_s=100.0).share_s(100.0, 0.0) == 0.2
