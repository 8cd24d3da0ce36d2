"""From a record to the value of a type. Imports no library but msgspec that the user does not use."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec.inspect import CustomType, DataclassType, type_info

from kcl_client._function import CannotRun, Shape, Takes
from kcl_client._processor import Record

Read = Callable[[Record], object]

UNDECODABLE: Final = (ValueError, msgspec.MsgspecError, RecursionError)
"""Anything else, such as a missing library, is no matter of the record."""
_VALIDATOR: Final = "__pydantic_validator__"
_PROTOBUF: Final = "PROTOBUF"


def reader_of(shape: Shape) -> Read:
    match shape.takes:
        case Takes.BYTES:
            return attrgetter("data")
        case Takes.TEXT:
            return Record.text
        case Takes.VALUE:
            return _value_reader(shape)
        case Takes.RECORD | Takes.BATCH:
            return lambda record: record


def type_name(shape: Shape) -> str:
    return str(getattr(shape.annotation, "__qualname__", shape.annotation))


def _value_reader(shape: Shape) -> Read:
    wanted: Any = Any if shape.annotation is object else shape.annotation
    try:
        custom = list(_custom_types(type_info(wanted)))
        if any(hasattr(each, _VALIDATOR) for each in custom):
            return _pydantic(wanted)
        if not custom:
            return _msgspec(wanted)
        reason = f"{custom[0].__qualname__} is none of its types"
    except Exception as error:  # noqa: BLE001 - whatever these libraries say about the user's type
        reason = str(error)
    kinds = "a dataclass, msgspec.Struct, TypedDict, pydantic model, dict, Record, bytes, str or Batch"
    said = f"nothing can be decoded to {type_name(shape)}: {reason}"
    raise CannotRun(f"{shape.name}: {said}; take {kinds}", where=shape.where)


def _custom_types(info: object, seen: set[int] | None = None) -> Iterator[type]:
    """What msgspec leaves to others: pydantic's, its dataclasses too, and unknown ones."""
    seen = set() if seen is None else seen
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, CustomType) or (isinstance(info, DataclassType) and hasattr(info.cls, _VALIDATOR)):
        yield info.cls
    elif isinstance(info, tuple):
        for each in info:
            yield from _custom_types(each, seen)
    elif isinstance(info, msgspec.Struct):
        for name in info.__struct_fields__:
            yield from _custom_types(getattr(info, name), seen)


def _msgspec(wanted: Any) -> Read:
    decode = msgspec.json.Decoder(wanted).decode

    def convert(value: object, *, is_text: bool) -> object:
        return msgspec.convert(value, wanted, strict=not is_text)

    return _reading(decode, convert)


def _pydantic(wanted: Any) -> Read:
    adapter: Any = sys.modules["pydantic"].TypeAdapter(wanted)

    def convert(value: object, *, is_text: bool) -> object:  # noqa: ARG001 - pydantic reads numbers in texts anyway
        return adapter.validate_python(value)

    return _reading(adapter.validate_json, convert)


def _reading(decode: Callable[[bytes], object], convert: Callable[..., object]) -> Read:
    def read(record: Record) -> object:
        schema = record.schema
        if schema is None or schema.data_format == "JSON":
            return decode(record.data)
        return convert(_by_schema(record), is_text=schema.data_format == _PROTOBUF)

    return read


def _by_schema(record: Record) -> object:
    """Protobuf as in its JSON: 64-bit integers are text, enumerations are names, bytes are base64."""
    from kcl_client.schemas import decode

    found = decode(record)
    if record.schema is None or record.schema.data_format != _PROTOBUF:
        return found
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(
        found,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - that is what `decode` gives for it
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def is_awaitable(result: object) -> bool:
    """Closes it, so that Python adds no warning of its own to the error."""
    if not inspect.isawaitable(result):
        return False
    close = getattr(result, "close", None)
    if callable(close):
        close()
    return True
