"""The local endpoints for tests: as a process of their own, or in this process with a clock that the test holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, TypedDict

import boto3
from anyio.from_thread import BlockingPortal, start_blocking_portal
from botocore.config import Config

from kcl_local.kinesis.arguments import DEFAULTS, KinesisOptions
from kcl_local.server import Endpoints, local_endpoints

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis import KinesisClient

_END_S = 60
# One try for each call, so that a test sees what the endpoint answered.
_ONE_TRY = Config(retries={"total_max_attempts": 1}, read_timeout=60, connect_timeout=60)


@dataclass(frozen=True, slots=True)
class Local:
    """Running endpoints.

    Args:
        kinesis_url: where Kinesis answers.
        dynamodb_url: where DynamoDB and STS answer.
        cloudwatch_url: where CloudWatch answers.
        s3_url: where S3, SNS and SQS answer.
        environment: what leads an AWS SDK of another process there.
    """

    kinesis_url: str
    dynamodb_url: str
    cloudwatch_url: str
    s3_url: str
    environment: dict[str, str]


@contextmanager
def local_process(*arguments: str) -> Generator[Local, None, None]:
    """`python -m kcl_local` with more arguments; ended by closing its stdin, and it must end well."""
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "kcl_local",
        "--until-eof",
        "--format",
        "json",
        *arguments,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield _announced(process.stdout)
            process.stdin.close()
            assert process.wait(timeout=_END_S) == 0
        finally:
            process.kill()


def _announced(stdout: IO[bytes]) -> Local:
    line = stdout.readline()
    assert line, "the endpoints ended before they were ready"
    reported = json.loads(line)
    return Local(**reported)


class Clock:
    """Epoch seconds that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class InProcess:
    """Endpoints in a thread of this process.

    Args:
        endpoints: call their model through `portal` only.
        portal: runs functions on their event loop.
        clock: the model's.
        kinesis: a client.
        dynamodb: a client.
    """

    endpoints: Endpoints
    portal: BlockingPortal
    clock: Clock
    kinesis: KinesisClient
    dynamodb: DynamoDBClient

    def fail_kinesis(self, operation: str, code: str) -> None:
        """Let the next call fail."""
        self.portal.call(self.endpoints.kinesis.fail_next, operation, code)


@contextmanager
def in_process(options: KinesisOptions = DEFAULTS) -> Generator[InProcess, None, None]:
    """Endpoints in a thread of this process, with clients."""
    clock = Clock()
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(local_endpoints(options, now=clock)) as endpoints,
        kinesis_client(endpoints.kinesis_url) as kinesis,
        dynamodb_client(endpoints.dynamodb_url) as dynamodb,
    ):
        yield InProcess(endpoints, portal, clock, kinesis, dynamodb)


@contextmanager
def kinesis_client(url: str) -> Generator[KinesisClient, None, None]:
    """A client that tries once."""
    with closing(boto3.client("kinesis", **_access(url))) as client:
        yield client


@contextmanager
def dynamodb_client(url: str) -> Generator[DynamoDBClient, None, None]:
    """A client that tries once."""
    with closing(boto3.client("dynamodb", **_access(url))) as client:
        yield client


def _access(url: str) -> _Access:
    return {
        "endpoint_url": url,
        "region_name": "us-east-1",
        "aws_access_key_id": "local",
        "aws_secret_access_key": "local",
        "config": _ONE_TRY,
    }


class _Access(TypedDict):
    endpoint_url: str
    region_name: str
    aws_access_key_id: str
    aws_secret_access_key: str
    config: Config
