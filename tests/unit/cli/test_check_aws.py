"""What `kcl-daemon check --with-aws` says of fan-out and of tables, on services in memory that refuse some calls."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.cli.check import Finding, lease_findings, stream_findings, table_findings
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import AccessDenied
from kcl_daemon.leases.row import Row, creation
from kcl_daemon.ports import ConsumerName, StreamRef, Tables
from kcl_daemon.shards.sync import new_lease
from kcl_daemon.transport.table_streams import FollowedTables
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber
from tests.simulator.memory.fan_out import MemoryFanOut
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.simulator.memory.table import MemoryTable
from tests.unit.config.helpers import GOOD, read
from tests.unit.fleet import changed_table
from tests.unit.fleet.changed_table import ChangedTable, arn_of

STREAM = StreamRef("orders")
SUBSCRIBE = (True, "SubscribeToShard: NOT TRIED, as it would interrupt the worker that reads the shard")
REGISTER = (
    True,
    "RegisterStreamConsumer: NOT TRIED, as it would register a consumer, which costs money",
)
READABLE = [(True, "stream orders: ACTIVE"), (True, "ListShards: 2 shards")]


class Service:
    """Kinesis with one stream that is ACTIVE."""

    def __init__(self) -> None:
        self.now_s = 1_770_000_000.0
        self.model = KinesisModel(lambda: self.now_s)
        self.model.handle("CreateStream", {"StreamName": "orders", "ShardCount": 2})
        self.now_s += 60

    def register(self, name: str) -> str:
        """A consumer that is ACTIVE; its ARN."""

        async def register() -> str:
            summary = await MemoryKinesis(self.model).describe_stream(STREAM)
            consumer = await MemoryFanOut(self.model).register_consumer(ConsumerName(summary.arn, name))
            return consumer.arn

        arn = anyio.run(register)
        self.now_s += 60
        return arn

    def looked_at(self, more: str = "") -> list[Finding]:
        """All that is said of the stream."""
        settings = read(more).settings

        async def poll() -> list[Finding]:
            return await stream_findings(
                settings, STREAM, MemoryKinesis(self.model), MemoryFanOut(self.model)
            )

        return anyio.run(poll)


@pytest.fixture
def service() -> Service:
    return Service()


def test_a_consumer_that_is_there_is_reported_and_not_subscribed_to(service: Service) -> None:
    service.register("billing")
    assert service.looked_at() == [*READABLE, (True, "consumer billing: ACTIVE"), SUBSCRIBE]


def test_that_a_consumer_can_be_registered_is_not_claimed(service: Service) -> None:
    missing = (True, "consumer other: does not exist; the daemon registers it")
    assert service.looked_at("fanoutConfig.consumerName = other\n") == [
        *READABLE,
        missing,
        REGISTER,
        SUBSCRIBE,
    ]


def test_a_consumer_that_is_given_must_be_there(service: Service) -> None:
    arn = service.register("billing")
    more = "fanoutConfig.consumerArn = "
    assert (True, f"consumer {arn}: ACTIVE") in service.looked_at(f"{more}{arn}\n")
    gone = arn.replace("/billing:", "/nobody:")
    (bad,) = (each for each in service.looked_at(f"{more}{gone}\n") if not each[0])
    assert bad[1] == f"consumer {gone}: does not exist; correct or remove fanoutConfig.consumerArn"


def test_a_role_that_may_not_ask_for_the_consumer_is_no_good(service: Service) -> None:
    service.model.fail_next("DescribeStreamConsumer", "AccessDeniedException")
    (bad,) = (text for good, text in service.looked_at() if not good)
    assert bad.startswith("consumer billing: AccessDenied: DescribeStreamConsumer")


def test_who_may_fall_back_to_polling_is_told_of_both(service: Service) -> None:
    found = service.looked_at("fanoutFallbackToPolling = true\n")
    assert SUBSCRIBE in found
    assert (True, "GetRecords: allowed") in found


def test_a_check_with_polling_does_not_look_at_consumers(service: Service) -> None:
    assert service.looked_at("retrievalMode = POLLING\n") == [*READABLE, (True, "GetRecords: allowed")]


class Unscannable(MemoryTable):
    """A table whose rows may be read one by one only."""

    async def scan(self) -> list[Row]:
        raise AccessDenied("not authorized", operation="Scan")


def tables_findings(table: MemoryTable, *, exists: bool = True) -> list[Finding]:
    async def poll() -> list[Finding]:
        if exists:
            await table.ensure()
        return await table_findings(table, indexed=True)

    return anyio.run(poll)


def test_rows_are_called_readable_only_where_they_can_be_scanned() -> None:
    good = tables_findings(MemoryTable("billing", "leaseKey", True))
    assert good == [(True, "table billing: exists"), (True, "table billing: rows can be read and written")]
    there, bad = tables_findings(Unscannable("billing", "leaseKey", True))
    assert there == good[0]
    assert not bad[0]
    assert bad[1].startswith("table billing: Scan: AccessDenied")


def test_that_a_table_can_be_made_is_not_claimed() -> None:
    (finding,) = tables_findings(MemoryTable("billing", "leaseKey", True), exists=False)
    good, text = finding
    assert good
    assert text.startswith("table billing: does not exist; the daemon creates it if needed; CreateTable and")
    assert text.endswith("its rows: NOT TRIED, as it would create a table")


class Fleet:
    """A lease table, whose leases are made of the shards of some stream."""

    def __init__(self, service: Service) -> None:
        self.kinesis = MemoryKinesis(service.model)
        self.table = MemoryTable("billing", "leaseKey", True)
        self.tables = Tables(self.table, MemoryTable("workers", "wid"), MemoryTable("coordinator", "key"))

    async def has(self, stream: str, checkpoint: ExtendedSequenceNumber | None = None) -> None:
        """Leases of a stream; where they begin, if not at its shards' first numbers."""
        await self.table.ensure()
        for shard in await self.kinesis.list_shards(StreamRef(stream)):
            first = ExtendedSequenceNumber(str(shard.starting_sequence_number))
            await self.table.put(*creation(new_lease(shard, checkpoint or first)))

    def findings(self, more: str = "") -> list[Finding]:
        async def poll() -> list[Finding]:
            return await lease_findings(read(more).settings, self.kinesis, self.tables)

        return anyio.run(poll)


