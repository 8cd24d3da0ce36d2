"""The data source `kcl` over what the landing's own writer, compaction and retention leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import StringType, StructType

from kcl_landing.keeping.compact import Compactor
from kcl_landing.keeping.expire import Expirer, Rules
from kcl_landing.keeping.names import sorted_out
from kcl_landing.log import PAGE
from kcl_landing.store import open_store
from kcl_spark_source import KclDataSource, KclStreamReader
from tests.landing.logs import INFO, write

SEGMENTS = PAGE + 44
HOUR_MS = 3_600_000


def stream(folder: Path) -> KclStreamReader:
    columns = StructType().add("sequence_number", StringType())
    return KclDataSource({"path": str(folder)}).streamReader(columns)


def numbers(reader: Any, parts: list[Any]) -> list[int]:
    batches = [batch for part in parts for batch in reader.read(part)]
    return [int(each) for batch in batches for each in batch.column(0).to_pylist()]


def compact(folder: Path, now_ms: int) -> None:
    store = open_store(str(folder))
    compactor = Compactor(
        store,
        INFO,
        lambda _line: None,
        lambda: now_ms,
        target_bytes=60_000,
        grace_ms=HOUR_MS,
        writer="c",
        dry_run=False,
    )
    compactor.run(sorted_out(INFO, store.listing("")), 1)


def test_a_query_goes_on_over_compaction(tmp_path: Path) -> None:
    entries = write(open_store(str(tmp_path)), SEGMENTS)
    reader = stream(tmp_path)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxBytes(100 * max(each.size_bytes for each in entries)))
    parts: list[Any] = reader.partitions(start, end)
    before = numbers(reader, parts)
    assert before == list(range(1, len(before) + 1))
    assert 3 * 99 <= len(before) < 3 * PAGE
    compact(tmp_path, HOUR_MS)
    compact(tmp_path, 3 * HOUR_MS)
    assert not (tmp_path / "orders" / "shardId-000000000000" / f"{entries[1].number:012}.parquet").exists()
    assert numbers(reader, parts) == before
    again = stream(tmp_path)
    assert numbers(again, again.partitions(start, end)) == before
    rest: list[Any] = again.partitions(end, again.latestOffset(end, ReadAllAvailable()))
    assert before + numbers(again, rest) == list(range(1, 3 * SEGMENTS + 1))


def test_a_query_begins_where_retention_ends(tmp_path: Path) -> None:
    entries = write(open_store(str(tmp_path)), SEGMENTS)
    store = open_store(str(tmp_path))
    rules = Rules(before_ms=entries[PAGE + 10].last_ms)
    Expirer(store, INFO, lambda _line: None, at_ms=5, dry_run=False).run(
        sorted_out(INFO, store.listing("")), rules, 1
    )
    reader = stream(tmp_path)
    start = reader.initialOffset()
    came = numbers(reader, list(reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))))
    assert came == list(range(came[0], 3 * SEGMENTS + 1))
    assert came[0] > 3 * PAGE
