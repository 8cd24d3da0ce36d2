from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from kcl_client._decoding import UNDECODABLE, reader_of
from kcl_client._function import Shape, Takes
from kcl_client._processor import Record
from kcl_client.testing import make_record

_ANY: Final = '{"n": 1}'
_DEPTH_MOST: Final = 8
_TEXTS: Final = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "duration": "PT1S",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "decimal": "1.0",
    "uri": "https://example.com/",
    "email": "a@example.com",
}


def example_of(shape: Shape) -> str:
    """JSON; "" where no example was found."""
    if shape.takes is not Takes.VALUE:
        return "hello" if shape.takes is Takes.TEXT else _ANY
    try:
        schema = _schema_of(shape.annotation)
        text = json.dumps(value_of(schema, schema.get("$defs", {})))
        reader_of(shape)(Record(make_record(text)))
    except (*UNDECODABLE, TypeError):
        return ""
    return text


def _schema_of(wanted: Any) -> dict[str, Any]:
    if wanted in {Any, object, dict}:
        return {"const": json.loads(_ANY)}
    try:
        return msgspec.json.schema(wanted)
    except TypeError:
        adapter: Any = sys.modules["pydantic"].TypeAdapter(wanted)
        found: dict[str, Any] = adapter.json_schema()
        return found


def value_of(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int = 0) -> object:
    if depth > _DEPTH_MOST:
        return None
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if "$ref" in schema:
        return value_of(definitions.get(schema["$ref"].rpartition("/")[2], {}), definitions, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            kinds: Sequence[Mapping[str, Any]] = schema[key]
            kind = next((each for each in kinds if each.get("type") != "null"), kinds[0])
            return value_of(kind, definitions, depth + 1)
    return _by_type(schema, definitions, depth)


def _by_type(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> object:
    match schema.get("type"):
        case "object":
            properties: Mapping[str, Any] = schema.get("properties", {})
            names = schema.get("required") or properties
            return {name: value_of(properties.get(name, {}), definitions, depth + 1) for name in names}
        case "array":
            return [value_of(each, definitions, depth + 1) for each in schema.get("prefixItems", ())]
        case "string":
            return _TEXTS.get(schema.get("format", ""), "a" * max(schema.get("minLength", 1), 1))
        case "integer" | "number":
            return max(schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return True
        case _:
            return None
