"""Spark reads a landing log of kcl-daemon: the data source `kcl`.

One file, for Spark 4.0 or newer and Python 3.9 or newer; it needs pyspark and pyarrow. Install `kcl-spark-source`, or
hand this file to `spark-submit --py-files`. Then:

    import kcl_spark_source
    kcl_spark_source.register(spark)
    live = spark.readStream.format("kcl").load("s3://bucket/prefix")
    past = spark.read.format("kcl").option("startingTimestamp", "2026-11-22T10:00:00Z").load("s3://bucket/prefix")

Options:
    path: the landing: a folder or a URI that pyarrow knows (`s3://`, `gs://`, `hdfs://`, `file:`).
    stream, shards: only these, separated by commas. Default: all in the log.
    startingPosition: `trim_horizon` (default) or `latest`; of a new query.
    startingTimestamp, endingTimestamp: ISO 8601 (UTC without an offset) or epoch milliseconds; records that
        arrived from the one on and before the other.
    maxBytesPerTrigger: bytes of segments, as stored, in a batch of a stream; 268435456. 0: no limit.
    maxSkewWaitMillis: how long a shard that does not become more complete holds back the others; 60000, or four times
        the daemons' `failoverTimeMillis` if that is more. 0: no shard does.
    idleRows: `true`: where nothing comes, a batch has one row without data, whose `approximate_arrival_timestamp` is the
        time up to which the log is complete, so that windows close. Default: `false`.
    columns: names of columns, `kcl` (default) or `aws` (as in AWS's connector). `.schema("data BINARY")` reads only
        these columns, which is faster.
    reader: a name. `_readers/NAME.json` says what the query has committed; `kcl-daemon landing expire` follows it. One
        query for each name.
    failOnDataLoss: `true` (default): stop if segments that were not read yet have expired. `false`: go on.
    minTasks: at least so many tasks in a batch, where each gets 2,000 records or 2 MiB. Default: the cores that Spark had,
        or may grow to, at `register`; 16 where it does not say.
    maxTasks: at most so many tasks in a batch. Default: minTasks, or one for each 128 MiB if that is more, as records take
        in memory; segments of Parquet say it.
    splitShards: `true`: records of one shard may go to several tasks of a batch. Default: `false` for streams, so that
        a task has all of a shard's records of the batch, in order; `true` for batch reads.
    pushFilters: `true`: a batch read leaves out what the conditions of its query on shard, stream, arrival and position do
        not need. Default: `false`, as Spark 4.1 to 4.3 read for all uses of a DataFrame or view, and of a table in one
        query, what the conditions of one of them leave. So each may be used once, in one query.
    endpoint, region: of S3.

Spark's watermark follows the newest record, so a batch ends in all shards at one arrival time, at most two windows and
four seconds later than the *horizon*: the time up to which all shards are complete in the log, as their hosts state. So a watermark's delay of 2 x `landingWindowMillis` + 5 seconds is enough for a backlog, for a host that dies, and
for shards that split. A shard that stands still for longer than `maxSkewWaitMillis` is left behind, with a warning; its
rows that come too late are counted: `kcl_progress(query.lastProgress)`. Child shards are read in batches after their
parents'. Batch reads have parents in partitions before those of their children.

Spark 4.0 and 4.1 do not tell a source where a batch begins. There the first batch after a restart takes everything
(later ones are limited), also what the horizon would hold back, and `Trigger.AvailableNow` reads one batch: set
maxBytesPerTrigger to 0 for it. There is no `latestOffset` in the query's progress either, so `kcl_lag` and
`kcl_progress` need 4.2.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import re
import sys
import time
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    NamedTuple,
)
from urllib.parse import parse_qsl, urlencode

import pyarrow as pa
import pyarrow.compute
from pyarrow import fs, parquet
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadMaxBytes,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # Spark 4.0 and 4.1

        class SupportsTriggerAvailableNow:
            """As of 4.2."""


__all__ = ["KclDataSource", "kcl_lag", "kcl_listener", "kcl_progress", "register"]

_LOG = logging.getLogger("kcl_spark_source")
_COMPUTE: Any = pyarrow.compute
_PARQUET: Any = parquet
_VERSION = 1
_PAGE = 256
_START = "-1/0"
_OPEN_MS = 2**63 - 1
_TASK_BYTES = 128 * 1024 * 1024
"""In memory; as much as Spark's own tasks read of files."""
_TASK_ROWS = 2_000
_TASK_BYTES_LEAST = 2 * 1024 * 1024
"""A task that has fewer of both takes longer to begin than to work."""
_USUAL_TIMES = 3.0
_MOST_TIMES = 64
"""Smaller batches are one task, however well they are packed."""
_UNKNOWN_CORES = 16
_ARROW_BYTES = 1024 * 1024
"""Of one Arrow batch, about: what fits the caches of a CPU is handed over fastest."""
_AHEAD_BYTES = 32 * 1024 * 1024
_THREADS = 16
_SETTLED_S = 1.5
"""An object read so long after its time of change was first seen is not read again: some stores' clocks tick in seconds."""
_NOTE_S = 5.0
_IDLE_MS = 1_000
_CLOUDWATCH_S = 60.0
_SCRAPE_S = 10.0
_LISTENS = re.compile(r"(?:(?P<address>[^/:]+|\[[0-9A-Fa-f:.]+\]):)?(?P<port>[0-9]{1,5})")
_FIRST_WITH_FIGURES = (4, 2)
_PART_MS = 4_000
_REACH_MS = 4_000
"""At least a part, so that one that waits is never older than the horizon."""
_LATEST_MS = 253_402_300_800_000
_NUMBER_MOST = 10**15
_POSITION = re.compile(r"(-1|[0-9]{1,200})/[0-9]{1,20}")
_AHEAD_MS = 60_000
"""By which clocks may differ."""
_WAIT_MS = 60_000
_BESIDE = 1_000
_BESIDE_BYTES = 8 * 1024 * 1024
"""Of hosts' marks and rosters, which others can write, so many objects of so many bytes are read."""
_ROSTERS_S = 5.0
_LISTED_S = 0.2
"""Spark asks for more every few milliseconds; a listing costs money in S3."""
_NAMES = {
    "data": "data",
    "partition_key": "partitionKey",
    "stream": "streamName",
    "shard_id": "shardId",
    "sequence_number": "sequenceNumber",
    "sub_sequence_number": "subSequenceNumber",
    "approximate_arrival_timestamp": "approximateArrivalTimestamp",
}
_TYPES = {
    "data": ("BINARY", pa.binary()),
    "sub_sequence_number": ("LONG", pa.int64()),
    "approximate_arrival_timestamp": ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
}
_TEXT = ("STRING", pa.string())
_OURS = {**{name: name for name in _NAMES}, **{theirs: name for name, theirs in _NAMES.items()}}
_PLACES = ("sequence_number", "sub_sequence_number")
_ARRIVED = ("approximate_arrival_timestamp",)
_SAME = ("stream", "shard_id")
"""In all records of a segment, so they are not read."""
_TABLE = "landing log: "
"""What the comment of a table's first column begins with. All that Spark keeps of a table of such a source is its columns."""
_DISORDER_MS = 60_000
"""Arrival times within a shard go back by less, and a segment says that of its first record."""
_WHERE = (
    "say where the landing log is: .load(\"s3://bucket/prefix\"), or USING kcl OPTIONS (path 's3://bucket/prefix') in SQL. "
    "Spark forgets the options of a table that was created with columns: create it without"
)


class LandingError(Exception):
    """What stops a query, with what to do."""


class DataLoss(LandingError):
    """Raised when records that were not read yet have expired."""


class Damaged(LandingError):
    """Raised when an object of the log is not as it was written."""


class Entry(NamedTuple):
    """One segment, as pages and manifests have it (docs/landing.md)."""

    number: int
    to: int
    after: str
    last: str
    rows: int
    size_bytes: int
    crc: int
    first_ms: int
    last_ms: int
    token: int = 0
    children: list[str] | None = None


class Place(NamedTuple):
    """How far a shard is read: `number` is the next segment, `last` the last position, `ms` its arrival."""

    number: int
    last: str = _START
    ms: int = 0
    ended: bool = False


Places = Mapping[str, Place]
"""By `STREAM/SHARD`."""
Entries = Callable[[str, int], Iterator[Entry]]
"""Of a shard, from the segment on that has this number."""
Part = tuple[int, str, int, int]
"""Of a segment, what arrived within a short time: first arrival, last position, latest arrival, bytes."""
Parts = Callable[[str, Entry], Sequence[Part]]


class Shard(NamedTuple):
    """What the log says of a shard. `end`: behind its last segment; `silent_ms`: since its writer last wrote."""

    end: Place
    children: tuple[str, ...] = ()
    behind_ms: int | None = None
    silent_ms: float = 0.0
    first: Place = Place(0)
    marks: bool = False


Shards = Mapping[str, Shard]


class Mark(NamedTuple):
    """What a host says of a shard: what arrived before `complete_ms` is in segments up to `number`, -1: in none."""

    number: int
    complete_ms: int


class Host(NamedTuple):
    """What a host said of its shards, by `STREAM/SHARD`, and when. `refused`: what it said that cannot be.

    `since_ms`: since when it says something of a stream. Hosts of a version before that do not tell.
    """

    at_ms: int
    window_ms: int
    marks: Mapping[str, Mark]
    refused: tuple[str, ...] = ()
    since_ms: Mapping[str, int] = {}


class Roster(NamedTuple):
    """The shards of a stream that there are, with their parents, by `STREAM/SHARD`."""

    shards: Mapping[str, tuple[str, ...]]
    failover_ms: int


class Statements(NamedTuple):
    """What hosts and leaders say beside the manifests. `rosters`: by stream; `window_ms`: of the newest mark."""

    marks: Mapping[str, Sequence[Mark]] = {}
    rosters: Mapping[str, Roster] = {}
    window_ms: int = 0
    streams: frozenset[str] = frozenset()

    @property
    def reach_ms(self) -> int:
        """How far beyond the horizon a batch may end: less than the smallest delay of a watermark that is documented."""
        return 2 * self.window_ms + _REACH_MS if self.window_ms else 0


class Horizon(NamedTuple):
    """Up to when all shards are complete, and by whom no more.

    Args:
        ms: every record that arrived before is in the log.
        holder: the shard that has nothing to say of later.
        first_ms: no part of a batch begins later (of a log without marks).
        last_ms: no part of a batch ends later.
        left: shards that were waited for long enough, and up to when they are complete.
        stated: hosts have said so of all shards.
    """

    ms: int = _OPEN_MS
    holder: str = ""
    first_ms: int = _OPEN_MS
    last_ms: int = _OPEN_MS
    left: Mapping[str, int] = {}
    stated: bool = False


_NOTHING_SAID = Statements()
_NO_HORIZON = Horizon()


class Piece(NamedTuple):
    """A segment's records after one position up to another. `cut`: the segment has others, too.

    `times`: how often its bytes as stored fit into those in memory, about.
    """

    key: str
    entry: Entry
    after: str
    last: str
    cut: bool = False
    times: float = _USUAL_TIMES

    @property
    def size_bytes(self) -> int:
        """In memory; what the segment holds beyond a border counts, too."""
        return int(self.entry.size_bytes * self.times)


@dataclass(frozen=True)
class Settings:
    """The options."""

    path: str
    streams: tuple[str, ...]
    shards: tuple[str, ...]
    latest: bool
    start_ms: int | None
    end_ms: int | None
    max_bytes: int
    wait_ms: int | None
    reader: str
    fail: bool
    min_tasks: int
    max_tasks: int
    split: bool | None
    idle: bool
    push: bool
    endpoint: str
    region: str


