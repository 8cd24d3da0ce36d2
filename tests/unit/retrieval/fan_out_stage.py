"""A stream of one shard with a fan-out that can be made to fail, and readers over it, in virtual time."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.retrieval import FanOutSettings, RetrievalMode, RetrievalSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import HashRange, ShardId
from kcl_daemon.ports import ConsumerName, PushedRecords, ReadFrom, StreamConsumer, StreamRef
from kcl_daemon.progress.flow import ShardFlow
from kcl_daemon.records.batch_text import BatchEncoder
from kcl_daemon.records.payload import Payload
from kcl_daemon.retrieval.readers import ReaderFactory
from kcl_daemon.retrieval.source import DeliveryBatch, EndOfShard, ShardReader, ShardSource, StartMemory
from kcl_local.kinesis.arguments import DEFAULTS, KinesisOptions
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.codec import decode_daemon_line
from kcl_protocol.messages import ProcessRecords
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.fan_out import MemoryFanOut, MemorySubscription
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context

T = TypeVar("T")
STREAM = StreamRef("words")
CONSUMER = {"StreamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/words", "ConsumerName": "app"}
SHARD = ShardId("shardId-000000000000")


class CutSubscription(MemorySubscription):
    """One that breaks instead of giving its next event, once the event has been taken from the service."""

    def __init__(self, subscription: MemorySubscription, fan_out: TroubledFanOut) -> None:
        super().__init__(subscription._subscription)
        self._fan_out = fan_out
        self._cuts = fan_out.cuts

    async def next(self) -> PushedRecords | None:
        if self._fan_out.ends:
            self._fan_out.ends -= 1
            return PushedRecords(Payload.of(()), None, 0, ())
        pushed = await super().next()
        cut = self._cuts.popleft() if self._cuts else None
        if cut is not None:
            raise cut
        return pushed


class TroubledFanOut(MemoryFanOut):
    """The in-memory fan-out with scripts of errors, and a memory of what was asked."""

    def __init__(self, model: KinesisModel) -> None:
        super().__init__(model)
        self.refusals: deque[AwsError | None] = deque()  # of the next subscriptions
        self.cuts: deque[AwsError | None] = deque()  # at the next events
        self.registering: deque[AwsError | None] = deque()
        self.describing: deque[AwsError | None] = deque()
        self.positions: list[ReadFrom] = []
        self.subscribed_at_s: list[float] = []
        self.registered = 0
        self.open_now = 0
        self.ends = 0  # so many events that say the end, and have no child shards

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        _raise_next(self.describing)
        return await super().describe_consumer(consumer)

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        self.registered += 1
        _raise_next(self.registering)
        return await super().register_consumer(consumer)

    @asynccontextmanager
    async def subscribe(
        self, stream: StreamRef, consumer_arn: str, shard_id: ShardId, read_from: ReadFrom
    ) -> AsyncGenerator[MemorySubscription, None]:
        self.positions.append(read_from)
        self.subscribed_at_s.append(anyio.current_time())
        _raise_next(self.refusals)
        async with super().subscribe(stream, consumer_arn, shard_id, read_from) as subscription:
            self.open_now += 1
            try:
                yield CutSubscription(subscription, self)
            finally:
                self.open_now -= 1


def _raise_next(errors: deque[AwsError | None]) -> None:
    error = errors.popleft() if errors else None
    if error is not None:
        raise error


class FanOutStage:
    """The world of one test."""

    def __init__(self, options: KinesisOptions = DEFAULTS, fan_out: FanOutSettings | None = None) -> None:
        clock = LoopClock()
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000, options)
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})
        self.fan_out = TroubledFanOut(self.model)
        self.log = MemoryLog()
        self.memory = StartMemory()
        self.stream_is_there, self.asked_for_the_stream = True, 0
        self.readers = ReaderFactory(
            worker_context(clock=clock, log=self.log),
            Settings(
                application_name="app",
                stream_name="words",
                child=ChildSettings(command=("child",)),
                worker_id="worker",
                retrieval=RetrievalSettings(mode=RetrievalMode.FANOUT),
                fan_out=fan_out or FanOutSettings(),
            ),
            kinesis=MemoryKinesis(self.model),
            fan_out=self.fan_out,
        )

    async def _is_there(self) -> bool:
        self.asked_for_the_stream += 1
        return self.stream_is_there

    def put(self, *texts: str) -> list[str]:
        """Write records; gives their sequence numbers."""
        return [self.put_data(text.encode()) for text in texts]

    def put_data(self, data: bytes) -> str:
        """Write a record."""
        arguments = {"StreamName": "words", "PartitionKey": "k", "Data": base64.b64encode(data).decode()}
        return str(self.model.handle("PutRecord", arguments)["SequenceNumber"])

    async def registered(self) -> str:
        """ARN of the application's consumer, which is registered now."""
        arn = "arn:aws:kinesis:us-east-1:123456789012:stream/words"
        return (await self.fan_out.register_consumer(ConsumerName(arn, "app"))).arn

    def split(self) -> None:
        arguments = {"StreamName": "words", "ShardToSplit": SHARD, "NewStartingHashKey": str(2**127)}
        self.model.handle("SplitShard", arguments)

    def reader(
        self,
        checkpoint: ExtendedSequenceNumber = TRIM_HORIZON,
        hash_range: HashRange | None = None,
        flow: ShardFlow | None = None,
        *,
        tells_complete: bool = False,
    ) -> ShardReader:
        source = ShardSource(
            *(STREAM, SHARD, checkpoint, None, self.memory),
            stream_is_there=self._is_there,
            flow=flow or ShardFlow(),
            tells_complete=tells_complete,
        )
        return self.readers.reader(source, hash_range=hash_range, log=self.log)


async def texts(reader: ShardReader, count: int) -> list[str]:
    """The next records, as many as asked for."""
    found: list[str] = []
    while len(found) < count:
        item = await reader.next()
        assert isinstance(item, DeliveryBatch), f"the shard ended after {found}"
        line = decode_daemon_line(item.take_encoded(BatchEncoder()).data)
        assert isinstance(line, ProcessRecords)
        found += [base64.b64decode(record.data).decode() for record in line.records]
        item.release()
    return found


async def end(reader: ShardReader) -> EndOfShard:
    """The end of the shard, which must come next."""
    item = await reader.next()
    assert isinstance(item, EndOfShard)
    return item


Start = Callable[[ShardReader], object]


def play(
    scene: Callable[[FanOutStage, Start], Awaitable[T]], stage: Callable[[], FanOutStage] = FanOutStage
) -> T:
    """Play a scene; what it calls `start` with runs beside it."""

    async def main() -> T:
        results: list[T] = []
        async with anyio.create_task_group() as background:
            results.append(await scene(stage(), lambda reader: background.start_soon(reader.run)))
            background.cancel_scope.cancel()
        return results[0]

    return run_virtual(main)
