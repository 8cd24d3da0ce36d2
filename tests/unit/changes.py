"""The daemon's own adapter of DynamoDB Streams over the model of the local endpoints, without HTTP."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import anyio

from kcl_daemon.errors import StreamNotFound
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import StreamRef
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.transport.caller import AwsJsonClient
from kcl_daemon.transport.dynamodb_streams import HttpDynamoStreams
from kcl_daemon.transport.service_answers import service_error
from kcl_local.changes.model import StreamsModel
from kcl_local.changes.stream import StreamsOptions
from kcl_local.faults import http_status
from kcl_local.kinesis.arguments import ServiceError
from tests.unit.fakes import LoopClock

T = TypeVar("T")
TABLE = "orders"


class ModelClient:
    """Calls of one client, noted with their times; `refusals` are of the next calls."""

    def __init__(self, model: StreamsModel) -> None:
        self._model = model
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.read_at_s: list[float] = []
        self.refusals: deque[str] = deque()

    async def call(
        self, operation: str, parameters: Mapping[str, object], read: Callable[[bytearray], T]
    ) -> T:
        self.calls.append((operation, dict(parameters)))
        if operation == "GetRecords":
            self.read_at_s.append(anyio.current_time())
        try:
            return read(bytearray(self._answer(operation, parameters)))
        except ServiceError as error:
            status = http_status(error.code)
            raise service_error(
                error.code, error.message, operation=operation, not_found=StreamNotFound, status=status
            ) from error

    def _answer(self, operation: str, parameters: Mapping[str, object]) -> bytes:
        if self.refusals:
            raise ServiceError(self.refusals.popleft(), "as the test asks")
        return self._model.answer(operation, parameters)

    def asked(self, operation: str) -> list[dict[str, Any]]:
        return [parameters for name, parameters in self.calls if name == operation]


class TableWorld:
    """A table with a stream."""

    def __init__(self, options: StreamsOptions | None = None, shards: int = 1) -> None:
        clock = self.clock = LoopClock()
        self.model = StreamsModel(lambda: clock.wall_ms() / 1000, options or StreamsOptions())
        self.stream = self.model.enable(TABLE, shards=shards)
        self.client = ModelClient(self.model)
        self.ref = StreamRef(TABLE, self.stream.arn)
        self.changes = HttpDynamoStreams(cast("AwsJsonClient", self.client), ChangeForm.PLAIN, clock)

    @property
    def shards(self) -> list[ShardId]:
        return [ShardId(each.shard_id) for each in self.stream.shards]

    def write(self, *names: str) -> list[str]:
        """New items; gives the sequence numbers of the changes."""
        return [str(self.model.write(TABLE, None, {"id": {"S": name}})) for name in names]
