"""A response parser for botocore that leaves successful JSON answers as they are.

botocore walks every answer by its shape, decodes base64 and builds datetimes; the child's line wants the base64 text
and a number again. The parser is put in by botocore's own means, a component of the session; errors still go through
botocore's parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, cast

import orjson
from botocore.parsers import ResponseParserError

if TYPE_CHECKING:
    from botocore.model import Shape


class Parser(Protocol):
    """What botocore calls with each answer."""

    def parse(self, response: Mapping[str, object], shape: Shape | None) -> Mapping[str, object]:
        """The answer as the caller of the client gets it."""
        ...


class ParserFactory(Protocol):
    """The session component `response_parser_factory`."""

    def create_parser(self, protocol_name: str) -> object:
        """A parser of a service's wire protocol."""
        ...


class PlainParser:
    """Gives the JSON of an answer as it came, with `ResponseMetadata` beside it.

    Args:
        ordinary: for answers that are errors.
    """

    def __init__(self, ordinary: Parser) -> None:
        self._ordinary = ordinary

    def parse(self, response: Mapping[str, object], shape: Shape | None) -> Mapping[str, object]:
        """As botocore's parsers; ResponseParserError where the body of a success is no JSON object."""
        status = cast("int", response["status_code"])
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            return self._ordinary.parse(response, shape)
        answer = _json_object(cast("bytes", response["body"]))
        answer["ResponseMetadata"] = {"HTTPStatusCode": status, "HTTPHeaders": response["headers"]}
        return answer


class PlainParserFactory:
    """Makes plain parsers for the protocol `json`, botocore's own for every other."""

    def __init__(self, ordinary: ParserFactory) -> None:
        self._ordinary = ordinary

    def create_parser(self, protocol_name: str) -> object:
        """The parser for a protocol by botocore's name of it."""
        parser = self._ordinary.create_parser(protocol_name)
        return PlainParser(cast("Parser", parser)) if protocol_name == "json" else parser


def _json_object(body: bytes) -> dict[str, object]:
    if not body:
        return {}
    try:
        parsed = cast("object", orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise ResponseParserError(f"the answer is no JSON: {body[:80]!r}") from error
    if not isinstance(parsed, dict):
        raise ResponseParserError(f"the answer is no JSON object: {body[:80]!r}")
    return cast("dict[str, object]", parsed)
