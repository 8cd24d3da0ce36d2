"""Reading one shard with `idleTimeBetweenReadsInMillis=auto`."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest

from kcl_daemon.config.retrieval import RetrievalSettings
from kcl_daemon.errors import Throttled, Unavailable
from tests.unit.retrieval.stage import Stage, Start, play, texts

AUTO = RetrievalSettings(idle_time_between_reads_ms=None)


def pauses(stage: Stage) -> list[float]:
    return [later - earlier for earlier, later in pairwise(stage.kinesis.read_at_s)]


def test_a_silent_shard_is_read_ever_more_rarely_until_a_record_comes() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        reader = stage.reader(settings=AUTO, reports_empty=False)
        start(reader)
        await anyio.sleep(60.0)
        silent = pauses(stage)
        assert 0.2 <= silent[0] <= 0.28
        assert silent[-1] == pytest.approx(2.0)
        assert len(silent) < 40
        stage.put("a")
        await texts(reader, 1)
        stage.kinesis.read_at_s.clear()
        stage.put("b")
        await texts(reader, 1)
        await anyio.sleep(0.5)
        assert all(pause <= 0.28 for pause in pauses(stage))

    play(scene)


def test_refusals_make_the_shard_slower_also_after_them() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.kinesis.troubles.extend([Throttled("slow down")] * 10)
        stage.put(*(f"r{number}" for number in range(100)))
        reader = stage.reader(settings=RetrievalSettings(max_records=1, idle_time_between_reads_ms=None))
        start(reader)
        await texts(reader, 1)
        stage.kinesis.read_at_s.clear()
        await texts(reader, 12)
        # Behind the tip too, where it would be 200 ms.
        assert all(pause > 0.21 for pause in pauses(stage))

    play(scene)


def test_other_failures_say_nothing_of_other_applications() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.kinesis.troubles.extend([Unavailable("reset")] * 5)
        stage.put(*(f"r{number}" for number in range(100)))
        reader = stage.reader(settings=RetrievalSettings(max_records=1, idle_time_between_reads_ms=None))
        start(reader)
        await texts(reader, 1)
        stage.kinesis.read_at_s.clear()
        await texts(reader, 12)
        assert all(pause == pytest.approx(0.2) for pause in pauses(stage)[1:-4])

    play(scene)
