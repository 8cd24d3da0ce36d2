"""What the contract suites need to let the real adapters speak to endpoints on loopback, and nothing else."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kcl_daemon.aws.session import Clients, make_clients
from kcl_daemon.config.services import Endpoints

REGION = "us-east-1"

_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nowhere/config",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere/credentials",
}


@contextmanager
def credentials_that_nobody_checks() -> Generator[None, None, None]:
    """Whatever this machine has, the SDK finds these."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@contextmanager
def local_clients(
    *,
    kinesis: str | None = None,
    dynamodb: str | None = None,
    glue: str | None = None,
    real_dynamodb: bool = False,
) -> Generator[Clients, None, None]:
    """Clients of endpoints on loopback, with credentials that nobody checks, whatever this machine has.

    With `real_dynamodb` DynamoDB is where the SDK says; to be asked where that is, not to be called.
    """
    nowhere = "http://127.0.0.1:1"
    with credentials_that_nobody_checks():
        endpoints = Endpoints(
            REGION, kinesis or nowhere, None if real_dynamodb else dynamodb or nowhere, glue=glue
        )
        clients = make_clients(endpoints, glue=glue is not None)
    try:
        yield clients
    finally:
        clients.close()


class QuickClock:
    """A clock whose sleeps are over at once, though the time has gone on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)

    def passed_ms(self) -> int:
        return self.wall_ms()

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now_s += seconds
        await checkpoint()

    def move_on_after(self, seconds: float | None) -> anyio.CancelScope:
        return anyio.move_on_after(seconds)
