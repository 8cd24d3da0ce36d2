"""What the simulated producers put together is what KCL and the daemon take apart."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from aws_kinesis_agg.deaggregator import deaggregate_records

from kcl_daemon.leases.lease import HashRange
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.records.payload import raw_record
from kcl_protocol.messages import Record
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.chance import Chance
from tests.simulator.fleet.aggregates import AggregatesPlan, Aggregator, Put, Range
from tests.simulator.fleet.aggregates import opened as opened_by_java
from tests.unit.records.aggregates import decoded
from tests.unit.simulator.helpers import violation_in
from tests.unit.simulator.test_rules import PARENT, Scene, row

HALF = 1 << 127
SHARDS: tuple[Range, ...] = ((0, HALF - 1), (HALF, 2 * HALF - 1))
KPL = AggregatesPlan(share=1.0, most=40, explicit=0.3)
OTHERS = replace(KPL, strays=0.5, odd=0.6, keyless=0.3)


def puts(plan: AggregatesPlan, seed: int) -> Iterator[Put]:
    chance, numbers = Chance(f"aggregates/{seed}"), count(1)
    aggregator = Aggregator(
        plan,
        chance,
        text=lambda: b"record %d" % next(numbers),
        key=lambda: f"key-{chance.between(0, 50)}",
        chosen=lambda: None,
    )
    return aggregator.puts(200, SHARDS)


def opened(put: Put, home: Range) -> list[tuple[int, str | None, bytes]]:
    """By the daemon, for a shard."""
    outer = raw_record(Record(put.entry["Data"], put.key, "49"))
    pieces = Deaggregator(HashRange(*home), lambda *_: None)(outer)
    found = [record for piece, _ in pieces for record in piece]
    return [
        (
            each.position.sub_sequence_number,
            None if bytes(each.partition_key) == b"null" else decoded(each)[0],
            b64decode(bytes(each.data)[1:-1]),
        )
        for each in found
    ]


@pytest.mark.parametrize("plan", [KPL, OTHERS], ids=["of the KPL", "of others"])
@pytest.mark.parametrize("home", SHARDS)
@pytest.mark.parametrize("seed", range(5))
def test_the_daemon_opens_an_aggregate_as_the_simulator_says(
    plan: AggregatesPlan, home: Range, seed: int
) -> None:
    for put in puts(plan, seed):
        belonging = [
            (each.sub_number, each.key, each.data)
            for each in put.found
            if each.hash_key is None or home[0] <= each.hash_key <= home[1]
        ]
        assert opened(put, home) == belonging


def test_the_reference_opens_what_the_kpl_would_write_as_the_simulator_says() -> None:
    for put in puts(KPL, 1):
        facts = {"kinesisSchemaVersion": "1.0", "approximateArrivalTimestamp": 0.0}
        own = {"data": put.entry["Data"], "partitionKey": put.key, "sequenceNumber": "49"}
        found = [
            (
                each["kinesis"]["subSequenceNumber"],
                each["kinesis"]["partitionKey"],
                b64decode(each["kinesis"]["data"]),
            )
            for each in deaggregate_records([{"kinesis": {**facts, **own}}])
        ]
        assert found == [(each.sub_number, each.key, each.data) for each in put.found]


def test_the_java_model_opens_what_the_kpl_would_write() -> None:
    for put in puts(KPL, 3):
        found = opened_by_java(Record(put.entry["Data"], put.key, "49"))
        assert [(each.sub_sequence_number, each.partition_key, b64decode(each.data)) for each in found] == [
            (each.sub_number, each.key, each.data) for each in put.found
        ]


def test_the_kpl_puts_only_records_of_one_shard_together() -> None:
    for put in puts(KPL, 2):
        homes = {each.hash_key is not None and each.hash_key >= HALF for each in put.found}
        assert len(homes) == 1


def rule_broken_by(
    *given: tuple[int, int], stray: int | None = None, in_doubt: bool = False, key: str = "k"
) -> str | None:
    """By a child that is given these records of an aggregate 14 of three; it begins at its first record."""

    def action() -> None:
        scene = Scene()
        for sub_number in range(3):
            scene.truth.record_written(
                PARENT, 14, 0.0, "", "k", sub_number=sub_number, is_stray=sub_number == stray
            )
        at = ExtendedSequenceNumber("14", 0)
        scene.rules.restore(PARENT, row(checkpoint="14"))
        scene.deliveries.is_in_doubt = in_doubt
        child = scene.deliveries.started(PARENT, "a")
        scene.deliveries.initialized(child, at)
        records = [Record("", key, str(number), None, sub_number) for number, sub_number in given]
        scene.deliveries.delivered(child, records)

    return violation_in(action)


def test_the_rules_of_delivery_go_by_sub_sequence_numbers() -> None:
    assert rule_broken_by((14, 1), (14, 2)) is None
    assert rule_broken_by((14, 2)) == "record_skipped"
    assert rule_broken_by((14, 0), (14, 1)) == "out_of_order"
    assert rule_broken_by((14, 3)) == "unknown_record"
    assert rule_broken_by((14, 1), key="another") == "altered_record"


def test_a_record_of_another_shard_need_not_be_given_and_may_be_only_in_doubt() -> None:
    assert rule_broken_by((14, 2), stray=1) is None
    assert rule_broken_by((14, 1), (14, 2), stray=1, in_doubt=True) is None
    assert rule_broken_by((14, 1), (14, 2), stray=1) == "stray_delivered"


def test_a_child_begins_behind_a_position_that_has_no_record() -> None:
    """The first record of an aggregate may be one of another shard."""
    truth = Scene().truth
    truth.record_written(PARENT, 14, 0.0, "", "k", sub_number=1)
    assert truth.shards[PARENT].place_after((14, 0)) == 3
    assert truth.shards[PARENT].place_after((14, 1)) == 4
    assert truth.shards[PARENT].place_after((13, 7)) == 3
