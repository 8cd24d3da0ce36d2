"""Both ways to JSON say the same, so that it does not matter to anybody which one is there."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_protocol import codec

TEXTS = st.text(st.characters(), max_size=20)
VALUES = TEXTS | st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
RECORDS = st.dictionaries(TEXTS, VALUES, max_size=4)
MESSAGES = st.dictionaries(TEXTS, VALUES, max_size=4).flatmap(
    lambda fields: st.lists(RECORDS, max_size=3).map(lambda records: {**fields, "records": records})
)


@given(MESSAGES)
def test_the_fast_and_the_plain_codec_write_and_read_the_same(message: dict[str, object]) -> None:
    try:
        fast = codec.fast_dump_line(deepcopy(message))
    except TypeError:  # a name that is no UTF-8, which no message has
        return
    plain = codec.plain_dump_line(message)
    assert plain.isascii() and plain.endswith(b"\n") and plain.count(b"\n") == 1
    assert json.loads(fast) == json.loads(plain) == message
    for load in (codec.fast_load, codec.plain_load):
        assert load(fast) == load(plain) == message


@pytest.mark.parametrize("line", [b"", b"{", b"[1] 2", b"NaN", b"-Infinity", b'"\xff"', b"\x00", b"'a'"])
def test_both_codecs_refuse_a_line_that_is_no_json(line: bytes) -> None:
    for load in (codec.fast_load, codec.plain_load):
        with pytest.raises(ValueError, match=r".+"):
            load(line)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_both_codecs_refuse_an_integer_beyond_64_bits(number: int) -> None:
    for dump_line in (codec.fast_dump_line, codec.plain_dump_line):
        with pytest.raises(TypeError, match="64-bit"):
            dump_line({"records": [{"n": number}]})
