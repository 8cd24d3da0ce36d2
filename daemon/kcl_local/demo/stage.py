"""The stage: local endpoints, a stream, and the accounts of what goes in and comes out. Daemons are started on it.

Owns the set-up that the demo and the tests of real processes share, and the reading of the stored checkpoints. Knows
nothing of what is played on it (`perform`, the tests).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from kcl_local.demo.check import Checker
from kcl_local.demo.ledger import LedgerReader
from kcl_local.demo.processes import Processes, Running, Urls
from kcl_local.demo.producer import Producer
from kcl_local.demo.properties import DaemonFile, executable_name
from kcl_local.demo.stream import Stream, dynamodb_client, in_thread, kinesis_client, said_by

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef

STREAM: Final = "demo-text"
APPLICATION: Final = "demo-word-count"
LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class StoredLease:
    """What a row of the lease table tells: a position or a sentinel, and the worker that has the shard, if any."""

    checkpoint: str
    owner: str | None


@dataclass(frozen=True, slots=True)
class Stage:
    """What is set up.

    Args:
        directory: all files of the run.
        processes: where daemons are started.
        endpoints: the process of the local endpoints.
        urls: where they answer.
        stream: ACTIVE.
        dynamodb: a client of the tables.
        active_at_s: when the stream became ACTIVE, by `clock.monotonic_s`.
        reader: of the ledgers.
        checker: of everything written and delivered here.
    """

    directory: Path
    processes: Processes
    endpoints: Running
    urls: Urls
    stream: Stream
    dynamodb: DynamoDBClient
    active_at_s: float
    reader: LedgerReader
    checker: Checker = field(default_factory=Checker)

    @property
    def ledgers(self) -> Path:
        """The directory of the ledgers."""
        return self.directory / "ledgers"

    def producer(self) -> Producer:
        """A producer that accounts to this stage's checker."""
        return Producer(self.stream, self.checker)

    def write_properties(self, worker_id: str, more: Mapping[str, str] | None = None) -> Path:
        """Write the properties file of a worker; `more` holds further keys."""
        path = self.directory / f"{worker_id}.properties"
        file = DaemonFile(
            executable=executable_name(self.directory),
            worker_id=worker_id,
            application=APPLICATION,
            stream=self.stream.name,
            kinesis_url=self.urls.kinesis,
            dynamodb_url=self.urls.dynamodb,
            more=more or {},
        )
        path.write_text(file.text(), "ascii")
        return path

    @asynccontextmanager
    async def daemon(self, properties: Path, name: str = "the daemon") -> AsyncGenerator[Running]:
        """A daemon on this properties file for the time of the block."""
        async with self.processes.daemon(name, properties, self.ledgers) as running:
            yield running

    async def look(self) -> None:
        """Bring the checker up to date with the stream's shards and the ledgers."""
        for shard in await self.stream.shards():
            self.checker.lineage(shard.shard_id, parents=shard.parents, is_open=shard.is_open)
        for entry in self.reader.new_entries():
            self.checker.told(entry)

    async def settled(self, within_s: float) -> bool:
        """Wait until nothing is left to deliver; False where that takes longer."""
        return await self._until(lambda: self.checker.is_settled, within_s)

    async def delivered(self, records: int, within_s: float) -> bool:
        """Wait until so many records have been delivered; False where that takes longer."""
        return await self._until(lambda: self.checker.delivered >= records, within_s)

    async def _until(self, holds: Callable[[], bool], within_s: float) -> bool:
        with anyio.move_on_after(within_s):
            while True:
                await self.look()
                if holds():
                    return True
                await anyio.sleep(LOOK_EVERY_S)
        return False

    async def leases(self) -> dict[str, StoredLease]:
        """The rows of the lease table as they are now, by shard; DemoError while there is no such table."""
        with said_by("Scan of the lease table"):
            answer = await in_thread(self.dynamodb.scan, TableName=APPLICATION, ConsistentRead=True)
        return {row["leaseKey"].get("S", ""): _stored(row) for row in answer["Items"] if "checkpoint" in row}


def _stored(row: Mapping[str, AttributeValueTypeDef]) -> StoredLease:
    owner = row.get("leaseOwner")
    return StoredLease(
        checkpoint=row["checkpoint"].get("S", ""), owner=None if owner is None else owner.get("S")
    )


@asynccontextmanager
async def stage(directory: Path, processes: Processes, *, shards: int) -> AsyncGenerator[Stage]:
    """Set everything up in an empty directory, for the time of the block; DemoError where that fails."""
    ledgers = directory / "ledgers"
    ledgers.mkdir()
    async with processes.endpoints(directory) as (endpoints, urls):
        with (
            closing(kinesis_client(urls.kinesis)) as kinesis,
            closing(dynamodb_client(urls.dynamodb)) as dynamodb,
        ):
            stream = Stream(kinesis, STREAM)
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
