"""DynamoDB, STS, Glue and CloudWatch on loopback, in a thread of their own: moto, one request at a time.

Its own web server is not used: werkzeug's closes the connection after every answer.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from anyio.from_thread import start_blocking_portal
from moto.backends import get_backend

from kcl_local.moto_endpoint import BESIDE_DYNAMODB, CLOUDWATCH, DYNAMODB, MotoEndpoint
from kcl_local.serving import serve


class DynamoDbServer:
    """The server, in a thread of its own. moto's tables belong to the process: run one server at a time in it.

    Use it as a context manager, or `start` and `stop` it; both block for a moment.

    Args:
        port: of DynamoDB, STS and Glue; 0: any free one.
        cloudwatch_port: 0: any free one.

    Attributes:
        url: where DynamoDB, STS and Glue answer, once started.
        cloudwatch_url: where CloudWatch answers, once started.
        dynamodb: for counts and faults of DynamoDB.
        cloudwatch: for those of CloudWatch.
        calls: how often each DynamoDB operation was called, failed calls included.
    """

    _running: DynamoDbServer | None = None

    def __init__(self, port: int = 0, cloudwatch_port: int = 0) -> None:
        self._port = port
        self._cloudwatch_port = cloudwatch_port
        self._stack = ExitStack()
        self.dynamodb = MotoEndpoint(DYNAMODB, BESIDE_DYNAMODB)
        self.cloudwatch = MotoEndpoint(CLOUDWATCH)
        self.url = ""
        self.cloudwatch_url = ""
        self.calls: Counter[str] = self.dynamodb.calls

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Answer on both URLs, without any table or metric.

        Raises:
            RuntimeError: another server runs in this process.
            OSError: a port cannot be had.
        """
        if DynamoDbServer._running is not None:
            raise RuntimeError(
                f"a DynamoDB server of this process already runs at {DynamoDbServer._running.url}"
            )
        get_backend("dynamodb").reset()
        get_backend("cloudwatch").reset()
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            served = serve(self.dynamodb.application(), self._port)
            self.url = stack.enter_context(portal.wrap_async_context_manager(served))
            served = serve(self.cloudwatch.application(), self._cloudwatch_port)
            self.cloudwatch_url = stack.enter_context(portal.wrap_async_context_manager(served))
            self._stack = stack.pop_all()
        DynamoDbServer._running = self

    def stop(self) -> None:
        """Close every connection and end the thread; no effect on a server that does not run."""
        if DynamoDbServer._running is self:
            DynamoDbServer._running = None
            self._stack.close()

    def fail_next(self, operation: str, code: str, times: int = 1, *, after: bool = False) -> None:
        """Let the next calls of a DynamoDB operation fail: see `MotoEndpoint.fail_next`."""
        self.dynamodb.fail_next(operation, code, times, after=after)
