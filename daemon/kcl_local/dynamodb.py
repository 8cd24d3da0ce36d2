from __future__ import annotations

import re
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast
from urllib.parse import parse_qs

import botocore.session
import orjson
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from moto.backends import get_backend
from moto.core.responses import ActionResult, BaseResponse
from moto.dynamodb.responses import DynamoHandler
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.test import EnvironBuilder, run_wsgi_app

from kcl_local.changes.http import CHANGES, ERROR_PREFIX, StreamsAnswers
from kcl_local.changes.http import TARGET as STREAMS_TARGET
from kcl_local.changes.model import StreamsModel
from kcl_local.changes.tables import following_tables
from kcl_local.faults import DROP, Fault, FaultyService, http_status
from kcl_local.serving import BODY_BYTES_MAX, add_control, drop, send_troubled, serve

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


_OBJECT_BYTES_MAX: Final = 256 * 2**20
# aiohttp has unpacked the body, and sets its own headers.
_NOT_PASSED_IN: Final = frozenset({"content-length", "content-encoding"})
_NOT_PASSED_ON: Final = frozenset({"content-length", "connection", "date", "server", "transfer-encoding"})
_JSON: Final = "application/x-amz-json-1.0"
_ROWS: Final = frozenset({"Scan", "Query"})
_FOR_LETTERS: Final[tuple[Other, ...]] = ("s3", "sns", "sqs")
BESIDE_DYNAMODB: Final[Mapping[str, Other]] = {"AWSGlue.": "glue", "": "sts"}
_SIGNED_FOR: Final = re.compile(r"/([a-z0-9]+)/aws4_request")
_OF_S3: Final = {
    ("PUT", True): "PutObject",
    ("GET", True): "GetObject",
    ("HEAD", True): "HeadObject",
    ("DELETE", True): "DeleteObject",
    ("PUT", False): "CreateBucket",
    ("GET", False): "ListObjectsV2",
    ("HEAD", False): "HeadBucket",
    ("DELETE", False): "DeleteBucket",
}


@dataclass(frozen=True, slots=True)
class Service:
    """`target`: prefix of X-Amz-Target; `error_prefix`: of error codes."""

    backend: Literal["dynamodb", "cloudwatch"]
    target: str
    error_prefix: str = ""


Other = Literal["sts", "glue", "s3", "sns", "sqs"]

DYNAMODB: Final = Service("dynamodb", "DynamoDB_20120810.", ERROR_PREFIX)
CLOUDWATCH: Final = Service("cloudwatch", "GraniteServiceVersion20100801.")


class LettersEndpoint(FaultyService):
    """Told apart by the signature; what is not signed is for S3."""

    @property
    def operations(self) -> frozenset[str]:
        return frozenset({*_OF_S3.values(), "Publish", "SendMessage"})

    def application(self) -> web.Application:
        served = web.Application(client_max_size=_OBJECT_BYTES_MAX)
        add_control(served, self)
        served.router.add_route("*", "/{path:.*}", self._answer)
        return served

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        signed = _SIGNED_FOR.search(request.headers.get("Authorization", ""))
        service = next((name for name in _FOR_LETTERS if signed and name == signed[1]), "s3")
        operation = _operation_of_letters(service, request, body)
        self.calls[operation] += 1
        fault = self.faults.take(operation)
        if fault is not None:
            if fault.after:
                _perform(_application(service), request, body)
            return drop(request) if fault.code == DROP else _s3_failure(operation, fault.code)
        response = _perform(_application(service), request, body)
        trouble = self.troubles.take(operation)
        return response if trouble is None else await send_troubled(request, response, trouble)


def _operation_of_letters(service: str, request: web.Request, body: bytes) -> str:
    if service == "s3":
        is_object = "/" in request.path.strip("/")
        return _OF_S3.get((request.method, is_object), request.method)
    target = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
    return target or parse_qs(body.decode(errors="replace")).get("Action", ["?"])[0]


def _s3_failure(operation: str, code: str) -> web.Response:
    text = f"<Error><Code>{code}</Code><Message>{operation} was told to fail</Message></Error>"
    return web.Response(status=http_status(code), text=text, content_type="application/xml")


class MotoEndpoint(FaultyService):
    """`others`: by prefix of X-Amz-Target, the empty one last. Counts and faults are of `service` only."""

    def __init__(self, service: Service, others: Mapping[str, Other] | None = None) -> None:
        super().__init__()
        self._service = service
        self._application = _application(service.backend)
        self._others: Mapping[str, Other] = others or {}

    def application(self) -> web.Application:
        served = web.Application(client_max_size=BODY_BYTES_MAX)
        served.router.add_post("/", self._answer)
        served.router.add_post("/service/{service}/operation/{operation}", self._answer)
        add_control(served, self)
        return served

    @property
    def operations(self) -> frozenset[str]:
        model = botocore.session.get_session().get_service_model(self._service.backend)
        return frozenset(model.operation_names)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        target = request.headers.get("X-Amz-Target", "")
        if self._others and not self._is_ours(target):
            other = next(name for prefix, name in self._others.items() if target.startswith(prefix))
            return _perform(_application(other), request, body)
        operation = self._operation(request, body)
        self.calls[operation] += 1
        fault = self.faults.take(operation)
        if fault is None:
            response = self._performed(request, operation, body)
            trouble = self.troubles.take(operation)
            return response if trouble is None else await send_troubled(request, response, trouble)
        if fault.after:
            self._performed(request, operation, body)
        return drop(request) if fault.code == DROP else self._failure(operation, fault.code)

    def _performed(self, request: web.Request, _operation: str, body: bytes) -> web.Response:
        return _perform(self._application, request, body)

    def _is_ours(self, target: str) -> bool:
        return target.startswith(self._service.target)

    def _operation(self, request: web.Request, body: bytes) -> str:
        target = request.headers.get("X-Amz-Target", "")
        if self._is_ours(target):
            return target.rpartition(".")[2]
        named = request.match_info.get("operation")
        return named or parse_qs(body.decode(errors="replace")).get("Action", ["?"])[0]

    def _failure(self, operation: str, code: str) -> web.Response:
        explained = {"__type": self._service.error_prefix + code, "message": f"{operation} was told to fail"}
        return web.Response(status=http_status(code), body=orjson.dumps(explained), content_type=_JSON)


