"""fastavro trusts data, which here is from anybody.

Nested values overflow the stack, empty values in an array take memory for a byte, and the time for a long decimal grows
with the square of its length. So these are looked at before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

_DEPTH_MOST: Final = 256
_EMPTY_MOST: Final = 65_536
_NUMBER_BYTES_MOST: Final = 10
_LOW: Final = 0x7F
_MORE: Final = 0x80
_DECIMAL: Final = "kcl-decimal"
_DECIMAL_BYTES_MOST: Final = 512
_BITS_PER_DIGIT: Final = 3.3219281
_SIZES: Final = {"boolean": 1, "float": 4, "double": 8, "null": 0}
_NUMBERS: Final = {"int", "long", "enum"}
_PARTS: Final = {"array": "items", "map": "values"}
Schema = Any


def avro_reader(definition: str) -> Callable[[bytes], object]:
    import fastavro.read

    raw = json.loads(definition)
    bounded = _with_bounded_decimals(raw, 0)
    fastavro.parse_schema(raw)  # would not look at a decimal of another name
    for each in ("bytes", "fixed"):
        fastavro.read.LOGICAL_READERS[f"{each}-{_DECIMAL}"] = _bounded(
            fastavro.read.LOGICAL_READERS[f"{each}-decimal"]
        )
    parsed = fastavro.parse_schema(bounded)
    names: dict[str, Schema] = {}
    # With few levels and a byte for each value, fastavro's cost is that of the data.
    is_plain = _height(parsed, names, {}) <= _DEPTH_MOST

    def read(data: bytes) -> object:
        if not is_plain:
            _Walk(data, names, len(data) + _EMPTY_MOST).value(parsed, 0)
        rest = BytesIO(data)
        found = fastavro.schemaless_reader(rest, parsed, None)
        if rest.read(1):
            raise ValueError("there are bytes behind its end")
        return found

    return read


def _with_bounded_decimals(schema: Schema, depth: int) -> Schema:
    if depth > 2 * _DEPTH_MOST:
        raise ValueError("the schema is nested too deeply")
    if isinstance(schema, list):
        return [_with_bounded_decimals(each, depth + 1) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _with_bounded_decimals(value, depth + 1) for name, value in schema.items()}
    return made | {"logicalType": _DECIMAL} if made.get("logicalType") == "decimal" else made


def _bounded(read: Callable[..., object]) -> Callable[..., object]:
    """A value may be longer than its precision needs only by bytes that repeat the sign."""

    def checked(data: bytes, schema: Schema, reader_schema: object = None) -> object:
        needed = (int(schema["precision"] * _BITS_PER_DIGIT) + 1) // 8 + 1
        most = min(needed, _DECIMAL_BYTES_MOST)
        more = data[: max(len(data) - most, 0)]
        if more.strip(b"\xff" if more[:1] >= b"\x80" else b"\0"):
            raise ValueError(f"a decimal of {len(data)} bytes: {most} are possible here")
        return read(data, schema, reader_schema)

    return checked


def _height(schema: Schema, names: dict[str, Schema], heights: dict[str, float]) -> float:
    """Infinite if the schema contains itself, or values without a byte. Fills `names`."""
    if isinstance(schema, list):
        return 1 + max((_height(each, names, heights) for each in schema if each != "null"), default=0.0)
    if isinstance(schema, str):
        return heights.get(schema, math.inf if schema == "null" else 0.0)
    kind = schema["type"]
    if kind in _PARTS:
        return 1 + _height(schema[_PARTS[kind]], names, heights)
    if "name" not in schema:
        return _height(kind, names, heights)
    name = schema["name"]
    names[name], heights[name] = schema, math.inf
    if kind == "fixed":
        heights[name] = 0.0 if schema["size"] > 0 else math.inf
    elif kind == "enum":
        heights[name] = 0.0
    else:
        parts = [_height(each["type"], names, heights) for each in schema["fields"]]
        heights[name] = 1 + max(parts, default=math.inf)
    return heights[name]


@dataclass(slots=True)
class _Walk:
    """Reads one value as fastavro would. ValueError if it is too deep, too much for its bytes, or cut off."""

    data: bytes
    names: Mapping[str, Schema]
    empty_left: int
    at: int = 0

    def value(self, schema: Schema, depth: int) -> None:
        if depth > _DEPTH_MOST:
            raise ValueError(f"more than {_DEPTH_MOST} values inside each other")
        start = self.at
        self._pass(schema, depth)
        if self.at == start:
            self.empty_left -= 1
        if self.empty_left < 0:
            raise ValueError("too many values without a byte")

    def _pass(self, schema: Schema, depth: int) -> None:
        if isinstance(schema, list):
            number = self._number()
            if not 0 <= number < len(schema):
                raise ValueError(f"branch {number} of a union of {len(schema)}")
            return self.value(schema[number], depth)
        kind: str = schema["type"] if isinstance(schema, dict) else schema
        if kind in _SIZES:
            self._skip(_SIZES[kind])
        elif kind in _NUMBERS:
            self._number()
        elif kind in {"bytes", "string"}:
            self._skip(self._number())
        elif kind == "fixed":
            self._skip(schema["size"])
        elif kind in _PARTS:
            self._blocks(schema[_PARTS[kind]], depth, has_keys=kind == "map")
        elif kind in {"record", "error"}:
            for field in schema["fields"]:
                self.value(field["type"], depth + 1)
        else:
            self._pass(self.names[kind], depth)
        return None

    def _blocks(self, part: Schema, depth: int, *, has_keys: bool) -> None:
        while count := self._number():
            if count < 0:
                self._number()
            for _ in range(abs(count)):
                if has_keys:
                    self._skip(self._number())
                self.value(part, depth + 1)

    def _skip(self, count: int) -> None:
        if not 0 <= count <= len(self.data) - self.at:
            raise ValueError(f"{count} bytes at {self.at} of {len(self.data)}")
        self.at += count

    def _number(self) -> int:
        number = 0
        for place, byte in enumerate(self.data[self.at : self.at + _NUMBER_BYTES_MOST]):
            number |= (byte & _LOW) << 7 * place
            if byte < _MORE:
                self.at += place + 1
                return (number >> 1) ^ -(number & 1)
        raise ValueError(f"no whole number at {self.at} of {len(self.data)}")
