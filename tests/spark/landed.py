"""A landing log as the lander leaves it, written by the tests with little: folders, Parquet or Arrow files, JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
from pyarrow import parquet

from kcl_landing.log import (
    FOOTER,
    INFO,
    PAGE,
    Entry,
    First,
    Footer,
    Format,
    Layout,
    LogInfo,
    Manifest,
    entry_path,
    first_path,
    manifest_path,
    page_path,
)
from kcl_landing.records import SCHEMA

STREAM = "words"
BEGIN_MS = 1_800_000_000_000
BASE = 49 * 10**54
_PARQUET: Any = parquet


def name(number: int) -> str:
    return f"shardId-{number:012}"


def key(number: int) -> str:
    return f"{STREAM}/{name(number)}"


@dataclass
class Landed:
    """Records are numbered from 0 in each shard; their data is `SHARD:NUMBER`. `marks`: the writer states marks."""

    folder: Path
    layout: Layout = "log"
    format: Format = "parquet"
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    marks: bool = False

    def __post_init__(self) -> None:
        self.info = LogInfo("app", self.layout, self.format, "log-1")
        self.put(INFO, msgspec.json.encode(self.info))

    def put(self, path: str, content: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def add(
        self, shard: int, rows: int = 10, at_s: float = 0, span_s: float = 1, *, behind_ms: int | None = 0
    ) -> Entry:
        """A segment of records that arrived from `at_s` on, evenly over `span_s`."""
        first = self.written.get(shard, 0)
        self.written[shard] = first + rows
        arrived = [round(BEGIN_MS + 1000 * (at_s + span_s * row / max(1, rows))) for row in range(rows)]
        return self._segment(shard, self.table(shard, first, arrived), behind_ms=behind_ms)

    def end(self, shard: int, children: Sequence[int]) -> Entry:
        entry = self._segment(shard, SCHEMA.empty_table(), children=tuple(name(child) for child in children))
        assert entry.is_end
        return entry

    def table(self, shard: int, first: int, arrived_ms: Sequence[int]) -> Any:
        numbers = range(first, first + len(arrived_ms))
        return pa.table(
            [
                pa.array([f"{shard}:{number}".encode() for number in numbers], pa.binary()),
                pa.array([f"key-{number % 7}" for number in numbers]),
                pa.array([STREAM for _ in numbers], pa.string()),
                pa.array([name(shard) for _ in numbers], pa.string()),
                pa.array([str(BASE + number) for number in numbers], pa.string()),
                pa.array([0 for _ in numbers], pa.int64()),
                pa.array([each * 1000 for each in arrived_ms], pa.timestamp("us", tz="UTC")),
            ],
            schema=SCHEMA,
        )

    def _segment(
        self, shard: int, table: Any, *, children: tuple[str, ...] | None = None, behind_ms: int | None = 0
    ) -> Entry:
        known = self.entries.setdefault(shard, [])
        before = known[-1].last if known else "-1/0"
        arrived = table.column("approximate_arrival_timestamp").cast(pa.int64()).to_pylist()
        last_ms = known[-1].last_ms if known else 0
        first_ms, last_ms = (arrived[0] // 1000, max(arrived) // 1000) if arrived else (last_ms, last_ms)
        number = known[-1].to + 1 if known else 0
        last = f"{table.column('sequence_number')[-1].as_py()}/0" if arrived else before
        footer = Footer(
            "app", STREAM, name(shard), number, number, before, last, len(arrived), first_ms, last_ms, 1, "w", children
        )  # fmt: skip
        entry = self.write(footer, table)
        known.append(entry)
        self.manifest(shard, behind_ms=behind_ms)
        return entry

    def write(self, footer: Footer, table: Any) -> Entry:
        said = {FOOTER: msgspec.json.encode(footer)}
        sink = pa.BufferOutputStream()
        if self.format == "arrow":
            plain = table.replace_schema_metadata(said)
            with pa.ipc.new_file(sink, plain.schema) as writer:
                writer.write_table(plain)
        else:
            with _PARQUET.ParquetWriter(
                sink, SCHEMA, compression="zstd", write_page_checksum=True, store_schema=False
            ) as writer:
                writer.write_table(table)
                writer.add_key_value_metadata(said)
        return self.store(footer, sink.getvalue().to_pybytes())

    def store(self, footer: Footer, content: bytes) -> Entry:
        entry = footer.entry(len(content), crc32(content))
        self.put(entry_path(self.info, STREAM, footer.shard, entry), content)
        return entry

    def path(self, shard: int, entry: Entry) -> Path:
        return self.folder / entry_path(self.info, STREAM, name(shard), entry)

    def manifest(self, shard: int, *, behind_ms: int | None = 0, at_ms: int = BEGIN_MS) -> None:
        """Writes the manifest and the page before it; `at_ms` is long ago unless a test says so."""
        pages: dict[int, list[Entry]] = {}
        for entry in self.entries.get(shard, []):
            pages.setdefault(entry.number // PAGE * PAGE, []).append(entry)
        *older, newest = sorted(pages) or [0]
        for page in older[-1:]:
            self.put(page_path(STREAM, name(shard), page), msgspec.json.encode(pages[page]))
        manifest = Manifest(STREAM, name(shard), tuple(pages.get(newest, ())), behind_ms, at_ms)
        said = {**msgspec.to_builtins(manifest), "marks": self.marks}
        self.put(manifest_path(STREAM, name(shard)), msgspec.json.encode(said))

    def mark(
        self,
        host: str,
        shards: Mapping[int, float],
        *,
        at_ms: int = BEGIN_MS + 10**6,
        window_ms: int = 1_000,
        since_ms: int | None = None,
    ) -> None:
        """A host says up to when shards are complete, with all that they have in the log."""
        its = {
            key(shard): [len(self.entries.get(shard, [])) - 1, round(BEGIN_MS + 1000 * to_s), 1]
            for shard, to_s in shards.items()
        }
        said = {
            "version": 1,
            "log": "log-1",
            "worker": host,
            "atMs": at_ms,
            "windowMs": window_ms,
            "shards": its,
            **({} if since_ms is None else {"sinceMs": {STREAM: since_ms}}),
        }
        self.put(f"_marks/{host}.json", msgspec.json.encode(said))

    def roster(self, shards: Mapping[int, Sequence[int]], *, failover_ms: int = 10_000) -> None:
        its = {name(shard): [name(each) for each in parents] for shard, parents in shards.items()}
        said = {"version": 1, "log": "log-1", "stream": STREAM, "atMs": BEGIN_MS, "failoverMs": failover_ms}
        self.put(f"_shards/{STREAM}.json", msgspec.json.encode({**said, "shards": its}))

    def compact(self, shard: int, number: int, to: int) -> Entry:
        """Replaces segments by one, as `landing compact` does: segment, then page, then removal."""
        known = self.entries[shard]
        merged = [each for each in known if number <= each.number <= to]
        rows = [each.rows for each in known if each.number < number]
        arrived = [round(ms) for each in merged for ms in self._arrivals(each)]
        first, last = merged[0], merged[-1]
        footer = Footer(
            "app", STREAM, name(shard), number, to, first.after, last.last, len(arrived), first.first_ms, last.last_ms,
            1, "c", None,
        )  # fmt: skip
        entry = self.write(footer, self.table(shard, sum(rows), arrived))
        at = known.index(first)
        known[at : at + len(merged)] = [entry]
        self.manifest(shard)
        self.put(
            page_path(STREAM, name(shard), number),
            msgspec.json.encode([each for each in known if each.number // PAGE == number // PAGE]),
        )
        for each in merged:
            self.path(shard, each).unlink()
        return entry

    @staticmethod
    def _arrivals(entry: Entry) -> list[float]:
        span = (entry.last_ms - entry.first_ms) / max(1, entry.rows - 1)
        return [entry.first_ms + span * row for row in range(entry.rows)]

    def expire(self, shard: int, first: int) -> None:
        gone = [each for each in self.entries[shard] if each.to < first]
        self.put(
            first_path(STREAM, name(shard)),
            msgspec.json.encode(First(first, gone[-1].last, gone[-1].last_ms)),
        )
        for each in gone:
            self.path(shard, each).unlink()
            self.entries[shard].remove(each)
        self.manifest(shard)

    def data(self, *shards: int) -> list[str]:
        """What all records of these shards say, in order."""
        return [f"{shard}:{number}" for shard in shards for number in range(self.written[shard])]
