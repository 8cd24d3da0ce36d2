"""Landing logs with real segments, and what a reader finds in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import pyarrow as pa

from kcl_landing.keeping.chain import Problem
from kcl_landing.keeping.verify import Verdict, Verifier
from kcl_landing.log import Entry, Footer, LogInfo, entry_path
from kcl_landing.manifests import ShardLog, open_log
from kcl_landing.records import SCHEMA, RecordBatch
from kcl_landing.segments import decode, encode, read_footer
from kcl_landing.store import LogStore

STREAM, SHARD = "orders", "shardId-000000000000"
KEY = STREAM, SHARD
INFO = LogInfo("app", "log", "parquet", "id-1")
BEGIN_MS = 1_700_000_000_000
_STEP_MS = 1000


def records(
    positions: Sequence[tuple[int, int]], *, shard: str = SHARD, at_ms: int = BEGIN_MS
) -> RecordBatch:
    count = len(positions)
    return pa.record_batch(
        [
            pa.array([b"x" * 20 + str(each).encode() for each in positions], pa.binary()),
            pa.array(["key"] * count, pa.string()),
            pa.array([STREAM] * count, pa.string()),
            pa.array([shard] * count, pa.string()),
            pa.array([str(sequence) for sequence, _sub in positions], pa.string()),
            pa.array([sub for _sequence, sub in positions], pa.int64()),
            pa.array([at_ms * 1000] * count, pa.timestamp("us", tz="UTC")),
        ],
        schema=SCHEMA,
    )


def segment(
    number: int,
    positions: Sequence[tuple[int, int]] = (),
    *,
    info: LogInfo = INFO,
    shard: str = SHARD,
    rows: int = 3,
    to: int | None = None,
    after: str = "",
    last: str = "",
    children: tuple[str, ...] | None = None,
    application: str = "app",
) -> tuple[Footer, bytes]:
    """Records 1, 2, 3, in segment 0; 4, 5, 6 in segment 1; the texts of their numbers grow in length."""
    own = rows * number + 1
    at = list(positions) or (
        [] if children is not None else [(each, each % 2) for each in range(own, own + rows)]
    )
    at_ms = BEGIN_MS + _STEP_MS * number
    before = f"{own - 1}/{(own - 1) % 2}" if number else "-1/0"
    footer = Footer(
        application=application,
        stream=STREAM,
        shard=shard,
        number=number,
        to=number if to is None else to,
        after=after or before,
        last=last or (f"{at[-1][0]}/{at[-1][1]}" if at else before),
        rows=len(at),
        first_ms=at_ms,
        last_ms=at_ms,
        token=1,
        writer="w",
        children=children,
    )
    batches = [records(at, shard=shard, at_ms=at_ms)] if at else []
    return footer, bytes(encode(info, batches, footer))


def put(store: LogStore, footer: Footer, content: bytes, *, info: LogInfo = INFO) -> Entry:
    entry = footer.entry(len(content), crc32(content))
    store.create(entry_path(info, footer.stream, footer.shard, entry), content)
    return entry


def write(
    store: LogStore,
    segments: int,
    *,
    info: LogInfo = INFO,
    shard: str = SHARD,
    children: tuple[str, ...] | None = None,
    rows: int = 3,
    marks: bool = False,
) -> list[Entry]:
    """A shard's log as its writer leaves it; with `children` its last segment is the end."""
    open_log(store, info)
    log = ShardLog(store, info, STREAM, shard, marks=marks)
    log.open(is_new=True)
    found = []
    for number in range(segments):
        is_end = children is not None and number == segments - 1
        made = segment(number, info=info, shard=shard, rows=rows, children=children if is_end else None)
        found.append(put(store, *made, info=info))
        log.append(found[-1], behind_ms=0, at_ms=BEGIN_MS + _STEP_MS * number)
    return found


def verify(
    store: LogStore, *, info: LogInfo = INFO, quick: bool = False, mend: bool = False
) -> tuple[Verdict, list[str]]:
    problems: list[Problem] = []
    verdict = Verifier(store, info, problems.append, jobs=2, quick=quick, mend=mend).run()
    assert verdict.problems == len(problems)
    return verdict, [str(each) for each in problems]


def planned(store: LogStore, *, info: LogInfo = INFO, shard: str = SHARD, first: int = 0) -> list[Entry]:
    return list(ShardLog(store, info, STREAM, shard).entries(first))


def read(store: LogStore, entries: Sequence[Entry], *, first: int = 0) -> Iterator[int]:
    """The sequence numbers that a reader gets who has everything before number `first`, and knows no position."""
    for each in entries:
        content = store.read(entry_path(INFO, STREAM, SHARD, each))
        starts = dict(read_footer(content, INFO.format).starts)
        table = decode(content, INFO.format).slice(starts.get(first, 0))
        yield from map(int, table.column("sequence_number").to_pylist())
