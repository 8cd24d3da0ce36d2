"""Streams and tables that are written down, tagged, paid for and removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcl_prove.inventory import Inventory, Item
from kcl_prove.parts import BudgetReached, ProveError, Usage
from kcl_prove.removal import leftovers, remove_all, run_of
from kcl_prove.stage import Clients
from tests.unit.prove.accounts import REGION, RUN_ID, Clock, account, stage_in

pytestmark = pytest.mark.anyio


def make_table(clients: Clients, name: str, **more: Any) -> None:
    clients("dynamodb").create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        **more,
    )


async def test_a_stream_is_written_down_before_it_is_made(tmp_path: Path) -> None:
    with account() as clients:
        stage, inventory, _ = stage_in(clients, tmp_path)
        sent: list[tuple[bool, object]] = []
        clients("kinesis").meta.events.register(
            "provide-client-params.kinesis.CreateStream",
            lambda params, **_: sent.append((f"{RUN_ID}-orders" in inventory.path.read_text(), params)),
        )
        name = await stage.create_stream("orders", shards=3, max_record_bytes=10 * 1024 * 1024)
        wanted = {"StreamName": name, "ShardCount": 3, "MaxRecordSizeInKiB": 10_240}
        assert sent == [(True, {**wanted, "Tags": {"kcl-prove": RUN_ID}})]
        summary = clients("kinesis").describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        assert summary["OpenShardCount"] == 3
        assert name == f"{RUN_ID}-orders"


async def test_an_on_demand_stream_costs_by_the_stream(tmp_path: Path) -> None:
    with account() as clients:
        stage, _, budget = stage_in(clients, tmp_path)
        name = await stage.create_stream("orders", shards=None)
        summary = clients("kinesis").describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        assert summary["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}
        assert budget.used == Usage(on_demand_stream_hours=1)


async def test_nothing_is_made_or_written_down_that_costs_too_much(tmp_path: Path) -> None:
    with account() as clients:
        stage, inventory, _ = stage_in(clients, tmp_path, most=0.1)
        with pytest.raises(BudgetReached, match=r"0\.15 dollars, above --most 0\.10"):
            await stage.create_stream("orders", shards=10)
        assert inventory.items == ()
        assert clients("kinesis").list_streams()["StreamNames"] == []


async def test_everything_is_removed_and_what_never_came_to_be_counts_as_gone(tmp_path: Path) -> None:
    with account() as clients:
        stage, inventory, _ = stage_in(clients, tmp_path)
        stream = await stage.create_stream("orders", shards=1)
        make_table(clients, stage.application("app"))
        arn = clients("kinesis").describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"][
            "StreamARN"
        ]
        clients("kinesis").register_stream_consumer(StreamARN=arn, ConsumerName="reader")
        await stage.remember("schema registry", f"{RUN_ID}-schemas")
        clients("glue").create_registry(RegistryName=f"{RUN_ID}-schemas")
        await stage.remember("files", str(tmp_path / "files"))
        (tmp_path / "files").mkdir()
        assert len(inventory.items) == 6
        assert await remove_all(inventory, clients) == ()
        assert clients("kinesis").list_streams()["StreamNames"] == []
        assert clients("dynamodb").list_tables()["TableNames"] == []
        assert clients("glue").list_registries()["Registries"] == []
        assert not (tmp_path / "files").exists()
        inventory.close()
        assert not inventory.path.exists()


async def test_an_item_that_cannot_be_removed_is_named_with_its_command_and_kept_in_the_inventory(
    tmp_path: Path,
) -> None:
    with account() as clients:
        _, inventory, _ = stage_in(clients, tmp_path)
        table = Item("table", f"{RUN_ID}-app")
        make_table(clients, table.name, DeletionProtectionEnabled=True)
        inventory.add(table)
        (failed,) = await remove_all(inventory, clients, within_s=60)
        assert failed.item == table
        assert "DeletionProtectionEnabled" in failed.why
        assert failed.by_hand == f"aws dynamodb delete-table --table-name {table.name} --region {REGION}"
        inventory.close()
        assert Inventory.open(inventory.path).items == (table,)


async def test_throttled_removals_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with account() as clients:
        stage, inventory, _ = stage_in(clients, tmp_path)
        await stage.create_stream("orders", shards=1)
        kinesis, calls = clients("kinesis"), list[str]()
        real = kinesis.delete_stream

        def throttled(**arguments: Any) -> Any:
            calls.append("delete")
            if len(calls) == 1:
                answer: Any = {"Error": {"Code": "LimitExceededException", "Message": "too many"}}
                raise kinesis.exceptions.LimitExceededException(answer, "DeleteStream")
            return real(**arguments)

        monkeypatch.setattr(kinesis, "delete_stream", throttled)
        assert await remove_all(inventory, clients) == ()
        assert len(calls) == 2


async def test_a_search_finds_what_no_file_names_any_more(tmp_path: Path) -> None:
    with account() as clients:
        stage, _, _ = stage_in(clients, tmp_path)
        stream = await stage.create_stream("orders", shards=1)
        clients("kinesis").add_tags_to_stream(StreamName=stream, Tags=stage.tags)  # moto forgets them
        make_table(clients, f"{RUN_ID}-app", Tags=[{"Key": "kcl-prove", "Value": RUN_ID}])
        make_table(clients, f"{RUN_ID}-java")
        make_table(clients, "kcl-prove-of-mine")
        make_table(clients, "orders")
        arn = clients("glue").create_registry(RegistryName=f"{RUN_ID}-schemas")["RegistryArn"]
        clients("glue").tag_resource(ResourceArn=arn, TagsToAdd=dict(stage.tags))
        found, problems = await leftovers(clients)
        assert {(each.item.name, each.tagged) for each in found} == {
            (stream, True),
            (f"{RUN_ID}-app", True),
            (f"{RUN_ID}-java", False),
            (f"{RUN_ID}-schemas", True),
        }
        assert {run_of(each.item.name) for each in found} == {RUN_ID}
        assert len(problems) <= 1  # moto may not know FIS


async def test_local_endpoints_never_lead_to_aws(tmp_path: Path) -> None:
    with account() as clients:
        local = Clients(clients.session, {"kinesis": "http://127.0.0.1:1"})
        assert local("kinesis").meta.endpoint_url == "http://127.0.0.1:1"
        with pytest.raises(ProveError, match="AWS account"):
            local("fis")


async def test_local_endpoints_that_ended_took_everything_with_them(tmp_path: Path) -> None:
    with account() as clients:
        _, inventory, _ = stage_in(clients, tmp_path)
        inventory.add(Item("stream", f"{RUN_ID}-orders"))
    local = Clients(clients.session, {"kinesis": "http://127.0.0.1:1"})
    assert await remove_all(inventory, local, within_s=0) == ()
    local.close()


async def test_hours_are_counted_as_they_begin_until_the_scene_ends(tmp_path: Path) -> None:
    clock = Clock()
    with account() as clients:
        stage, _, budget = stage_in(clients, tmp_path, most=0.1, clock=clock)
        await stage.create_stream("orders", shards=2)
        stage.spend(Usage(fan_out_shard_hours=1, put_units=5))
        clock.now_s += 3599
        budget.hours_begun()
        assert budget.used == Usage(shard_hours=2, fan_out_shard_hours=1, put_units=5)
        clock.now_s += 1
        budget.hours_begun()
        budget.hours_begun()
        assert budget.used == Usage(shard_hours=4, fan_out_shard_hours=2, put_units=5)
        clock.now_s += 3600
        with pytest.raises(BudgetReached):
            budget.hours_begun()
        budget.stopped()
        clock.now_s += 36_000
        budget.hours_begun()
