"""DynamoDB (and STS) on loopback: moto's WSGI application, one request at a time, with failures on demand.

moto checks a condition and writes in two steps, so two threads can both win a conditional write; here a single thread
runs it all. Its own web server is not used: werkzeug's closes the connection after every answer.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from io import BytesIO
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import orjson
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from moto.backends import get_backend
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.test import run_wsgi_app

from kcl_local.faults import DROP, Fault, Faults, http_status
from kcl_local.serving import BODY_BYTES_MAX, HOST, drop, serve

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

_TARGET_PREFIX: Final = "DynamoDB_20120810."
_ERROR_PREFIX: Final = "com.amazonaws.dynamodb.v20120810#"
# aiohttp writes its own.
_NOT_PASSED_ON: Final = frozenset({"content-length", "connection", "date", "server", "transfer-encoding"})


class DynamoDbServer:
    """The server, in a thread of its own. moto's tables belong to the process: run one server at a time in it.

    Use it as a context manager, or `start` and `stop` it; both block for a moment.

    Args:
        port: 0: any free one.

    Attributes:
        url: where it answers, once started.
        calls: how often each DynamoDB operation was called, failed calls included.
    """

    _running: DynamoDbServer | None = None

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._faults = Faults()
        self._stack = ExitStack()
        self._dynamodb = create_backend_app("dynamodb")
        self._sts = create_backend_app("sts")
        self.url = ""
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Answer on `url`, without any table.

        Raises:
            RuntimeError: another server runs in this process.
            OSError: the port cannot be had.
        """
        if DynamoDbServer._running is not None:
            raise RuntimeError(
                f"a DynamoDB server of this process already runs at {DynamoDbServer._running.url}"
            )
        get_backend("dynamodb").reset()
        served = web.Application(client_max_size=BODY_BYTES_MAX)
        served.router.add_post("/", self._answer)
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            self.url = stack.enter_context(portal.wrap_async_context_manager(serve(served, self._port)))
            self._stack = stack.pop_all()
        DynamoDbServer._running = self

    def stop(self) -> None:
        """Close every connection and end the thread; no effect on a server that does not run."""
        if DynamoDbServer._running is self:
            DynamoDbServer._running = None
            self._stack.close()

    def fail_next(self, operation: str, code: str, times: int = 1, *, after: bool = False) -> None:
        """Let the next calls of an operation fail; may be called from any thread.

        Args:
            operation: such as `UpdateItem`.
            code: the service's error code, such as `ProvisionedThroughputExceededException` or `InternalServerError`,
                or `kcl_local.faults.DROP`: the connection is cut without an answer.
            times: how many calls.
            after: the call takes effect and then fails, so that its caller cannot know.
        """
        self._faults.add(operation, Fault(code, after), times)

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        target = request.headers.get("X-Amz-Target", "")
        if not target.startswith(_TARGET_PREFIX):
            return self._perform(self._sts, request, body)
        operation = target.removeprefix(_TARGET_PREFIX)
        self.calls[operation] += 1
        fault = self._faults.take(operation)
        if fault is None:
            return self._perform(self._dynamodb, request, body)
        if fault.after:
            self._perform(self._dynamodb, request, body)
        return drop(request) if fault.code == DROP else _failure(operation, fault.code)

    def _perform(self, application: WSGIApplication, request: web.Request, body: bytes) -> web.Response:
        """Let moto answer. There is no await in here: that makes it one at a time."""
        chunks, status, headers = run_wsgi_app(application, _environ(request, body), buffered=True)
        response = web.Response(status=int(status.split(maxsplit=1)[0]), body=b"".join(chunks))
        for name, value in headers:
            if name.lower() not in _NOT_PASSED_ON:
                response.headers[name] = value
        return response


def _failure(operation: str, code: str) -> web.Response:
    body = orjson.dumps({"__type": _ERROR_PREFIX + code, "message": f"{operation} was told to fail"})
    return web.Response(status=http_status(code), body=body, content_type="application/x-amz-json-1.0")


def _environ(request: web.Request, body: bytes) -> WSGIEnvironment:
    """The request as PEP 3333 wants it."""
    environ: WSGIEnvironment = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": request.path,
        "QUERY_STRING": request.query_string,
        "SERVER_NAME": HOST,
        "SERVER_PORT": str(request.url.port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        environ["HTTP_" + name.upper().replace("-", "_")] = value
    return environ
