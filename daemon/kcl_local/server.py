"""All local endpoints together: Kinesis on the current event loop, the others in a thread.

The clock of the Kinesis model is read only here: these endpoints live in real time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from anyio import CancelScope, to_thread

from kcl_local.dynamodb import DynamoDbServer
from kcl_local.kinesis.arguments import DEFAULTS, KinesisOptions
from kcl_local.kinesis.http import application
from kcl_local.kinesis.model import KinesisModel
from kcl_local.kinesis.stream import REGION
from kcl_local.serving import serve


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Port 0 means any free one; `now` is the Kinesis clock in epoch seconds."""

    kinesis: KinesisOptions = DEFAULTS
    kinesis_port: int = 0
    dynamodb_port: int = 0
    cloudwatch_port: int = 0
    now: Callable[[], float] = time.time  # noqa: TID251 - the endpoints live in real time; see the module's docstring


_DEFAULTS: Final = LocalOptions()


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Call the `kinesis` model only from the event loop of the endpoints."""

    kinesis_url: str
    dynamodb_url: str
    cloudwatch_url: str
    kinesis: KinesisModel
    dynamodb: DynamoDbServer

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_KINESIS": self.kinesis_url,
            "AWS_ENDPOINT_URL_DYNAMODB": self.dynamodb_url,
            "AWS_ENDPOINT_URL_CLOUDWATCH": self.cloudwatch_url,
            "AWS_ENDPOINT_URL_STS": self.dynamodb_url,
            "AWS_ENDPOINT_URL_GLUE": self.dynamodb_url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@asynccontextmanager
async def local_endpoints(
    options: LocalOptions = _DEFAULTS, prepare: Callable[[KinesisModel], None] | None = None
) -> AsyncGenerator[Endpoints, None]:
    """Serve all on loopback; needs anyio's asyncio backend.

    `prepare` creates streams before the endpoint answers. OSError if a port is not available, RuntimeError if
    this process already has a DynamoDB server.
    """
    model = KinesisModel(options.now, options.kinesis)
    dynamodb = DynamoDbServer(options.dynamodb_port, options.cloudwatch_port)
    if prepare is not None:
        prepare(model)
    try:
        await to_thread.run_sync(dynamodb.start)
        async with serve(application(model), options.kinesis_port) as kinesis_url:
            yield Endpoints(kinesis_url, dynamodb.url, dynamodb.cloudwatch_url, model, dynamodb)
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(dynamodb.stop)
