"""Changes of a DynamoDB table: decoded in their three forms, and made into a copy of the table."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession, functions

from kcl_daemon.records.changes import changes_of
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.records.payload import UserRecord
from kcl_spark import decode, sinks
from kcl_spark.api import Batch, BatchHandler
from kcl_spark.sinks import merge_statement
from tests.spark.changed import (
    ARN,
    AT_MS,
    BATCHES,
    ITEM,
    STATES,
    AnyImage,
    Attributes,
    answer,
    changed,
    frame,
    kcl1,
    number,
)


def in_form(form: ChangeForm, *given: bytes) -> list[bytes]:
    """What the daemon makes of changes of the service."""
    payload, _, _ = changes_of(answer(*given), form, ARN)
    return [each.body for each in payload.records if isinstance(each, UserRecord)]


@pytest.mark.parametrize("form", ChangeForm)
def test_an_image_without_a_schema_is_plain_json_with_exact_numbers(
    spark: SparkSession, form: ChangeForm
) -> None:
    images = [AnyImage(seed).image() for seed in range(300)]
    given = in_form(form, *[kcl1("INSERT", {"id": {"S": "x"}}, typed, "1") for typed, _ in images])
    found = decode.dynamodb(frame(spark, *given)).collect()
    assert [(row._corrupt, row.kind, row["table"]) for row in found] == [(None, "insert", "orders")] * len(
        given
    )
    read = [json.loads(row.new, parse_float=str, parse_int=str) for row in found]
    assert read == [json.loads(plain, parse_float=str, parse_int=str) for _, plain in images]


def test_an_image_of_the_largest_size_and_depth_is_decoded(spark: SparkSession) -> None:
    deep: Attributes = {"N": "1"}
    for _ in range(31):
        deep = {"L": [{"M": {"M": deep}}]}
    text = 'a\\"}' * 90_000
    many = [f'"{each}' for each in range(60_000)]
    large: Attributes = {"text": {"S": text}, "many": {"SS": many}, "deep": deep}
    (row,) = decode.dynamodb(frame(spark, kcl1("INSERT", {"id": {"S": "x"}}, large, "1"))).collect()
    read = json.loads(row.new)
    assert (read["text"], len(read["many"])) == (text, 60_000)
    assert row.new.endswith('"deep":' + '[{"M":' * 31 + "1" + "}]" * 31 + "}")


def test_changes_have_types_with_a_schema(spark: SparkSession) -> None:
    address = {"city": {"S": "Köln"}, "S": {"M": {"N": number("5")}}}
    item = {
        "id": {"S": "x"},
        "amount": number("123456789012345678901234567890.12"),
        "tags": {"SS": ["a", "b"]},
        "address": {"M": address},
        "blob": {"B": base64.b64encode(b"\0\xff").decode()},
    }
    modify = kcl1("MODIFY", {"id": {"S": "x"}}, item, "100000000000000000001", old={"id": {"S": "x"}})
    remove = kcl1("REMOVE", {"id": {"S": "x"}}, None, "100000000000000000002", old=item)
    bad = kcl1("INSERT", {"id": {"S": "x"}}, {"id": {"S": "x"}, "amount": {"S": "much"}}, "3")
    changes = [each for form in ChangeForm for each in in_form(form, modify)]
    given = [*changes, remove, bad, b"\xff{", b'{"id":1}', b""]
    found = decode.dynamodb(frame(spark, *given), ITEM, keys=["id"])
    columns = [
        "kind",
        "table",
        "keys",
        "new",
        "old",
        "sequence_number",
        "created_at",
        "position",
        "partition_key",
        "shard_id",
        "_corrupt",
    ]
    assert found.columns == columns
    changed, of_lambda, of_plain, removed, *corrupt = found.collect()
    assert [bytes(row._corrupt) for row in corrupt] == given[4:]
    assert changed == of_lambda == of_plain
    assert (changed.kind, changed.table, changed.keys.asDict()) == ("modify", "orders", {"id": "x"})
    assert changed.new.asDict(recursive=True) == {
        "id": "x",
        "amount": Decimal("123456789012345678901234567890.12"),
        "tags": ["a", "b"],
        "address": {"city": "Köln", "S": {"N": 5}},
        "blob": b"\0\xff",
    }
    assert (changed.old.id, changed.old.amount) == ("x", None)
    assert changed.created_at.timestamp() * 1000 == pytest.approx(AT_MS, abs=0.01)
    assert (removed.kind, removed.new, removed.sequence_number) == ("remove", None, "100000000000000000002")


def test_the_schema_must_have_the_keys(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="name the key attributes"):
        decode.dynamodb(frame(spark), "id string", keys=["no"])


def test_a_copy_in_files_has_the_last_image_of_each_item_after_each_batch_and_its_repeats(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "copy")
    write = sinks.overwrite_items(path)
    assert isinstance(write, BatchHandler)
    with pytest.raises(FileNotFoundError, match="no batch"):
        sinks.items(spark, path)
    for number_of, (batch, state) in enumerate(zip(BATCHES, STATES, strict=True)):
        changes = decode.dynamodb(frame(spark, *batch), "id string, n int", keys=["id"])
        for is_replay in (False, True):
            write.function(changes, Batch(number_of, "copy", {}, is_replay=is_replay, state="one"))
            assert {row.id: row.n for row in sinks.items(spark, path).collect()} == state


def test_a_copy_without_a_schema_has_json(spark: SparkSession, tmp_path: Path) -> None:
    sinks.overwrite_items(str(tmp_path))(decode.dynamodb(frame(spark, *BATCHES[0])), 0)
    (row,) = sinks.items(spark, str(tmp_path)).where('keys = \'{"id":"a"}\'').collect()
    assert (row["item"], row.position) == ('{"id":"a","n":2}', f"{'0' * 20}-{10:040}")


@pytest.mark.parametrize(
    ("bad", "reason"), [(b"nonsense", "no change"), (changed("INSERT", "a", None, 1), "needs NEW_IMAGE")]
)
def test_no_copy_is_made_of_what_has_no_image(
    spark: SparkSession, tmp_path: Path, bad: bytes, reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        sinks.overwrite_items(str(tmp_path))(decode.dynamodb(frame(spark, bad)), 0)


def test_a_later_stream_of_the_table_is_newer_whatever_its_numbers_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The numbers begin anew where a stream is switched off and on again."""
    write = sinks.overwrite_items(str(tmp_path))
    shards = [f"shardId-{began:020}-0a1b2c3d" for began in (AT_MS, AT_MS + 3_600_000)]
    for number_of, (shard, n, sequence) in enumerate(zip(shards, (1, 2), (900, 7), strict=True)):
        one = frame(spark, changed("INSERT", "a", n, sequence)).withColumn("shard_id", functions.lit(shard))
        write(decode.dynamodb(one, "id string, n int", keys=["id"]), number_of)
    assert [row.n for row in sinks.items(spark, str(tmp_path)).collect()] == [2]


def test_a_merge_of_items_removes_and_replaces_nothing_newer() -> None:
    assert merge_statement("ice.db.t", "batch", ["id"], ["position"], "gone") == (
        "MERGE INTO ice.db.t AS old USING batch AS new ON old.`id` <=> new.`id` "
        "WHEN MATCHED AND (new.`position`) >= (old.`position`) AND new.`gone` THEN DELETE "
        "WHEN MATCHED AND (new.`position`) >= (old.`position`) THEN UPDATE SET * "
        "WHEN NOT MATCHED AND NOT new.`gone` THEN INSERT *"
    )