class TablesEndpoint(MotoEndpoint):
    def __init__(self, streams: StreamsModel) -> None:
        super().__init__(DYNAMODB, BESIDE_DYNAMODB)
        self.streams = StreamsAnswers(streams)

    def application(self) -> web.Application:
        served = super().application()
        served.router.add_post(CHANGES, self.streams.obey)
        return served

    @property
    def operations(self) -> frozenset[str]:
        return super().operations | self.streams.model.operations

    def _is_ours(self, target: str) -> bool:
        return super()._is_ours(target) or target.startswith(STREAMS_TARGET)

    def _performed(self, request: web.Request, operation: str, body: bytes) -> web.Response:
        if request.headers.get("X-Amz-Target", "").startswith(STREAMS_TARGET):
            return self.streams.answer(request, operation, body)
        happened = False
        try:
            response = super()._performed(request, operation, body)
            happened = response.status < HTTPStatus.BAD_REQUEST
        finally:
            self.streams.tables.settle(happened=happened)
        return response


def _encoded(value: object) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    raise TypeError(f"a row has no {type(value)}")


def _serialized(handler: DynamoHandler, answer: ActionResult) -> tuple[int, dict[str, Any], str | bytes]:
    """Moto tries each name that an attribute could have: slow."""
    if handler._get_action() not in _ROWS or isinstance(answer.result, Exception):  # noqa: SLF001
        return BaseResponse.serialized(handler, answer)
    body = orjson.dumps(answer.result, default=_encoded)
    return HTTPStatus.OK, {**handler.response_headers, "Content-Type": _JSON}, body


DynamoHandler.serialized = _serialized  # type: ignore[assignment, method-assign]


@cache
def _application(service: Literal["dynamodb", "cloudwatch"] | Other) -> WSGIApplication:
    return cast("WSGIApplication", create_backend_app(service))


def _perform(application: WSGIApplication, request: web.Request, body: bytes) -> web.Response:
    """No await here: that keeps moto to one request at a time."""
    environ = EnvironBuilder(
        request.rel_url.raw_path,
        base_url=str(request.url.origin()),
        query_string=request.query_string,
        method=request.method,
        headers=[each for each in request.headers.items() if each[0].lower() not in _NOT_PASSED_IN],
        data=body,
    ).get_environ()
    chunks, status, headers = run_wsgi_app(application, environ, buffered=True)
    response = web.Response(status=int(status.split(maxsplit=1)[0]), body=b"".join(chunks))
    for name, value in headers:
        # An answer to HEAD tells the length of a body that is not sent.
        if name.lower() not in _NOT_PASSED_ON or (request.method, name.lower()) == ("HEAD", "content-length"):
            response.headers[name] = value
    return response


class DynamoDbServer:
    """In its own thread. moto's tables belong to the process, so there is one server in it."""

    _running: DynamoDbServer | None = None

    def __init__(
        self, port: int = 0, cloudwatch_port: int = 0, s3_port: int = 0, streams: StreamsModel | None = None
    ) -> None:
        self._port = port
        self._cloudwatch_port = cloudwatch_port
        self._s3_port = s3_port
        self._stack = ExitStack()
        self.streams = streams or StreamsModel(time.time)  # noqa: TID251 - the endpoints live in real time
        self.dynamodb = TablesEndpoint(self.streams)
        self.cloudwatch = MotoEndpoint(CLOUDWATCH)
        self.letters = LettersEndpoint()
        self.url = ""
        self.cloudwatch_url = ""
        self.s3_url = ""
        self.calls: Counter[str] = self.dynamodb.calls

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """RuntimeError if another server runs in this process, OSError if a port is not available."""
        if DynamoDbServer._running is not None:
            raise RuntimeError(
                f"a DynamoDB server of this process already runs at {DynamoDbServer._running.url}"
            )
        get_backend("dynamodb").reset()
        get_backend("cloudwatch").reset()
        for name in _FOR_LETTERS:
            if f"moto.{name}" in sys.modules:
                get_backend(name).reset()
        with ExitStack() as stack:
            stack.enter_context(following_tables(self.dynamodb.streams.tables))
            portal = stack.enter_context(start_blocking_portal())
            served = serve(self.dynamodb.application(), self._port)
            self.url = stack.enter_context(portal.wrap_async_context_manager(served))
            served = serve(self.cloudwatch.application(), self._cloudwatch_port)
            self.cloudwatch_url = stack.enter_context(portal.wrap_async_context_manager(served))
            served = serve(self.letters.application(), self._s3_port)
            self.s3_url = stack.enter_context(portal.wrap_async_context_manager(served))
            self._stack = stack.pop_all()
        DynamoDbServer._running = self

    def stop(self) -> None:
        if DynamoDbServer._running is self:
            DynamoDbServer._running = None
            self._stack.close()

    def fail_next(self, operation: str, code: str, times: int = 1, *, after: bool = False) -> None:
        """`after`: the call takes effect and then fails, so its caller cannot know."""
        self.dynamodb.faults.add(operation, Fault(code, after), times)
