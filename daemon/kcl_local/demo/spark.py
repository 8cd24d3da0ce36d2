from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

import anyio
import orjson

from kcl_local.demo.processes import RunningProcess
from kcl_local.demo.stream import DemoStream, call, properties_text
from kcl_local.demo.text import DemoError, words

if TYPE_CHECKING:
    from kcl_local.demo.stage import Stage


APPLICATION: Final = "demo-spark"
FOLDER: Final = "spark"
SETTLED_WITHIN_S: Final = 240.0
STOPPED_WITHIN_S: Final = 90.0
WINDOW_S: Final = 5
_POLL_S: Final = 0.5
_TOP_WORDS: Final = 3

Window = tuple[int, str]
"""Epoch seconds, and a word."""


@dataclass(frozen=True, slots=True)
class SparkOutcome:
    records: int
    lost: int
    repeated: int
    windows: int
    words_agree: bool
    exit_code: int

    @property
    def is_right(self) -> bool:
        return self.lost == 0 and self.repeated == 0 and self.words_agree and self.exit_code == 0


@dataclass(slots=True)
class SparkOutput:
    folder: Path
    counts: dict[Window, int] = field(default_factory=dict[Window, int])
    seen: Counter[str] = field(default_factory=Counter[str])
    batches: int = 0
    _read: set[str] = field(default_factory=set[str])
    _looking: Lock = field(default_factory=Lock)

    def poll(self) -> None:
        """New complete batches in order, and files that the sink's log names. Two tasks poll."""
        out = self.folder / "out"
        with self._looking:
            while (done := out / "counts" / f"batch_id={self.batches}" / "_SUCCESS").exists():
                for row in rows_of(sorted(done.parent.glob("*.parquet"))):
                    self.counts[int(row["start"].timestamp()), row["word"]] = row["count"]
                self.batches += 1
            for path in logged_files(out / "seen" / "_spark_metadata"):
                if str(path) not in self._read:
                    self._read.add(str(path))
                    self.seen.update(row["sequence_number"] for row in rows_of([path]))

    @property
    def windows(self) -> int:
        return len({start for start, _ in self.counts})

    def top(self) -> list[tuple[str, int]]:
        totals: Counter[str] = Counter()
        for (_, word), count in self.counts.items():
            totals[word] += count
        return totals.most_common(_TOP_WORDS)


class SparkJob:
    def __init__(self, running: RunningProcess, stream: DemoStream, output: SparkOutput) -> None:
        self.running = running
        self.output = output
        self._stream = stream

    async def poll(self) -> None:
        await anyio.to_thread.run_sync(self.output.poll)

    async def settled(self, records: int) -> None:
        with anyio.move_on_after(SETTLED_WITHIN_S):
            while len(self.output.seen) < records:
                await self.poll()
                await anyio.sleep(_POLL_S)
            expected = await self._expected()
            while self.output.counts != expected:
                await self.poll()
                await anyio.sleep(_POLL_S)

    async def close(self, written: Iterable[int]) -> SparkOutcome:
        exit_code = await self.running.stop(STOPPED_WITHIN_S)
        await self.poll()
        seen, expected = self.output.seen, await self._expected()
        return SparkOutcome(
            records=len(seen),
            lost=sum(1 for number in written if str(number) not in seen),
            repeated=sum(count - 1 for count in seen.values()),
            windows=self.output.windows,
            words_agree=self.output.counts == expected,
            exit_code=exit_code,
        )

    async def _expected(self) -> dict[Window, int]:
        found: Counter[Window] = Counter()
        for shard in await self._stream.shards():
            for arrival_s, data in await call("GetRecords", _records_of, self._stream, shard.shard_id):
                start = arrival_s // WINDOW_S * WINDOW_S
                found.update((start, word) for word in words(data))
        return dict(found)


@asynccontextmanager
async def spark_job(stage: Stage) -> AsyncGenerator[SparkJob]:
    if find_spec("pyspark") is None or find_spec("kcl_spark") is None:
        raise DemoError("--spark needs the Spark client: pip install 'kcl-daemon[spark]'")
    folder = stage.directory / FOLDER
    folder.mkdir()
    own = {"streamName": stage.stream.name, "applicationName": APPLICATION, "workerId": "spark-worker"}
    more = {
        "sparkPipeline": "kcl_local.demo.sparkwords:counts",
        "sparkMaster": "local[2]",
        "sparkDriverMemory": "700m",
        "sparkConf.spark.ui.enabled": "false",
        "sparkConf.spark.sql.shuffle.partitions": "2",
    }
    properties = folder / "spark-worker.properties"
    properties.write_text(properties_text(stage.urls, own, more), "ascii")
    async with stage.processes.daemon("the Spark daemon", properties, stage.ledgers) as running:
        yield SparkJob(running, stage.stream, SparkOutput(folder))


def _records_of(stream: DemoStream, shard_id: str) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    answer = stream.client.get_shard_iterator(
        StreamName=stream.name, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
    )
    iterator: str | None = answer["ShardIterator"]
    while iterator:
        page = stream.client.get_records(ShardIterator=iterator)
        for record in page["Records"]:
            arrived = record.get("ApproximateArrivalTimestamp")
            assert arrived is not None, "the endpoint gives every record one"
            found.append((int(arrived.timestamp()), record["Data"]))
        at_tip = not page["Records"] and page.get("MillisBehindLatest") == 0
        iterator = None if at_tip else page.get("NextShardIterator")
    return found


def rows_of(files: list[Path]) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return [row for path in files for row in parquet.ParquetFile(path).read().to_pylist()]


def logged_files(log: Path) -> list[Path]:
    try:
        entries = [path for path in log.iterdir() if path.name.partition(".")[0].isdigit()]
    except FileNotFoundError:
        return []
    lines = [line for entry in entries for line in entry.read_text("utf-8").splitlines()[1:]]
    return sorted({Path(unquote(urlparse(orjson.loads(line)["path"]).path)) for line in lines})
