"""Names and contents of a log's objects; docs/landing.md explains each field, for those who write a reader.

All who would write segment N must come to the same name: it depends only on the shard, N and its first record.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec

from kcl_landing.positions import START, Position, from_text, to_text

VERSION: Final = 1
INFO: Final = "_kcl_landing.json"
MANIFESTS: Final = "_manifests"
READERS: Final = "_readers"
MARKS: Final = "_marks"
ROSTERS: Final = "_shards"
BEGINS: Final = "_begins"
PAGE: Final = 256
"""Page K has the numbers in [K * PAGE, (K + 1) * PAGE)."""
FOOTER: Final = b"kcl.segment"
Layout = Literal["log", "dated"]
Format = Literal["parquet", "arrow"]
ArrivalMs = Annotated[int, msgspec.Meta(ge=0, lt=253_402_300_800_000)]
"""Until the year 10000: it names folders."""


class Damaged(Exception): ...


class LogInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Writers must agree with all but `log_id`, drawn when the log is created."""

    application: str
    layout: Layout
    format: Format
    log_id: str
    version: int = VERSION


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A segment behind position `after`; in JSON the array of these fields."""

    number: int
    to: int
    after: str
    last: str
    rows: int
    size_bytes: int
    crc: int
    first_ms: ArrivalMs
    last_ms: ArrivalMs
    token: int = 0
    children: tuple[str, ...] | None = None

    @property
    def is_end(self) -> bool:
        return self.children is not None


class Footer(msgspec.Struct, frozen=True, rename="camel"):
    """In the segment. `writer` is drawn for each run."""

    application: str
    stream: str
    shard: str
    number: int
    to: int
    after: str
    last: str
    rows: int
    first_ms: ArrivalMs
    last_ms: ArrivalMs
    token: int
    writer: str
    children: tuple[str, ...] | None = None
    version: int = VERSION
    starts: tuple[tuple[int, int], ...] = ()

    def entry(self, size_bytes: int, crc: int) -> Entry:
        where = self.number, self.to, self.after, self.last, self.rows
        return Entry(*where, size_bytes, crc, self.first_ms, self.last_ms, self.token, self.children)


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """The newest page that has entries."""

    stream: str
    shard: str
    entries: tuple[Entry, ...]
    behind_ms: int | None
    at_ms: int
    version: int = VERSION
    marks: bool = False


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """All that arrived before `complete_ms` is in segments up to `number`, which the manifest has.

    For one `token` neither goes back while the host's lander lives.
    """

    number: int
    complete_ms: ArrivalMs
    token: int = 0


class Marks(msgspec.Struct, frozen=True, rename="camel"):
    """No `complete_ms` is later than `at_ms`, when this was written."""

    log: str
    worker: str
    at_ms: ArrivalMs
    window_ms: int
    shards: dict[str, Mark]
    since_ms: dict[str, ArrivalMs] = {}
    version: int = VERSION


class Roster(msgspec.Struct, frozen=True, rename="camel"):
    """Shards with a lease, and their parents."""

    log: str
    stream: str
    at_ms: ArrivalMs
    failover_ms: int
    shards: dict[str, tuple[str, ...]]
    version: int = VERSION


class Begin(msgspec.Struct, frozen=True, rename="camel"):
    """Names a segment of layout `dated` that begins before any record; who creates this decides.

    Two writers may begin with records of different hours, which give different names.
    """

    first_ms: int
    is_end: bool
    version: int = VERSION


class First(msgspec.Struct, frozen=True, rename="camel"):
    """What the segments before number `first`, which have expired, held."""

    first: int
    last: str = ""
    last_ms: int = 0
    segments: int = 0
    rows: int = 0
    size_bytes: int = 0
    at_ms: int = 0
    version: int = VERSION


class ReaderNote(msgspec.Struct, frozen=True, rename="camel"):
    """`done`: the first number that the reader still needs."""

    name: str
    done: dict[str, int]
    at_ms: int
    version: int = VERSION


def segment_path(
    info: LogInfo, stream: str, shard: str, *, number: int, to: int, first_ms: int, is_end: bool
) -> str:
    name = f"{number:012d}" if to == number else f"{number:012d}-{to:012d}"
    if info.layout == "log":
        return f"{stream}/{shard}/{name}.{info.format}"
    if is_end:
        return f"{stream}/_ends/{shard}-{name}.{info.format}"
    hour = datetime.fromtimestamp(first_ms / 1000, UTC)
    return f"{stream}/dt={hour:%Y-%m-%d}/hour={hour:%H}/{shard}-{name}.{info.format}"


def entry_path(info: LogInfo, stream: str, shard: str, entry: Entry) -> str:
    named = {"number": entry.number, "to": entry.to, "first_ms": entry.first_ms}
    return segment_path(info, stream, shard, **named, is_end=entry.is_end)


def manifest_path(stream: str, shard: str) -> str:
    return f"{MANIFESTS}/{stream}/{shard}.json"


def page_path(stream: str, shard: str, number: int) -> str:
    return f"{MANIFESTS}/{stream}/{shard}/{number // PAGE * PAGE:012d}.json"


def first_path(stream: str, shard: str) -> str:
    return f"{MANIFESTS}/{stream}/{shard}.first.json"


def begin_path(stream: str, shard: str, number: int) -> str:
    return f"{BEGINS}/{stream}/{shard}-{number:012d}.json"


def reader_path(name: str) -> str:
    return f"{READERS}/{name}.json"


def marks_path(worker: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9_-]", "-", worker)[:64]
    return f"{MARKS}/{readable}-{sha256(worker.encode(errors='replace')).hexdigest()[:12]}.json"


def roster_path(stream: str) -> str:
    return f"{ROSTERS}/{stream}.json"


def place(text: str) -> Position:
    return from_text(text) if text else START


def said(where: Position) -> str:
    return to_text(where)
