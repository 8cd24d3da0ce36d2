"""JSON by orjson, where it is installed; the same two functions as `_json_plain`."""

from __future__ import annotations

from json.encoder import encode_basestring_ascii

import orjson

from kcl_protocol import _json_plain


def dump_line(fields: dict[str, object]) -> bytes:
    """As the plain one; texts of `fields`, and of its `records`, may be altered."""
    try:
        line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # a lone surrogate, which has no UTF-8 form but has an escape
        return _dump_escaped(fields)
    # orjson cannot escape by itself. Most lines need nothing: they pay for this check, others for a second run.
    return line if line.isascii() else _dump_escaped(fields)


def load(line: bytes) -> object:
    """As the plain one."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        # orjson refuses escaped lone surrogates, which a partition key may hold; the standard library keeps them.
        return _json_plain.load(line)


def _dump_escaped(fields: dict[str, object]) -> bytes:
    _escape(fields)
    records = fields.get("records")
    if isinstance(records, list):
        for record in records:
            _escape(record)
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def _escape(fields: dict[str, object]) -> None:
    """Put ready-made JSON in place of the texts that are not ASCII."""
    for name, value in fields.items():
        if isinstance(value, str) and not value.isascii():
            fields[name] = orjson.Fragment(encode_basestring_ascii(value))
