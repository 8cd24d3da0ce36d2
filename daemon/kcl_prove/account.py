from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_local.demo.check import Checker, CheckResult, LedgerEntry

_P50: Final = 0.5
_P99: Final = 0.99


@dataclass(frozen=True, slots=True)
class Settled:
    """`twice`: records whose put had no answer, so it was repeated, although it had written them."""

    check: CheckResult
    twice: int
    gap_s: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None


class Account:
    def __init__(self) -> None:
        self.checker = Checker()
        self._put_s: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._words: dict[tuple[str, int], str] = {}
        self._without_answer: set[str] = set()
        self._twice = 0

    def wrote(self, shard_id: str, sequence_number: str, word: str, put_s: float) -> None:
        """`put_s`: when the put that was answered began, by `monotonic_s`."""
        self.checker.wrote(shard_id, sequence_number, {word: 1})
        self._put_s[shard_id][int(sequence_number)] = put_s

    def without_answer(self, words: Iterable[str]) -> None:
        self._without_answer.update(words)

    def reported(self, entry: LedgerEntry) -> None:
        self.checker.reported(entry)
        known = self._put_s[entry.shard_id]
        for record in entry.records:
            if int(record.sequence_number) not in known:
                self._words[entry.shard_id, int(record.sequence_number)] = next(iter(record.words))

    def settle(self) -> Settled:
        self._find_twice()
        latencies = sorted(done_s - put_s for times in self._times() for put_s, done_s in times)
        gaps = [gap_s for times in self._times() if (gap_s := longest_gap_s(times)) is not None]
        return Settled(
            check=self.checker.verdict(),
            twice=self._twice,
            gap_s=max(gaps, default=None),
            latency_p50_s=quantile(latencies, _P50),
            latency_p99_s=quantile(latencies, _P99),
        )

    def _find_twice(self) -> None:
        for shard in self.checker.progress():
            for number in shard.first_delivered_s.keys() - shard.numbers:
                word = self._words[shard.shard_id, number]
                if word in self._without_answer:
                    self.checker.wrote(shard.shard_id, str(number), {word: 1})
                    self._twice += 1

    def _times(self) -> Iterator[list[tuple[float, float]]]:
        for shard in self.checker.progress():
            put_s = self._put_s[shard.shard_id]
            yield [(put_s[each], at_s) for each, at_s in shard.first_delivered_s.items() if each in put_s]


def quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def longest_gap_s(times: Sequence[tuple[float, float]]) -> float | None:
    """In which records waited and none was delivered; `times`: put and delivery of each."""
    longest: float | None = None
    waiting, since_s = 0, 0.0
    for at_s, is_delivery in sorted(
        [*((put_s, False) for put_s, _ in times), *((at_s, True) for _, at_s in times)]
    ):
        if is_delivery:
            longest = max(longest or 0.0, at_s - since_s)
        if is_delivery or waiting == 0:
            since_s = at_s
        waiting += -1 if is_delivery else 1
    return longest
