"""Write a DataFrame into a Kinesis stream: `df.write.format("kinesis")`, `df.writeStream.format("kinesis")`.

One file for Spark 4.0 and newer, for `--py-files` too. The workers need boto3. `register(spark)` makes the format known.

    stream.writeStream.format("kinesis").option("streamName", "orders").option("checkpointLocation", ...).start()

Columns: `data` (binary or string); `partition_key` (without it each record goes to a shard by chance) and
`explicit_hash_key`, both optional; also as `partitionKey` and `explicitHashKey`. At least once: Spark repeats a task or a
batch that failed, and Kinesis takes the records again.

Options:
    streamName or streamARN, region, endpoint: where to.
    aggregate: `true` packs records of one key into KPL aggregates, which KCL takes apart again. Default false.
    aggregateMaxBytes: default 51200.
    ordered: records of a key arrive in the order of their rows within a partition of the DataFrame. For that a request
        has one entry of a key at most, so give a busy key `aggregate` too. Default true.
    timeoutSeconds: how long nothing may get through before the task fails. Default 300.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

FORMAT = "kinesis"
_MOST_ENTRIES = 500
_MOST_REQUEST_BYTES = 5 * 1024 * 1024
_MOST_ENTRY_BYTES = 10 * 1024 * 1024
_WAITING_ENTRIES = 4_000
_WAITING_BYTES = 16 * 1024 * 1024
_LONGEST_PAUSE_S = 5.0
_MAGIC = b"\xf3\x89\x9a\xc2"
_NAMES = {
    "data": "data",
    "partition_key": "key",
    "partitionKey": "key",
    "explicit_hash_key": "hash_key",
    "explicitHashKey": "hash_key",
}


class NotWritten(Exception):
    """Raised when Kinesis did not take records; Spark repeats the task."""


@dataclass
class Entry:
    """What becomes one record of the stream; `rows` of the DataFrame are in it."""

    data: bytes
    key: str
    hash_key: str | None = None
    rows: int = 1
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = len(self.data) + len(self.key.encode())

    def request(self) -> dict[str, Any]:
        said: dict[str, Any] = {"Data": self.data, "PartitionKey": self.key}
        return said if self.hash_key is None else {**said, "ExplicitHashKey": self.hash_key}


@dataclass
class Written(WriterCommitMessage):
    rows: int


def register(spark: SparkSession) -> None:
    spark.dataSource.register(KinesisSink)


class KinesisSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ValueError("a stream cannot be overwritten: use mode('append')")
        return _Writer(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, ARG002 - Spark's
        return _StreamWriter(self.options, schema)


class _Task:
    """What a worker does with one partition; sent to it by pickle."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._places = _places(schema)
        if not {"streamname", "streamarn"} & self._options.keys():
            raise ValueError("format 'kinesis' needs the option streamName or streamARN")

    def write(self, iterator: Iterator[Row]) -> Written:
        option = self._options.get
        client = _client(option("region"), option("endpoint"))
        stream = (
            {"StreamARN": option("streamarn")}
            if option("streamarn")
            else {"StreamName": option("streamname")}
        )
        entries: Iterable[Entry] = (self._entry(row) for row in iterator)
        if option("aggregate", "false") == "true":
            entries = aggregated(entries, int(option("aggregatemaxbytes", "51200") or 0))
        sending = Sending(
            lambda records: client.put_records(Records=records, **stream),
            ordered=option("ordered", "true") == "true",
            timeout_s=float(option("timeoutseconds", "300") or 0),
        )
        return Written(sending.send(entries))

    def _entry(self, row: Row) -> Entry:
        values = {name: row[place] for name, place in self._places.items()}
        data, key = values["data"], values.get("key")
        if data is None:
            raise ValueError(
                "a row has no data: format 'kinesis' writes the column data; filter out rows where it is null"
            )
        content = data.encode() if isinstance(data, str) else bytes(data)
        entry = Entry(content, os.urandom(16).hex() if key is None else str(key), values.get("hash_key"))
        if entry.size_bytes > _MOST_ENTRY_BYTES:
            raise ValueError(
                f"a row with the key {entry.key!r} has {entry.size_bytes} bytes; a record of Kinesis 10 MiB at most"
            )
        return entry


