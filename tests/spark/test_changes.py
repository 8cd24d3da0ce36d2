"""Changes of a DynamoDB table: decoded in their three forms, and made into a copy of the table."""

from __future__ import annotations

import base64
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kcl_spark import decode, sinks
from kcl_spark.api import Batch
from kcl_spark.sinks import merge_statement

AT_MS = 1_763_894_400_123
ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-11-22T10:00:00.000"
STREAM = "eu-west-1$123456789012$orders$2026-11-22T10_00_00.000"
SNAPSHOT_NUMBER = "1" * 60
ITEM = "id string, amount decimal(38,2), tags array<string>, address struct<city: string, `S`: map<string, long>>, blob binary"

Attributes = dict[str, Any]


def number(text: str) -> Attributes:
    return {"N": text}


def kcl1(
    kind: str, keys: Attributes, new: Attributes | None, sequence: str, old: Attributes | None = None
) -> bytes:
    images = {"NewImage": new, "OldImage": old}
    record = {
        "awsRegion": "eu-west-1",
        "dynamodb": {
            "ApproximateCreationDateTime": AT_MS,
            "Keys": keys,
            **{name: image for name, image in images.items() if image is not None},
            "SequenceNumber": sequence,
            "SizeBytes": 26,
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
        "eventID": "c4ca4238a0b923820dcc509a6f75849b",
        "eventName": kind,
        "eventSource": "aws:dynamodb",
        "eventVersion": "1.1",
    }
    return json.dumps(record, separators=(",", ":")).encode()


def lambdas(given: bytes) -> bytes:
    """The same change as in an event of AWS Lambda; indented, as its documentation shows it."""
    record = json.loads(given)
    record["dynamodb"]["ApproximateCreationDateTime"] = AT_MS / 1000
    return json.dumps({**record, "eventSourceARN": ARN}, indent=2).encode()


def frame(spark: SparkSession, *data: bytes) -> DataFrame:
    columns = "data binary, partition_key string, stream string, shard_id string, sequence_number string"
    return spark.createDataFrame([(each, "key", STREAM, "shardId-1", "7") for each in data], columns)


class AnyImage:
    """Images with all types of DynamoDB, names and texts that look like its JSON, and what each is in plain JSON."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self) -> str:
        pieces = [
            '{"S":"x"}',
            "}}",
            "]}",
            '"',
            "\\",
            "S",
            "N",
            "M",
            "L",
            "NULL",
            "é",
            "\n",
            "\U0001f600",
            " ",
            '{"M":{',
            "'",
        ]
        return "".join(self._random.choices(pieces, k=self._random.randint(0, 4)))

    def number(self) -> str:
        return self._random.choice(
            ["0", "-1", "1.50", "12345678901234567890.1234567890123456", "1E+120", "-2e-7"]
        )

    def value(self, depth: int) -> tuple[Attributes, str]:
        kinds = ["S", "N", "B", "BOOL", "NULL", "SS", "NS", "BS", *(["M", "L"] * 3 if depth else [])]
        kind = self._random.choice(kinds)
        if kind == "M":
            typed, plain = self.image(depth - 1)
            return {"M": typed}, plain
        if kind == "L":
            values = [self.value(depth - 1) for _ in range(self._random.randint(0, 3))]
            return {"L": [each for each, _ in values]}, f"[{','.join(plain for _, plain in values)}]"
        many = [self.scalar(kind[0]) for _ in range(self._random.randint(1, 3))]
        if kind.endswith("S") and len(kind) == 2:
            return {kind: [each for each, _ in many]}, f"[{','.join(plain for _, plain in many)}]"
        typed, plain = (True, "null") if kind == "NULL" else (True, "true") if kind == "BOOL" else many[0]
        return {kind: typed}, plain

    def scalar(self, kind: str) -> tuple[str, str]:
        if kind == "N":
            return (given := self.number()), given
        text = self.text() if kind == "S" else base64.b64encode(self.text().encode()).decode()
        return text, json.dumps(text)

    def image(self, depth: int = 4) -> tuple[Attributes, str]:
        names = [
            self._random.choice(["S", "N", "M", "L", "SS", "NULL", "BOOL", "a", self.text() or "b"])
            for _ in range(3)
        ]
        values = {name: self.value(depth) for name in names[: self._random.randint(0, 3)]}
        plain = ",".join(f"{json.dumps(name)}:{text}" for name, (_, text) in values.items())
        return {name: typed for name, (typed, _) in values.items()}, f"{{{plain}}}"


def test_an_image_without_a_schema_is_plain_json_with_exact_numbers(spark: SparkSession) -> None:
    images = [AnyImage(seed).image() for seed in range(400)]
    given = [kcl1("INSERT", {"id": {"S": "x"}}, typed, "1") for typed, _ in images]
    given += [lambdas(each) for each in given[:100]]
    found = decode.dynamodb(frame(spark, *given)).collect()
    assert [row._corrupt for row in found] == [None] * len(given)
    exact = {"parse_float": str, "parse_int": str}
    read = [json.loads(row.new, **exact) for row in found]
    expected = [json.loads(plain, **exact) for _, plain in [*images, *images[:100]]]
    assert read == expected


def test_an_image_of_the_largest_size_and_depth_is_decoded(spark: SparkSession) -> None:
    deep: Attributes = {"N": "1"}
    for _ in range(31):
        deep = {"L": [{"M": {"M": deep}}]}
    large = {
        "text": {"S": 'a\\"}' * 90_000},
        "many": {"SS": [f'"{each}' for each in range(60_000)]},
        "deep": deep,
    }
    (row,) = decode.dynamodb(frame(spark, kcl1("INSERT", {"id": {"S": "x"}}, large, "1"))).collect()
    read = json.loads(row.new)
    assert (read["text"], len(read["many"])) == (large["text"]["S"], 60_000)
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
    given = [modify, lambdas(modify), remove, bad, b"\xff{", b'{"id":1}', b""]
    found = decode.dynamodb(frame(spark, *given), ITEM, keys=["id"])
    columns = [
        "kind",
        "table",
        "keys",
        "new",
        "old",
        "sequence_number",
        "created_at",
        "partition_key",
        "shard_id",
        "_corrupt",
    ]
    assert found.columns == columns
    changed, of_lambda, removed, *corrupt = found.collect()
    assert [bytes(row._corrupt) for row in corrupt] == given[3:]
    assert changed == of_lambda
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


def changed(kind: str, item: str, value: int | None, sequence: int | str) -> bytes:
    keys = {"id": {"S": item}}
    return kcl1(kind, keys, None if value is None else {**keys, "n": number(str(value))}, str(sequence))


BATCHES = (
    [changed("INSERT", item, 1, SNAPSHOT_NUMBER) for item in "abcd"] + [changed("MODIFY", "a", 2, 10)],
    [changed("MODIFY", "a", 3, 99), changed("REMOVE", "b", None, 100), changed("MODIFY", "b", 5, 98)]
    + [
        changed("INSERT", "e", 6, 11),
        changed("REMOVE", "f", None, 12),
        changed("INSERT", "a", 1, SNAPSHOT_NUMBER),
    ],
    [changed("INSERT", "b", 7, 101), changed("MODIFY", "a", 2, 10), changed("REMOVE", "c", None, 102)],
)
STATES = (
    {"a": 2, "b": 1, "c": 1, "d": 1},
    {"a": 3, "c": 1, "d": 1, "e": 6},
    {"a": 3, "b": 7, "d": 1, "e": 6},
)


def test_a_copy_in_files_has_the_last_image_of_each_item_after_each_batch_and_its_repeats(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, write = str(tmp_path / "copy"), sinks.overwrite_items(str(tmp_path / "copy"))
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
    assert (row["item"], row.sequence_number) == ('{"id":"a","n":2}', 10)


@pytest.mark.parametrize(
    ("bad", "reason"), [(b"nonsense", "no change"), (changed("INSERT", "a", None, 1), "needs NEW_IMAGE")]
)
def test_no_copy_is_made_of_what_has_no_image(
    spark: SparkSession, tmp_path: Path, bad: bytes, reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        sinks.overwrite_items(str(tmp_path))(decode.dynamodb(frame(spark, bad)), 0)


def test_a_merge_of_items_removes_and_replaces_nothing_newer() -> None:
    assert merge_statement("ice.db.t", "batch", ["id"], ["sequence_number"], "gone") == (
        "MERGE INTO ice.db.t AS old USING batch AS new ON old.`id` <=> new.`id` "
        "WHEN MATCHED AND (new.`sequence_number`) >= (old.`sequence_number`) AND new.`gone` THEN DELETE "
        "WHEN MATCHED AND (new.`sequence_number`) >= (old.`sequence_number`) THEN UPDATE SET * "
        "WHEN NOT MATCHED AND NOT new.`gone` THEN INSERT *"
    )
