"""Records of a schema registry on their way through a reader, by polling and by fan-out."""

from __future__ import annotations

import base64
import random  # noqa: TID251 - seeded, the same bytes each time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.retrieval import (
    RetrievalMode,
    RetrievalSettings,
    SchemaFailure,
    SchemaRegistry,
    SchemaSettings,
)
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AccessDenied, Throttled, Unavailable
from kcl_daemon.records.batch_text import BatchEncoder
from kcl_daemon.retrieval.readers import ReaderFactory
from kcl_daemon.retrieval.schemas import PART_BYTES
from kcl_daemon.retrieval.source import DeliveryBatch, ShardReader, ShardSource, StartMemory
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.codec import decode_daemon_line
from kcl_protocol.messages import ProcessRecords, Record
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.fan_out import MemoryFanOut
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.records.aggregates import aggregate
from tests.unit.retrieval.registry import CLICKS, ORDERS, MemorySchemas, framed, reported
from tests.unit.retrieval.stage import SHARD, STREAM

DECODE = SchemaSettings(SchemaRegistry.DECODE)
PASSTHROUGH = SchemaSettings(SchemaRegistry.DECODE, SchemaFailure.PASSTHROUGH)
UNKNOWN = CLICKS


class Stage:
    """A stream of one shard, a registry that knows ORDERS, and one reader."""

    def __init__(self, mode: RetrievalMode, schemas: SchemaSettings, **retrieval: Any) -> None:
        clock = LoopClock()
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000)
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})
        self.schemas = MemorySchemas(ORDERS)
        self.log = MemoryLog()
        settings = Settings(
            application_name="app",
            stream_name="words",
            child=ChildSettings(command=("child",)),
            worker_id="worker",
            retrieval=RetrievalSettings(mode=mode, **retrieval),
            schemas=schemas,
        )
        readers = ReaderFactory(
            worker_context(clock=clock, log=self.log),
            settings,
            kinesis=MemoryKinesis(self.model),
            fan_out=MemoryFanOut(self.model),
            schemas=self.schemas,
        )
        self.reader: ShardReader = readers.reader(
            ShardSource(STREAM, SHARD, TRIM_HORIZON, None, StartMemory()), hash_range=None, log=self.log
        )

    def put(self, *payloads: bytes) -> None:
        """Write records in one go."""
        records = [{"PartitionKey": "k", "Data": base64.b64encode(data).decode()} for data in payloads]
        self.model.handle("PutRecords", {"StreamName": "words", "Records": records})

    async def batch(self) -> list[Record]:
        """The next one that has records."""
        item = await self.reader.next()
        assert isinstance(item, DeliveryBatch)
        message = decode_daemon_line(item.take_encoded(BatchEncoder()).data)
        assert isinstance(message, ProcessRecords)
        assert len(message.records) == item.count
        item.release()
        return list(message.records) or await self.batch()


def data_of(record: Record) -> bytes:
    return base64.b64decode(record.data, validate=True)


@pytest.fixture(params=RetrievalMode, ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> RetrievalMode:
    assert isinstance(request.param, RetrievalMode)
    return request.param


def play(
    scene: Callable[[Stage], Awaitable[None]],
    mode: RetrievalMode,
    schemas: SchemaSettings = DECODE,
    **retrieval: Any,
) -> None:
    async def main() -> None:
        stage = Stage(mode, schemas, **retrieval)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.reader.run)
            await scene(stage)
            background.cancel_scope.cancel()
        stage.reader.close()

    run_virtual(main)