# --- decisions, without I/O ------------------------------------------------------------------------------------------


def settings_of(options: Mapping[str, str], cores: int = _UNKNOWN_CORES) -> Settings:
    """Raises LandingError."""
    path = options.get("path", "")
    if not path:
        raise LandingError(_WHERE)
    position = options.get("startingPosition", "trim_horizon").lower()
    if position not in {"trim_horizon", "latest"}:
        raise LandingError(f"startingPosition is trim_horizon or latest, not {position}")
    split = options.get("splitShards")
    return Settings(
        path=path,
        streams=_list(options.get("stream", "")),
        shards=_list(options.get("shards", "")),
        latest=position == "latest",
        start_ms=_milliseconds(options, "startingTimestamp"),
        end_ms=_milliseconds(options, "endingTimestamp"),
        max_bytes=_number(options, "maxBytesPerTrigger", 256 * 1024 * 1024),
        wait_ms=_number(options, "maxSkewWaitMillis", 0) if "maxSkewWaitMillis" in options else None,
        reader=_reader_name(options.get("reader", "")),
        fail=_flag(options, "failOnDataLoss", default=True),
        min_tasks=_number(options, "minTasks", cores),
        max_tasks=_number(options, "maxTasks", 0) or sys.maxsize,
        split=None if split is None else _flag(options, "splitShards", default=False),
        idle=_flag(options, "idleRows", default=False),
        push=_flag(options, "pushFilters", default=False),
        endpoint=options.get("endpoint", ""),
        region=options.get("region", ""),
    )


def table_comment(options: Mapping[str, str]) -> str:
    """What CREATE TABLE said in OPTIONS or LOCATION, for `of_table`; nothing elsewhere. Raises LandingError."""
    if "provider" not in options:
        return ""
    settings_of(options)
    said = {name[len("option.") :]: value for name, value in options.items() if name.startswith("option.")}
    return _TABLE + urlencode({**said, "path": options["path"]}, safe=":/,")


def of_table(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options, and below them those of `table_comment`."""
    comment = str((schema.fields[0].metadata or {}).get("comment", "")) if schema.fields else ""
    if not comment.startswith(_TABLE):
        return options
    without_case: Any = type(options)
    whole: Mapping[str, str] = without_case({**dict(parse_qsl(comment[len(_TABLE) :])), **options})
    return whole


def _list(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _reader_name(name: str) -> str:
    if name.startswith(".") or not all(each.isalnum() or each in "._-" for each in name):
        raise LandingError(f"reader is a name of letters, digits, '.', '_' and '-', not {name!r}")
    return name


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit()):
        raise LandingError(f"{name} is a whole number, not {text!r}")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in {"true", "false"}:
        raise LandingError(f"{name} is true or false, not {text!r}")
    return text == "true"


def _milliseconds(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in "Zz" else text)
    except ValueError:
        raise LandingError(
            f"{name} is a time such as 2026-11-22T10:00:00Z or epoch milliseconds, not {text!r}"
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1000)


def to_offset(log_id: str, places: Places, **more: Any) -> dict[str, Any]:
    """Version 1: by shard the next segment, the last position and its arrival, and whether the shard has ended."""
    shards = {}
    for key, place in sorted(places.items()):
        shards[key] = {"next": place.number, "last": place.last, "ms": place.ms}
        if place.ended:
            shards[key]["ended"] = True
    return {"v": _VERSION, "log": log_id, "shards": shards, **more}


def from_offset(offset: Mapping[str, Any], log_id: str) -> dict[str, Place]:
    """Raises LandingError if this version does not know it, or it is of another log."""
    if offset.get("v") != _VERSION:
        raise LandingError(
            f"the checkpoint has version {offset.get('v')}, this source knows {_VERSION}: upgrade it"
        )
    if offset["log"] != log_id:
        raise LandingError(
            f"the checkpoint is of landing log {offset['log']}, but at this path is {log_id}: "
            "use the path of before, or a new checkpointLocation"
        )
    return {
        key: Place(each["next"], each["last"], each["ms"], each.get("ended", False))
        for key, each in offset["shards"].items()
    }


def position(text: str) -> tuple[int, int]:
    """`SEQUENCE/SUB`."""
    sequence, _, sub = text.partition("/")
    return int(sequence), int(sub)


def behind(entry: Entry, before: Place) -> Place:
    return Place(entry.to + 1, entry.last, max(entry.last_ms, before.ms), entry.children is not None)


def parents_of(shards: Shards) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, shard in shards.items():
        for child in shard.children:
            found.setdefault(child, []).append(key)
    return found


def host_of(content: bytes, log_id: str) -> Host:
    """Of `_marks/NAME.json`. Raises ValueError."""
    said = _said(content, log_id)
    at_ms = _within(said.get("atMs"), 0, _LATEST_MS, "atMs")
    window_ms = _within(said.get("windowMs"), 1, 3_600_000, "windowMs")
    marks: dict[str, Mark] = {}
    refused: list[str] = []
    for key, each in _object(said.get("shards"), "shards").items():
        found = _mark_of(key, each, at_ms)
        if isinstance(found, Mark):
            marks[key] = found
        else:
            refused.append(found)
    since = _object(said.get("sinceMs", {}), "sinceMs")
    since_ms = {stream: _within(each, 0, at_ms, "sinceMs") for stream, each in since.items()}
    return Host(at_ms, window_ms, marks, tuple(refused), since_ms)


def _mark_of(key: str, said: Any, at_ms: int) -> Mark | str:
    """Or why it counts for nothing."""
    if not all(key.partition("/")):
        return f"{key!r:.200} is no STREAM/SHARD"
    try:
        number, complete_ms, *_ = _list_of(said, "its mark")
        _within(number, -1, _NUMBER_MOST, "its number")
        _within(complete_ms, 0, at_ms + 1_000, "its completeMs")
    except ValueError as error:
        return f"{key!r:.200}: {error}"
    return Mark(number, complete_ms)


def roster_of(content: bytes, log_id: str, stream: str) -> Roster:
    """Of `_shards/STREAM.json`. Raises ValueError."""
    said = _said(content, log_id)
    if said.get("stream") != stream:
        raise ValueError(f"it is of stream {said.get('stream')!r:.200}")
    shards: dict[str, tuple[str, ...]] = {}
    for shard, parents in _object(said.get("shards"), "shards").items():
        names = [shard, *_list_of(parents, f"parents of {shard!r:.200}")]
        if not all(isinstance(each, str) and each and "/" not in each for each in names):
            raise ValueError(f"{names!r:.200} are no names of shards")
        shards[f"{stream}/{shard}"] = tuple(f"{stream}/{each}" for each in names[1:])
    return Roster(shards, _within(said.get("failoverMs"), 1, 86_400_000, "failoverMs"))


def _said(content: bytes, log_id: str) -> dict[str, Any]:
    try:
        said = _object(json.loads(content, parse_int=_short, parse_constant=_short), "it")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if said.get("version") != _VERSION or said.get("log") != log_id:
        raise ValueError(f"it is of log {said.get('log')!r:.200}, version {said.get('version')!r:.200}")
    return said


def _short(text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"{text:.20}... is no number of a log")
    return int(text)


def _object(said: Any, what: str) -> dict[str, Any]:
    if isinstance(said, dict):
        return said
    raise ValueError(f"{what} is no object")


def _list_of(said: Any, what: str) -> list[Any]:
    if isinstance(said, list):
        return said
    raise ValueError(f"{what} is no list")


def _within(said: Any, least: int, most: int, what: str) -> int:
    if type(said) is not int or not least <= said <= most:
        raise ValueError(f"{what} is no whole number from {least} to {most}: {said!r:.200}")
    return said


def statements_of(hosts: Sequence[Host], rosters: Mapping[str, Roster], now_ms: float) -> Statements:
    """Marks from a future that our clock does not know count for nothing."""
    marks: dict[str, list[Mark]] = {}
    for host in hosts:
        for key, mark in host.marks.items():
            if mark.complete_ms <= now_ms + _AHEAD_MS:
                marks.setdefault(key, []).append(mark)
    windows = [(host.at_ms, host.window_ms) for host in hosts if host.at_ms <= now_ms + _AHEAD_MS]
    streams = {*rosters, *(key.partition("/")[0] for key in marks)}
    return Statements(marks, rosters, max(windows, default=(0, 0))[1], frozenset(streams))


def judged_by_marks(key: str, shard: Shard, said: Statements) -> bool:
    return shard.marks and key.partition("/")[0] in said.streams


def complete_ms(shards: Shards, said: Statements) -> dict[str, int]:
    """Of each shard that can get records that are not in the log: all of it that arrived before this time is.

    Without those that the manifests of an older writer judge. `STREAM/*` stands for what nobody knows of before a stream
    has a roster.
    """
    above = {key: parents for roster in said.rosters.values() for key, parents in roster.shards.items()}
    for key, parents in parents_of(shards).items():
        above[key] = (*above.get(key, ()), *parents)
    begun = {*shards, *said.marks}
    over = _above_all(begun, above)
    reached = _reached_ms(shards, above)
    awaited = {key.partition("/")[0] for key, shard in shards.items() if shard.marks and not shard.end.ended}
    found = {f"{stream}/*": 0 for stream in (said.streams | awaited) - said.rosters.keys()}
    for key in {*begun, *above}:
        shard = shards.get(key)
        if shard is None:
            # Children are read after their parents, and what follows a snapshot after all of its segments.
            follows = key not in begun and any(map(_is_segment, above.get(key, ())))
            waits = key not in over and not follows and key.partition("/")[0] in said.streams
        else:
            waits = judged_by_marks(key, shard, said) and not shard.end.ended
        if waits:
            end = shard.end.number if shard else 0
            marks = [each.complete_ms for each in said.marks.get(key, ()) if each.number < end]
            found[key] = max([reached.get(key, 0), *marks])
    return found


def _above_all(keys: Iterable[str], above: Mapping[str, Sequence[str]]) -> set[str]:
    """Those that these shards descend from."""
    found: set[str] = set()
    todo = list(keys)
    while todo:
        new = set(above.get(todo.pop(), ())) - found
        found |= new
        todo.extend(new)
    return found


def _reached_ms(shards: Shards, above: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The newest arrival in a shard and those that it descends from; nothing of it arrived before they ended."""
    below: dict[str, list[str]] = {}
    for key, parents in above.items():
        for parent in parents:
            below.setdefault(parent, []).append(key)
    found: dict[str, int] = {}
    for newest in sorted(shards, key=lambda key: shards[key].end.ms, reverse=True):
        todo = [newest]
        while todo:
            key = todo.pop()
            if key not in found:
                found[key] = shards[newest].end.ms
                todo.extend(below.get(key, ()))
    return found


def _is_segment(key: str) -> bool:
    """Of a snapshot of DynamoDB."""
    return key.rpartition("/")[2].startswith("snapshot-")


Since = Mapping[str, tuple[int, float]]
"""Up to when a shard is complete, and since when that has not moved, in seconds of our clock."""


def stands_since(before: Since, complete: Mapping[str, int], now_s: float) -> dict[str, tuple[int, float]]:
    found = {}
    for key, ms in complete.items():
        known = before.get(key)
        found[key] = known if known is not None and known[0] >= ms else (ms, now_s)
    return found


def horizon_ms(
    shards: Shards,
    wait_ms: int,
    said: Statements = _NOTHING_SAID,
    still_ms: Mapping[str, float] | None = None,
) -> Horizon:
    """What no batch may go beyond, as records that arrived before may still come into the log.

    They come from shards that are behind, that nobody writes, and that are not there yet. One for which what it is
    complete to has not moved for `still_ms` of at least `wait_ms` is left behind, if others wait for it.
    """
    complete, still_ms = complete_ms(shards, said), still_ms or {}
    newest_ms = max((shard.end.ms for shard in shards.values()), default=0)
    left = {
        key: ms
        for key, ms in complete.items()
        if still_ms.get(key, 0) >= wait_ms and ms + said.reach_ms < newest_ms
    }
    ours = min(((ms, key) for key, ms in complete.items() if key not in left), default=(_OPEN_MS, ""))
    before = min(_behind(shards, said, wait_ms, complete), default=(_OPEN_MS, ""))
    ms, holder = min(ours, before)
    last_ms = ours[0] + said.reach_ms if ours[1] else _OPEN_MS
    stated = all(each.end.ended or judged_by_marks(key, each, said) for key, each in shards.items())
    return Horizon(ms, holder, before[0], last_ms, left, stated and bool(ours[1]))


def _behind(
    shards: Shards, said: Statements, wait_ms: int, complete: Mapping[str, int]
) -> Iterator[tuple[int, str]]:
    """The shards that hold back by what their manifests say, as before there were marks."""
    parents = parents_of(shards)
    for key, shard in shards.items():
        if judged_by_marks(key, shard, said) or shard.silent_ms >= wait_ms:
            continue
        if shard.end.ended:
            missing = [child for child in shard.children if child not in shards and child not in complete]
            # What follows a segment of a snapshot of DynamoDB comes when all segments are over.
            waits = bool(missing) and not _is_segment(key)
        else:
            waits = shard.behind_ms != 0
        if waits:
            reached = [shard.end.ms, *(shards[parent].end.ms for parent in parents.get(key, ()))]
            yield max(reached), key


Step = tuple[int, str, int, Place, int]
"""When the turn of a shard's next records is, which never goes back; the shard; their latest arrival; where they end;
their bytes."""


def plan(
    starts: Places,
    shards: Shards,
    entries: Entries,
    *,
    parts: Parts | None = None,
    most_bytes: int | None = None,
    horizon: Horizon = _NO_HORIZON,
    end_ms: int | None = None,
) -> dict[str, Place]:
    """Where the next batch ends. `starts` has a place for each shard.

    The batch takes segments of all shards in the order of arrival, at least one, and stops where `most_bytes` would be
    exceeded, at `horizon`, and at the first end of a shard whose children must be read next.
    """
    parents = parents_of(shards)
    ready = [
        key
        for key in sorted(shards)
        if not starts[key].ended and all(starts[parent].ended for parent in parents.get(key, ()))
    ]
    heap: list[tuple[int, str, int, Place, int, Iterator[Step]]] = []
    for key in ready:
        steps = _steps(key, starts[key], shards[key], entries, end_ms=end_ms, parts=parts or _whole)
        heap.extend((*step, steps) for step in [next(steps, None)] if step is not None)
    if not heap:
        return dict(starts)
    heapq.heapify(heap)
    ends = [shards[key].end for key in ready if any(child in shards for child in shards[key].children)]
    limit = min(horizon.first_ms, max(min((end.ms for end in ends), default=_OPEN_MS), heap[0][0]))
    reached, taken = dict(starts), 0
    while heap and heap[0][0] <= limit and heap[0][2] <= horizon.last_ms:
        _, key, _, place, size_bytes, steps = heap[0]
        if taken and most_bytes is not None and taken + size_bytes > most_bytes:
            break
        taken += size_bytes
        reached[key] = place
        step = next(steps, None)
        if step is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (*step, steps))
    return reached


