"""One of many streams on the command line."""

from __future__ import annotations

import pytest

from kcl_daemon.app import streams_of
from kcl_daemon.cli.application import chosen_stream, is_of, leases_of
from kcl_daemon.cli.common import NotChanged, stream_text
from kcl_daemon.cli.leases.change import chosen_leases
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.config.streams import ListedStream, StreamsSettings
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, StreamIdentity, TableStream, lease_key_of
from kcl_daemon.leases.row import creation
from kcl_daemon.ports import StreamRef
from kcl_daemon.shards.lineage import NO_HASH_KEYS, Shard
from kcl_daemon.shards.sync import new_lease
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.config.helpers import read
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.troubled import TroubledTable

SHARD = ShardId("shardId-000000000000")
CLICKS = StreamIdentity("123456789012", "clicks", 1_770_000_000)
FORMER = StreamIdentity("123456789012", "clicks", 1_760_000_000)
ORDERS = StreamIdentity("123456789012", "orders", 1_770_000_000)
LEASES = tuple(
    Lease(lease_key_of(stream, SHARD), 0, TRIM_HORIZON, stream=stream) for stream in (CLICKS, FORMER, ORDERS)
)
ONE = Settings("app", "clicks", ChildSettings(("true",)), "w-1")
MANY = Settings(
    "app",
    "",
    ChildSettings(("true",)),
    "w-1",
    streams=StreamsSettings(names=(ListedStream("clicks"), ListedStream("orders")), name_filter="log-*"),
)


def chosen(settings: Settings, stream: str | None) -> StreamRef:
    async def main() -> StreamRef:
        clock = LoopClock()
        model = KinesisModel(lambda: clock.wall_ms() / 1000)
        for name in ("clicks", "log-a"):
            model.handle("CreateStream", {"StreamName": name, "ShardCount": 1})
        table = TroubledTable()
        await table.ensure()
        streams = streams_of(settings, MemoryKinesis(model), clock, MemoryLog(), table=table)
        return await chosen_stream(settings, stream, streams)

    return run_virtual(main)


def test_leases_are_chosen_by_the_name_of_a_stream_or_by_its_identity() -> None:
    assert leases_of(LEASES, None, MANY) == LEASES
    assert leases_of(LEASES, "clicks", MANY) == LEASES[:2]
    assert leases_of(LEASES, str(FORMER), MANY) == LEASES[1:2]
    assert leases_of(LEASES, "none", MANY) == ()
    alone = Lease(LeaseKey(SHARD), 0, TRIM_HORIZON)
    assert leases_of([alone], "clicks", ONE) == (alone,)
    assert leases_of([alone], "orders", ONE) == ()


def test_a_shard_of_several_streams_is_not_guessed() -> None:
    with pytest.raises(NotChanged, match="add --stream"):
        chosen_leases(LEASES, [SHARD])
    assert chosen_leases(LEASES, [LEASES[2].lease_key]) == LEASES[2:]


@pytest.mark.parametrize(
    "name", ["clicks", str(CLICKS), "arn:aws:kinesis:us-east-1:123456789012:stream/clicks"]
)
def test_the_stream_to_act_on_is_that_of_now(name: str) -> None:
    assert chosen(MANY, name).identity == CLICKS


def test_a_stream_of_the_filter_can_be_chosen_too() -> None:
    assert chosen(MANY, "log-a").name == "log-a"


def test_one_stream_needs_no_name() -> None:
    assert chosen(ONE, None) == chosen(ONE, "clicks")
    assert chosen(ONE, None).identity is None


@pytest.mark.parametrize(
    ("settings", "name", "reported"),
    [
        (MANY, None, "add --stream with one of clicks, orders, log-"),
        (MANY, "orders", "--stream orders: none of clicks, orders, log-"),
        (MANY, str(FORMER), "none of clicks"),
        (ONE, "orders", "this application reads clicks, not orders"),
    ],
)
def test_a_stream_that_cannot_be_chosen_is_refused_with_the_reason(
    settings: Settings, name: str | None, reported: str
) -> None:
    with pytest.raises(NotChanged, match=reported):
        chosen(settings, name)


def test_streams_in_words() -> None:
    assert (stream_text(ONE), stream_text(MANY)) == ("clicks", "clicks, orders, log-*")


LABEL = "2026-11-20T20:51:10.252"
ARN = f"arn:aws:dynamodb:eu-west-1:111122223333:table/orders/stream/{LABEL}"


@pytest.mark.parametrize("line", [f"streamArn = {ARN}", "tableName.source = orders"])
def test_the_stream_of_a_table_goes_by_its_table_and_its_arn(line: str) -> None:
    settings = read(base=f"executableName = a\napplicationName = billing\n{line}\n").settings
    lease = Lease(LeaseKey("shardId-1"), 1, TRIM_HORIZON)
    assert all(is_of(lease, name, settings) for name in ("orders", ARN))
    assert not any(is_of(lease, name, settings) for name in ("users", ARN.replace("/orders/", "/users/"), ""))


def test_one_of_many_streams_of_tables_goes_by_its_table_its_arn_and_its_identity() -> None:
    identity = StreamIdentity.of_arn(ARN, 0)
    settings = read(base=f"executableName = a\napplicationName = billing\nstreamArns = {ARN}\n").settings
    lease = Lease(lease_key_of(identity, ShardId("shardId-1")), 1, TRIM_HORIZON, stream=identity)
    assert all(is_of(lease, name, settings) for name in ("orders", ARN, identity.name, str(identity)))
    assert not is_of(lease, "users", settings)


def test_rows_are_those_of_adapter_2() -> None:
    identity = StreamIdentity.of_arn(ARN, 0)
    shard = Shard(ShardId("shardId-2"), NO_HASH_KEYS, frozenset({ShardId("shardId-1")}), 5)
    row, _ = creation(new_lease(shard, TRIM_HORIZON, identity))
    name = "eu-west-1$111122223333$orders$2026-11-20T20_51_10.252"
    assert StreamIdentity.parse(str(row["streamName"])) == identity
    assert {
        key: row[key] for key in ("leaseKey", "streamName", "shardId", "startingHashKey", "endingHashKey")
    } == {
        "leaseKey": f"111122223333:{name}:1:shardId-2",
        "streamName": f"111122223333:{name}:1",
        "shardId": "shardId-2",
        "startingHashKey": "0",
        "endingHashKey": "1",
    }
    assert row["parentShardId"] == {"shardId-1"}
    assert TableStream.of(identity.name) == TableStream("eu-west-1", "111122223333", "orders", LABEL)
    assert identity.of_table is not None
    assert identity.of_table.arn == ARN
