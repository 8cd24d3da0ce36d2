"""What a user's function takes, and what is decoded for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import fastavro
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_client import Batch, Record, RecordSchema
from kcl_client._decoding import UNDECODABLE, reader_of
from kcl_client._example import example_of, value_of
from kcl_client._function import CannotRun, Takes, shape_of
from kcl_client.testing import make_record
from tests.examples import examples

if TYPE_CHECKING:
    from pathlib import PurePath as Unknown


@dataclass
class Order:
    id: int
    note: str | None = None
    parts: list[Order] | None = None


class Packed(msgspec.Struct):
    id: int


class Typed(TypedDict):
    id: int


class Model(pydantic.BaseModel):
    id: int = pydantic.Field(gt=0)


@pydantic.dataclasses.dataclass
class Checked:
    id: int = pydantic.Field(gt=0)


@dataclass
class Holder:
    models: list[Model]


def of_order(order: Order) -> None: ...
def of_record(record: Record) -> None: ...
def of_both(order: Order, record: Record) -> None: ...
def of_batch(batch: Batch) -> None: ...
def of_bytes(data: bytes) -> None: ...
def of_text(data: str) -> None: ...
def of_anything(data: Any) -> None: ...
def of_object(data: object) -> None: ...
def of_nothing_said(record) -> None: ...  # type: ignore[no-untyped-def] # pyright: ignore[reportMissingParameterType, reportUnknownParameterType] # noqa: ANN001
def with_default(order: Order, limit: int = 3) -> None: ...
def keywords(order: Order, *, limit: int = 3) -> None: ...
def returns_unknown(order: Order) -> Unknown | None: ...
async def is_async(order: Order) -> None: ...


class Handlers:
    def handle(self, order: Order) -> None: ...

    @staticmethod
    def alone(order: Order) -> None: ...

    async def __call__(self, order: Order) -> None: ...


def decorated(function: Callable[..., None]) -> Callable[..., None]:
    @wraps(function)
    def around(*args: object) -> None:
        function(*args)

    return around


@pytest.mark.parametrize(
    ("function", "takes", "annotation"),
    [
        (of_order, Takes.VALUE, Order),
        (of_record, Takes.RECORD, Record),
        (of_both, Takes.VALUE, Order),
        (of_batch, Takes.BATCH, Batch),
        (of_bytes, Takes.BYTES, bytes),
        (of_text, Takes.TEXT, str),
        (of_anything, Takes.VALUE, Any),
        (with_default, Takes.VALUE, Order),
        (keywords, Takes.VALUE, Order),
        (returns_unknown, Takes.VALUE, Order),
        (decorated(of_order), Takes.VALUE, Order),
        (partial(of_both, record=Record(make_record(b""))), Takes.VALUE, Order),
        (Handlers().handle, Takes.VALUE, Order),
        (Handlers.alone, Takes.VALUE, Order),
        (Handlers(), Takes.VALUE, Order),
    ],
)
def test_the_first_parameter_says_what_it_gets(function: object, takes: Takes, annotation: object) -> None:
    shape = shape_of(function)
    assert (shape.takes, shape.annotation) == (takes, annotation)


def test_a_parameter_without_annotation_gets_the_record() -> None:
    assert shape_of(of_nothing_said).takes is Takes.RECORD


def test_a_coroutine_function_is_known_as_one() -> None:
    assert [shape_of(each).is_async for each in (is_async, Handlers(), of_order, partial(is_async))] == [
        True,
        True,
        False,
        True,
    ]


def test_the_record_may_come_as_the_second_argument() -> None:
    assert shape_of(of_both).with_record
    assert not shape_of(of_order).with_record


def two(a, b) -> None: ...  # type: ignore[no-untyped-def] # pyright: ignore[reportMissingParameterType, reportUnknownParameterType] # noqa: ANN001
def three(a: Order, b: Record, c: int) -> None: ...
def none() -> None: ...
def stars(*args: object) -> None: ...
def keyword(order: Order, *, limit: int) -> None: ...
def hidden(order: Unknown) -> None: ...
def batch_and_record(batch: Batch, record: Record) -> None: ...
def yields(order: Order) -> Any:
    yield order


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (two, "takes two arguments (a, b); annotate the second one with Record, or take one"),
        (three, "takes 3 arguments (a, b, c); take one"),
        (none, "takes no argument that it names"),
        (stars, "takes no argument that it names"),
        (keyword, "needs the keyword limit, which nobody gives"),
        (hidden, "has the annotation Unknown, which is not known; import Unknown at the top"),
        (batch_and_record, "takes a Batch and a record"),
        (yields, "has `yield`, so a call does nothing"),
    ],
)
def test_a_function_that_cannot_be_called_with_a_record_is_refused_with_file_and_line(
    function: Callable[..., object], said: str
) -> None:
    line = function.__code__.co_firstlineno
    with pytest.raises(CannotRun) as refused:
        shape_of(function)
    assert str(refused.value).startswith(
        f"tests/unit/client/test_function.py:{line}: {function.__name__} {said}"
    )


def test_a_class_and_a_value_are_no_functions() -> None:
    for each in (Order, 7):
        with pytest.raises(CannotRun, match="is not a function"):
            shape_of(each)


def typed(annotation: object) -> Callable[..., None]:
    def handle(value: Any) -> None: ...

    handle.__annotations__ = {"value": annotation}
    return handle


def read(annotation: object, data: bytes | str, schema: RecordSchema | None = None) -> object:
    return reader_of(shape_of(typed(annotation)))(Record(make_record(data, schema=schema)))


@pytest.mark.parametrize(
    ("annotation", "data", "value"),
    [
        (Order, '{"id": 1, "parts": [{"id": 2}]}', Order(1, None, [Order(2)])),
        (Packed, '{"id": 1}', Packed(1)),
        (Typed, '{"id": 1}', {"id": 1}),
        (Model, '{"id": 1}', Model(id=1)),
        (Checked, '{"id": 1}', Checked(id=1)),
        (Holder, '{"models": [{"id": 1}]}', Holder([Model(id=1)])),
        (list[Model] | None, '[{"id": 1}]', [Model(id=1)]),
        (dict, '{"a": [1.5]}', {"a": [1.5]}),
        (dict[str, Decimal], '{"a": "1.50"}', {"a": Decimal("1.50")}),
        (list[Order], '[{"id": 1}]', [Order(1)]),
        (int | str, '"x"', "x"),
        (Annotated[int, msgspec.Meta(gt=0)], "7", 7),
        (Any, "[null]", [None]),
        (object, "[null]", [None]),
        (bytes, b"\0\xff", b"\0\xff"),
        (str, "å", "å"),
    ],
)
def test_a_record_is_decoded_to_the_annotated_type(
    annotation: object, data: bytes | str, value: object
) -> None:
    assert read(annotation, data) == value


@pytest.mark.parametrize(
    ("annotation", "data"),
    [
        (Order, ""),
        (Order, "no json"),
        (Order, '{"id": "x"}'),
        (Order, "{}"),
        (Order, '{"id": 1} {"id": 2}'),
        (Model, '{"id": 0}'),
        (Checked, '{"id": 0}'),
        (dict, "["),
        (Any, "[" * 100_000),
        (str, b"\xff"),
    ],
)
def test_bad_data_raises_what_is_rejected(annotation: object, data: bytes | str) -> None:
    with pytest.raises(UNDECODABLE):
        read(annotation, data)


@given(st.binary(max_size=64), st.sampled_from([Order, Packed, Typed, Model, Checked, Any, str]))
@settings(max_examples=examples(300))
def test_malformed_data_raise_only_decoding_errors(data: bytes, annotation: object) -> None:
    with suppress(*UNDECODABLE):
        read(annotation, data)


@pytest.mark.parametrize("annotation", [complex, list[complex], Order | Holder, Callable[[], None], type, 7])
def test_a_type_that_nothing_can_be_decoded_to_is_refused_with_file_and_line(annotation: object) -> None:
    with pytest.raises(
        CannotRun, match=r"test_function.py:\d+: .*(nothing can be decoded to|cannot be read)"
    ):
        reader_of(shape_of(typed(annotation)))


AVRO = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"note","type":["null","string"]}]}'
PROTOBUF = 'syntax = "proto3"; message Order { int64 id = 1; string note = 2; bool paid = 3; bytes raw = 4; }'


class Paid(msgspec.Struct):
    id: int
    paid: bool
    raw: bytes


def avro(value: Mapping[str, object]) -> bytes:
    from io import BytesIO

    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(msgspec.json.decode(AVRO)), dict(value))
    return out.getvalue()


@pytest.mark.parametrize("annotation", [Order, Packed, Model])
def test_an_avro_record_is_decoded_by_its_schema(annotation: Callable[..., object]) -> None:
    schema = RecordSchema("order", "v1", "AVRO", AVRO)
    assert read(annotation, avro({"id": 7, "note": None}), schema) == annotation(id=7)


def test_a_protobuf_record_is_decoded_by_its_schema_with_numbers_of_64_bits_and_defaults() -> None:
    schema = RecordSchema("order", "v1", "PROTOBUF", PROTOBUF)
    assert read(Paid, b"\0\x08\x07\x22\x01\xff", schema) == Paid(7, paid=False, raw=b"\xff")
    assert read(Model, b"\0\x08\x07", schema) == Model(id=7)


def test_a_json_record_with_a_schema_is_decoded_as_any_other() -> None:
    assert read(Order, '{"id": 1}', RecordSchema("order", "v1", "JSON", "{}")) == Order(1)


def test_data_that_does_not_fit_its_schema_or_the_type_is_undecodable() -> None:
    for data, definition in ((b"\xff", AVRO), (avro({"id": 7, "note": None}), "nonsense")):
        with pytest.raises(UNDECODABLE):
            read(Order, data, RecordSchema("order", "v1", "AVRO", definition))
    with pytest.raises(UNDECODABLE):
        read(Holder, avro({"id": 7, "note": None}), RecordSchema("order", "v1", "AVRO", AVRO))


def test_a_missing_library_is_no_matter_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    definition = AVRO.replace("Order", "Other")  # none that is cached
    with pytest.raises(ImportError, match=r"pip install 'kcl-daemon\[schemas\]'"):
        read(Order, b"\x0e\0", RecordSchema("order", "v9", "AVRO", definition))


@pytest.mark.parametrize(
    ("annotation", "example"),
    [
        (Order, '{"id": 1}'),
        (Model, '{"id": 1}'),
        (Holder, '{"models": []}'),
        (int, "1"),
        (str, "hello"),
        (bytes, '{"n": 1}'),
        (dict, '{"n": 1}'),
        (Any, '{"n": 1}'),
        (list[Order], "[]"),
        (dict[str, Decimal], "{}"),
        (Decimal, '"1.0"'),
    ],
)
def test_an_example_can_be_decoded(annotation: object, example: str) -> None:
    assert example_of(shape_of(typed(annotation))) == example


def test_an_example_without_an_end_is_none() -> None:
    schema = {"$ref": "#/$defs/a"}
    assert value_of(schema, {"a": schema}) is None
    assert value_of({"enum": ["b"]}, {}) == "b"
    assert value_of({"const": 3}, {}) == 3
    assert value_of({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, {}) is True
    assert value_of({"type": "integer", "exclusiveMinimum": 9}, {}) == 10


def test_the_place_is_shown_from_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert shape_of(of_order).where.startswith("tests/unit/")
    monkeypatch.chdir(tmp_path)
    assert shape_of(of_order).where.startswith("/")
