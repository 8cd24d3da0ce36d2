"""The Glue Schema Registry with the real daemon: moto's registry, records as its producers frame them, a decoding child."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
import fastavro
import pytest

from tests.process.daemon import FAILOVER_MS, PROCESSORS, Application, application, wait_until
from tests.process.local import Local
from tests.unit.records.aggregates import aggregate
from tests.unit.retrieval.registry import CLICKS, framed

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient

pytestmark = pytest.mark.timeout(300)

UNKNOWN: Final = CLICKS
AVRO: Final = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
QUICK: Final = {
    "retrievalMode": "POLLING",
    "idleTimeBetweenReadsInMillis": 200,
    "failoverTimeMillis": FAILOVER_MS,
}


@contextmanager
def glue_client(local: Local) -> Generator[GlueClient]:
    client = boto3.client(
        "glue",
        endpoint_url=local.dynamodb_url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    try:
        yield client
    finally:
        client.close()


def order(number: int) -> bytes:
    packed = BytesIO()
    fastavro.schemaless_writer(packed, fastavro.parse_schema(AVRO), {"id": number})
    return packed.getvalue()


def put(app: Application, *payloads: bytes) -> None:
    for data in payloads:
        app.kinesis.put_record(StreamName=app.name, PartitionKey="k", Data=data)


def lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text("ascii").splitlines()] if file.exists() else []


def test_records_come_with_their_schema_and_are_decoded(local: Local, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    child = f"{PROCESSORS}.decoding {file}"
    with application(local, tmp_path, "schemas", shards=1) as app, glue_client(local) as glue:
        made = glue.create_schema(
            SchemaName="order", DataFormat="AVRO", Compatibility="NONE", SchemaDefinition=json.dumps(AVRO)
        )
        known = made["SchemaVersionId"]
        put(app, b"plain", framed(order(1), known), framed(order(2), known, packed=True))
        put(app, aggregate([("a", framed(order(3), known), None), ("b", b"user", None)]))
        put(app, framed(order(4), UNKNOWN), framed(order(5), known))
        expected: list[Any] = [
            [b"plain".hex()],
            ["order", "AVRO", known, {"id": 1}],
            ["order", "AVRO", known, {"id": 2}],
            ["order", "AVRO", known, {"id": 3}],
            [b"user".hex()],
        ]
        settings = {**QUICK, "schemaRegistry": "decode", "glueClient.endpointOverride": local.dynamodb_url}
        with app.daemon(child, settings) as daemon:
            reported = daemon.wait_for("schema_unresolved")
            assert reported["schema_version_id"] == UNKNOWN
            wait_until(lambda: lines(file) == expected, lambda: f"found {lines(file)}")
            daemon.stop()  # also while a shard waits
            assert not daemon.named("child_overran")
        with app.daemon(child, {**settings, "schemaRegistryFailure": "passthrough"}) as daemon:
            expected += [[framed(order(4), UNKNOWN).hex()], ["order", "AVRO", known, {"id": 5}]]
            wait_until(lambda: lines(file) == expected, lambda: f"found {lines(file)}")
            assert daemon.wait_for("schema_passed_through")["level"] == "warning"
            daemon.stop()


def test_without_the_property_records_come_as_they_are(local: Local, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with application(local, tmp_path, "no-schemas", shards=1) as app:
        put(app, framed(b"x"))
        with app.daemon(f"{PROCESSORS}.decoding {file}", QUICK) as daemon:
            wait_until(lambda: lines(file) == [[framed(b"x").hex()]], lambda: f"found {lines(file)}")
            daemon.stop()