def _steps(
    key: str, start: Place, shard: Shard, entries: Entries, *, end_ms: int | None, parts: Parts
) -> Iterator[Step]:
    turn_ms, place = 0, start
    if start.number >= shard.end.number:
        return
    for entry in entries(key, start.number):
        if entry.number >= shard.end.number or (end_ms is not None and entry.first_ms >= end_ms):
            return
        for first_ms, last, last_ms, size_bytes in parts(key, entry):
            is_last = last == entry.last
            if not is_last and position(last) <= position(start.last):
                continue
            turn_ms = max(turn_ms, first_ms or start.ms)
            further = Place(entry.number, last, max(last_ms, place.ms))
            place = behind(entry, place) if is_last else further
            yield turn_ms, key, last_ms, place, size_bytes


def _whole(_key: str, entry: Entry) -> list[Part]:
    return [(entry.first_ms, entry.last, entry.last_ms, entry.size_bytes)]


def pieces(key: str, start: Place, end: Place, entries: Entries) -> Iterator[Piece]:
    """What lies between two places. Of a segment that a border is in, what is on this side of it."""
    begin, until = position(start.last), position(end.last)
    if (start.number, begin) >= (end.number, until):
        return
    for entry in entries(key, start.number):
        after, last = position(entry.after), position(entry.last)
        if entry.number > end.number or (entry.number == end.number and until <= after):
            return
        if entry.rows and max(after, begin) < min(last, until):
            first, upto = max(entry.after, start.last, key=position), min(entry.last, end.last, key=position)
            yield Piece(key, entry, first, upto, after < begin or last > until)


class Only(NamedTuple):
    """What conditions of SQL leave of a log: never less than they ask for."""

    shards: frozenset[str] | None = None
    streams: frozenset[str] | None = None
    from_ms: int = 0
    to_ms: int = _OPEN_MS
    sequences: tuple[tuple[str, str], ...] = ()

    def within(self, settings: Settings) -> Settings | None:
        """The options, with fewer shards; None if no record can be asked for."""
        shards, streams = (
            tuple(of_options if asked is None else sorted(asked & frozenset(of_options or asked)))
            for of_options, asked in ((settings.shards, self.shards), (settings.streams, self.streams))
        )
        if (self.shards is not None and not shards) or (self.streams is not None and not streams):
            return None
        return replace(settings, shards=shards, streams=streams)

    def has(self, entry: Entry) -> bool:
        """Whether a segment may have records that are asked for."""
        return (
            (entry.last_ms >= self.from_ms or not entry.last_ms)
            and entry.first_ms <= self.to_ms + _DISORDER_MS
            and all(_may_be(kind, value, entry) for kind, value in self.sequences)
        )


_EARLIEST = frozenset({"EqualTo", "GreaterThan", "GreaterThanOrEqual"})
_LATEST = frozenset({"EqualTo", "LessThan", "LessThanOrEqual"})


def _may_be(kind: str, value: str, entry: Entry) -> bool:
    """SQL compares sequence numbers as text, which is their order only while they are equally long."""
    before, last = entry.after.partition("/")[0], entry.last.partition("/")[0]
    if not (value.isascii() and value.isdigit() and len(value) < 100):
        return True
    if kind == "EqualTo":
        return int(before) <= int(value) <= int(last)
    if {len(before), len(last)} != {len(value)}:
        return True
    return value <= last if kind in _EARLIEST else before <= value


def narrowed(only: Only, condition: Any) -> Only:
    """With one more of Spark's conditions on a column."""
    kind, value = type(condition).__name__, getattr(condition, "value", "")
    column = _OURS.get(".".join(getattr(condition, "attribute", ())), "")
    if column in {"shard_id", "stream"} and kind in {"EqualTo", "In"}:
        values = value if kind == "In" else (value,)
        asked = frozenset(each for each in values if isinstance(each, str) and each and "/" not in each)
        if column == "shard_id":
            return only._replace(shards=asked & (asked if only.shards is None else only.shards))
        return only._replace(streams=asked & (asked if only.streams is None else only.streams))
    if column == "approximate_arrival_timestamp" and isinstance(value, datetime) and value.tzinfo:
        at_ms = (value - datetime.fromtimestamp(0, timezone.utc)) // timedelta(milliseconds=1)
        if kind in _EARLIEST:
            only = only._replace(from_ms=max(only.from_ms, at_ms))
        if kind in _LATEST:
            only = only._replace(to_ms=min(only.to_ms, at_ms))
    if column == "sequence_number" and isinstance(value, str) and kind in _EARLIEST | _LATEST:
        return only._replace(sequences=(*only.sequences, (kind, value)))
    return only


