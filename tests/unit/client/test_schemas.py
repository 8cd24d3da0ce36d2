"""Records are decoded by the schema that came with them."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from typing import Any

import fastavro
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from kcl_client import Batch, Checkpointer, Record, RecordProcessor, RecordSchema, schemas
from kcl_client.schemas import CannotDecode, NoSchema, decode
from kcl_client.testing import drive, make_record

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  message Item { string name = 1; }
  int64 id = 1;
  repeated Item items = 2;
  google.protobuf.Timestamp at = 3;
}
message Click { string page = 1; map<string, int32> counts = 2; }
"""


def record(data: bytes, data_format: str, definition: str) -> Record:
    schema = RecordSchema("order", f"00000000-0000-0000-0000-{len(definition):012}", data_format, definition)
    return Record(make_record(data, schema=schema))


def avro(value: object, definition: Any = AVRO) -> bytes:
    packed = BytesIO()
    fastavro.schemaless_writer(packed, fastavro.parse_schema(definition), value)
    return packed.getvalue()


@pytest.mark.parametrize("value", [{"id": 7, "note": None}, {"id": -1, "note": "\u00e9"}])
def test_avro(value: object) -> None:
    assert decode(record(avro(value), "AVRO", json.dumps(AVRO))) == value


def test_avro_that_is_no_record() -> None:
    assert decode(record(avro("text", "string"), "AVRO", '"string"')) == "text"


def test_json() -> None:
    assert decode(record(b'{"id": [1, "\xc3\xa9"]}', "JSON", '{"type": "object"}')) == {"id": [1, "\u00e9"]}


@pytest.mark.parametrize(
    ("data", "name", "value"),
    [
        (b"\0\x0a\x02/x\x12\x05\x0a\x01a\x10\x02", "shop.Click", {"page": "/x", "counts": {"a": 2}}),
        (b"\x02\x08\x07\x12\x03\x0a\x01b", "shop.Order", {"id": "7", "items": [{"name": "b"}]}),
        (b"\x03\x0a\x01b", "shop.Order.Item", {"name": "b"}),
        (b"\x82\x00\x1a\x02\x08\x01", "shop.Order", {"at": "1970-01-01T00:00:01Z"}),
    ],
)
def test_protocol_buffers_name_their_message_by_its_place_among_sorted_names(
    data: bytes, name: str, value: object
) -> None:
    """Click, Click.CountsEntry, Order, Order.Item."""
    found = decode(record(data, "PROTOBUF", PROTO))
    assert isinstance(found, Message)
    assert found.DESCRIPTOR.full_name == name
    assert MessageToDict(found) == value


@pytest.mark.parametrize(
    ("data", "data_format", "definition", "why"),
    [
        (b"\x0e", "AVRO", json.dumps(AVRO), "does not fit"),
        (avro({"id": 1, "note": None}) + b"!", "AVRO", json.dumps(AVRO), "bytes behind its end"),
        (b"", "AVRO", '{"type": "nothing"}', "cannot be understood"),
        (b"{", "JSON", "{}", "does not fit"),
        (b"\x09", "PROTOBUF", PROTO, "names message 9 of 4"),
        (b"", "PROTOBUF", PROTO, "does not begin with the number"),
        (b"\xff" * 9, "PROTOBUF", PROTO, "does not begin with the number"),
        (b"\0\xff", "PROTOBUF", PROTO, "does not fit"),
        (b"\0", "PROTOBUF", "no proto at all", "cannot be understood"),
        (b"", "XML", "<a/>", "format XML"),
    ],
)
def test_what_cannot_be_decoded_says_why(data: bytes, data_format: str, definition: str, why: str) -> None:
    with pytest.raises(CannotDecode, match=why):
        decode(record(data, data_format, definition))


def test_a_record_without_schema_is_told_apart() -> None:
    with pytest.raises(NoSchema, match="came without a schema"):
        decode(Record(make_record(b"x")))


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ImportError, match=r"AVRO needs fastavro: pip install 'kcl-daemon\[schemas\]'"):
        decode(record(b"", "AVRO", '{"type": "int"}'))


def test_a_schema_is_understood_once() -> None:
    schemas._reader.cache_clear()
    for number in range(3):
        decode(record(avro({"id": number, "note": None}), "AVRO", json.dumps(AVRO)))
    assert schemas._reader.cache_info().misses == 1


def test_processors_get_the_schema() -> None:
    class Collecting(RecordProcessor):
        def __init__(self) -> None:
            self.found: list[object] = []

        def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
            self.found += [decode(each) if each.schema else each.data for each in batch]

    processor = Collecting()
    schema = RecordSchema("order", "id", "AVRO", json.dumps(AVRO))
    value = {"id": 1, "note": "n"}
    drive(processor, ["plain", make_record(avro(value), sequence_number="9" * 56, schema=schema)])
    assert processor.found == [b"plain", value]
