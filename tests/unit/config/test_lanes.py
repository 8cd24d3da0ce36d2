"""`shardConcurrency` and what goes with it: the fields, what is refused, and what has no effect."""

from __future__ import annotations

import pytest

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.leases.lease import StreamIdentity
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.retrieval.byte_budget import MAX_BYTES
from tests.unit.config.helpers import events, read, refusals

SPARK = "sparkPipeline = jobs:orders\nstreamName = orders\napplicationName = billing\n"
MANY = "executableName = consumer.py\nstreamNames = orders, clicks\napplicationName = billing\n"
FILTERED = "executableName = consumer.py\nstreamFilter = ord.*\napplicationName = billing\n"


def test_each_property_fills_its_field() -> None:
    loaded = read("shardConcurrency = 16\nshardOrder = none\nshardConcurrencyWindowBytes = 2000000\n")
    assert loaded.settings.concurrency == ConcurrencySettings(LaneCounts(16), ShardOrder.NONE, 2_000_000)
    assert loaded.warnings == ()


def test_a_stream_may_have_its_own_number() -> None:
    lanes_of = read("shardConcurrency = 2, clicks=8\n", base=MANY).settings.concurrency.lanes_of
    assert [lanes_of(StreamIdentity("1", name, 1)) for name in ("orders", "clicks")] == [2, 8]
    assert lanes_of(None) == 2
    assert read("shardConcurrency = 1, orders=64\n", base=FILTERED).settings.concurrency.lanes.most == 64


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("shardConcurrency = 0", "out of range; allowed: 1 to 64 children"),
        ("shardConcurrency = 65", "out of range; allowed: 1 to 64 children"),
        ("shardConcurrency = many", "not a whole number; allowed: 1 to 64 children"),
        ("shardConcurrency = orders=4", "not a whole number; allowed: 1 to 64 children"),
        ("shardConcurrency = 1, orders", "'orders' is not STREAM=N"),
        ("shardConcurrency = 1, orders=0", "out of range; allowed: 1 to 64 children"),
        ("shardConcurrency = 1, orders=2, orders=3", "orders is given twice"),
        ("shardOrder = shard", "not an allowed value; allowed: KEY or NONE"),
        ("shardConcurrencyWindowBytes = 1000", "out of range; allowed: 1048576 to 25165824 bytes"),
    ],
)
def test_a_wrong_value_of_shard_concurrency_is_refused_with_what_may_be(line: str, reason: str) -> None:
    (refusal,) = refusals(f"{line}\n", base=MANY)
    assert refusal.startswith(f"app.properties:4: {line}: {reason}")


def test_the_window_of_one_shard_leaves_half_of_the_workers_memory_to_the_others() -> None:
    assert read(f"shardConcurrency = 2\nshardConcurrencyWindowBytes = {MAX_BYTES // 2}\n")
    assert refusals(f"shardConcurrency = 2\nshardConcurrencyWindowBytes = {MAX_BYTES // 2 + 1}\n")


def test_a_pipeline_has_one_child_for_each_shard() -> None:
    (refusal,) = refusals("shardConcurrency = 4\n", base=SPARK)
    assert refusal == (
        "app.properties:4: shardConcurrency = 4: a sparkPipeline reads a shard with one child; Spark has its own "
        "concurrency; remove this line"
    )
    assert read("shardConcurrency = 1\n", base=SPARK).settings.concurrency.lanes.most == 1


def test_a_number_for_a_stream_that_is_not_read_is_refused() -> None:
    (refusal,) = refusals("shardConcurrency = 1, order=8\n", base=MANY)
    assert refusal.endswith("order is not in streamNames or streamArns; correct or remove order=...")
    (refusal,) = refusals("shardConcurrency = 1, orders=8\n")
    assert refusal.endswith("this daemon reads one stream; give its number alone, without orders=...")


@pytest.mark.parametrize("line", ["shardOrder = none", "shardConcurrencyWindowBytes = 2000000"])
@pytest.mark.parametrize("one", ["", "shardConcurrency = 1\n"])
def test_order_and_window_have_no_effect_on_one_child(line: str, one: str) -> None:
    key = line.partition(" ")[0]
    assert events(f"{line}\n{one}") == [("property_has_no_effect", key, 4)]
