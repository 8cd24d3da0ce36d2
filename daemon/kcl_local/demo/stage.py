"""What the demo and the process tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
from anyio import lowlevel
from botocore.exceptions import BotoCoreError, ClientError

from kcl_local.demo.check import Checker, LedgerReader, monotonic_s
from kcl_local.demo.processes import Processes, RunningProcess
from kcl_local.demo.stream import (
    DemoStream,
    Urls,
    call,
    dynamodb_client,
    executable_name,
    in_thread,
    kinesis_client,
    properties_text,
    until,
)
from kcl_local.demo.text import DemoError, Feed, Line, words

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis.type_defs import PutRecordsOutputTypeDef


L = TypeVar("L", bound=Line)

BATCH_RECORDS_MAX: Final = 500
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024  # PutRecords takes 5 MiB, with the request around the records
TICK_S: Final = 0.05
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MOST_S: Final = 1.0
REFUSED_FOR_S_MAX: Final = 20.0
RETRYABLE: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "KMSThrottlingException",
        "LimitExceededException",
        "InternalFailure",
    }
)
STREAM: Final = "demo-text"
APPLICATION: Final = "demo-word-count"
POLL_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class WriteRate:
    rate: float
    seconds: float
    records: int | None = None

    def due(self, elapsed_s: float, sent: int) -> int:
        allowed = int(elapsed_s * self.rate) + 1
        return max(0, (allowed if self.records is None else min(allowed, self.records)) - sent)

    @property
    def lasts_s(self) -> float:
        return self.seconds if self.records is None else min(self.seconds, self.records / self.rate)

    def is_done(self, sent: int) -> bool:
        return self.records is not None and sent >= self.records


def batches(lines: Iterable[L]) -> Iterator[list[L]]:
    batch: list[L] = []
    size_bytes = 0
    for line in lines:
        line_bytes = len(line.data) + len(line.key.encode())
        if batch and (len(batch) == BATCH_RECORDS_MAX or size_bytes + line_bytes > BATCH_BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(line)
        size_bytes += line_bytes
    if batch:
        yield batch


class Producer:
    def __init__(self, stream: DemoStream, checker: Checker) -> None:
        self._stream = stream
        self._checker = checker
        self.written = 0

    async def run(self, feed: Feed, pace: WriteRate) -> None:
        """A cancel lets the running call finish.

        DemoError: the stream refuses records for long, or the result of a call is unknown.
        """
        started_s = monotonic_s()
        with anyio.move_on_after(pace.seconds):
            while not pace.is_done(self.written):
                due = pace.due(monotonic_s() - started_s, self.written)
                if due == 0:
                    await anyio.sleep(TICK_S)
                    continue
                await lowlevel.checkpoint()  # else a cancellation would never be noticed
                lines = await feed.take(min(due, BATCH_RECORDS_MAX))
                if not lines:
                    return
                with anyio.CancelScope(shield=True):
                    await self.put(lines)

    async def put(self, lines: Sequence[Line]) -> None:
        for batch in batches(lines):
            waiting: list[Line] = batch
            backoff_s = BACKOFF_FIRST_S
            give_up_s = monotonic_s() + REFUSED_FOR_S_MAX
            while waiting := await self._attempt(waiting):
                if monotonic_s() > give_up_s:
                    raise DemoError(f"the stream refused records for {REFUSED_FOR_S_MAX:g} s")
                await anyio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MOST_S)

    async def _attempt(self, lines: list[Line]) -> list[Line]:
        try:
            answer = await in_thread(
                self._stream.client.put_records,
                StreamName=self._stream.name,
                Records=[{"Data": line.data, "PartitionKey": line.key} for line in lines],
            )
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in RETRYABLE:
                return lines
            raise DemoError(f"PutRecords failed: {error}") from error
        except BotoCoreError as error:
            raise DemoError(f"PutRecords failed, so it is unknown what was written: {error}") from error
        return self._account(lines, answer)

    def _account(self, lines: list[Line], answer: PutRecordsOutputTypeDef) -> list[Line]:
        refused: list[Line] = []
        for line, result in zip(lines, answer["Records"], strict=True):
            number, shard_id = result.get("SequenceNumber"), result.get("ShardId")
            if number and shard_id and not result.get("ErrorCode"):
                self._checker.wrote(shard_id, number, Counter(words(line.data)))
                self.written += 1
            else:
                refused.append(line)
        return refused


@dataclass(frozen=True, slots=True)
class StoredLease:
    checkpoint: str
    owner: str | None


@dataclass(frozen=True, slots=True)
class Stage:
    """`active_at_s`: when the stream became ACTIVE, by `monotonic_s`."""

    directory: Path
    processes: Processes
    endpoints: RunningProcess
    urls: Urls
    stream: DemoStream
    dynamodb: DynamoDBClient
    active_at_s: float
    reader: LedgerReader
    checker: Checker = field(default_factory=Checker)

    @property
    def ledgers(self) -> Path:
        return self.directory / "ledgers"

    def elapsed_s(self) -> float:
        return monotonic_s() - self.active_at_s

    def producer(self) -> Producer:
        return Producer(self.stream, self.checker)

    def write_properties(self, worker_id: str, more: Mapping[str, str] | None = None) -> Path:
        path = self.directory / f"{worker_id}.properties"
        own = {
            "executableName": executable_name(self.directory),
            "streamName": self.stream.name,
            "applicationName": APPLICATION,
            "workerId": worker_id,
        }
        path.write_text(properties_text(self.urls, own, more or {}), "ascii")
        return path

    def daemon(
        self, properties: Path, name: str = "the daemon"
    ) -> AbstractAsyncContextManager[RunningProcess]:
        return self.processes.daemon(name, properties, self.ledgers)

    async def poll(self) -> None:
        for shard in await self.stream.shards():
            self.checker.lineage(shard.shard_id, parents=shard.parents, is_open=shard.is_open)
        for entry in self.reader.new_entries():
            self.checker.reported(entry)

    async def settled(self, within_s: float) -> bool:
        """False on timeout."""
        return await self._until(lambda: self.checker.is_settled, within_s)

    async def delivered(self, records: int, within_s: float) -> bool:
        return await self._until(lambda: self.checker.delivered >= records, within_s)

    async def _until(self, holds: Callable[[], bool], within_s: float) -> bool:
        async def polled() -> bool:
            await self.poll()
            return holds()

        return await until(polled, within_s, POLL_EVERY_S)

    async def leases(self) -> dict[str, StoredLease]:
        answer = await call(
            "Scan of the lease table", self.dynamodb.scan, TableName=APPLICATION, ConsistentRead=True
        )
        return {
            row["leaseKey"].get("S", ""): StoredLease(
                checkpoint=row["checkpoint"].get("S", ""), owner=row.get("leaseOwner", {}).get("S")
            )
            for row in answer["Items"]
            if "checkpoint" in row
        }


@asynccontextmanager
async def stage(directory: Path, processes: Processes, *, shards: int) -> AsyncGenerator[Stage]:
    ledgers = directory / "ledgers"
    ledgers.mkdir()
    async with processes.endpoints(directory) as (endpoints, urls):
        with (
            closing(kinesis_client(urls.kinesis)) as kinesis,
            closing(dynamodb_client(urls.dynamodb)) as dynamodb,
        ):
            stream = DemoStream(kinesis, STREAM)
            active_at_s = await stream.create(shards)
            yield Stage(
                directory=directory,
                processes=processes,
                endpoints=endpoints,
                urls=urls,
                stream=stream,
                dynamodb=dynamodb,
                active_at_s=active_at_s,
                reader=LedgerReader(ledgers),
            )
