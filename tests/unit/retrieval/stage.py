"""A stream of one shard in memory, and readers over it."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from kcl_daemon.config.retrieval import RetrievalSettings
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Clock, FetchedRecords, ReadFrom, StreamRef
from kcl_daemon.records.batch_text import LINES, BatchEncoder
from kcl_daemon.records.payload import Payload, Split
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import DeliveryBatch, ShardSource, StartMemory
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.codec import decode_daemon_line
from kcl_protocol.messages import ProcessRecords
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context

T = TypeVar("T")
STREAM = StreamRef("words")
SHARD = ShardId("shardId-000000000000")


class TroubledKinesis(MemoryKinesis):
    """The in-memory Kinesis with a script of errors for the next reads, and a count of what was asked."""

    def __init__(self, model: KinesisModel) -> None:
        super().__init__(model)
        self.troubles: deque[AwsError | None] = deque()
        self.positions: list[ReadFrom] = []
        self.read_at_s: list[float] = []
        self.refusal: AwsError | None = None  # of all reads, until it is taken away
        self.ends = 0  # so many answers that say the end, and have no child shards

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        self.positions.append(read_from)
        return await super().get_shard_iterator(stream, shard_id, read_from)

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        self.read_at_s.append(anyio.current_time())
        trouble = self.troubles.popleft() if self.troubles else None
        trouble = trouble or self.refusal
        if trouble is not None:
            raise trouble
        if self.ends:
            self.ends -= 1
            return FetchedRecords(Payload.of(()), None, 0, ())
        return await super().get_records(stream, shard_id, iterator, limit)


class Stage:
    """A stream of one shard and readers over it."""

    def __init__(self) -> None:
        clock = self.clock = LoopClock()
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000)
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})
        self.kinesis = TroubledKinesis(self.model)
        self.log = MemoryLog()
        self.memory = StartMemory()

    def put(self, *texts: str) -> list[str]:
        """Write records; gives their sequence numbers."""
        return [self.put_bytes(text.encode()) for text in texts]

    def put_bytes(self, data: bytes) -> str:
        """Write one record; gives its sequence number."""
        asked = {"StreamName": "words", "PartitionKey": "k", "Data": base64.b64encode(data).decode()}
        return str(self.model.handle("PutRecord", asked)["SequenceNumber"])

    def split(self) -> None:
        self.model.handle(
            "SplitShard", {"StreamName": "words", "ShardToSplit": SHARD, "NewStartingHashKey": str(2**127)}
        )

    def reader(
        self,
        checkpoint: ExtendedSequenceNumber = TRIM_HORIZON,
        settings: RetrievalSettings | None = None,
        *,
        reports_empty: bool = True,
        budget: ByteBudget | None = None,
        split: Split | None = None,
        clock: Clock | None = None,
        encoder: BatchEncoder | None = None,
        until_ms: int | None = None,
        tells_complete: bool = False,
    ) -> PollingReader:
        return PollingReader(
            ShardSource(
                STREAM,
                SHARD,
                checkpoint,
                None,
                self.memory,
                split,
                encoder=encoder or BatchEncoder(LINES),
                until_ms=until_ms,
                tells_complete=tells_complete,
            ),
            worker_context(clock=clock, log=self.log),
            budget or ByteBudget(clock or LoopClock()),
            kinesis=self.kinesis,
            settings=settings or RetrievalSettings(),
            reports_empty=reports_empty,
        )


async def texts(reader: PollingReader, count: int) -> list[str]:
    """The next records, as many as asked for."""
    found: list[str] = []
    while len(found) < count:
        item = await reader.next()
        assert isinstance(item, DeliveryBatch), f"the shard ended after {found}"
        line = decode_daemon_line(item.take_encoded(BatchEncoder()).data)
        assert isinstance(line, ProcessRecords)
        assert len(line.records) == item.count
        found += [base64.b64decode(record.data).decode() for record in line.records]
        item.release()
    return found


def play(scene: Callable[[Stage, Callable[[PollingReader], object]], Awaitable[T]]) -> T:
    """Play a scene; what it calls `start` with runs beside it."""

    async def main() -> T:
        results: list[T] = []
        async with anyio.create_task_group() as background:
            results.append(await scene(Stage(), lambda reader: background.start_soon(reader.run)))
            background.cancel_scope.cancel()
        return results[0]

    return run_virtual(main)


Start = Callable[[PollingReader], object]
