"""Which object of a log a path is. Pure."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeAlias

from kcl_landing.log import BEGINS, INFO, MANIFESTS, MARKS, READERS, ROSTERS, LogInfo, segment_path
from kcl_landing.store import StoredObject

COMPACTION: Final = "_compaction"

Kind = Literal[
    "segment", "manifest", "page", "first", "compaction", "reader", "statement", "begin", "info", "other"
]
ShardKey: TypeAlias = tuple[str, str]
_HOUR_MS: Final = 3_600_000
_END: Final = -1

_NUMBERS = r"(?P<number>\d{12,})(?:-(?P<to>\d{12,}))?\.(?P<format>parquet|arrow)"
_KINDS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("first", re.compile(rf"{MANIFESTS}/(?P<stream>[^/]+)/(?P<shard>[^/]+)\.first\.json")),
    ("manifest", re.compile(rf"{MANIFESTS}/(?P<stream>[^/]+)/(?P<shard>[^/]+)\.json")),
    ("page", re.compile(rf"{MANIFESTS}/(?P<stream>[^/]+)/(?P<shard>[^/]+)/(?P<number>\d{{12,}})\.json")),
    (
        "compaction",
        re.compile(
            rf"{COMPACTION}/(?P<stream>[^/]+)/(?P<shard>[^/]+)/(?P<number>\d{{12,}})-(?P<to>\d+)\.json"
        ),
    ),
    ("reader", re.compile(rf"{READERS}/(?P<shard>[^/]+)\.json")),
    ("statement", re.compile(rf"(?:{MARKS}|{ROSTERS})/[^/]+\.json")),
    ("begin", re.compile(rf"{BEGINS}/(?P<stream>[^/]+)/(?P<shard>[^/]+)-(?P<number>\d{{12,}})\.json")),
    ("info", re.compile(re.escape(INFO))),
)
_SEGMENT: Final = {
    "log": re.compile(rf"(?P<stream>[^/_][^/]*)/(?P<shard>[^/_][^/]*)/{_NUMBERS}"),
    # No second number in `dated`: a shard's id could end like it.
    "dated": re.compile(
        r"(?P<stream>[^/_][^/]*)/(?:_ends|dt=(?P<day>\d{4}-\d\d-\d\d)/hour=(?P<hour>\d\d))/"
        r"(?P<shard>[^/]+)-(?P<number>\d{12,})(?P<to>)\.(?P<format>parquet|arrow)"
    ),
}


class Named(NamedTuple):
    kind: Kind
    key: ShardKey = ("", "")
    number: int = 0
    to: int = 0
    first_ms: int = 0
    """The hour of `dated`; -1: an end."""


def compaction_path(key: ShardKey, page: int, entries: int) -> str:
    """A page has fewer entries after each."""
    return f"{COMPACTION}/{key[0]}/{key[1]}/{page:012d}-{entries:03d}.json"


def named(info: LogInfo, path: str) -> Named:
    found = _SEGMENT[info.layout].fullmatch(path)
    if found is not None and found["format"] == info.format:
        number = int(found["number"])
        first_ms = 0 if info.layout == "log" else _hour_ms(found["day"], found["hour"])
        key = found["stream"], found["shard"]
        return Named("segment", key, number, int(found["to"] or number), first_ms)
    for kind, pattern in _KINDS:
        found = pattern.fullmatch(path)
        if found is not None:
            has = found.groupdict()
            key = has.get("stream", ""), has.get("shard", "")
            return Named(kind, key, int(has.get("number", 0)), int(has.get("to", 0)))
    return Named("other")


def _hour_ms(day: str | None, hour: str | None) -> int:
    if day is None or hour is None:
        return _END
    try:
        return round(datetime.fromisoformat(f"{day}T{hour}:00:00").replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return _END


class Held(NamedTuple):
    number: int
    to: int
    size_bytes: int
    path: str


@dataclass(slots=True)
class ShardObjects:
    """`_segments`: four numbers each."""

    info: LogInfo
    key: ShardKey
    pages: set[int] = field(default_factory=set)
    compactions: set[tuple[int, int]] = field(default_factory=set)
    has_manifest: bool = False
    has_first: bool = False
    _segments: array[int] = field(default_factory=lambda: array("q"))

    def add(self, found: Named, size_bytes: int) -> None:
        match found.kind:
            case "segment":
                self._segments.extend((found.number, found.to, size_bytes, found.first_ms))
            case "manifest":
                self.has_manifest = True
            case "page":
                self.pages.add(found.number)
            case "compaction":
                self.compactions.add((found.number, found.to))
            case _:
                self.has_first = True

    def __len__(self) -> int:
        return len(self._segments) // 4

    def segments(self) -> Iterator[Held]:
        """The widest first."""
        values = self._segments
        order = sorted(range(0, len(values), 4), key=lambda at: (values[at], -values[at + 1]))
        for at in order:
            number, to, size_bytes, first_ms = values[at : at + 4]
            path = segment_path(
                self.info, *self.key, number=number, to=to, first_ms=max(first_ms, 0), is_end=first_ms == _END
            )
            yield Held(number, to, size_bytes, path)


@dataclass(slots=True)
class LogObjects:
    shards: dict[ShardKey, ShardObjects]
    readers: list[str]
    others: list[str]
    statements: list[str] = field(default_factory=list[str])


def sorted_out(
    info: LogInfo, objects: Iterable[StoredObject], stream: str | None = None, shard: str | None = None
) -> LogObjects:
    found = LogObjects({}, [], [])
    for each in objects:
        what = named(info, each.path)
        if what.kind == "other":
            found.others.append(each.path)
        elif what.kind == "reader":
            found.readers.append(what.key[1])
        elif what.kind == "statement":
            found.statements.append(each.path)
        elif (
            what.kind not in {"info", "begin"}
            and stream in {None, what.key[0]}
            and shard in {None, what.key[1]}
        ):
            if what.key not in found.shards:
                found.shards[what.key] = ShardObjects(info, what.key)
            found.shards[what.key].add(what, each.size_bytes)
    found.shards = dict(sorted(found.shards.items()))
    return found
