"""Several real daemons on one stream, as on several hosts: their files, what was written, and what their output must be."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import anyio
from pyarrow import parquet

from kcl_local.demo.processes import log_tail
from kcl_local.demo.stage import Stage
from kcl_local.demo.stream import in_thread
from kcl_local.demo.text import Line

KEYS = 40
WINDOW_S = 5
QUICK = {
    "failoverTimeMillis": "3000",
    "leaderLeaseMillis": "3000",
    "leaderHeartbeatMillis": "500",
    "workerMetricsReporterFreqInMillis": "500",
    "sparkPipeline": "jobs:keyed",
    "sparkMaster": "local[2]",
    "sparkDriverMemory": "600m",
    "sparkCheckpointIntervalMillis": "500",
    "sparkConf.spark.ui.enabled": "false",
    "sparkConf.spark.sql.shuffle.partitions": "2",
    "sparkConf.spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}

Window = tuple[int, str]


def host(set_up: Stage, name: str, more: Mapping[str, str] | None = None) -> Path:
    """The properties file of a host, in a directory of its own."""
    folder = set_up.directory / name
    folder.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name("jobs.py"), folder / "jobs.py")
    text = set_up.write_properties(name, {**QUICK, **(more or {})}).read_text()
    properties = folder / f"{name}.properties"
    kept = [line for line in text.splitlines() if not line.startswith("executableName")]
    properties.write_text("".join(f"{line}\n" for line in kept))
    return properties


@dataclass
class Written:
    """Writes numbered records and knows in which order each key got them."""

    set_up: Stage
    by_key: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0

    async def write(self, records: int, *, pause_s: float = 0.05) -> None:
        """So many more, in small puts, spread over all keys."""
        producer = self.set_up.producer()
        for first in range(self.count, self.count + records, 100):
            lines = [
                Line(f"key-{number % KEYS}", f"{number}".encode())
                for number in range(first, min(first + 100, self.count + records))
            ]
            await producer.put(lines)
            for line in lines:
                self.by_key[line.key].append(line.data.decode())
            await anyio.sleep(pause_s)
        self.count += records


@dataclass(frozen=True)
class Row:
    """One record in the output."""

    batch: int
    key: str
    shard_id: str
    sequence_number: str
    text: str


def rows(folder: Path) -> list[Row]:
    """What `overwrite_batch` wrote, batch after batch, in the order of the files."""
    found: list[Row] = []
    for batch, path in batches(folder):
        found += [
            Row(batch, row["partition_key"], row["shard_id"], row["sequence_number"], row["text"])
            for row in parquet.ParquetFile(path).read().to_pylist()
        ]
    return found


def batches(folder: Path) -> Iterator[tuple[int, Path]]:
    """The files of finished batches, with their batch's number."""
    done = [each.parent for each in folder.glob("batch_id=*/_SUCCESS")]
    for batch in sorted(done, key=lambda each: int(each.name.partition("=")[2])):
        for path in sorted(batch.glob("*.parquet")):
            yield int(batch.name.partition("=")[2]), path


def windows(folder: Path) -> dict[Window, int]:
    """The newest count of each window and key."""
    found: dict[Window, int] = {}
    for _, path in batches(folder):
        for row in parquet.ParquetFile(path).read().to_pylist():
            found[int(row["window"]["start"].timestamp()), row["partition_key"]] = row["count"]
    return found


async def computed(set_up: Stage) -> dict[Window, int]:
    """The batch computation: every record of the stream read once more."""
    found: Counter[Window] = Counter()
    for shard in await set_up.stream.shards():
        for arrived, key in await in_thread(_records, set_up, shard.shard_id):
            found[int(arrived.timestamp()) // WINDOW_S * WINDOW_S, key] += 1
    return dict(found)


def _records(set_up: Stage, shard_id: str) -> list[tuple[datetime, str]]:
    client, name = set_up.stream.client, set_up.stream.name
    iterator: str | None = client.get_shard_iterator(
        StreamName=name, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    found: list[tuple[datetime, str]] = []
    while iterator:
        page = client.get_records(ShardIterator=iterator)
        for each in page["Records"]:
            arrived = each.get("ApproximateArrivalTimestamp")
            assert arrived is not None, "the endpoint gives every record one"
            found.append((arrived, each.get("PartitionKey", "")))
        at_tip = not page["Records"] and page.get("MillisBehindLatest") == 0
        iterator = None if at_tip else page.get("NextShardIterator")
    return found


def texts_by_key(found: Iterable[Row]) -> dict[str, list[str]]:
    by_key: defaultdict[str, list[str]] = defaultdict(list)
    for row in found:
        by_key[row.key].append(row.text)
    return dict(by_key)


def shards_of_a_key_in_a_batch(found: Iterable[Row]) -> int:
    """The most shards that one key came from within one batch: above one, its order would be chance."""
    seen: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
    for row in found:
        seen[row.batch, row.key].add(row.shard_id)
    return max(len(each) for each in seen.values())


async def until(condition: Callable[[], object | Awaitable[object]], within_s: float, *logs: Path) -> None:
    """Poll what real processes do."""
    with anyio.move_on_after(within_s):
        while True:
            result = condition()
            if await result if isinstance(result, Awaitable) else result:
                return
            await anyio.sleep(0.3)
    raise AssertionError("\n\n".join(log_tail(log, 60) for log in logs))


async def owners(set_up: Stage) -> dict[str, str | None]:
    """The worker of each shard that is not finished."""
    leases = await set_up.leases()
    return {name: lease.owner for name, lease in leases.items() if lease.checkpoint != "SHARD_END"}


async def all_at_work(set_up: Stage, names: Sequence[str], within_s: float, *logs: Path) -> None:
    """Wait until each of these workers has a lease."""

    async def so() -> bool:
        return set((await owners(set_up)).values()) == set(names)

    await until(so, within_s, *logs)
