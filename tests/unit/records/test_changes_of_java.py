"""The form `kcl1` beside golden texts made with the Java adapter 1.6.1 and the MultiLang daemon of KCL 1.14.9.

What differs, and does no harm: the order of names (Java's is that of a hash map), and in the line `partitionKey` (Java:
null; ours: the item's keys as JSON), `subSequenceNumber` (null; 0) and `millisBehindLatest` (null; a number).
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any, Final

import pytest

from kcl_daemon.records.changes import changes_of
from kcl_daemon.records.forms import ChangeForm

_GOLDEN: Final = json.loads((Path(__file__).parents[2] / "golden/dynamodb_kcl1.json").read_text("utf-8"))
_ANSWER: Final = str(_GOLDEN["answer"]).encode()
_ARN: Final = "arn:aws:dynamodb:eu-west-1:000000000000:table/orders/stream/2024-11-24T03:00:00.000"


def _line() -> dict[str, Any]:
    payload, _, _ = changes_of(_ANSWER, ChangeForm.KCL1, _ARN)
    line: dict[str, Any] = json.loads(payload.line(0))
    return line


@pytest.mark.parametrize("place", range(len(_GOLDEN["data"])))
def test_data_has_the_same_names_and_values(place: int) -> None:
    data = b64decode(_line()["records"][place]["data"])
    assert json.loads(data, parse_int=str, parse_float=str) == json.loads(
        _GOLDEN["data"][place], parse_int=str, parse_float=str
    )


def test_data_is_utf_8_without_spaces() -> None:
    ours = [b64decode(record["data"]) for record in _line()["records"]]
    assert [len(each) for each in ours] == [len(each.encode()) for each in _GOLDEN["data"]]


def test_the_line_says_the_same_of_each_record() -> None:
    theirs = json.loads(_GOLDEN["line"])
    ours = _line()
    assert ours.keys() == theirs.keys()
    for mine, their in zip(ours["records"], theirs["records"], strict=True):
        assert mine.keys() == their.keys()
        same = ("action", "sequenceNumber", "approximateArrivalTimestamp")
        assert [mine[name] for name in same] == [their[name] for name in same]
        assert json.loads(mine["partitionKey"]) == json.loads(b64decode(their["data"]))["dynamodb"]["Keys"]
