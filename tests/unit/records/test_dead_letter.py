"""What a dead letter looks like: a promise to those who read them."""

from __future__ import annotations

import json
from dataclasses import replace

import orjson

from kcl_protocol.messages import RecordSchema
from tests.unit.consumer.letters import LETTER, letter


def test_it_holds_the_record_its_place_and_the_childs_last_words() -> None:
    line = LETTER.line()
    assert b"\n" not in line
    assert orjson.loads(line) == {
        "applicationName": "billing",
        "streamName": "orders",
        "streamArn": "arn:aws:kinesis:eu-west-1:111122223333:stream/orders",
        "shardId": "shardId-000000000003",
        "sequenceNumber": "4951",
        "subSequenceNumber": 7,
        "partitionKey": "k\u00fc\u2028",
        "approximateArrivalTimestamp": 1_770_000_000_123,
        "data": "cG9pc29u",
        "setAsideTimestamp": 1_770_000_009_000,
        "workerId": "host-1",
        "cause": "failed",
        "failures": 3,
        "error": "child ended with exit code 3 during processRecords",
        "stderr": list(LETTER.stderr),
    }


def test_an_arn_that_nobody_knows_is_left_out() -> None:
    assert "streamArn" not in orjson.loads(replace(LETTER, stream_arn=None).line())


def test_the_key_is_that_of_the_record_whoever_sets_it_aside() -> None:
    assert LETTER.key == "000000000003-4951-7"
    assert replace(LETTER, worker_id="other", set_aside_ms=1, failures=9).key == LETTER.key
    assert letter(4952).key != LETTER.key
    assert len(replace(LETTER, shard_id="x" * 200).key) == 128


def test_a_schema_is_reported_as_the_child_was_told_it() -> None:
    schema = RecordSchema("order", "b7b4", "JSON", '{"type":"object"}')
    reported = orjson.loads(replace(LETTER, record=replace(LETTER.record, schema=schema)).line())
    plain = orjson.loads(LETTER.line())
    assert {key: value for key, value in reported.items() if key not in plain} == {
        "schemaName": "order",
        "schemaVersionId": "b7b4",
        "schemaDataFormat": "JSON",
        "schemaDefinition": '{"type":"object"}',
    }


def test_a_key_that_is_no_text_can_be_reported() -> None:
    line = replace(LETTER, record=replace(LETTER.record, partition_key="k\ud800")).line()
    assert json.loads(line)["partitionKey"] == "k\ud800"
    assert b"\n" not in line
