"""What needs packages of Maven, as a program with a JVM of its own: `python -m tests.spark.packaged avro|protobuf VERSION`.

Decodes Avro or protocol buffers, good and bad, plain and framed; prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import uuid
import zlib
from pathlib import Path
from typing import Any

import pyspark
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from kcl_spark import decode
from kcl_spark.session import find_java

VERSIONS = (pyspark.__version__, "4.1.1")
"""The newest is not always there at once; the older one is tried, too."""
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": ["null", "long"]}, {"name": "shop", "type": ["null", "string"]}],
}
LONG_SHOP = "s" * 20_000
SCHEMA_ID = uuid.UUID(int=7).bytes


def avro(number: int | None, shop: str | None) -> bytes:
    """An order as Avro writes it."""
    text = b"\0" if shop is None else b"\x02" + zigzag(len(shop)) + shop.encode()
    return (b"\0" if number is None else b"\x02" + zigzag(number)) + text


def zigzag(number: int) -> bytes:
    left, out = number << 1, b""
    while left > 0x7F:
        out += bytes([left & 0x7F | 0x80])
        left >>= 7
    return out + bytes([left])


def descriptor() -> descriptor_pb2.FileDescriptorSet:
    files = descriptor_pb2.FileDescriptorSet()
    message = files.file.add(name="orders.proto", package="shop", syntax="proto3").message_type.add(
        name="Order"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for place, (name, kind) in enumerate((("id", kinds.TYPE_INT64), ("shop", kinds.TYPE_STRING)), 1):
        message.field.add(name=name, number=place, type=kind, label=kinds.LABEL_OPTIONAL)
    return files


def protobuf(**fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor().file[0])
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return bytes(order(**fields).SerializeToString())


def records(spark: SparkSession, *data: bytes) -> DataFrame:
    rows = [(each, "key", "shard", str(number), 0) for number, each in enumerate(data)]
    return spark.createDataFrame(
        rows,
        "data binary, partition_key string, shard_id string, sequence_number string, sub_sequence_number long",
    )


def rows(frame: DataFrame) -> list[list[Any]]:
    """Id, length of the shop, and what could not be decoded."""
    return [
        [
            row.id,
            None if row.shop is None else len(row.shop),
            None if row._corrupt is None else row._corrupt.hex(),
        ]
        for row in frame.orderBy(F.col("sequence_number").cast("int")).collect()
    ]


def main(kind: str, version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAVA_HOME"] = str(find_java(os.environ, Path(folder) / "java").home)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "700m")
            .config("spark.jars.packages", f"org.apache.spark:spark-{kind}_2.13:{version}")
            .getOrCreate()
        )
        reported = avro_rows(spark) if kind == "avro" else protobuf_rows(spark)
        sys.stdout.write(f"{json.dumps(reported)}\n")
        spark.stop()


def avro_rows(spark: SparkSession) -> dict[str, list[list[Any]]]:
    schema = json.dumps(AVRO)
    plain = [avro(1, "a"), avro(2, LONG_SHOP), avro(None, None), b"\xff\xff", b""]
    framed = [
        b"\x03\0" + SCHEMA_ID + avro(1, "a"),
        b"\x03\x05" + SCHEMA_ID + zlib.compress(avro(2, "bb")),
        b"x",
    ]
    confluent = [b"\0\0\0\0\x07" + avro(1, "a"), avro(1, "a")]
    data = F.col("data")
    return {
        "plain": rows(decode.avro(records(spark, *plain), schema)),
        "glue": rows(decode.avro(records(spark, *framed), schema, data=decode.glue_payload(data))),
        "confluent": rows(decode.avro(records(spark, *confluent), schema, data=decode.confluent(data))),
    }


def protobuf_rows(spark: SparkSession) -> dict[str, list[list[Any]]]:
    orders = [
        protobuf(id=1, shop="a"),
        protobuf(id=2, shop=LONG_SHOP),
        protobuf(),
        protobuf(id=300, shop="abc")[:-1],
        b"\xff\xff",
    ]
    described = descriptor().SerializeToString()
    return {"plain": rows(decode.protobuf(records(spark, *orders), "shop.Order", descriptor=described))}


if __name__ == "__main__":
    main(*sys.argv[1:3])
