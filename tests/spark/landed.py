"""Landing logs for the tests of Spark elsewhere: written as the lander writes them, and counted without Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import msgspec
import pyarrow.dataset as ds

from kcl_landing import log, segments
from kcl_landing.records import Record, to_arrow

STREAM = "orders"
MINUTE_0_MS = 1_735_689_600_000
STEP_MS = 20_000
"""Between two records of a shard, so that a log of some hundred records spans hours."""


@dataclass
class Landed:
    """`land` adds segments. A record's data is `SHARD:NUMBER:xxx`."""

    root: Path
    layout: log.Layout = "dated"
    data_bytes: int = 64
    entries: dict[str, list[log.Entry]] = field(default_factory=dict[str, list[log.Entry]])
    counts: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self.info = log.LogInfo("shop", self.layout, "parquet", "log-1")
        self._write(log.INFO, msgspec.json.encode(self.info))

    def land(self, shard: str, rows: int, *, in_segments: int = 1, ends: bool = False) -> None:
        for number in range(in_segments):
            self._segment(shard, rows // in_segments + (number < rows % in_segments), None)
        if ends:
            self._segment(shard, 0, ())
        known = tuple(self.entries[shard])
        assert len(known) <= log.PAGE, "a log of one page"
        manifest = log.Manifest(STREAM, shard, known, 0, MINUTE_0_MS)
        self._write(log.manifest_path(STREAM, shard), msgspec.json.encode(manifest))

    def expected(self) -> list[str]:
        return sorted(f"{shard}:{number}" for shard, count in self.counts.items() for number in range(count))

    def _segment(self, shard: str, rows: int, children: tuple[str, ...] | None) -> None:
        entries, first = self.entries.setdefault(shard, []), self.counts[shard]
        records = [self._record(shard, first + number) for number in range(rows)]
        arrivals = [each.approximate_arrival_timestamp or 0 for each in records] or [0]
        number = len(entries)
        after = entries[-1].last if entries else "-1/0"
        last = f"{records[-1].sequence_number}/0" if records else after
        times = {"first_ms": arrivals[0], "last_ms": arrivals[-1]}
        footer = log.Footer(
            *("shop", STREAM, shard, number, number, after, last, rows),
            **times,
            token=1,
            writer="test",
            children=children,
        )
        batches = [to_arrow(records, stream=STREAM, shard_id=shard)] if records else []
        content = bytes(segments.encode(self.info, batches, footer))
        entry = footer.entry(len(content), crc32(content))
        self._write(log.entry_path(self.info, STREAM, shard, entry), content)
        entries.append(entry)
        self.counts[shard] += rows

    def _record(self, shard: str, number: int) -> Record:
        data = f"{shard}:{number}:".encode().ljust(self.data_bytes, b"x")
        sequence = str(49_640_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000 + number)
        return Record(data, sequence, f"key-{number % 7}", MINUTE_0_MS + number * STEP_MS)

    def _write(self, path: str, content: bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        young = target.with_name(f".{target.name}")
        young.write_bytes(content)
        young.replace(target)


def counted(root: Path) -> int:
    """By pyarrow alone, over the segments."""
    files = [str(each) for each in (root / STREAM).rglob("*.parquet") if "_ends" not in each.parts]
    return int(ds.dataset(files).count_rows())


def texts(output: Path) -> list[str]:
    """`SHARD:NUMBER` of what a query has written: by the log of the file sink, or a folder of batches."""
    committed = output / "_spark_metadata"
    files = (
        [Path(each) for each in _committed(committed)]
        if committed.exists()
        else [each for each in output.rglob("*.parquet") if not each.name.startswith((".", "_"))]
    )
    return sorted(
        text.rpartition(":")[0]
        for each in files
        for text in ds.dataset(str(each)).to_table(columns=["text"])["text"].to_pylist()
    )


def _committed(folder: Path) -> list[str]:
    """The newest compact file and all that follow."""
    found: dict[str, None] = {}
    for each in folder.iterdir():
        if not each.name.startswith("."):
            for line in each.read_text().splitlines()[1:]:
                found[str(msgspec.json.decode(line)["path"]).removeprefix("file://")] = None
    return list(found)