def task_count(its_pieces: Sequence[Piece], least: int, most: int) -> int:
    """Enough for memory, and so many that the cores have work."""
    size = sum(piece.size_bytes for piece in its_pieces)
    worth = max(sum(piece.entry.rows for piece in its_pieces) // _TASK_ROWS, size // _TASK_BYTES_LEAST)
    return min(most, max(1, -(-size // _TASK_BYTES), min(least, worth)))


def balanced(shards: Sequence[Sequence[Piece]], count: int) -> list[list[Piece]]:
    """Tasks for a stream's batch: each shard whole in one of them, the largest first to where least is."""
    sizes = [sum(piece.size_bytes for piece in shard) for shard in shards]
    count = min(count, len(shards))
    heap: list[tuple[int, int, list[Piece]]] = [(0, number, []) for number in range(count)]
    for place in sorted(range(len(shards)), key=lambda place: -sizes[place]):
        size, number, task = heap[0]
        task.extend(shards[place])
        heapq.heapreplace(heap, (size + sizes[place], number, task))
    return [task for _, _, task in sorted(heap, key=lambda each: each[1])]


def in_order(all_pieces: Sequence[Piece], count: int) -> list[list[Piece]]:
    """Tasks of about the same size, one after the other."""
    wanted = max(1, sum(piece.size_bytes for piece in all_pieces) // count)
    found: list[list[Piece]] = []
    size = 0
    for piece in all_pieces:
        if not found or (size >= wanted * len(found) and len(found) < count):
            found.append([])
        found[-1].append(piece)
        size += piece.size_bytes
    return found


def generations(shards: Shards) -> list[str]:
    """Parents before children."""
    parents = parents_of(shards)
    found: dict[str, None] = {}

    def add(key: str, below: tuple[str, ...]) -> None:
        if key in below:
            raise LandingError(f"shard {key} is among its own descendants: run kcl-daemon landing verify")
        for parent in sorted(parents.get(key, ())):
            add(parent, (*below, key))
        found[key] = None

    for key in sorted(shards):
        add(key, ())
    return list(found)


def lost(starts: Places, shards: Shards) -> list[str]:
    """What has expired before it was read: one sentence for each shard."""
    found = []
    streams = {key.partition("/")[0] for key in starts}
    for key, place in sorted(starts.items()):
        if key not in shards and not place.ended:
            found.append(f"nothing is left of shard {key}, which was read up to segment {place.number - 1}")
    for key, shard in sorted(shards.items()):
        place = starts.get(key, Place(0) if key.partition("/")[0] in streams else shard.first)
        if place.number < shard.first.number and not place.ended:
            found.append(
                f"{shard.first.number - place.number} segments of shard {key} ({place.number} to "
                f"{shard.first.number - 1}{_span(place.ms, shard.first.ms)})"
            )
    return found


def _span(from_ms: int, to_ms: int) -> str:
    since = f" after {_time(from_ms)}" if from_ms else ""
    return f"; records that arrived{since} up to {_time(to_ms)}" if to_ms else ""


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="seconds")


def kcl_lag(progress: Any) -> dict[str, dict[str, int]]:
    """Per `STREAM/SHARD`, how far a query is behind the log.

    Args:
        progress: `query.lastProgress`, a listener's `event.progress`, or its JSON.

    Returns:
        `segments` not read yet; `ms`, the arrival time from the last record read to the newest in the log;
        `daemon_ms`, how far the log itself was behind the tip of the shard, -1 if unknown. Empty before the first batch.
    """
    found: dict[str, dict[str, int]] = {}
    for source in _sources_in(progress):
        latest, end = (
            _offset_in(source.get(name)).get("shards", {}) for name in ("latestOffset", "endOffset")
        )
        for key, newest in latest.items():
            reached = end.get(key, {})
            segments = max(0, newest["next"] - reached.get("next", newest.get("first", 0)))
            waits_ms = max(0, newest["ms"] - (reached.get("ms") or newest["ms"])) if segments else 0
            found[key] = {"segments": segments, "ms": waits_ms, "daemon_ms": newest.get("behindMs", -1)}
    return found


def kcl_progress(progress: Any) -> dict[str, Any]:
    """How complete what a query has is, and what came too late for that.

    Args:
        progress: as for `kcl_lag`.

    Returns:
        `horizon_ms`: all records that arrived before are in the log, but for those of shards that were left behind; None:
        no shard says so. `held_by`: the shard that keeps it there. `left_behind`: by `STREAM/SHARD`, up to when shards
        are complete for which the query does not wait any more. `late_rows`: records that arrived before what an earlier
        batch took for complete, since the query began. `bytes`: of the batch's segments. `lag`: as of `kcl_lag`. Empty
        before the first batch.
    """
    found: dict[str, Any] = {}
    for source in _sources_in(progress):
        latest = _offset_in(source.get("latestOffset"))
        if not latest:
            continue
        if not found:
            found = {"horizon_ms": None, "held_by": None, "left_behind": {}, "late_rows": 0, "bytes": 0}
        at_ms = latest.get("horizon")
        if at_ms is not None and (found["horizon_ms"] is None or at_ms < found["horizon_ms"]):
            found.update(horizon_ms=at_ms, held_by=latest.get("heldBy"))
        found["left_behind"].update(latest.get("leftBehind", {}))
        found["late_rows"] += latest.get("lateRows", 0)
        found["bytes"] += latest.get("bytes", 0)
    return {**found, "lag": kcl_lag(progress)} if found else found


def kcl_listener(*, prometheus: str = "", cloudwatch: Any = None, namespace: str = "kcl") -> Any:
    """A listener for `spark.streams.addListener`, which tells others what `kcl_progress` says of each query.

    Args:
        prometheus: where to listen for Prometheus: `PORT` of loopback, or `ADDRESS:PORT`; port 0 takes a free one, which
            is logged. Or a file that is replaced after each batch, such as `/var/lib/node_exporter/kcl.prom`.
        cloudwatch: `boto3.client("cloudwatch")`; each query puts its metrics at most once a minute.
        namespace: of these metrics.

    Raises:
        LandingError: it cannot listen there.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener  # executors do without

    told = _Told()
    served = _LISTENS.fullmatch(prometheus)
    if served:
        _serve(told.text, served["address"] or "127.0.0.1", int(served["port"]))
    elif ":" in prometheus:
        raise LandingError(f"{prometheus} is neither PORT, ADDRESS:PORT nor a file of this machine")
    put_s: dict[str, float] = {}

    class KclListener(StreamingQueryListener):
        """A query that has ended keeps its last figures."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            told.lives(str(event.id))

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            figures = _figures_of(kcl_progress(event.progress))
            if not figures:
                return
            query = told.take(str(event.progress.id), event.progress.name, figures)
            if prometheus and not served:
                young = Path(f"{prometheus}.{os.getpid()}")
                young.write_text(told.text(), "utf-8")
                young.replace(prometheus)
            if cloudwatch is not None and _now_s() - put_s.get(query, float("-inf")) >= _CLOUDWATCH_S:
                put_s[query] = _now_s()
                named = {"Dimensions": [{"Name": "query", "Value": query}]}
                data = [{"MetricName": name, "Value": value, **named} for name, value in figures.items()]
                cloudwatch.put_metric_data(Namespace=namespace, MetricData=data)

    return KclListener()


class _Told:
    """What was told last of each query, and when it last said that it lives. Thread-safe."""

    def __init__(self) -> None:
        self._figures: dict[str, Mapping[str, float]] = {}
        self._names: dict[str, str] = {}
        self._lived_s: dict[str, float] = {}

    def take(self, query_id: str, name: str | None, figures: Mapping[str, float]) -> str:
        """The name that its figures have."""
        query = self._names[query_id] = name or query_id
        self._lived_s[query] = _now_s()
        self._figures[query] = figures
        return query

    def lives(self, query_id: str) -> None:
        if query_id in self._names:
            self._lived_s[self._names[query_id]] = _now_s()

    def text(self) -> str:
        """As Prometheus reads it."""
        now_s, known = _now_s(), dict(self._figures)
        said = {
            query: {**figures, "silent_seconds": now_s - self._lived_s[query]}
            for query, figures in known.items()
        }
        lines: list[str] = []
        for name in dict.fromkeys(name for figures in said.values() for name in figures):
            lines.append(f"# TYPE kcl_source_{name} gauge")
            for query, figures in said.items():
                if name not in figures:
                    continue
                label = query.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
                lines.append(f'kcl_source_{name}{{query="{label}"}} {figures[name]:.15g}')
        return "\n".join([*lines, ""])


def _serve(told: Callable[[], str], address: str, port: int) -> None:
    """`/metrics`, until this process ends."""
    import socket  # planners and executors do without
    from http.server import BaseHTTPRequestHandler
    from socketserver import ThreadingTCPServer
    from threading import Thread

    address = address.strip("[]")

    class Server(ThreadingTCPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        allow_reuse_address = True
        daemon_threads = True

    class Metrics(BaseHTTPRequestHandler):
        timeout = _SCRAPE_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            content = told().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its names
            """A scrape is no news."""

    try:
        server = Server((address, port), Metrics)
    except (OSError, OverflowError) as error:
        raise LandingError(
            f"the listener for Prometheus cannot listen on {address}:{port}: {error}"
        ) from error
    shown = f"[{address}]" if ":" in address else address
    _LOG.info("figures of queries are at http://%s:%s/metrics", shown, server.server_address[1])
    Thread(target=server.serve_forever, daemon=True).start()


def _listen(spark: Any) -> None:
    """Add the listeners that Spark's configuration asks for, once to each session."""
    for setting, made in _LISTENERS.items():
        value = spark.conf.get(setting, None)
        if not value:
            continue
        if (setting, value) in _listening:
            spark.streams.removeListener(_listening[setting, value])
        else:
            _listening[setting, value] = made(value)
            if tuple(map(int, spark.version.split(".")[:2])) < _FIRST_WITH_FIGURES:
                _LOG.warning("%s has no figures of Spark %s: it needs 4.2", setting, spark.version)
        spark.streams.addListener(_listening[setting, value])


def _cloudwatch_listener(namespace: str) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise LandingError("the listener for CloudWatch needs boto3 where the driver is") from error
    limits = Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 2})
    client: Any = boto3.client("cloudwatch", region_name=os.environ.get("AWS_REGION"), config=limits)
    return kcl_listener(cloudwatch=client, namespace=namespace)


_LISTENERS: dict[str, Callable[[str], Any]] = {
    "spark.kcl.listener.prometheus": lambda where: kcl_listener(prometheus=where),
    "spark.kcl.listener.cloudwatch": _cloudwatch_listener,
}
_listening: dict[tuple[str, str], Any] = {}
"""Of this process, by setting and its value."""


def _figures_of(said: Mapping[str, Any]) -> dict[str, float]:
    """Of a query, over all its shards, as far as they are known; empty if it reads no landing log."""
    if not said:
        return {}
    found = {
        "left_behind_shards": float(len(said["left_behind"])),
        "late_rows": float(said["late_rows"]),
        "batch_bytes": float(said["bytes"]),
    }
    if said["lag"]:
        found["lag_milliseconds"] = float(max(each["ms"] for each in said["lag"].values()))
        found["lag_segments"] = float(sum(each["segments"] for each in said["lag"].values()))
    if said["horizon_ms"] is not None:
        found["horizon_age_milliseconds"] = _now_ms() - said["horizon_ms"]
    return found


def _sources_in(progress: Any) -> list[dict[str, Any]]:
    text = progress if isinstance(progress, str) else getattr(progress, "json", None)
    said: Any = json.loads(text) if isinstance(text, str) else progress or {}
    found: list[dict[str, Any]] = said.get("sources", [])
    return found


def _offset_in(said: Any) -> dict[str, Any]:
    """Of another source: empty."""
    known = json.loads(said) if isinstance(said, str) else said
    return known if isinstance(known, dict) and known.get("v") == _VERSION else {}


# --- the store -------------------------------------------------------------------------------------------------------


class Store:
    """Where the log is. Paths are relative to it."""

    def __init__(self, settings: Settings) -> None:
        uri = settings.path.replace("s3a://", "s3://", 1)
        if uri.startswith("s3://") and (settings.endpoint or settings.region):
            more: dict[str, Any] = {"region": settings.region} if settings.region else {}
            if settings.endpoint:
                more["endpoint_override"] = settings.endpoint
                # Not every S3 knows checksums behind the content: some keep an empty object.
                os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
            self.files: Any = fs.S3FileSystem(**more)
            self.root = uri[len("s3://") :].rstrip("/")
        elif "://" in uri or uri.startswith("file:"):
            self.files, self.root = fs.FileSystem.from_uri(uri)
            self.root = self.root.rstrip("/")
        else:
            self.files, self.root = fs.LocalFileSystem(), str(Path(uri).absolute())

    def read(self, path: str) -> Any:
        """All bytes, as a buffer of pyarrow. FileNotFoundError."""
        with self.files.open_input_file(f"{self.root}/{path}") as file:
            return file.read_buffer()

    def content(self, path: str) -> Any:
        """As `read`, but of a local file without a copy: segments never change."""
        place = Path(self.root, path)
        if self.files.type_name != "local" or not place.stat().st_size:
            return self.read(path)
        return pa.memory_map(str(place)).read_buffer()

    def listing(self, folder: str) -> list[Any]:
        """`pyarrow.fs.FileInfo` of what is right in a folder."""
        selector = fs.FileSelector(f"{self.root}/{folder}", allow_not_found=True)
        found: list[Any] = self.files.get_file_info(selector)
        return found

    def replace(self, path: str, content: bytes) -> None:
        if self.files.type_name != "local":
            with self.files.open_output_stream(f"{self.root}/{path}") as file:
                file.write(content)
            return
        target = Path(self.root, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = target.with_name(f".{target.name}.{os.getpid()}")
        whole.write_bytes(content)
        whole.replace(target)


Checked = Callable[[Any], Any]
"""What JSON of the log says, if a lander could have written it: others can, too. Raises ValueError."""


def read_json(store: Store, path: str, checked: Checked) -> Any:
    """None if it is not there; raises Damaged."""
    try:
        content = store.read(path).to_pybytes()
    except FileNotFoundError:
        return None
    return told(path, content, lambda text: checked(json.loads(text)))


def told(path: str, said: Any, checked: Checked) -> Any:
    """Raises Damaged, with the path."""
    try:
        return checked(said)
    except RecursionError:
        raise Damaged(f"{path} is damaged (nested too deeply): run kcl-daemon landing verify") from None
    except ValueError as error:
        raise Damaged(f"{path} is damaged ({error!s:.300}): run kcl-daemon landing verify") from error


def rows_of(said: Any) -> list[Any]:
    """Rows of entries, in order; `entry_of` checks the rest of one when it is needed."""
    rows, before = _list_of(said, "entries"), -1
    for row in rows:
        if type(row) is not list or len(row) < 9 or not (type(row[0]) is type(row[1]) is int):
            raise ValueError(f"an entry that cannot be: {row!r:.200}")
        if not before < row[0] <= row[1] <= _NUMBER_MOST:
            raise ValueError(
                f"entries that are not in order: {before} and {row[0]!r:.100} to {row[1]!r:.100}"
            )
        before = row[1]
    return rows


def manifest_of(said: Any) -> dict[str, Any]:
    """Without a look at its entries."""
    manifest = _object(said, "it")
    _list_of(manifest.get("entries"), "entries")
    _within(manifest.get("atMs"), 0, _LATEST_MS, "atMs")
    if manifest.get("behindMs") is not None:
        _within(manifest["behindMs"], 0, _OPEN_MS, "behindMs")
    return manifest


def first_of(said: Any) -> Place:
    """Of what has expired."""
    first = _object(said, "it")
    number = _within(first.get("first"), 0, _NUMBER_MOST, "first")
    last = _position_of(_START if first.get("last", "") == "" else first["last"])
    return Place(number, last, _within(first.get("lastMs", 0), 0, _LATEST_MS - 1, "lastMs"))


def _position_of(said: Any) -> str:
    if isinstance(said, str) and _POSITION.fullmatch(said):
        return said
    raise ValueError(f"{said!r:.200} is no position")


def entry_of(row: Sequence[Any], path: str) -> Entry:
    """Raises Damaged."""
    entry = Entry(*row[:11])
    rows, size, first_ms, last_ms, children = (
        entry.rows,
        entry.size_bytes,
        entry.first_ms,
        entry.last_ms,
        entry.children,
    )
    if not (
        type(rows) is type(size) is type(first_ms) is type(last_ms) is int
        and 0 <= rows <= _NUMBER_MOST
        and 0 <= size <= _NUMBER_MOST
        and 0 <= first_ms < _LATEST_MS
        and 0 <= last_ms < _LATEST_MS
        and type(entry.after) is type(entry.last) is str
        and _POSITION.fullmatch(entry.after)
        and _POSITION.fullmatch(entry.last)
        and (children is None or (type(children) is list and all(map(_is_name, children))))
    ):
        raise Damaged(
            f"{path} is damaged (an entry that cannot be: {row!r:.300}): run kcl-daemon landing verify"
        )
    return entry


def _is_name(said: Any) -> bool:
    return isinstance(said, str) and bool(said) and "/" not in said


def info_of(said: Any) -> dict[str, Any]:
    info = _object(said, "it")
    known = info.get("layout") in ("log", "dated") and info.get("format") in ("parquet", "arrow")
    if info.get("version") == _VERSION and not (known and _is_name(info.get("logId"))):
        raise ValueError("layout, format or logId cannot be")
    return info


def read_info(store: Store) -> dict[str, Any]:
    info = read_json(store, "_kcl_landing.json", info_of)
    if info is None:
        raise LandingError(
            f"there is no landing log at {store.root}: _kcl_landing.json is missing. Check the path"
        )
    if info.get("version") != _VERSION:
        raise LandingError(f"the landing log has version {info.get('version')}: upgrade kcl-spark-source")
    found: dict[str, Any] = info
    return found


def page_path(key: str, number: int) -> str:
    return f"_manifests/{key}/{number // _PAGE * _PAGE:012d}.json"


def segment_path(info: Mapping[str, Any], key: str, entry: Entry) -> str:
    name = f"{entry.number:012d}" if entry.to == entry.number else f"{entry.number:012d}-{entry.to:012d}"
    if info["layout"] == "log":
        return f"{key}/{name}.{info['format']}"
    stream, _, shard = key.partition("/")
    if entry.children is not None:
        return f"{stream}/_ends/{shard}-{name}.{info['format']}"
    hour = datetime.fromtimestamp(entry.first_ms / 1000, timezone.utc)
    return f"{stream}/dt={hour:%Y-%m-%d}/hour={hour:%H}/{shard}-{name}.{info['format']}"


def read_places(store: Store, info: Mapping[str, Any], key: str, entry: Entry) -> Any:
    """Positions and arrivals of a segment's records."""
    names = [*_PLACES, *_ARRIVED]
    path = segment_path(info, key, entry)
    try:
        with store.files.open_input_file(f"{store.root}/{path}") as file:
            if info["format"] == "parquet":
                return _PARQUET.ParquetFile(file).read(columns=names)
            return pa.ipc.open_file(file).read_all().select(names)
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise Damaged(f"segment {path} is damaged ({error}): run kcl-daemon landing verify") from error


def _times_of(store: Store, info: Mapping[str, Any], key: str, entry: Entry) -> float:
    """What the end of a segment says. If it cannot be read its task will say so."""
    if info["format"] != "parquet":
        return _USUAL_TIMES
    try:
        with store.files.open_input_file(f"{store.root}/{segment_path(info, key, entry)}") as file:
            said = _PARQUET.read_metadata(file)
    except (pa.ArrowException, OSError, ValueError):
        return _USUAL_TIMES
    unpacked: int = sum(said.row_group(each).total_byte_size for each in range(said.num_row_groups))
    return max(1.0, unpacked / max(1, entry.size_bytes))


def _parts_of(table: Any, entry: Entry) -> list[Part]:
    arrived = table.column(_ARRIVED[0]).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    begun = newest = entry.first_ms
    ends: list[tuple[int, int, int]] = []
    for row, at_us in enumerate(arrived):
        now_ms = max(newest, (at_us or 0) // 1000)
        if now_ms - begun > _PART_MS and row:
            ends.append((row, begun, newest))
            begun = now_ms
        newest = now_ms
    ends.append((len(arrived), begun, newest))
    sequences, subs = (table.column(name) for name in _PLACES)
    found, before = [], 0
    for row, first_ms, last_ms in ends:
        last = (
            f"{sequences[row - 1].as_py()}/{subs[row - 1].as_py() or 0}" if row < len(arrived) else entry.last
        )
        found.append((first_ms, last, last_ms, entry.size_bytes * (row - before) // max(1, len(arrived))))
        before = row
    return found


class _Known(NamedTuple):
    """An object as it was read: its stamp in the listing, since when that is known, and whether that may be old.

    `rows`: of a manifest, its text up to the end of its entries.
    """

    stamp: tuple[int, int]
    since_s: float
    settled: bool
    content: Any
    rows: bytes = b""


def _is_settled(known: _Known | None, stamp: tuple[int, int]) -> bool:
    return known is not None and known.settled and known.stamp == stamp


def _is_said(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


def _parsed(text: bytes, before: _Known | None) -> tuple[Any, bytes]:
    """Of a manifest that begins as it did before only what has been added."""
    known = before.rows if before is not None else b""
    end = text.rfind(b'],"behindMs"')
    new = text[len(known) : end] if 0 < len(known) <= end and text.startswith(known) else b"-"
    # What follows an entry is a comma, or the end of all.
    if before is not None and known[-1:] == b"]" and new[:1] in {b"", b","}:
        content = manifest_of(json.loads(b'{"entries":[' + text[end:]))
        old, more = before.content["entries"], rows_of(json.loads(b"[" + new[1:] + b"]"))
        rows_of([*old[-1:], *more[:1]])
        content["entries"] = old + more
        return content, text[:end]
    content = manifest_of(json.loads(text))
    rows_of(content["entries"])
    return content, text[: max(0, end)]


def _first_behind(rows: Sequence[Any], number: int) -> int:
    """The place of the first entry that has this number, or is behind it."""
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if rows[middle][1] < number else (low, middle)
    return low


class Log:
    """What manifests and pages say. Reads only what has changed; never lists segments.

    Args:
        beside: read what hosts state, too.
    """

    def __init__(self, settings: Settings, *, beside: bool = False) -> None:
        self.store = Store(settings)
        self.info = read_info(self.store)
        self.id: str = self.info["logId"]
        self.shards: dict[str, Shard] = {}
        self._settings = settings
        self._pool = ThreadPoolExecutor(_THREADS)
        self._known: dict[str, _Known] = {}
        self._newest: dict[str, list[Any]] = {}
        self._written: dict[str, tuple[int, float]] = {}
        self._pages: dict[str, Future[list[Any]]] = {}
        self._parts: dict[tuple[str, int, int], list[Part]] = {}
        self._times: dict[str, tuple[int, float]] = {}
        self._listed_s = -_LISTED_S
        self._rosters_s = -_ROSTERS_S
        self._with_beside = beside
        self._beside: dict[str, _Known] = {}
        self._said: set[str] = set()
        self._since: dict[str, tuple[int, float]] = {}
        self.statements = _NOTHING_SAID

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def refresh(self) -> None:
        """Reads manifests that have changed."""
        now_s = _now_s()
        if now_s - self._listed_s < _LISTED_S:
            return
        self._listed_s = now_s
        if self._with_beside:
            self._look_beside(now_s)
        listed: dict[str, tuple[int, int]] = {}
        for stream in self._settings.streams or self._streams():
            for each in self.store.listing(f"_manifests/{stream}"):
                shard = each.base_name[: -len(".json")]
                shard = shard.removesuffix(".first")
                if each.is_file and each.base_name.endswith(".json") and self.wants(f"{stream}/{shard}"):
                    listed[f"_manifests/{stream}/{each.base_name}"] = (each.size, each.mtime_ns or 0)
        self._update(self._known, listed, self._manifest, now_s)
        self._build()
        self._since = stands_since(self._since, complete_ms(self.shards, self.statements), now_s)

    def _look_beside(self, now_s: float) -> None:
        """Before the manifests: so these are at least as new as what is said of them."""
        listed = self._listed("_marks")
        if now_s - self._rosters_s >= _ROSTERS_S:
            self._rosters_s = now_s
            listed.update(self._listed("_shards"))
        else:
            listed.update(
                (path, each.stamp) for path, each in self._beside.items() if path.startswith("_shards/")
            )
        self._update(self._beside, listed, self._statement, now_s)
        hosts, now_ms = [], _now_ms()
        for path, known in self._beside.items():
            if isinstance(known.content, Host):
                hosts.append(known.content)
                ahead_ms = known.content.at_ms - now_ms
                if ahead_ms > _AHEAD_MS:
                    self._say(
                        path,
                        f"it is of {ahead_ms / 1000:.0f} s later than now",
                        "check the clocks; till then it counts for nothing",
                    )
        rosters = {
            path[len("_shards/") : -len(".json")]: known.content
            for path, known in self._beside.items()
            if isinstance(known.content, Roster)
        }
        self.statements = statements_of(hosts, rosters, now_ms)

    def _listed(self, folder: str) -> dict[str, tuple[int, int]]:
        """The newest objects of those that others may write as they like."""
        found = [each for each in self.store.listing(folder) if each.is_file and _is_said(each.base_name)]
        found.sort(key=lambda each: each.mtime_ns or 0, reverse=True)
        if len(found) > _BESIDE:
            self._say(folder, f"there are more than {_BESIDE} objects", "the oldest count for nothing")
        stamps = {}
        for each in found[:_BESIDE]:
            path = f"{folder}/{each.base_name}"
            if each.size <= _BESIDE_BYTES:
                stamps[path] = (each.size, each.mtime_ns or 0)
            else:
                self._say(path, f"it has {each.size} bytes", "it counts for nothing")
        return stamps

    def _statement(self, path: str, content: bytes, _before: _Known | None) -> tuple[Any, bytes]:
        """Of a host or a leader, without shards that the options leave out; None if it cannot be read."""
        found: Any = None
        try:
            if path.startswith("_marks/"):
                host = host_of(content, self.id)
                if host.refused:
                    self._say(
                        path,
                        f"{len(host.refused)} marks cannot be: {host.refused[0]}",
                        "they count for nothing",
                    )
                found = host._replace(
                    marks={key: each for key, each in host.marks.items() if self.wants(key)}
                )
            else:
                roster = roster_of(content, self.id, path[len("_shards/") : -len(".json")])
                wanted = {key: parents for key, parents in roster.shards.items() if self.wants(key)}
                found = roster._replace(shards=wanted)
        except ValueError as error:
            self._say(path, f"it cannot be read: {error!s:.300}", "it counts for nothing")
        return found, b""

    def _say(self, path: str, what: str, so: str) -> None:
        """Once for each object."""
        if path not in self._said:
            self._said.add(path)
            _LOG.warning("%s of the landing log: %s; %s", path, what, so)

    def _manifest(self, path: str, content: bytes, before: _Known | None) -> tuple[Any, bytes]:
        if path.endswith(".first.json"):
            return told(path, content, lambda text: first_of(json.loads(text))), b""
        found: tuple[Any, bytes] = told(path, content, lambda text: _parsed(text, before))
        return found

    def _update(
        self,
        known: dict[str, _Known],
        listed: Mapping[str, tuple[int, int]],
        parse: Callable[[str, bytes, _Known | None], tuple[Any, bytes]],
        now_s: float,
    ) -> None:
        """Reads objects that have changed."""
        due = [path for path, stamp in listed.items() if not _is_settled(known.get(path), stamp)]
        for path, content in zip(due, self._pool.map(self._content, due)):
            before, stamp = known.get(path), listed[path]
            if content is None:
                known.pop(path, None)
                continue
            since_s = before.since_s if before is not None and before.stamp == stamp else now_s
            known[path] = _Known(stamp, since_s, now_s - since_s >= _SETTLED_S, *parse(path, content, before))
        for path in known.keys() - listed.keys():
            del known[path]

    def _content(self, path: str) -> bytes | None:
        try:
            content: bytes = self.store.read(path).to_pybytes()
        except FileNotFoundError:
            return None
        return content

    @property
    def wait_ms(self) -> int:
        """Longer than a fail-over, unless an option says otherwise."""
        if self._settings.wait_ms is not None:
            return self._settings.wait_ms
        return max([_WAIT_MS, *(4 * roster.failover_ms for roster in self.statements.rosters.values())])

    def leave(self, left: Mapping[str, int]) -> None:
        """Shards that a query had left behind before it began anew, if they are where they were."""
        for key, ms in left.items():
            known = self._since.get(key)
            if known is not None and known[0] <= ms:
                self._since[key] = (known[0], float("-inf"))

    def horizon(self, *, by_clocks: bool = False) -> Horizon:
        """`by_clocks`: shards of which hosts have said nothing for long have been waited for, too."""
        if not self.wait_ms:
            return _NO_HORIZON
        now_s = _now_s()
        still = {key: (now_s - since_s) * 1000 for key, (_, since_s) in self._since.items()}
        if by_clocks:
            spoken_ms = self._spoken_ms()
            still = {key: max(ms, _now_ms() - spoken_ms.get(key, _OPEN_MS)) for key, ms in still.items()}
        return horizon_ms(self.shards, self.wait_ms, self.statements, still)

    def _spoken_ms(self) -> dict[str, int]:
        """When hosts last spoke of a shard, and of any shard of a stream.

        A leader of an older version writes no roster. Hosts that speak for long without one count as if they were silent.
        """
        found: dict[str, int] = {}
        alone_ms: dict[str, int] = {}
        for known in self._beside.values():
            if isinstance(known.content, Host):
                at_ms, since_ms = known.content.at_ms, known.content.since_ms
                streams = {key.partition("/")[0] for key in known.content.marks}
                for key in [*known.content.marks, *(f"{stream}/*" for stream in streams)]:
                    found[key] = max(found.get(key, 0), at_ms)
                for each in streams:
                    alone_ms[each] = max(alone_ms.get(each, 0), at_ms - since_ms.get(each, at_ms))
        for stream, ms in alone_ms.items():
            found[f"{stream}/*"] = min(found[f"{stream}/*"], round(_now_ms()) - ms)
        for key, (at_ms, _) in self._written.items():
            found[key] = max(found.get(key, 0), at_ms)
        return found

    def _streams(self) -> list[str]:
        return [each.base_name for each in self.store.listing("_manifests") if not each.is_file]

    def wants(self, key: str) -> bool:
        """By the options."""
        stream, _, shard = key.partition("/")
        streams, shards = self._settings.streams, self._settings.shards
        return not shard.startswith(".") and stream in (streams or [stream]) and shard in (shards or [shard])

    def _build(self) -> None:
        self.shards, self._newest = {}, {}
        for path, known in self._known.items():
            if path.endswith(".first.json"):
                continue
            key = path[len("_manifests/") : -len(".json")]
            expired = self._known.get(f"{path[: -len('.json')]}.first.json")
            first = expired.content if expired is not None else Place(0)
            self._newest[key] = known.content["entries"]
            self.shards[key] = self._shard(key, known.content, first)

    def _shard(self, key: str, manifest: Mapping[str, Any], first: Place) -> Shard:
        at_ms, stream = manifest["atMs"], key.partition("/")[0]
        if self._written.get(key, (None,))[0] != at_ms:
            self._written[key] = (at_ms, _now_s())
        # By the writer's clock, and by ours if the two differ.
        silent_ms = max(_now_ms() - at_ms, (_now_s() - self._written[key][1]) * 1000)
        end = first
        children: tuple[str, ...] = ()
        rows = manifest["entries"]
        if rows:
            last = entry_of(rows[-1], f"_manifests/{key}.json")
            before_ms = entry_of(rows[-2], f"_manifests/{key}.json").last_ms if len(rows) > 1 else 0
            end = behind(last, Place(0, ms=max(last.first_ms, before_ms)))
            names = [f"{stream}/{each}" for each in last.children or ()]
            children = tuple(each for each in names if self.wants(each))
        return Shard(end, children, manifest.get("behindMs"), silent_ms, first, manifest.get("marks") is True)

    def entries(self, key: str, number: int) -> Iterator[Entry]:
        """From the segment on that has this number. Raises DataLoss or Damaged if there is a gap."""
        rows = self._newest[key]
        newest = rows[0][0] // _PAGE * _PAGE if rows else 0
        low = self.shards[key].first.number // _PAGE * _PAGE
        page = min(number // _PAGE * _PAGE, newest)
        # A segment that compaction has merged may begin in a page before.
        while page > low and not self._begins(key, page, newest, number):
            page -= _PAGE
        place = page
        while place <= newest:
            path = f"_manifests/{key}.json" if place == newest else page_path(key, place)
            if place + _PAGE < newest:
                self._want(key, place + _PAGE)
            there = rows if place == newest else self._page(key, place)
            for row in there[_first_behind(there, number) :]:
                self._refuse_gap(key, number, row[0])
                yield entry_of(row, path)
                number = row[1] + 1
            if not there and place < newest:
                self._refuse_gap(key, number, place + _PAGE)
            place = max(place + _PAGE, number // _PAGE * _PAGE)

    def _begins(self, key: str, page: int, newest: int, number: int) -> bool:
        rows = self._newest[key] if page == newest else self._page(key, page)
        return bool(rows) and rows[0][0] <= number

    def _refuse_gap(self, key: str, number: int, found: int) -> None:
        if found <= number:
            return
        expired = read_json(self.store, f"_manifests/{key}.first.json", first_of)
        if expired is not None and expired.number > number:
            raise DataLoss(
                f"segments {number} to {found - 1} of shard {key} have expired before they were read"
            )
        raise Damaged(
            f"the pages of shard {key} lack the segments {number} to {found - 1}: run kcl-daemon landing verify"
        )

    def parts(self, key: str, entry: Entry) -> list[Part]:
        """Compaction merges what arrived within hours, and windows were longer once; a batch must be able to end there."""
        whole_ms = self.statements.reach_ms or (_OPEN_MS if entry.to == entry.number else 2 * _PART_MS)
        if entry.last_ms - entry.first_ms <= whole_ms:
            return _whole(key, entry)
        place = (key, entry.number, entry.to)
        if place not in self._parts:
            while len(self._parts) > 4 * len(self.shards) + _PAGE:
                del self._parts[next(iter(self._parts))]
            table = self._places(Piece(key, entry, entry.after, entry.last))
            self._parts[place] = _parts_of(table, entry)
        return self._parts[place]

    def _places(self, piece: Piece) -> Any:
        """Positions and arrivals of a piece, also where compaction has replaced its segment."""
        try:
            found = [read_places(self.store, self.info, piece.key, piece.entry)]
        except FileNotFoundError:
            its = [each for each in _now_in_log(self.store, piece) if each.rows and each != piece.entry]
            found = [read_places(self.store, self.info, piece.key, each) for each in its]
            if not found:
                raise DataLoss(_gone(self.info, piece)) from None
        return _cut(pa.concat_tables(found), position(piece.after), position(piece.last))

    def late_rows(self, piece: Piece, before_ms: int) -> int:
        """Records of a piece that arrived before this time."""
        entry = piece.entry
        if not entry.last_ms or entry.first_ms >= before_ms:
            return 0
        if entry.last_ms < before_ms and not piece.cut:
            return entry.rows
        arrived = self._places(piece).column(_ARRIVED[0]).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        return _COMPUTE.sum(_COMPUTE.less(arrived, _one(pa.int64(), before_ms * 1000)[0])).as_py() or 0

    def weighed(self, its_pieces: Sequence[Piece]) -> list[Piece]:
        """With their sizes in memory, as a segment of each shard says once in a while, a few in each batch."""
        if sum(each.entry.size_bytes for each in its_pieces) * _MOST_TIMES < _TASK_BYTES:
            return list(its_pieces)
        largest = {
            each.key: each.entry for each in sorted(its_pieces, key=lambda each: each.entry.size_bytes)
        }
        due = [
            (key, entry)
            for key, entry in largest.items()
            if key not in self._times or entry.number >= self._times[key][0] + _PAGE
        ]
        due = sorted(due, key=lambda each: -each[1].size_bytes)[:_THREADS]
        found: Iterable[float] = ()
        if due:
            found = self._pool.map(partial(_times_of, self.store, self.info), *zip(*due))
        self._times.update({key: (entry.number, times) for (key, entry), times in zip(due, found)})
        usual = sum(times for _, times in self._times.values()) / len(self._times)
        return [each._replace(times=self._times.get(each.key, (0, usual))[1]) for each in its_pieces]

    def prefetch(self, places: Places) -> None:
        """Reads, side by side, the pages in which these shards begin."""
        for key, place in places.items():
            rows = self._newest.get(key)
            if rows and place.number // _PAGE * _PAGE < rows[0][0] // _PAGE * _PAGE:
                self._want(key, place.number)

    def seek(self, key: str, at_ms: int) -> Place:
        """The first segment that has records which arrived at this time or later."""
        first, rows = self.shards[key].first, self._newest[key]
        low, high = first.number // _PAGE, rows[0][0] // _PAGE if rows else 0
        while low < high:
            middle = (low + high + 1) // 2
            there = rows if middle * _PAGE == rows[0][0] // _PAGE * _PAGE else self._page(key, middle * _PAGE)
            if there and entry_of(there[0], page_path(key, middle * _PAGE)).first_ms >= at_ms:
                high = middle - 1
            else:
                low = middle
        place: Place | None = None
        for entry in self.entries(key, max(first.number, low * _PAGE)):
            place = place or Place(entry.number, entry.after)
            if entry.last_ms >= at_ms or not entry.last_ms:
                return place
            place = behind(entry, place)
        return place or first

    def seek_all(self, keys: Sequence[str], at_ms: int) -> dict[str, Place]:
        with ThreadPoolExecutor(_THREADS) as seekers:
            return dict(zip(keys, seekers.map(partial(self.seek, at_ms=at_ms), keys)))

    def _want(self, key: str, number: int) -> Future[list[Any]]:
        path = page_path(key, number)
        found = self._pages.get(path)
        if found is None:
            for _ in range(len(self._pages) - 2 * len(self.shards) - _PAGE):
                self._pages.pop(next(iter(self._pages)), None)
            found = self._pages[path] = self._pool.submit(self._read_page, path)
        return found

    def _read_page(self, path: str) -> list[Any]:
        rows: list[Any] = read_json(self.store, path, rows_of) or []
        return rows

    def _page(self, key: str, number: int) -> list[Any]:
        found = self._want(key, number)
        try:
            return found.result()
        except BaseException:
            self._pages.pop(page_path(key, number), None)
            raise


# --- reading, in executors -------------------------------------------------------------------------------------------


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, info: Mapping[str, Any], its_pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.info = {name: info[name] for name in ("layout", "format")}
        self.pieces = [(each.key, tuple(each.entry), *each[2:]) for each in its_pieces]


class Idle(InputPartition):
    """A row without data, for a time up to which nothing else has come."""

    def __init__(self, at_ms: int) -> None:
        super().__init__(None)
        self.idle_ms = at_ms


def read_task(settings: Settings, names: Sequence[str], partition: Any) -> Iterator[Any]:
    """Arrow batches; `names` are the columns that Spark wants."""
    store, info = Store(settings), partition.info
    its_pieces = [Piece(key, Entry(*entry), *rest) for key, entry, *rest in partition.pieces]
    by_time = settings.start_ms is not None or settings.end_ms is not None
    for piece, segments in _ahead(its_pieces, lambda piece: fetch(store, info, piece)):
        same = {name: _one(pa.string(), said)[0] for name, said in zip(_SAME, piece.key.split("/"))}
        for entry, content in segments:
            path = segment_path(info, piece.key, entry)
            narrowed = piece.cut or entry != piece.entry
            wanted = [*names, *(_PLACES if narrowed else ()), *(_ARRIVED if by_time else ())]
            stored = [name for name in dict.fromkeys(wanted) if name not in _SAME] or [_PLACES[1]]
            try:
                for batch in _decoded(content, entry, piece.key, info["format"], stored):
                    whole = (
                        batch if not narrowed else _cut(batch, position(piece.after), position(piece.last))
                    )
                    kept = _arrived(whole, settings.start_ms, settings.end_ms)
                    if kept.num_rows:
                        yield _as_wanted(kept, names, same)
            except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
                raise Damaged(
                    f"segment {path} is damaged ({error}): run kcl-daemon landing verify"
                ) from error


def _ahead(
    its_pieces: Sequence[Piece], get: Callable[[Piece], list[tuple[Entry, Any]]]
) -> Iterator[tuple[Piece, list[tuple[Entry, Any]]]]:
    """Fetches the next segments while these are handed over."""
    waiting: deque[tuple[Piece, Future[list[tuple[Entry, Any]]]]] = deque()
    todo, size = deque(its_pieces), 0
    with ThreadPoolExecutor(8) as pool:
        while todo or waiting:
            while todo and (len(waiting) < 2 or (size < _AHEAD_BYTES and len(waiting) < 16)):
                piece = todo.popleft()
                size += piece.entry.size_bytes
                waiting.append((piece, pool.submit(get, piece)))
            piece, coming = waiting.popleft()
            size -= piece.entry.size_bytes
            yield piece, coming.result()


def fetch(store: Store, info: Mapping[str, Any], piece: Piece) -> list[tuple[Entry, Any]]:
    """The segment, or those that have its records since compaction replaced it. Raises Damaged, DataLoss."""
    try:
        return [(piece.entry, _content(store, info, piece.key, piece.entry))]
    except FileNotFoundError:
        found = [entry for entry in _now_in_log(store, piece) if entry != piece.entry]
    if not found:
        raise DataLoss(_gone(info, piece))
    return [(entry, _content(store, info, piece.key, entry)) for entry in found if entry.rows]


def _gone(info: Mapping[str, Any], piece: Piece) -> str:
    return (
        f"segment {segment_path(info, piece.key, piece.entry)} is not there any more, and no other has its "
        "records: has it expired? Run kcl-daemon landing verify"
    )


def _now_in_log(store: Store, piece: Piece) -> list[Entry]:
    """Entries with the numbers of a piece, as pages say now; a merged one may begin in an earlier page."""
    first, last, entry = position(piece.after), position(piece.last), piece.entry
    found: list[Entry] = []
    for number in range(entry.to // _PAGE * _PAGE, -1, -_PAGE):
        path = page_path(piece.key, number)
        rows = read_json(store, path, rows_of)
        if rows is None:
            path = f"_manifests/{piece.key}.json"
            rows = read_json(store, path, lambda said: rows_of(manifest_of(said)["entries"])) or []
        there = [entry_of(row, path) for row in rows if row[1] >= entry.number and row[0] <= entry.to]
        found = [
            each for each in there if position(each.last) > first and position(each.after) < last
        ] + found
        if not rows or rows[0][0] <= entry.number:
            break
    return found


def _content(store: Store, info: Mapping[str, Any], key: str, entry: Entry) -> Any:
    path = segment_path(info, key, entry)
    content = store.content(path)
    if content.size != entry.size_bytes:
        raise Damaged(
            f"segment {path} has {content.size} bytes instead of {entry.size_bytes}: run kcl-daemon landing verify"
        )
    # Pages of Parquet have checksums of their own, which Arrow checks faster.
    if info["format"] == "arrow" and zlib.crc32(content) != entry.crc:
        raise Damaged(f"segment {path} is not as it was written: run kcl-daemon landing verify")
    return content


def _decoded(content: Any, entry: Entry, key: str, kind: str, wanted: Sequence[str]) -> Iterator[Any]:
    if kind == "parquet":
        file = _PARQUET.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        _check(file.metadata.metadata, entry, key)
        size = sum(
            file.metadata.row_group(each).total_byte_size for each in range(file.metadata.num_row_groups)
        )
        rows = max(64, _ARROW_BYTES * max(1, entry.rows) // max(1, size))
        yield from file.iter_batches(batch_size=rows, columns=wanted, use_threads=False)
        return
    with pa.ipc.open_file(pa.BufferReader(content)) as reader:
        _check(reader.schema.metadata, entry, key)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            rows = max(64, _ARROW_BYTES * batch.num_rows // max(1, batch.nbytes))
            for begin in range(0, batch.num_rows, rows):
                yield batch.slice(begin, rows)


def _check(metadata: Mapping[bytes, bytes], entry: Entry, key: str) -> None:
    said = json.loads(metadata[b"kcl.segment"])
    found = f"{said['stream']}/{said['shard']}", said["number"], said["to"], said["last"], said["rows"]
    if found != (key, entry.number, entry.to, entry.last, entry.rows):
        raise ValueError(f"it says that it is {found}")


def _cut(batch: Any, after: tuple[int, int], last: tuple[int, int]) -> Any:
    sequences, subs = batch.column("sequence_number"), batch.column("sub_sequence_number")

    def up_to(where: tuple[int, int]) -> int:
        low, high = 0, batch.num_rows
        while low < high:
            middle = (low + high) // 2
            if (int(sequences[middle].as_py()), int(subs[middle].as_py() or 0)) <= where:
                low = middle + 1
            else:
                high = middle
        return low

    begin = up_to(after)
    return batch.slice(begin, max(0, up_to(last) - begin))


def _arrived(batch: Any, start_ms: int | None, end_ms: int | None) -> Any:
    """Records of unknown arrival are kept."""
    if start_ms is None and end_ms is None:
        return batch
    arrived = (
        batch.column("approximate_arrival_timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    )
    keep = _COMPUTE.greater_equal(arrived, _one(pa.int64(), (start_ms or 0) * 1000)[0])
    if end_ms is not None:
        keep = _COMPUTE.and_(keep, _COMPUTE.less(arrived, _one(pa.int64(), end_ms * 1000)[0]))
    keep = _COMPUTE.or_kleene(keep, _COMPUTE.is_null(arrived))
    return batch if _COMPUTE.all(keep).as_py() else batch.filter(keep)


def _one(kind: Any, value: str | int) -> Any:
    """An array of one. `pa.array`, `pa.scalar` and `pa.repeat` of text import pandas: that takes as long as a GB of records."""
    if isinstance(value, str):
        text = value.encode()
        buffers = [array("i", [0, len(text)]), text]
    else:
        buffers = [array("q", [value])]
    return pa.Array.from_buffers(kind, 1, [None, *map(pa.py_buffer, buffers)])


def _as_wanted(batch: Any, names: Sequence[str], same: Mapping[str, Any]) -> Any:
    """Columns as Spark's schema has them; how a segment stores them does not matter."""
    arrays = []
    for name in names:
        if name in same:
            arrays.append(pa.repeat(same[name], batch.num_rows))
            continue
        kind = _TYPES.get(name, _TEXT)[1]
        column = batch.column(name)
        arrays.append(column if column.type == kind else column.cast(kind))
    return arrays


def _now_s() -> float:
    return time.monotonic()  # noqa: TID251 - a program of its own in Spark: there is no port


def _now_ms() -> float:
    return time.time() * 1000  # noqa: TID251


# --- what Spark calls ------------------------------------------------------------------------------------------------


def register(spark: Any, using: Callable[[Any, type[DataSource]], object] | None = None) -> None:
    """So that `format("kcl")` works, also where executors or a Connect server do not have this file.

    Adds the listeners of `spark.kcl.listener.prometheus` and `spark.kcl.listener.cloudwatch`, once to each session.
    Spark 4.0 keeps the source that it has found in `pyspark_kcl`, newer ones take this one; `using` registers it.
    """
    from pyspark import cloudpickle

    by_value: Any = cloudpickle.register_pickle_by_value
    by_value(sys.modules[KclDataSource.__module__])
    try:
        (using or _registered)(spark, source_for(spark))
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        _LOG.info(
            "Spark knows kcl from pyspark_kcl; a batch has %s tasks unless minTasks says more", _UNKNOWN_CORES
        )
    _listen(spark)


def _registered(spark: Any, source: type[DataSource]) -> None:
    spark.dataSource.register(source)


def source_for(spark: Any) -> type[KclDataSource]:
    """The data source that knows how many tasks this Spark can run at once."""
    return type("KclDataSource", (KclDataSource,), {"cores": cores_of(spark)})


def cores_of(spark: Any) -> int:
    """Those that run tasks now or, with dynamic allocation, at most; a Connect client knows none."""
    try:
        context = spark.sparkContext
        configured = dict(context.getConf().getAll())
    except Exception:  # noqa: BLE001 - Connect, Databricks and others refuse it, each with an error of its own
        return _UNKNOWN_CORES
    grown = 0
    if configured.get("spark.dynamicAllocation.enabled") == "true":
        executors = configured.get("spark.dynamicAllocation.maxExecutors", "")
        grown = int(executors or 0) * int(configured.get("spark.executor.cores", "1"))
    return max(1, int(context.defaultParallelism), grown)


class KclDataSource(DataSource):
    """The data source `kcl`; the options are at the top of this file."""

    cores = _UNKNOWN_CORES

    @classmethod
    def name(cls) -> str:
        return "kcl"

    def schema(self) -> str:
        kind = self.options.get("columns", "kcl")
        if kind not in {"kcl", "aws"}:
            raise LandingError(f"columns is kcl or aws, not {kind}")
        columns = [
            f"{theirs if kind == 'aws' else ours} {_TYPES.get(ours, _TEXT)[0]}"
            for ours, theirs in _NAMES.items()
        ]
        if comment := table_comment(self.options):
            columns[0] += f" COMMENT '{comment}'"
        return ", ".join(columns)

    def reader(self, schema: StructType) -> KclReader:
        return KclReader(self._settings(schema), schema.fieldNames())

    def streamReader(self, schema: StructType) -> KclStreamReader:  # noqa: N802 - Spark's name
        return KclStreamReader(self._settings(schema), schema.fieldNames())

    def _settings(self, schema: StructType) -> Settings:
        return settings_of(of_table(self.options, schema), self.cores)


class _Columns:
    """The columns of the log that stand for Spark's."""

    def __init__(self, settings: Settings, asked: Sequence[str]) -> None:
        unknown = [name for name in asked if name not in _OURS]
        if unknown:
            raise LandingError(f"there is no column {', '.join(unknown)}; there are {', '.join(_NAMES)}")
        self.settings = settings
        self._names = [_OURS[name] for name in asked]
        self._asked = list(asked)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow batches."""
        types = [_TYPES.get(name, _TEXT)[1] for name in self._names]
        schema = pa.schema(list(zip(self._asked, types)))
        idle_ms = getattr(partition, "idle_ms", None)  # its class may be another copy of ours
        if idle_ms is not None:
            arrays = [
                _one(kind, idle_ms * 1000) if name in _ARRIVED else pa.nulls(1, kind)
                for name, kind in zip(self._names, types)
            ]
            yield pa.record_batch(arrays, schema=schema)
            return
        if not hasattr(partition, "pieces"):  # Spark's own, of a read that has no task
            return
        for arrays in read_task(self.settings, self._names, partition):
            yield pa.record_batch(arrays, schema=schema)


class _Pushed:
    """`pushFilters` of a reader.

    Spark refuses a source that has one of its own while `spark.sql.python.filterPushdown.enabled` is false, its default.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", len))

    def __init__(self, reader: KclReader) -> None:
        self._reader = reader

    def __call__(self, conditions: Sequence[Any]) -> Sequence[Any]:
        return self._reader.narrow(conditions)


class KclReader(_Columns, DataSourceReader):
    """A batch read: what the log has now."""

    only = Only()

    @property
    def pushFilters(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # noqa: N802
        return _Pushed(self)

    def narrow(self, conditions: Sequence[Any]) -> Sequence[Any]:
        """Reads fewer segments; returns what Spark must still ask of each record, which is all."""
        for each in conditions if self.settings.push else ():
            self.only = narrowed(self.only, each)
        return conditions

    def partitions(self) -> list[InputPartition]:
        settings = self.only.within(self.settings)
        if self.settings.latest:
            raise LandingError("a batch read of what comes later has no records: leave out startingPosition")
        if settings is None:
            return []
        log = Log(settings)
        log.refresh()
        keys = generations(log.shards)
        with ThreadPoolExecutor(_THREADS) as readers:
            found = [each for part in readers.map(partial(self._pieces, log), keys) for each in part]
        found = log.weighed(found)
        log.close()
        count = task_count(found, settings.min_tasks, settings.max_tasks)
        return [Task(log.info, each) for each in in_order(found, count)]

    def _pieces(self, log: Log, key: str) -> list[Piece]:
        settings, shard = self.settings, log.shards[key]
        since_ms = max(settings.start_ms or 0, self.only.from_ms - _DISORDER_MS)
        start = log.seek(key, since_ms) if since_ms > 0 else shard.first
        end_ms = _OPEN_MS if settings.end_ms is None else settings.end_ms
        whole = pieces(key, start, shard.end, log.entries)
        return [each for each in whole if each.entry.first_ms < end_ms and self.only.has(each.entry)]


class KclStreamReader(_Columns, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are those of `to_offset`. Lives in one thread of one process on the driver."""

    def __init__(self, settings: Settings, asked: Sequence[str]) -> None:
        super().__init__(settings, asked)
        self._forget()

    def _forget(self) -> None:
        self._log: Log | None = None
        self._end: dict[str, Any] | None = None
        self._until: Horizon | None = None
        self._noted: tuple[float, dict[str, int] | None] = (0.0, None)
        self._done: dict[str, int] | None = None
        self._said: set[str] = set()
        self._resumed = False
        self._bytes = 0
        self._left: set[str] = set()
        self._reached = _NO_HORIZON

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need the options only."""
        return {"settings": self.settings, "_names": self._names, "_asked": self._asked}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins, with every shard that is there."""
        log = self._seen(again=self._until is None)
        places = {
            key: shard.end if self.settings.latest else shard.first for key, shard in log.shards.items()
        }
        if self.settings.start_ms is not None:
            places = log.seek_all(list(log.shards), self.settings.start_ms)
        self._end = to_offset(log.id, places, initial=True)
        return self._end

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Up to 4.1 Spark gives neither; the batch then begins where the last one has ended."""
        log = self._seen(again=self._until is None)
        begun = self._end if start is None else start
        if begun is None:
            everything = {key: shard.end for key, shard in log.shards.items()}
            self._end = to_offset(log.id, everything)
            return self._end
        most = self.settings.max_bytes if limit is None else getattr(limit, "max_bytes", 0)
        self._end = self._planned(log, begun, most or None)
        return self._end

    def _planned(self, log: Log, begun: dict[str, Any], most_bytes: int | None) -> dict[str, Any]:
        before = self._places(begun, log)
        starts = self._starts(log, before)
        self._note({key: place.number for key, place in before.items()}, first=True)
        log.prefetch(starts)
        horizon = self._horizon(log, begun)
        limits: dict[str, Any] = {
            "most_bytes": most_bytes,
            "horizon": horizon,
            "end_ms": self.settings.end_ms,
        }
        reached = plan(starts, log.shards, log.entries, parts=log.parts, **limits)
        idle = {} if reached != starts else self._idle(before, begun, horizon)
        if reached == starts and not idle:
            return begun
        # Spark does not keep where a query began. Its first batch, if done again, must begin there all the same.
        more = {"from": begun["shards"]} if begun.get("initial") else {}
        more.update(idle)
        more.update(self._complete(log, begun, starts, reached))
        if horizon.left:
            more["left"] = dict(horizon.left)
        return to_offset(log.id, reached, **more)

    def _horizon(self, log: Log, begun: Mapping[str, Any]) -> Horizon:
        if not self._resumed:
            self._resumed = True
            log.leave(begun.get("left", {}))
            if self._until is not None:
                self._until = log.horizon(by_clocks=True)
        self._reached = log.horizon() if self._until is None else self._until
        new = [key for key in sorted(self._reached.left) if key not in self._left]
        self._left = set(self._reached.left)
        if new:
            left = {key: self._reached.left[key] for key in new[:5]}
            few = ", ".join(
                f"{key} (up to {_time(ms) if ms else 'no known time'})" for key, ms in left.items()
            )
            _LOG.warning(
                "%d shards are left behind, as they have not become more complete for %d ms: %s. The others go on; what "
                "these still get is counted as late rows",
                len(new),
                log.wait_ms,
                few,
            )
        return self._reached

    def _complete(
        self, log: Log, begun: Mapping[str, Any], starts: Places, reached: Places
    ) -> dict[str, int]:
        """`h`, before which no further record should come, and `late`, how many have come nevertheless so far."""
        before_ms, late = begun.get("h", 0), begun.get("late", 0)
        moved = [key for key, place in reached.items() if place != starts[key]]
        newest_ms = max((reached[key].ms for key in moved), default=0)
        h_ms = max(before_ms, newest_ms - log.statements.reach_ms) if log.statements.reach_ms else before_ms
        for key in moved if before_ms else ():
            for piece in pieces(key, starts[key], reached[key], log.entries):
                late += log.late_rows(piece, before_ms)
        return {name: value for name, value in (("h", h_ms), ("late", late)) if value}

    def _idle(self, before: Places, begun: Mapping[str, Any], horizon: Horizon) -> dict[str, int]:
        """A row without data, of the horizon: so that a watermark goes on where no record comes."""
        given_ms = max([begun.get("idle", 0), *(place.ms for place in before.values())])
        if self.settings.idle and horizon.stated and horizon.ms >= given_ms + _IDLE_MS:
            return {"idle": horizon.ms}
        return {}

    @staticmethod
    def _places(offset: Mapping[str, Any], log: Log) -> dict[str, Place]:
        """Without shards that the options leave out since."""
        return {key: place for key, place in from_offset(offset, log.id).items() if log.wants(key)}

    def _starts(self, log: Log, before: Places) -> dict[str, Place]:
        """A place for each shard in the log. Raises DataLoss."""
        gone = lost(before, log.shards)
        if gone and self.settings.fail:
            raise DataLoss(
                f"expired before they were read: {'; '.join(gone)}. Set failOnDataLoss to false to go on without "
                "them; with the option reader, kcl-daemon landing expire waits for this query"
            )
        for message in set(gone) - self._said:
            _LOG.warning("expired before they were read: %s", message)
        self._said |= set(gone)
        new = [key for key in log.shards if key not in before]
        found = {key: log.shards[key].first for key in new}
        if self.settings.start_ms is not None and new:
            found = log.seek_all(new, self.settings.start_ms)
        for key, place in before.items():
            if key in log.shards:
                found[key] = (
                    place if place.ended else max(place, log.shards[key].first, key=lambda each: each.number)
                )
        return found

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Everything in the log now, up to what may be read now."""
        log = self._seen(again=True)
        self._until = log.horizon(by_clocks=True)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return ReadMaxBytes(self.settings.max_bytes) if self.settings.max_bytes else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest in the log, for the query's progress; see `kcl_lag` and `kcl_progress`."""
        if self._log is None:
            return None
        offset = to_offset(self._log.id, {key: shard.end for key, shard in self._log.shards.items()})
        for key, shard in self._log.shards.items():
            offset["shards"][key]["first"] = shard.first.number
            if shard.behind_ms is not None:
                offset["shards"][key]["behindMs"] = shard.behind_ms
        if self._reached.holder:
            offset.update(horizon=self._reached.ms, heldBy=self._reached.holder)
        late = (self._end or {}).get("late", 0)
        return {**offset, "leftBehind": dict(self._reached.left), "lateRows": late, "bytes": self._bytes}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        log = self._seen(again=False)
        self._end = end
        first = {**start, "shards": end["from"]} if "from" in end else start
        starts, ends = self._starts(log, self._places(first, log)), self._places(end, log)
        keys = [key for key in sorted(ends) if key in starts]
        every = log.weighed(
            [each for key in keys for each in pieces(key, starts[key], ends[key], log.entries)]
        )
        self._bytes = sum(piece.entry.size_bytes for piece in every)
        count = task_count(every, self.settings.min_tasks, self.settings.max_tasks)
        shards = [list(its) for _, its in groupby(every, key=lambda each: each.key)]
        tasks = in_order(every, count) if self.settings.split else balanced(shards, count)
        found: list[InputPartition] = [Task(log.info, each) for each in tasks]
        return [*found, Idle(end["idle"])] if "idle" in end else found

    def commit(self, end: dict[str, Any]) -> None:
        """Called when the next batch is planned, so the note of a reader is one batch late."""
        self._note({key: place["next"] for key, place in end["shards"].items()})

    def stop(self) -> None:
        if self._done is not None and self._log is not None:
            self._note(self._done, now=True)
        if self._log is not None:
            self._log.close()

    def _seen(self, *, again: bool) -> Log:
        if self._log is None:
            self._log, again = Log(self.settings, beside=True), True
        if again:
            self._log.refresh()
        return self._log

    def _note(self, done: dict[str, int], *, first: bool = False, now: bool = False) -> None:
        if not self.settings.reader or self._log is None or (first and self._done is not None):
            return
        self._done = done
        written_s, written = self._noted
        if done == written or not (now or written is None or _now_s() - written_s >= _NOTE_S):
            return
        note = {"name": self.settings.reader, "done": done, "atMs": int(_now_ms()), "version": _VERSION}
        self._log.store.replace(f"_readers/{self.settings.reader}.json", json.dumps(note).encode())
        self._noted = _now_s(), done
