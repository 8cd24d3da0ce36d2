"""What a worker takes in memory does not grow: a short soak each day, the long one in `make prove`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kcl_daemon.config.fan_out_settings import RetrievalMode
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Fetched, Kinesis, StreamRef
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.simulator.soak import Load, soak

ROOT: Final = Path(__file__).parents[2]
RSS_RATIO_MOST: Final = 1.1
# Allocations that may be there more at the end than after five minutes, for each record written. What is on its way at that moment
# differs by some hundreds; a leak of one object for each batch or each checkpoint is more than that.
GROWN_MOST: Final = 0.2
GROWN_IN_AN_HOUR_MOST: Final = 0.05
SHORT: Final = Load(shards=4, minutes=15.0)


class HoardingKinesis(MemoryKinesis):
    """Keeps every answer."""

    def __init__(self, kinesis: MemoryKinesis) -> None:
        super().__init__(kinesis.model)
        self._answers: list[Fetched] = []

    async def get_records(self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int) -> Fetched:
        fetched = await super().get_records(stream, shard_id, iterator, limit)
        self._answers.append(fetched)
        return fetched


def hoarding(kinesis: Kinesis) -> Kinesis:
    assert isinstance(kinesis, MemoryKinesis)
    return HoardingKinesis(kinesis)


@pytest.mark.parametrize("mode", [RetrievalMode.POLLING, RetrievalMode.FANOUT])
def test_memory_stands_still_under_load_and_faults(mode: RetrievalMode) -> None:
    figures = soak(Load(shards=SHORT.shards, minutes=SHORT.minutes, mode=mode))
    print(figures.shown())  # noqa: T201 - the figures, for people who run this with -s
    assert figures.records > 3_000
    assert sum(figures.faults.values()) > figures.calls * 0.1
    assert figures.grown_per_record < GROWN_MOST, figures.shown()


def test_a_leak_is_seen() -> None:
    figures = soak(Load(shards=2, minutes=10.0), kinesis=hoarding)
    assert figures.grown_per_record > 2 * GROWN_MOST, figures.shown()


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", [(), ("--fan-out",)], ids=["polling", "fan-out"])
def test_an_hour_of_64_shards(way: tuple[str, ...], record_property: Callable[[str, object], None]) -> None:
    """In a process of its own, so that nothing but the soak is in its memory."""
    command = [
        sys.executable,
        "-m",
        "tests.simulator.soak",
        "--shards",
        "64",
        "--minutes",
        "60",
        "--json",
        *way,
    ]
    told = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    print(told["shown"])  # noqa: T201 - the figures, for the notes of a release
    record_property("soak", told["shown"])
    assert told["rss_ratio"] < RSS_RATIO_MOST, told["shown"]
    assert told["grown_per_record"] < GROWN_IN_AN_HOUR_MOST, told["shown"]
