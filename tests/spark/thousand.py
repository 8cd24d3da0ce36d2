"""Planning of a steady stream of a thousand shards: `python -m tests.spark.thousand` prints what it takes."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.streaming.datasource import ReadMaxBytes
from pyspark.sql.types import StringType, StructType

import kcl_spark_source
from kcl_landing.log import INFO, LogInfo, manifest_path
from kcl_spark_source import KclDataSource, KclStreamReader
from tests.spark.landed import BASE, STREAM, name

SHARDS = 1_000
HOSTS = 10
BEFORE = 200
SEGMENT_BYTES = 60 * 1024
STEP_MS = 5_000
# What hosts state of the future counts for nothing.
BEGIN_MS = time.time_ns() // 1_000_000 - (BEFORE + 20) * STEP_MS


def entry(number: int) -> list[Any]:
    at_ms = BEGIN_MS + number * STEP_MS
    after, last = f"{BASE + number * 100}/0", f"{BASE + number * 100 + 100}/0"
    return [number, number, after, last, 100, SEGMENT_BYTES, 123_456_789, at_ms, at_ms + 4_990, 1, None]


def put(path: Path, said: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    young = path.with_name(f".{path.name}")
    young.write_bytes(msgspec.json.encode(said))
    young.replace(path)


def write(folder: Path, segments: int) -> None:
    """All shards have so many; each has moved on since the last time."""
    entries = [entry(number) for number in range(segments)]
    end_ms = BEGIN_MS + segments * STEP_MS
    marks = {"version": 1, "log": "log-1", "atMs": end_ms, "windowMs": STEP_MS}
    for host in range(HOSTS):
        its = {f"{STREAM}/{name(shard)}": [segments - 1, end_ms, 1] for shard in range(host, SHARDS, HOSTS)}
        put(folder / "_marks" / f"host-{host}.json", {**marks, "worker": f"host-{host}", "shards": its})
    roster = {name(shard): list[str]() for shard in range(SHARDS)}
    said = {"version": 1, "log": "log-1", "stream": STREAM, "atMs": end_ms, "failoverMs": 10_000}
    put(folder / "_shards" / f"{STREAM}.json", {**said, "shards": roster})
    for shard in range(SHARDS):
        manifest = {"stream": STREAM, "shard": name(shard), "entries": entries, "behindMs": 0, "atMs": end_ms}
        put(folder / manifest_path(STREAM, name(shard)), {**manifest, "version": 1, "marks": True})


def planned(reader: KclStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], int, float, float]:
    """The end of the next batch, its segments, and the seconds and seconds of CPU that planning took."""
    started_s, cpu_s = time.perf_counter(), time.process_time()
    end = reader.latestOffset(start, ReadMaxBytes(256 * 1024 * 1024))
    parts: list[Any] = reader.partitions(start, end)
    took_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    return end, sum(len(part.pieces) for part in parts), took_s, cpu_s


def measured(folder: Path, rounds: int) -> list[tuple[int, float, float]]:
    """Of each batch: segments, seconds, seconds of CPU."""
    folder.mkdir()
    (folder / INFO).write_bytes(msgspec.json.encode(LogInfo("app", "log", "parquet", "log-1")))
    write(folder, BEFORE)
    options = {"path": str(folder), "startingPosition": "latest"}
    reader = KclDataSource(options).streamReader(StructType().add("data", StringType()))
    end = reader.initialOffset()
    found: list[tuple[int, float, float]] = []
    for number in range(rounds):
        write(folder, BEFORE + number + 1)
        time.sleep(kcl_spark_source._LISTED_S)  # noqa: TID251 - as long as Spark waits for its next batch
        end, count, took_s, cpu_s = planned(reader, end)
        found.append((count, took_s, cpu_s))
    reader.stop()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder, "log"), 10)
    for what, at in (("wall", 1), ("CPU", 2)):
        its = [each[at] for each in found]
        sys.stdout.write(f"{what}: {statistics.median(its):.2f} s of {min(its):.2f} to {max(its):.2f}\n")
    sys.stdout.write(f"segments: {found[-1][0]}\n")


if __name__ == "__main__":
    main()
