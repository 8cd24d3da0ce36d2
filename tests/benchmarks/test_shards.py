"""How long shards take: one decision for a large stream, and from a parent's end to its child shards' first records.

Figures are printed (`pytest -s`).
"""

from __future__ import annotations

import math
import time  # CPU time, which is the thing measured
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import anyio
import pytest

from kcl_daemon.leases.lease import Lease
from kcl_daemon.shards.lineage import InitialPosition, Shard, StartAt, waiting_depths
from kcl_daemon.shards.sync import Generations, judge_finished, missing_leases, new_lease
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.benchmarks.stage import Stage, plan_for, play
from tests.unit.shards.trees import shard

SHARDS: Final = 10_000
GENERATIONS: Final = 5
DECISION_MOST_S: Final = 1.0
SAME_WORKER_S, OTHER_WORKER_S = 1.0, 5.0
# 6.1 and 6.4 s were the most of 142 with other seeds, on two commits.
LATEST_S: Final = 8.0
SEEDS: Final = 2
SEEDS_PROVEN: Final = 20


def shown(text: str) -> None:
    print(f"\n{text}")  # noqa: T201 - the figures are the point


def large_stream() -> list[Shard]:
    """Five generations: every shard is split, then all neighbours are merged, and so on."""
    width = -(-SHARDS // 7)
    youngest = [shard(number, 2 * number, 2 * number + 1) for number in range(width)]
    shards = list(youngest)
    for generation in range(1, GENERATIONS):
        pairs: list[tuple[Shard, ...]] = (
            [(each,) for each in youngest for _ in range(2)] if generation % 2 else _neighbours(youngest)
        )
        youngest = [
            shard(len(shards) + number, parents[0].hash_range.start, parents[-1].hash_range.end, parents)
            for number, parents in enumerate(pairs)
        ]
        shards += youngest
    closed = len(shards) - len(youngest)
    return [replace(each, ending_sequence_number=1) for each in shards[:closed]] + shards[closed:]


def _neighbours(shards: list[Shard]) -> list[tuple[Shard, ...]]:
    return list(zip(shards[::2], shards[1::2], strict=True))


def best_s(decide: Callable[[], object]) -> float:
    """The best of three, in seconds of CPU."""
    best = math.inf
    for _ in range(3):
        began_s = time.process_time()
        decide()
        best = min(best, time.process_time() - began_s)
    return best


def test_leases_of_ten_thousand_shards_are_synced_and_cleaned_up_in_less_than_a_second() -> None:
    shards = large_stream()
    oldest = InitialPosition(StartAt.TRIM_HORIZON)
    half = [new_lease(each, TRIM_HORIZON) for each in shards[: SHARDS // 2 : 2]]
    finished = [replace(new_lease(each, SHARD_END), checkpoint=SHARD_END) for each in shards[: SHARDS // 2]]
    begun = ExtendedSequenceNumber("99999999")
    everything: list[Lease] = [new_lease(each, begun if each.is_open else SHARD_END) for each in shards]
    assert len(missing_leases(shards, [], oldest, generations=Generations.ALL)) == len(shards) >= SHARDS
    assert missing_leases(shards, half, oldest)
    assert missing_leases(shards, finished, oldest)
    figures = {
        "sync of an empty table": best_s(lambda: missing_leases(shards, [], oldest)),
        "the same, all generations": best_s(
            lambda: missing_leases(shards, [], oldest, generations=Generations.ALL)
        ),
        "sync with half of the leases": best_s(lambda: missing_leases(shards, half, oldest)),
        "sync after finished leases": best_s(lambda: missing_leases(shards, finished, oldest)),
        "clean-up": best_s(lambda: judge_finished(everything, shards)),
        "generations": best_s(lambda: waiting_depths(new_lease(each, TRIM_HORIZON) for each in shards)),
    }
    shown("\n".join(f"{name}, {SHARDS} shards: {seconds * 1000:.0f} ms" for name, seconds in figures.items()))
    assert max(figures.values()) < DECISION_MOST_S


@dataclass(frozen=True, slots=True)
class Passage:
    """From the last record of a shard's parents to its own first one.

    Args:
        seconds: how long it took.
        is_kept: whether one worker reads all of them and needed nobody else for that: it leads, or it is the heir.
    """

    seconds: float
    is_kept: bool


def passages(workers: int, seed: int) -> list[Passage]:
    """Of one split and one merge in a fleet at work, with default settings; there are records right before and after."""

    async def act(stage: Stage) -> list[Passage]:
        await stage.begin(workers)
        await anyio.sleep(75.0 + 0.37 * seed)  # nobody is young any more
        return [each for kind in ("split", "merge") for each in await _reshard(stage, kind, seed % 3)]

    return play(plan_for(2 * workers, records_per_shard_s=6.0), f"passages/{workers}/{seed}", act)


async def _reshard(stage: Stage, kind: str, rank: int) -> list[Passage]:
    stream, truth, watch = stage.world.stream, stage.world.truth, stage.watch
    before = set(truth.shards)
    stream.put(100)
    (stream.split if kind == "split" else stream.merge)(rank)
    stream.put(100)
    new = sorted(truth.shards.keys() - before)
    await stage.until(
        lambda: watch.deliveries.keys() >= set(new),
        within_s=60.0,
        what="the first records of its child shards",
    )
    found: list[Passage] = []
    for shard_id in new:
        parents = truth.shards[shard_id].parents
        ended_s = max(watch.deliveries[parent][-1] for parent in parents)
        readers = {watch.reader[each] for each in (shard_id, *parents)}
        is_kept = len(readers) == 1 and (shard_id == new[0] or readers == {stage.world.leader.owner})
        found.append(Passage(watch.deliveries[shard_id][0] - ended_s, is_kept=is_kept))
    await anyio.sleep(5.0)
    return found


def check_passages(seeds: int) -> None:
    found = [
        each for workers in (1, 2, 3) for seed in range(1, seeds + 1) for each in passages(workers, seed)
    ]
    kept = [each.seconds for each in found if each.is_kept]
    given = [each.seconds for each in found if not each.is_kept]
    shown(
        f"parent's last record to child's first: kept by its worker {max(kept):.2f} s at most ({len(kept)} shards), "
        f"given to another {max(given):.2f} s ({len(given)})"
    )
    assert max(kept) < SAME_WORKER_S
    assert sorted(given)[len(given) * 19 // 20 - 1] < OTHER_WORKER_S
    assert max(given) < LATEST_S


def test_a_child_shard_begins_soon_after_its_parents_end() -> None:
    check_passages(SEEDS)


@pytest.mark.prove
def test_a_child_shard_begins_soon_after_its_parents_end_with_each_of_many_seeds() -> None:
    check_passages(SEEDS_PROVEN)
