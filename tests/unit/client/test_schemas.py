"""Records are decoded by the schema that came with them."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_client import Batch, Checkpointer, Record, RecordProcessor, RecordSchema, schemas
from kcl_client.schemas import CannotDecode, NoSchema, decode
from kcl_client.testing import drive, make_record
from tests.examples import examples

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
def test_data_that_cannot_be_decoded_raises_with_the_reason(
    data: bytes, data_format: str, definition: str, why: str
) -> None:
    with pytest.raises(CannotDecode, match=why):
        decode(record(data, data_format, definition))


LINKED = {"type": "record", "name": "n", "fields": [{"name": "n", "type": ["null", "n"]}]}
TREE = {
    "type": "record",
    "name": "t",
    "fields": [{"name": "v", "type": "int"}, {"name": "of", "type": {"type": "array", "items": "t"}}],
}
ITSELF = {"type": "record", "name": "n", "fields": [{"name": "n", "type": "n"}]}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
EMPTY = {"type": "record", "name": "e", "fields": []}
NULLS = {"type": "record", "name": "e", "fields": [{"name": str(at), "type": "null"} for at in range(1000)]}
DOUBLED = [
    {"type": "record", "name": "r0", "fields": []},
    *(
        {"type": "record", "name": f"r{at}", "fields": [{"name": x, "type": f"r{at - 1}"} for x in "ab"]}
        for at in range(1, 64)
    ),
]
CHAIN = [
    {"type": "record", "name": "r0", "fields": [{"name": "a", "type": "int"}]},
    *(
        {"type": "record", "name": f"r{at}", "fields": [{"name": "a", "type": f"r{at - 1}"}]}
        for at in range(1, 30_000)
    ),
]
MANY = b"\xfe\xff\xff\xff\x0f"  # 2^31 - 1
FIXED = {"type": "fixed", "size": 10_000, "name": "f", "logicalType": "decimal", "precision": 10}


@pytest.mark.parametrize(
    ("definition", "data"),
    [
        pytest.param(LINKED, b"\x02" * 20_000, id="recursion"),
        pytest.param(ITSELF, b"", id="recursion without a byte"),
        pytest.param(TREE, b"\x02\x02" * 20_000, id="recursion through an array"),
        pytest.param(CHAIN, b"\xbe\xd4\x03\x00", id="depth without recursion"),
        pytest.param(DOUBLED, b"\x7e", id="a schema that doubles"),
        pytest.param(MONEY, b"\x80\x80\x20" + b"\x7f" * 262_144, id="a long decimal"),
        pytest.param(FIXED, b"\x7f" * 10_000, id="a long fixed decimal"),
        pytest.param({"type": "array", "items": "null"}, MANY + b"\0", id="nulls"),
        pytest.param({"type": "array", "items": EMPTY}, MANY + b"\0", id="empty records"),
        pytest.param({"type": "array", "items": NULLS}, MANY + b"\0", id="records of nulls"),
        pytest.param(
            {"type": "array", "items": {"type": "array", "items": "null"}},
            b"\xd0\x0f" + b"\xd0\x0f\0" * 1000 + b"\0",
            id="nulls in arrays",
        ),
        pytest.param(
            {"type": "array", "items": {"type": "fixed", "size": 0, "name": "f"}}, MANY, id="no bytes"
        ),
        pytest.param({"type": "array", "items": "null"}, b"\xff" * 9 + b"\x01\x00", id="a negative count"),
    ],
)
def test_avro_from_anybody_costs_no_more_than_its_bytes(definition: Any, data: bytes) -> None:
    """In a process of its own, which may overflow its stack."""
    code = (
        "import json, resource, sys, time\n"
        "from kcl_client import Record, RecordSchema\n"
        "from kcl_client.schemas import CannotDecode, decode\n"
        "from kcl_client.testing import make_record\n"
        "definition, data = json.load(sys.stdin)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    schema = RecordSchema('name', 'version', 'AVRO', definition)\n"
        "    decode(Record(make_record(bytes.fromhex(data), schema=schema)))\n"
        "except CannotDecode as error:\n"
        "    print('refused', str(error)[-300:])\n"
        "print(time.process_time() - before[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before[1])\n"
    )
    given = json.dumps([json.dumps(definition), data.hex()])
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, input=given, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    refused, cost = done.stdout.splitlines()
    assert refused.startswith("refused")
    seconds, kibibytes = map(float, cost.split())
    assert seconds < 3
    assert kibibytes < 160 * 1024


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        (TREE, {"v": 1, "of": [{"v": 2, "of": [{"v": 3, "of": []}]}, {"v": 4, "of": []}]}),
        (LINKED, {"n": {"n": {"n": None}}}),
        ({"type": "array", "items": "null"}, [None] * 1000),
        ({"type": "map", "values": ["null", LINKED]}, {"a": None, "b": {"n": None}}),
        (MONEY, Decimal("-12345678.90")),
        (MONEY, Decimal("99999999.99")),
        ({**MONEY, "precision": 19, "scale": 0}, Decimal(9_999_999_999_999_999_999)),
        ({**FIXED, "size": 5}, Decimal(-9_999_999_999)),
        ([LINKED, "string", {"type": "enum", "name": "E", "symbols": ["A", "B"]}], "B"),
        ({"type": "fixed", "size": 0, "name": "f"}, b""),
    ],
)
def test_avro_that_nests_or_is_empty_is_decoded(definition: Any, value: object) -> None:
    assert decode(record(avro(value, definition), "AVRO", json.dumps(definition))) == value


def test_a_decimal_may_repeat_its_sign() -> None:
    """Writers that pad to a fixed width do so."""
    for value in (b"\0" * 30 + b"\x7b", b"\xff" * 31):
        data = bytes([2 * len(value)]) + value
        assert decode(record(data, "AVRO", json.dumps(MONEY))) in {Decimal("1.23"), Decimal("-0.01")}


@given(
    st.binary(max_size=60), st.sampled_from([LINKED, TREE, {"type": "map", "values": LINKED}, [EMPTY, TREE]])
)
@settings(max_examples=examples(300))
def test_exactly_the_data_that_fastavro_reads_is_decoded(data: bytes, definition: Any) -> None:
    found: Any
    try:
        found = fastavro.schemaless_reader(rest := BytesIO(data), fastavro.parse_schema(definition), None)
    except Exception:  # noqa: BLE001 - it raises anything
        found = None
    else:
        found = None if rest.read(1) else (found,)
    try:
        ours = (decode(record(data, "AVRO", json.dumps(definition))),)
    except CannotDecode:
        ours = None
    assert ours == found


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


def test_a_schema_that_is_refused_is_compiled_once_and_the_compiler_is_quoted(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas._reader.cache_clear()
    bad = record(b"\0", "PROTOBUF", 'syntax = "proto3"; message A { nothing b = 1; }')
    with pytest.raises(CannotDecode, match='"nothing" is not defined'):
        decode(bad)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(schemas, "_compiled", None)
    with pytest.raises(CannotDecode, match='"nothing" is not defined'):
        decode(bad)


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
