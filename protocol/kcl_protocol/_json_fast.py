"""JSON by orjson."""

from __future__ import annotations

from json.encoder import encode_basestring_ascii

import orjson

from kcl_protocol import _json_plain


def dump_line(fields: dict[str, object]) -> bytes:
    """May change texts of `fields` and of its `records` in place."""
    try:
        line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # a lone surrogate has no UTF-8 form, only an escape
        return _dump_escaped(fields)
    # orjson cannot escape non-ASCII text, so the few lines that have some are dumped a second time.
    return line if line.isascii() else _dump_escaped(fields)


def load(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        # orjson refuses escaped lone surrogates, which a partition key may hold.
        return _json_plain.load(line)


def _dump_escaped(fields: dict[str, object]) -> bytes:
    _escape(fields)
    records = fields.get("records")
    if isinstance(records, list):
        for record in records:
            _escape(record)
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def _escape(fields: dict[str, object]) -> None:
    for name, value in fields.items():
        if isinstance(value, str) and not value.isascii():
            fields[name] = orjson.Fragment(encode_basestring_ascii(value))
