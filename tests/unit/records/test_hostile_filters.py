"""No record of 1 MiB stops the loop for 0.1 s, whatever the filter; what takes longer is done in pieces."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from typing import Final

import orjson
import pytest

from kcl_daemon.records.payload import Payload
from kcl_daemon.records.record_filter import RecordFilter
from kcl_protocol.messages import Record

SIZE: Final = 2**20
BOUND_S: Final = 0.1


def payload_of(*bodies: bytes) -> Payload:
    return Payload.of(
        [Record(b64encode(body).decode(), "k", str(at), 0, 0) for at, body in enumerate(bodies)]
    )


def longest_piece_s(pattern: object, payload: Payload) -> float:
    """CPU time between two turns of the loop; what takes a second is long enough to see it."""
    steps = RecordFilter.of(json.dumps({"data": pattern})).kept_in_steps(payload)
    pieces_s, kept = [0.0], None
    while kept is None and sum(pieces_s) < 1.0:
        began_s = time.thread_time()
        kept = next(steps)
        pieces_s.append(time.thread_time() - began_s)
    return max(pieces_s)


def filled(of: bytes, last: bytes = b"0", *, before: bytes = b"[", after: bytes = b"]") -> bytes:
    count = (SIZE - len(before) - len(after) - len(last)) // (len(of) + 1)
    return before + (of + b",") * count + last + after


ABSENT = [{"exists": False}]
WILDCARDS = [{"wildcard": f"*{'ab' * n}x*c{n}"} for n in range(60)]
CASES: Final[dict[str, tuple[object, bytes]]] = {
    "missing in each": ({"items": {"x": ABSENT}}, filled(b"{}", b'{"x":1}', before=b'{"items":[', after=b"]}")),
    "missing, deep": ({"a": {"b": {"c": ABSENT}}}, filled(b'{"a":[{"b":[{}]}]}', b'{"a":{"b":{"c":1}}}')),
    "empty objects": ({"x": ["y"]}, filled(b"{}", b'{"x":"z"}')),
    "empty arrays": ({"x": ["y"]}, filled(b"[]", b'{"x":"z", "y": "y"}')),
    "arrays of values": ({"x": [{"numeric": [">", 1]}, "y"]}, filled(b"0", before=b'{"x":[', after=b',"y "]}')),
    "many alternatives": (
        {"$or": [{f"k{n}": [{"prefix": "v"}, {"suffix": "w"}]} for n in range(30)]},
        filled(b'{"":0}', b'{"k1":"x"}'),
    ),
    "many fields": ({f"k{n}": [1, ABSENT[0]] for n in range(30)}, filled(b'{"k0":1}', b'{"k29":2}')),
    "a long text, many wildcards": ({"x": WILDCARDS}, filled(b"a" * 900_000, before=b'{"x":["', after=b'"]}')),
    "a long text, none of many": (
        {"x": [{"anything-but": {"wildcard": [each["wildcard"] for each in WILDCARDS]}}, {"cidr": "10.0.0.0/8"}]},
        b'{"x":"' + b"ab" * 450_000 + b'c0"}',
    ),
    "many texts, many wildcards": ({"x": WILDCARDS}, filled(b'"' + b"ab" * 1_000 + b'"', before=b'{"x":[')[:-1] + b"]}"),
    "networks": ({"x": [{"cidr": "10.0.0.0/8"}]}, filled(b'"11.0.0.0"', before=b'{"x":[', after=b"]}")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_no_record_stops_the_loop_for_long(case: str) -> None:
    pattern, body = CASES[case]
    assert len(body) <= SIZE
    began_s = time.thread_time()
    orjson.loads(body)
    parsed_s = time.thread_time() - began_s
    tried = [longest_piece_s(pattern, payload_of(body)) for _ in range(3)]
    # On a machine that does other things beside it, one call of the parser may take that long.
    assert min(tried) < max(BOUND_S, 2 * parsed_s)


def test_many_records_of_one_answer_do_not_stop_it_either() -> None:
    body = b'{"x":[' + b"{}," * 1_300 + b"0]}"
    payload = payload_of(*[body] * 250)
    assert min(longest_piece_s({"x": {"y": ["z"]}}, payload) for _ in range(3)) < BOUND_S


def test_a_field_that_must_be_missing_is_looked_for_once() -> None:
    body = b"[" + b"{}," * 8_000 + b'{"x":1}]'
    wanted = RecordFilter.of(json.dumps({"data": {"x": ABSENT}}))
    began_s = time.thread_time()
    assert not wanted.kept(payload_of(body))
    assert time.thread_time() - began_s < 1.0, "it was 10 s"