@pytest.fixture
def fleet(service: Service) -> Fleet:
    return Fleet(service)


def test_leases_of_the_stream_are_compared_and_their_checkpoints_tried(fleet: Fleet) -> None:
    assert fleet.findings() == []
    anyio.run(fleet.has, "orders")
    assert fleet.findings() == [(True, "leases: 2 unfinished for 2 listed shards; 2 checkpoints tried")]


def test_leases_of_another_stream_under_this_application_name_are_no_good(
    service: Service, fleet: Fleet
) -> None:
    service.model.handle("CreateStream", {"StreamName": "clicks", "ShardCount": 1})
    anyio.run(fleet.has, "orders")
    service.now_s += 60
    ((good, text),) = fleet.findings("streamName = clicks\n")
    assert not good
    assert "applicationName" in text


def test_a_checkpoint_that_kinesis_refuses_is_no_good(service: Service, fleet: Fleet) -> None:
    anyio.run(fleet.has, "orders")
    service.model.fail_next("GetShardIterator", "InvalidArgumentException")
    ((good, text),) = fleet.findings()
    assert not good
    assert "applicationName" in text


def test_open_shards_that_are_finished_are_no_good(fleet: Fleet) -> None:
    anyio.run(fleet.has, "orders", SHARD_END)
    _, (good, text) = fleet.findings()
    assert not good
    assert "leases reset" in text


CHANGES = "tableName.source = orders\n"


def table_looked_at(monkeypatch: pytest.MonkeyPatch, table: ChangedTable, more: str = "") -> list[Finding]:
    """What is said of a table whose functions are two."""

    def readers(arn: str, _endpoints: Endpoints) -> list[str]:
        assert arn == arn_of(1)
        return ["index", "audit"]

    monkeypatch.setattr("kcl_daemon.aws.lookups.functions_that_read", readers)
    base = GOOD.replace("streamName = orders\n", CHANGES)
    settings = read(more, base=base).settings

    async def poll() -> list[Finding]:
        consumers = MemoryFanOut(KinesisModel(lambda: 0.0))
        return await stream_findings(settings, settings.single_stream, FollowedTables(table), consumers)

    return anyio.run(poll)


def test_the_stream_of_a_table_and_its_other_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ChangedTable(view_type="KEYS_ONLY")
    table.switch_on(1, changed_table.shard("a", is_open=True))
    (first, *found) = table_looked_at(monkeypatch, table)
    assert first == (True, f"stream {arn_of(1)}: ENABLED, KEYS_ONLY")
    said = (
        "other readers: warning: index, audit of Lambda; with this daemon 3 readers of each shard, two at most are "
        "recommended, and reads are throttled; other applications, such as KCL workers, cannot be seen"
    )
    assert found == [(True, said), (True, "DescribeStream: 1 shards"), (True, "GetRecords: allowed")]


def test_images_that_the_stream_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ChangedTable(view_type="KEYS_ONLY")
    table.switch_on(1, changed_table.shard("a", is_open=True))
    for more, good in (("childRecordFormat = plain\n", True), ("snapshot = true\n", False)):
        (image,) = (
            each for each in table_looked_at(monkeypatch, table, more) if each[1].startswith("images")
        )
        assert image[0] is good
        assert "KEYS_ONLY, so records have no new image" in image[1]


def test_functions_of_lambda_are_not_looked_for_at_an_endpoint_of_our_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = ChangedTable()
    table.switch_on(1, changed_table.shard("a", is_open=True))
    found = table_looked_at(monkeypatch, table, "dynamoDBStreamsEndpoint = http://127.0.0.1:8000\n")
    assert any(text.startswith("other readers: functions of Lambda: NOT TRIED") for _, text in found)


def test_a_table_without_a_stream_gets_the_command_that_switches_it_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ((good, text),) = table_looked_at(monkeypatch, ChangedTable())
    assert not good
    assert "aws dynamodb update-table --table-name orders" in text
