"""Landing logs with the landing log's own parts, and what Spark made of them, counted without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import msgspec
import pyarrow.dataset as ds

from kcl_landing import log, segments
from kcl_landing.manifests import ShardLog, open_log
from kcl_landing.records import Record, to_arrow
from kcl_landing.store import open_store

STREAM = "orders"
MINUTE_0_MS = 1_735_689_600_000
STEP_MS = 20_000
"""Between two records of a shard, so that a log of some hundred records spans hours."""
_FIRST = 49 * 10**54


@dataclass
class Landing:
    """`land` adds segments. A record's data is `SHARD:NUMBER:xxx`."""

    root: Path
    layout: log.Layout = "dated"
    counts: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self._store = open_store(str(self.root))
        self._info = open_log(self._store, log.LogInfo("shop", self.layout, "parquet", "log-1"))

    def land(
        self, shard: str, rows: int, *, in_segments: int = 1, children: tuple[str, ...] | None = None
    ) -> None:
        """With `children` the shard ends."""
        shard_log = ShardLog(self._store, self._info, STREAM, shard, read_footer=segments.read_footer)
        shard_log.open()
        for place in range(in_segments):
            first, count = self.counts[shard], rows // in_segments + (place < rows % in_segments)
            self._add(shard_log, shard, [_record(shard, first + each) for each in range(count)], None)
            self.counts[shard] += count
        if children is not None:
            self._add(shard_log, shard, [], children)

    def expected(self) -> list[str]:
        return sorted(f"{shard}:{number}" for shard, count in self.counts.items() for number in range(count))

    def _add(
        self, shard_log: ShardLog, shard: str, records: list[Record], children: tuple[str, ...] | None
    ) -> None:
        number, after = shard_log.tail.number + 1, log.said(shard_log.tail.last)
        last = f"{records[-1].sequence_number}/0" if records else after
        arrivals = [each.approximate_arrival_timestamp or 0 for each in records] or [MINUTE_0_MS]
        span = arrivals[0], arrivals[-1]
        names = "shop", STREAM, shard, number, number, after, last, len(records)
        footer = log.Footer(*names, *span, token=1, writer="test", children=children)
        batches = [to_arrow(records, stream=STREAM, shard_id=shard)] if records else []
        content = segments.encode(self._info, batches, footer)
        entry = footer.entry(len(content), crc32(content))
        assert self._store.create(log.entry_path(self._info, STREAM, shard, entry), content)
        shard_log.append(entry, behind_ms=0, at_ms=MINUTE_0_MS)


def _record(shard: str, number: int) -> Record:
    data = f"{shard}:{number}:".encode().ljust(64, b"x")
    return Record(data, str(_FIRST + number), f"key-{number % 7}", MINUTE_0_MS + number * STEP_MS)


def counted(root: Path) -> int:
    """Records in the log, by pyarrow alone."""
    files = [str(each) for each in (root / STREAM).rglob("*.parquet") if "_ends" not in each.parts]
    return int(ds.dataset(files).count_rows())


def texts(output: Path) -> list[str]:
    """`SHARD:NUMBER` of what a query has written, as readers of the file sink or of a folder of batches see it."""
    log_of_sink = output / "_spark_metadata"
    files = _committed(log_of_sink) if log_of_sink.exists() else output.rglob("*.parquet")
    return sorted(
        text.rpartition(":")[0]
        for each in files
        if not each.name.startswith((".", "_"))
        for text in ds.dataset(str(each)).to_table(columns=["text"])["text"].to_pylist()
    )


def _committed(folder: Path) -> Iterable[Path]:
    return {
        Path(str(msgspec.json.decode(line)["path"]).removeprefix("file://"))
        for each in folder.iterdir()
        if not each.name.startswith(".")
        for line in each.read_text().splitlines()[1:]
    }