def test_records_come_without_header_and_with_their_schema(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(b"plain", framed(b"one"), framed(b"two" * 100, packed=True), b"", framed(b""), b"\3\1no")
        records = await stage.batch()
        assert [data_of(each) for each in records] == [b"plain", b"one", b"two" * 100, b"", b"", b"\3\1no"]
        assert [each.schema for each in records] == [None, reported(), reported(), None, reported(), None]
        assert stage.schemas.asked == {ORDERS: 1}
        assert stage.log.events("warning") == []

    play(scene, mode)


def test_inside_aggregates_too(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        users = [
            ("\u00e9", framed(b"one"), None),
            ("b", b"plain", None),
            ("c", framed(b"3", packed=True), None),
        ]
        stage.put(aggregate(users), framed(b"last"))
        records = await stage.batch()
        assert [data_of(each) for each in records] == [b"one", b"plain", b"3", b"last"]
        assert [each.sub_sequence_number for each in records] == [0, 1, 2, 0]
        assert [each.partition_key for each in records] == ["\u00e9", "b", "c", "k"]
        assert [each.schema for each in records] == [reported(), None, reported(), reported()]

    play(scene, mode)


def test_without_schema_resolution_the_registry_is_not_asked(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(framed(b"one"))
        (record,) = await stage.batch()
        assert (data_of(record), record.schema) == (framed(b"one"), None)
        assert not stage.schemas.asked

    play(scene, mode, SchemaSettings())


def test_an_unknown_schema_is_waited_for_and_what_comes_before_it_is_delivered(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(framed(b"one"), framed(b"two", UNKNOWN), framed(b"three"))
        assert [data_of(each) for each in await stage.batch()] == [b"one"]
        with anyio.move_on_after(200) as waited:
            await stage.batch()
        assert waited.cancelled_caught
        assert "no version" in str(stage.reader.trouble)
        stage.schemas.register(UNKNOWN)
        records = await stage.batch()
        assert [data_of(each) for each in records] == [b"two", b"three"]
        assert records[0].schema == reported(UNKNOWN)
        assert stage.reader.trouble is None
        assert anyio.current_time() < 300
        assert stage.schemas.asked[UNKNOWN] < 10
        loud = [fields for level, _, fields in stage.log.lines if level == "warning"]
        assert {fields["schema_version_id"] for fields in loud} == {UNKNOWN}
        assert [fields["attempt"] for fields in loud] == [1, 2, 4, 8]

    play(scene, mode)


def test_a_payload_that_cannot_be_unpacked_holds_up_its_shard_too(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(framed(b"x" * 100, packed=True)[:-5])
        with anyio.move_on_after(100) as waited:
            await stage.batch()
        assert waited.cancelled_caught
        assert "cut off" in str(stage.reader.trouble)
        assert set(stage.log.events("warning")) == {"schema_unresolved"}

    play(scene, mode)


def test_records_with_an_unreadable_schema_are_passed_through_unchanged(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        broken = framed(b"x" * 100, packed=True)[:-5]
        stage.put(framed(b"one"), framed(b"two", UNKNOWN), broken, framed(b"three"))
        records = [*await stage.batch()]
        while len(records) < 4:
            records += await stage.batch()
        assert [data_of(each) for each in records] == [b"one", framed(b"two", UNKNOWN), broken, b"three"]
        assert [each.schema for each in records] == [reported(), None, None, reported()]
        assert stage.log.events("warning") == ["schema_passed_through"]
        assert anyio.current_time() < 5
        assert stage.reader.trouble is None

    play(scene, mode, PASSTHROUGH)


@pytest.mark.parametrize("settings", [DECODE, PASSTHROUGH], ids=["retry", "passthrough"])
def test_a_registry_that_does_not_answer_is_waited_for_in_any_case(
    mode: RetrievalMode, settings: SchemaSettings
) -> None:
    async def scene(stage: Stage) -> None:
        stage.schemas.troubles.extend([AccessDenied("no"), Throttled("slow"), Unavailable("down")])
        stage.put(framed(b"one"))
        (record,) = await stage.batch()
        assert (data_of(record), record.schema) == (b"one", reported())
        told_of = [(level, event) for level, event, _ in stage.log.lines if event.startswith("schema")]
        assert told_of == [
            ("error", "schema_registry_refused"),
            ("warning", "schema_registry_failed"),
            ("debug", "schema_registry_failed"),
        ]

    play(scene, mode, settings)


def test_many_large_definitions_do_not_become_one_huge_line(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        definition = "x" * 170_000
        stage.schemas.register(UNKNOWN, definition)
        stage.put(*(framed(str(number).encode(), UNKNOWN) for number in range(100)))
        seen: list[bytes] = []
        while len(seen) < 100:
            await anyio.sleep(5)  # what is read ahead has its bound
            item = await stage.reader.next()
            assert isinstance(item, DeliveryBatch)
            assert item.size_bytes < PART_BYTES + 200_000
            message = decode_daemon_line(item.take_encoded(BatchEncoder()).data)
            assert isinstance(message, ProcessRecords)
            assert all(each.schema and each.schema.definition == definition for each in message.records)
            seen += map(data_of, message.records)
            item.release()
        assert seen == [str(number).encode() for number in range(100)]

    play(scene, mode, prefetch_bytes=1)


def test_random_bytes_go_through_unchanged_but_for_headers(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        chance = random.Random(7)
        payloads = [chance.randbytes(chance.randrange(60)) for _ in range(200)]
        which = [chance.randrange(3) for _ in payloads]
        stage.put(
            *(
                payload if kind == 0 else framed(payload, packed=kind == 2)
                for payload, kind in zip(payloads, which, strict=True)
            )
        )
        records = await stage.batch()
        assert [data_of(each) for each in records] == payloads
        assert [each.schema is not None for each in records] == [kind > 0 for kind in which]

    play(scene, mode)
