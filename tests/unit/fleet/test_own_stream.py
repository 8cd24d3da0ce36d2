"""Which stream the tables belong to: said by their row, or established by what the leases have."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.errors import AwsError, ConfigurationError
from kcl_daemon.fleet.streams import (
    OwnStreamCheck,
    SingleStreamTracker,
    StreamMonitor,
    TrackedStream,
    leases_of,
)
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import HashRange
from kcl_daemon.leases.row import Row, Value
from kcl_daemon.leases.text_row import STREAM_KEY, OwnStream
from kcl_daemon.ports import Kinesis, StreamRef, StreamSummary, Tables
from kcl_daemon.shards.lineage import InitialPosition
from kcl_daemon.shards.sync import new_lease
from kcl_daemon.transport.table_streams import FollowedTables
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.simulator.memory.table import MemoryTable
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet import changed_table
from tests.unit.fleet.changed_table import ChangedTable, arn_of


def no_images(_summary: StreamSummary, _log: object) -> None: ...


class Stage:
    """Tables, and streams that are created a minute apart."""

    def __init__(self, **shards: int) -> None:
        self.now_s = 1_770_000_000.0
        self.model = KinesisModel(lambda: self.now_s)
        self.kinesis = MemoryKinesis(self.model)
        self.log = MemoryLog()
        self.tables = Tables(
            MemoryTable("app", "leaseKey", True), MemoryTable("workers", "wid"), MemoryTable("others", "key")
        )
        for name, count in shards.items():
            self.create(name, count)

    def create(self, name: str, shards: int) -> None:
        self.now_s += 60
        self.model.handle("CreateStream", {"StreamName": name, "ShardCount": shards})
        self.now_s += 60

    def check_of(self, stream: StreamRef, kinesis: Kinesis | None = None) -> OwnStreamCheck:
        kinesis = kinesis or self.kinesis
        watch = StreamMonitor(kinesis=kinesis, stream=stream, clock=LoopClock(), log=self.log)
        tracked = TrackedStream(stream, InitialPosition(), watch)
        streams = SingleStreamTracker(tracked, kinesis=kinesis, log=self.log, check_images=no_images)
        return OwnStreamCheck(self.tables, streams, "app")

    async def starts(
        self, stream: str | StreamRef, kinesis: Kinesis | None = None, *, is_new: bool = False
    ) -> None:
        check = self.check_of(StreamRef(stream) if isinstance(stream, str) else stream, kinesis)
        await check.check(is_new)
        for table in (self.tables.leases, self.tables.coordinator):
            await table.ensure()
        await check.store()

    async def ends(self, stream: str | StreamRef, kinesis: Kinesis | None = None) -> str:
        """What a worker of the stream says that does not start; it has written nothing."""
        before = await self.rows()
        with pytest.raises(ConfigurationError) as refused:
            await self.starts(stream, kinesis)
        assert await self.rows() == before
        return str(refused.value)

    async def rows(self) -> list[Row]:
        return [*await self.tables.leases.scan(), *await self.tables.coordinator.scan()]

    async def has_leases_of(self, stream: str, checkpoint: ExtendedSequenceNumber | None = None) -> None:
        """As Java leaves them: there is no row of ours. By default their checkpoints are those of real records."""
        await self.tables.leases.ensure()
        await self.tables.coordinator.ensure()
        for shard in await self.kinesis.list_shards(StreamRef(stream)):
            at = checkpoint or ExtendedSequenceNumber(self.put(stream, shard.hash_range))
            await self.tables.leases.put(*lease_row.creation(new_lease(shard, at)))

    def put(self, stream: str, keys: HashRange) -> str:
        arguments = {
            "StreamName": stream,
            "Data": "YQ==",
            "PartitionKey": "a",
            "ExplicitHashKey": str(keys.start),
        }
        return str(self.model.handle("PutRecord", arguments)["SequenceNumber"])

    async def stored(self) -> OwnStream | None:
        row = await self.tables.coordinator.get(STREAM_KEY)
        return None if row is None else OwnStream.from_text(str(row["streamId"]))

    def arn(self, stream: str) -> str:
        return f"arn:aws:kinesis:us-east-1:123456789012:stream/{stream}"


def test_a_new_application_remembers_its_stream_and_refuses_another_one() -> None:
    async def scene() -> None:
        stage = Stage(zero=4, leak=2)
        await stage.starts("zero", is_new=True)
        stored = await stage.stored()
        assert stored is not None
        assert (stored.arn, stored.created_s) == (stage.arn("zero"), 1_770_000_060)
        await stage.starts("zero")
        said = await stage.ends("leak")
        for part in (
            stage.arn("zero"),
            stage.arn("leak"),
            STREAM_KEY,
            "streamName",
            "leases adopt",
            "2026-02-02T",
        ):
            assert part in said
        assert stage.log.events() == ["own_stream_stored"]

    anyio.run(scene)


def test_of_two_new_workers_of_different_streams_one_starts() -> None:
    async def scene() -> None:
        stage = Stage(zero=4, leak=2)
        first, second = stage.check_of(StreamRef("zero")), stage.check_of(StreamRef("leak"))
        await first.check(True)
        await second.check(True)
        await stage.tables.coordinator.ensure()
        await second.store()
        with pytest.raises(ConfigurationError, match="stream/zero"):
            await first.store()
        assert (await stage.stored() or pytest.fail()).arn == stage.arn("leak")

    anyio.run(scene)


def test_a_new_worker_that_was_delayed_sees_what_another_one_has_stored_meanwhile() -> None:
    async def scene() -> None:
        stage = Stage(zero=4, leak=2)
        delayed = stage.check_of(StreamRef("leak"))
        stage.model.fail_next("DescribeStreamSummary", "LimitExceededException")
        with pytest.raises(AwsError):
            await delayed.check(True)
        await delayed.check(True)
        await stage.starts("zero", is_new=True)
        before = await stage.rows()
        with pytest.raises(ConfigurationError, match="stream/zero"):
            await delayed.check(False)
        assert await stage.rows() == before

    anyio.run(scene)


def test_a_new_worker_that_was_delayed_takes_no_leases_of_another_stream_for_its_own() -> None:
    async def scene() -> None:
        stage = Stage(zero=4, leak=2, old=1)
        await stage.starts("old", is_new=True)
        delayed = stage.check_of(StreamRef("leak"))
        await delayed.check(True)
        await stage.has_leases_of("zero")
        with pytest.raises(ConfigurationError, match="do not belong to the stream"):
            await delayed.check(False)

    anyio.run(scene)


def test_leases_that_java_made_become_those_of_the_stream_that_knows_their_checkpoints() -> None:
    async def scene() -> None:
        stage = Stage(leak=4, zero=4, later=4)
        await stage.has_leases_of("zero")
        for other in ("leak", "later"):
            assert "Kinesis refuses" in (said := await stage.ends(other)) or "before the first record" in said
        await stage.starts("zero")
        assert (await stage.stored() or pytest.fail()).arn == stage.arn("zero")
        assert stage.model.calls["GetShardIterator"] <= 12

    anyio.run(scene)


def test_leases_of_shards_that_the_stream_never_had_are_not_its_own() -> None:
    async def scene() -> None:
        stage = Stage(zero=4, leak=2)
        for checkpoint in (TRIM_HORIZON, SHARD_END):
            await stage.has_leases_of("zero", checkpoint)
            assert "do not belong to the stream" in await stage.ends("leak")

    anyio.run(scene)


def test_one_damaged_checkpoint_keeps_no_application_from_starting() -> None:
    async def scene() -> None:
        stage = Stage(zero=4)
        await stage.has_leases_of("zero")
        stage.model.fail_next("GetShardIterator", "InvalidArgumentException")
        await stage.starts("zero")

    anyio.run(scene)


def test_a_role_that_may_not_ask_for_positions_starts() -> None:
    async def scene() -> None:
        stage = Stage(zero=4)
        await stage.has_leases_of("zero")
        for _ in range(4):
            stage.model.fail_next("GetShardIterator", "AccessDeniedException")
        await stage.starts("zero")

    anyio.run(scene)


def test_a_stream_that_was_created_again_is_another_one_until_somebody_says_so() -> None:
    async def scene() -> None:
        stage = Stage(zero=4)
        await stage.starts("zero", is_new=True)
        stage.model.handle("DeleteStream", {"StreamName": "zero"})
        stage.create("zero", 4)
        said = await stage.ends("zero")
        assert "deleted and created again" in said
        assert "leases reset" in said
        await stage.check_of(StreamRef("zero")).adopt()
        await stage.starts("zero")

    anyio.run(scene)


def test_an_application_whose_lease_table_was_deleted_may_read_any_stream() -> None:
    async def scene() -> None:
        stage = Stage(zero=4, leak=2)
        await stage.starts("zero", is_new=True)
        await stage.starts("leak", is_new=True)
        assert (await stage.stored() or pytest.fail()).arn == stage.arn("leak")
        await stage.ends("zero")

    anyio.run(scene)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[" * 100_000,
        '{"arn":"a","createdS":1,"version":2}',
        '{"arn":1,"createdS":1,"version":1}',
        '{"arn":"a","createdS":1e300,"version":1}',
        '{"arn":"a","createdS":-1,"version":1}',
        '{"arn":"a","createdS":999999999999999,"version":1}',
        7,
        b"\xff",
        frozenset({"a"}),
        ("a",),
        {"a": "b"},
    ],
)
def test_a_row_that_cannot_be_read_is_left_alone_and_the_leases_decide(text: Value) -> None:
    async def scene() -> None:
        stage = Stage(zero=4, leak=2)
        await stage.has_leases_of("zero")
        row: Row = {"key": STREAM_KEY, "entityType": "STREAM", "streamId": text}
        await stage.tables.coordinator.put(row)
        await stage.ends("leak")
        await stage.starts("zero")
        assert await stage.tables.coordinator.get(STREAM_KEY) == row
        assert stage.log.events("warning") == ["own_stream_unreadable"] * 2

    anyio.run(scene)


def test_a_later_stream_of_the_table_is_its_own_and_that_of_another_table_is_not() -> None:
    async def scene() -> None:
        stage, table = Stage(), ChangedTable()
        table.switch_on(1, changed_table.shard("a", is_open=True))
        kinesis = FollowedTables(table)
        await stage.starts(StreamRef("orders", arn_of(1)), kinesis, is_new=True)
        assert (await stage.stored() or pytest.fail()).created_s is None
        table.switch_on(2, changed_table.shard("b", is_open=True))
        await stage.starts(StreamRef("orders", arn_of(2)), kinesis)
        await stage.starts(StreamRef("orders", table="orders"), kinesis)
        other = OwnStream(arn="arn:aws:dynamodb:us-east-1:123456789012:table/other", created_s=None)
        await stage.tables.coordinator.put(
            {"key": STREAM_KEY, "entityType": "STREAM", "streamId": other.text}
        )
        assert "table/other" in await stage.ends(StreamRef("orders", table="orders"), kinesis)

    anyio.run(scene)


def test_a_shard_of_another_stream_is_not_forgotten_by_this_one() -> None:
    """A lease that came by accident: the stream is there, and never had its shard."""

    async def scene() -> None:
        stage = Stage(zero=4, leak=2)
        await stage.has_leases_of("zero", TRIM_HORIZON)
        leases = sorted(await leases_of(stage.tables.leases), key=lambda each: each.lease_key)
        watch = StreamMonitor(
            kinesis=stage.kinesis, stream=StreamRef("leak"), clock=LoopClock(), log=stage.log
        )
        assert not await watch.has_forgotten(leases[3])
        assert stage.log.events() == ["stream_recreated"]

    anyio.run(scene)


def test_a_shard_that_is_listed_is_not_forgotten() -> None:
    async def scene() -> None:
        stage = Stage(zero=2)
        await stage.has_leases_of("zero")
        (lease, _) = await leases_of(stage.tables.leases)
        watch = StreamMonitor(
            kinesis=stage.kinesis, stream=StreamRef("zero"), clock=LoopClock(), log=stage.log
        )
        assert not await watch.has_forgotten(lease)
        assert stage.log.events() == []

    anyio.run(scene)
