"""The parser that leaves answers as they are: `kcl_daemon.aws.session`."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.parsers import ResponseParserError, ResponseParserFactory

from kcl_daemon.aws.session import PlainParser, PlainParserFactory


def parser() -> PlainParser:
    made = PlainParserFactory(ResponseParserFactory()).create_parser("json")
    assert isinstance(made, PlainParser)
    return made


def response(body: bytes, status: int = 200) -> Any:
    return {"status_code": status, "headers": {"x-amzn-requestid": "r"}, "body": body, "context": {}}


def test_a_success_is_its_json() -> None:
    answer = parser().parse(response(b'{"Records":[{"Data":"eA==","T":1.5}],"N":null}'), None)
    assert answer == {
        "Records": [{"Data": "eA==", "T": 1.5}],
        "N": None,
        "ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {"x-amzn-requestid": "r"}},
    }


def test_an_empty_body_is_an_empty_answer() -> None:
    assert set(parser().parse(response(b""), None)) == {"ResponseMetadata"}


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'"x"', b"{", b"null"])
def test_a_success_that_is_no_json_object_is_an_error(body: bytes) -> None:
    with pytest.raises(ResponseParserError):
        parser().parse(response(body), None)


def test_an_error_goes_through_botocores_parser() -> None:
    answer: Any = parser().parse(
        response(b'{"__type":"a#LimitExceededException","message":"why"}', 400), None
    )
    assert answer["Error"] == {"Code": "LimitExceededException", "Message": "why"}


@pytest.mark.parametrize("protocol", ["query", "rest-json", "rest-xml", "ec2"])
def test_other_protocols_have_botocores_parser(protocol: str) -> None:
    made = PlainParserFactory(ResponseParserFactory()).create_parser(protocol)
    assert not isinstance(made, PlainParser)
