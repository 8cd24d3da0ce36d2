"""Planning over a million segments: `python -m tests.spark.million` prints what it takes."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.streaming.datasource import ReadMaxBytes
from pyspark.sql.types import StringType, StructType

from kcl_landing.log import INFO, PAGE, LogInfo, Manifest, manifest_path, page_path
from kcl_spark_source import KclDataSource, KclStreamReader
from tests.spark.landed import BASE, BEGIN_MS, STREAM, name

SHARDS = 256
PAGES = 16
SEGMENT_BYTES = 64 * 1024


def segments() -> int:
    return SHARDS * PAGES * PAGE


def write(folder: Path) -> None:
    """Manifests and pages only. All shards say the same, so their pages are links to those of the first."""
    info = LogInfo("app", "log", "parquet", "log-1")
    folder.mkdir()
    (folder / INFO).write_bytes(msgspec.json.encode(info))
    pages = [[entry(page * PAGE + number) for number in range(PAGE)] for page in range(PAGES)]
    for shard in range(SHARDS):
        for page in range(PAGES - 1):
            path = folder / page_path(STREAM, name(shard), page * PAGE)
            path.parent.mkdir(parents=True, exist_ok=True)
            if shard == 0:
                path.write_bytes(msgspec.json.encode(pages[page]))
            else:
                path.hardlink_to(folder / page_path(STREAM, name(0), page * PAGE))
        manifest = {
            **msgspec.to_builtins(Manifest(STREAM, name(shard), (), 0, BEGIN_MS)),
            "entries": pages[-1],
        }
        (folder / manifest_path(STREAM, name(shard))).write_bytes(msgspec.json.encode(manifest))


def entry(number: int) -> list[Any]:
    at_ms = BEGIN_MS + number * 1000
    after, last = f"{BASE + number * 100}/0", f"{BASE + number * 100 + 100}/0"
    return [number, number, after, last, 100, SEGMENT_BYTES, 123_456_789, at_ms, at_ms + 990, 1, None]


def planned(reader: KclStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], int, float, float]:
    """The end of the next batch, its segments, and the seconds and seconds of CPU that planning took."""
    started_s, cpu_s = time.perf_counter(), time.process_time()
    end = reader.latestOffset(start, ReadMaxBytes(256 * 1024 * 1024))
    parts: list[Any] = reader.partitions(start, end)
    took_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    return end, sum(len(part.pieces) for part in parts), took_s, cpu_s


def measured(folder: Path) -> dict[str, list[Any]]:
    """The first batch from the beginning, the next, and one at the end of the log."""
    write(folder)
    columns = StructType().add("data", StringType())
    reader = KclDataSource({"path": str(folder)}).streamReader(columns)
    end, *first = planned(reader, reader.initialOffset())
    _, *second = planned(reader, end)
    by_time = {"path": str(folder), "startingTimestamp": str(BEGIN_MS + 3_950_000)}
    late = KclDataSource(by_time).streamReader(columns)
    _, *third = planned(late, late.initialOffset())
    late.stop()
    reader.stop()
    return {"first batch": first, "next batch": second, "a batch by time": third}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for text, (count, took_s, cpu_s) in measured(Path(folder, "log")).items():
            sys.stdout.write(
                f"{text}: {count} of {segments()} segments planned in {took_s:.2f} s ({cpu_s:.2f} s of CPU; at most 0.5 s)\n"
            )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
