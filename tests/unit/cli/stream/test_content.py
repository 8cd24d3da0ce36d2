"""Records are opened as far as it goes; what does not go is said once, and shown as it came."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from io import BytesIO
from typing import Final

import anyio
import fastavro
import pytest

from kcl_daemon.cli.stream.content import Opener
from kcl_daemon.ports import Schema
from kcl_daemon.records.content import SeenRecord
from tests.unit.records.aggregates import outer
from tests.unit.retrieval.registry import ORDERS, framed

AVRO: Final = json.dumps({"type": "record", "name": "O", "fields": [{"name": "raw", "type": "bytes"}]})


class Known:
    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self._schemas = schemas

    async def schema(self, version_id: str) -> Schema | None:
        return self._schemas.get(version_id)

    def close(self) -> None: ...


def opened(
    data: bytes, data_format: str, definition: str, said: list[str], *, known: bool = True
) -> SeenRecord:
    schema = Schema(ORDERS, "clicks", data_format, definition)
    opener = Opener(Known({ORDERS: schema} if known else {}), said.append)

    async def twice() -> SeenRecord:
        await opener.opened("shard", outer(data))
        return await opener.opened("shard", outer(data))

    return anyio.run(twice)


def avro(raw: bytes) -> bytes:
    packed = BytesIO()
    fastavro.schemaless_writer(packed, fastavro.parse_schema(json.loads(AVRO)), {"raw": raw})
    return packed.getvalue()


def test_bytes_in_avro_are_base64() -> None:
    said = list[str]()
    seen = opened(framed(avro(b"\xff")), "AVRO", AVRO, said)
    assert (json.loads(seen.data), said) == ({"raw": "/w=="}, [])
    assert seen.schema is not None
    assert (seen.schema.name, seen.schema.version_id) == ("clicks", ORDERS)


def test_json_with_a_schema_and_a_packed_body_is_plain_json() -> None:
    said = list[str]()
    assert opened(framed(b'{"a":1}', packed=True), "JSON", "{}", said).data == b'{"a":1}'
    assert opened(framed(gzip.compress(b'{"a":1}')), "JSON", "{}", said).data == b'{"a":1}'
    assert said == []


def test_without_the_packages_of_a_format_it_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    said = list[str]()
    definition = AVRO.replace('"O"', '"Other"')
    seen = opened(framed(avro(b"x")), "AVRO", definition, said)
    assert seen.data == avro(b"x")
    (line,) = said
    assert "kcl-daemon[schemas]" in line


def test_data_that_does_not_fit_stays_as_it_is() -> None:
    said = list[str]()
    seen = opened(framed(b"\xff\xff"), "AVRO", AVRO, said)
    assert seen.data == b"\xff\xff"
    assert len(said) == 1
    assert "does not fit schema clicks" in said[0]


def test_a_header_of_an_unknown_schema_stays() -> None:
    said = list[str]()
    data = framed(b"x")
    seen = opened(data, "JSON", "{}", said, known=False)
    assert (seen.data, seen.schema, said) == (data, None, [])


def test_a_packed_body_that_is_broken_keeps_its_header() -> None:
    said = list[str]()
    data = framed(b"x", packed=True)[:-2]
    assert opened(data, "JSON", "{}", said).data == data
    assert len(said) == 1
    assert "keeps its schema header" in said[0]
