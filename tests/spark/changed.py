"""Changes of a DynamoDB table as the service gives them, and batches with the states of a table after each."""

from __future__ import annotations

import base64
import json
from random import Random  # noqa: TID251 - seeded
from typing import Any

from pyspark.sql import DataFrame, SparkSession

AT_MS = 1_763_894_400_123
ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-11-22T10:00:00.000"
STREAM = "eu-west-1$123456789012$orders$2026-11-22T10_00_00.000"
SNAPSHOT_NUMBER = f"1{'7' * 31}"
SEGMENT = "snapshot-1763894400123-0000-0004"
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


def answer(*given: bytes) -> bytes:
    """What GetRecords of the service says, indented."""
    records = [json.loads(each) for each in given]
    for each in records:
        each["dynamodb"]["ApproximateCreationDateTime"] = AT_MS / 1000
    return json.dumps({"Records": records}, indent=2).encode()


def frame(spark: SparkSession, *data: bytes) -> DataFrame:
    columns = "data binary, partition_key string, stream string, shard_id string, sequence_number string"
    shards = [SEGMENT if SNAPSHOT_NUMBER.encode() in each else "shardId-1" for each in data]
    return spark.createDataFrame(
        [(each, "key", STREAM, shard, "7") for each, shard in zip(data, shards, strict=True)], columns
    )


class AnyImage:
    """Images with all types of DynamoDB, names and texts that look like its JSON, and what each is in plain JSON."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

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
        if kind in {"NULL", "BOOL"}:
            return {kind: True}, "null" if kind == "NULL" else "true"
        return {kind: many[0][0]}, many[0][1]

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


def changed(kind: str, item: str, value: int | None, sequence: int | str) -> bytes:
    keys = {"id": {"S": item}}
    return kcl1(kind, keys, None if value is None else {**keys, "n": number(str(value))}, str(sequence))


BATCHES = (
    [*(changed("INSERT", item, 1, SNAPSHOT_NUMBER) for item in "abcd"), changed("MODIFY", "a", 2, 10)],
    [
        changed("MODIFY", "a", 3, 99),
        changed("REMOVE", "b", None, 100),
        changed("MODIFY", "b", 5, 98),
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
