"""All endpoints together: Kinesis on the current event loop, DynamoDB, STS, Glue and CloudWatch in their thread. Knows no stream and no table.

The clock of the Kinesis model is read here, and only here: these endpoints serve processes that live in real time.
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
    """Settings of all endpoints.

    Args:
        kinesis: of the Kinesis model.
        kinesis_port: 0: any free one.
        dynamodb_port: 0: any free one.
        cloudwatch_port: 0: any free one.
        now: the clock of the Kinesis model in epoch seconds; tests may give their own.
    """

    kinesis: KinesisOptions = DEFAULTS
    kinesis_port: int = 0
    dynamodb_port: int = 0
    cloudwatch_port: int = 0
    now: Callable[[], float] = time.time  # noqa: TID251 - the endpoints live in real time; see the module's docstring


_DEFAULTS: Final = LocalOptions()


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Running endpoints.

    Args:
        kinesis_url: where Kinesis answers.
        dynamodb_url: where DynamoDB, STS and Glue answer.
        cloudwatch_url: where CloudWatch answers.
        kinesis: the model; call it from the event loop of the endpoints only.
        dynamodb: the server, for failures on demand and counts.
    """

    kinesis_url: str
    dynamodb_url: str
    cloudwatch_url: str
    kinesis: KinesisModel
    dynamodb: DynamoDbServer

    def environment(self) -> dict[str, str]:
        """Environment variables that lead any AWS SDK here, with credentials that nobody checks."""
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
    """Serve all on loopback while the context is open. Must run on anyio's asyncio backend, as aiohttp does.

    Args:
        options: ports and the model's settings.
        prepare: makes streams before anybody can ask for them: whoever waits for the endpoint finds them. Its errors pass.

    Raises:
        OSError: a port cannot be had.
        RuntimeError: this process already has a DynamoDB server.
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
