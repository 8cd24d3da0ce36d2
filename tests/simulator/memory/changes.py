"""What a worker's transport of one AWS JSON service is here: its calls go over the simulated network to a model.

Owns the way of a call. What it asks for and what it makes of the answer is the daemon's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kcl_daemon.errors import IteratorExpired, Unavailable
from kcl_daemon.transport.caller import ErrorResponse, JsonApi
from kcl_daemon.transport.pool import Parameters
from kcl_daemon.transport.service_answers import service_error
from kcl_local.faults import DROP, http_status
from kcl_local.kinesis.arguments import ServiceError
from tests.simulator.faults.life import Life, Service
from tests.simulator.faults.network import Network

T = TypeVar("T")
Handle = Callable[[str, Parameters], bytes]


class MemoryClient:
    """The calls of `AwsJsonClient`, of one worker.

    Args:
        handle: carries out an operation and gives the body of its answer.
        service: whose trouble it shares.
    """

    def __init__(
        self,
        handle: Handle,
        *,
        api: JsonApi,
        life: Life,
        network: Network,
        service: Service = Service.KINESIS,
    ) -> None:
        self._handle = handle
        self._api = api
        self._life = life
        self._network = network
        self._service = service

    async def call(
        self,
        operation: str,
        parameters: Parameters,
        read: Callable[[bytearray], T],
        *,
        once: bool = False,
    ) -> T:
        """As that of the transport."""
        asked = dict(parameters)

        def effect() -> bytearray:
            if operation == "GetRecords" and self._network.iterator_expires():
                raise IteratorExpired("the iterator is too old", operation=operation)
            return bytearray(self._answer(operation, asked))

        return read(await self._network.call(self._life, self._service, operation, effect))

    def _answer(self, operation: str, parameters: Parameters) -> bytes:
        try:
            return self._handle(operation, parameters)
        except ServiceError as error:
            if error.code == DROP:
                raise Unavailable("the connection was cut", operation=operation) from error
            refused = ErrorResponse(error.code, error.message, http_status(error.code))
            own = None if self._api.error_of is None else self._api.error_of(refused, operation)
            raise own or service_error(
                error.code,
                error.message,
                operation=operation,
                not_found=self._api.not_found,
                status=refused.status,
            ) from error