class _Writer(DataSourceWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._task = _Task(options, schema)

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self._task.write(iterator)


class _StreamWriter(DataSourceStreamWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._task = _Task(options, schema)

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self._task.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The records are in the stream."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What is in the stream stays there; Spark repeats the batch."""


def _places(schema: StructType) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, column in enumerate(schema.fields):
        name = _NAMES.get(column.name)
        if name is None or name in places:
            raise ValueError(
                f"format 'kinesis' cannot write the column {column.name!r}; it takes {', '.join(_NAMES)}"
            )
        if not isinstance(column.dataType, (StringType, BinaryType)):
            raise ValueError(  # noqa: TRY004 - a wrong frame, as the others
                f"column {column.name!r} is {column.dataType.simpleString()}; it must be a string (data: or binary)"
            )
        places[name] = place
    if "data" not in places:
        raise ValueError("format 'kinesis' needs the column data")
    return places


def _client(region: str | None, endpoint: str | None) -> Any:
    try:
        import boto3  # only workers need it
        from botocore.config import Config
    except ImportError as error:
        raise NotWritten(
            "format 'kinesis' needs boto3 in the Python of Spark's workers: pip install boto3"
        ) from error
    config = Config(retries={"mode": "standard", "max_attempts": 5})
    return boto3.client("kinesis", region_name=region, endpoint_url=endpoint, config=config)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


class Sending:
    """Sends entries until all are taken; what was refused goes first in the next request, before later ones of its key."""

    def __init__(
        self,
        put: Callable[[list[dict[str, Any]]], Mapping[str, Any]],
        *,
        ordered: bool,
        timeout_s: float,
        pause: Callable[[float], object] = _pause,
        now_s: Callable[[], float] = time.monotonic,  # noqa: TID251 - runs in Spark's workers: there is no port
    ) -> None:
        self._put = put
        self._ordered = ordered
        self._timeout_s = timeout_s
        self._pause = pause
        self._now_s = now_s

    def send(self, entries: Iterable[Entry]) -> int:
        """How many rows were written. NotWritten if nothing gets through for `timeout_s`."""
        source, waiting, rows = iter(entries), deque[Entry](), 0
        refusals, good_s = 0, self._now_s()
        while _fill(waiting, source):
            chosen, rest = pick(waiting, ordered=self._ordered)
            refused, reason = self._request(chosen)
            rows += sum(each.rows for each in chosen) - sum(each.rows for each in refused)
            waiting = deque([*refused, *rest])
            if len(refused) < len(chosen):
                good_s = self._now_s()
            if not refused:
                refusals = 0
                continue
            if self._now_s() - good_s > self._timeout_s:
                raise NotWritten(
                    f"Kinesis took none of {len(chosen)} records for {self._timeout_s:g} s: {reason}"
                )
            refusals += 1
            self._pause(min(_LONGEST_PAUSE_S, 0.1 * 2.0 ** min(refusals, 8)) * (0.5 + os.urandom(1)[0] / 512))
        return rows

    def _request(self, chosen: Sequence[Entry]) -> tuple[list[Entry], str]:
        answer = self._put([each.request() for each in chosen])
        if not answer.get("FailedRecordCount"):
            return [], ""
        judged = list(zip(chosen, answer["Records"]))  # noqa: B905 - Python 3.9
        refused = [entry for entry, said in judged if said.get("ErrorCode")]
        reasons = {
            f"{said['ErrorCode']}: {said.get('ErrorMessage', '')}"
            for _, said in judged
            if said.get("ErrorCode")
        }
        return refused, "; ".join(sorted(reasons))


def _fill(waiting: deque[Entry], source: Iterator[Entry]) -> bool:
    size = sum(each.size_bytes for each in waiting)
    while len(waiting) < _WAITING_ENTRIES and size < _WAITING_BYTES:
        entry = next(source, None)
        if entry is None:
            break
        waiting.append(entry)
        size += entry.size_bytes
    return bool(waiting)


def pick(waiting: Iterable[Entry], *, ordered: bool) -> tuple[list[Entry], list[Entry]]:
    """The entries of the next request, and the rest in order."""
    chosen: list[Entry] = []
    rest: list[Entry] = []
    keys: set[str] = set()
    size = 0
    for each in waiting:
        fits = not chosen or (len(chosen) < _MOST_ENTRIES and size + each.size_bytes <= _MOST_REQUEST_BYTES)
        if not fits or (ordered and each.key in keys):
            rest.append(each)
        else:
            chosen.append(each)
            size += each.size_bytes
        keys.add(each.key)  # also of what did not fit: a later entry of its key must not pass it
    return chosen, rest


def aggregated(entries: Iterable[Entry], most_bytes: int) -> Iterator[Entry]:
    """Entries as KPL aggregates of one key each, in the order of each key."""
    open_ones: dict[tuple[str, str | None], list[bytes]] = {}
    sizes: dict[tuple[str, str | None], int] = {}
    whole = 0
    for each in entries:
        name = (each.key, each.hash_key)
        if sizes.get(name, 0) + len(each.data) > most_bytes and name in open_ones:
            yield _packed(name, open_ones.pop(name))
            whole -= sizes.pop(name)
        open_ones.setdefault(name, []).append(each.data)
        sizes[name] = sizes.get(name, 0) + len(each.data)
        whole += len(each.data)
        if len(open_ones) >= _WAITING_ENTRIES or whole >= _WAITING_BYTES:
            yield from (_packed(one, parts) for one, parts in open_ones.items())
            open_ones, sizes, whole = {}, {}, 0
    yield from (_packed(one, parts) for one, parts in open_ones.items())


def _packed(name: tuple[str, str | None], parts: Sequence[bytes]) -> Entry:
    """KPL's format: magic, a protobuf `AggregatedRecord` with one key, MD5."""
    key, hash_key = name
    body = bytearray(_field(1, key.encode()))
    if hash_key is not None:
        body += _field(2, hash_key.encode())
    index = b"\x08\x00" if hash_key is None else b"\x08\x00\x10\x00"
    for part in parts:
        body += _field(3, index + _field(3, part))
    digest = hashlib.md5(bytes(body), usedforsecurity=False).digest()
    return Entry(_MAGIC + bytes(body) + digest, key, hash_key, len(parts))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
