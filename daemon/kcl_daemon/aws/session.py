"""The clients: where the services are, who we are, how long we wait. Nothing is retried here.

Uses botocore without boto3: the same clients, chains and configuration, with less memory and a quicker start. Knows
nothing of streams and tables.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import botocore.session
from anyio import to_thread
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.utils import IMDSRegionProvider

from kcl_daemon import __version__
from kcl_daemon.aws.bodies import ParserFactory, PlainParserFactory
from kcl_daemon.aws.calls import SDK_ERRORS, translated
from kcl_daemon.aws.lanes import DYNAMODB_CONNECTIONS, KINESIS_CONNECTIONS
from kcl_daemon.config.settings import Endpoints
from kcl_daemon.errors import AccessDenied, AwsError, ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis import KinesisClient

_CONNECT_TIMEOUT_S: Final = 5
# Between two pieces of an answer. A lease call that takes longer is of no use to a lease, and a stopped daemon ends
# only when its last thread does.
_READ_TIMEOUT_S: Final = 10

_PARSERS: Final = "response_parser_factory"
_NO_REGION: Final = "no AWS region: set regionName in the properties file, or AWS_REGION, or a region in the profile of ~/.aws/config"
_NO_CREDENTIALS: Final = (
    "no AWS credentials: give this host or task a role, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of one daemon; may be used from several threads.

    Args:
        kinesis: answers come as the service's JSON: `Data` base64 text, timestamps numbers (`bodies`).
        dynamodb: an ordinary one.
    """

    kinesis: KinesisClient
    dynamodb: DynamoDBClient

    def close(self) -> None:
        """Close every idle connection."""
        self.kinesis.close()
        self.dynamodb.close()


@asynccontextmanager
async def open_clients(endpoints: Endpoints) -> AsyncGenerator[Clients, None]:
    """The clients while the context is open.

    Raises:
        ConfigurationError: there is no region, or region, profile or endpoint cannot be used.
        AccessDenied: there are no credentials.
    """
    # Loading takes a tenth of a second, and the search for credentials may ask the network.
    clients = await to_thread.run_sync(make_clients, endpoints, abandon_on_cancel=True)
    try:
        yield clients
    finally:
        clients.close()


def make_clients(endpoints: Endpoints) -> Clients:
    """As `open_clients`; blocks for a moment, and the caller closes."""
    try:
        session = botocore.session.get_session()
        region_name = _region_name(session, endpoints)
        _require_credentials(session)
        dynamodb = session.create_client(
            "dynamodb",
            region_name=region_name,
            endpoint_url=endpoints.dynamodb,
            config=_config(DYNAMODB_CONNECTIONS),
        )
        parsers = cast("ParserFactory", session.get_component(_PARSERS))
        session.register_component(_PARSERS, PlainParserFactory(parsers))
        kinesis = session.create_client(
            "kinesis",
            region_name=region_name,
            endpoint_url=endpoints.kinesis,
            config=_config(KINESIS_CONNECTIONS),
        )
        session.register_component(_PARSERS, parsers)
    except (*SDK_ERRORS, ValueError) as error:
        raise _refused(error) from error
    return Clients(cast("KinesisClient", kinesis), cast("DynamoDBClient", dynamodb))


def _region_name(session: botocore.session.Session, endpoints: Endpoints) -> str:
    """As the Java SDK looks for it: the setting, AWS_REGION, the profile, the instance. botocore adds its own variable."""
    found = (
        endpoints.region_name
        or os.environ.get("AWS_REGION")
        or session.get_config_variable("region")
        or IMDSRegionProvider(session).provide()
    )
    if not found:
        raise ConfigurationError(_NO_REGION)
    return str(found)


def _require_credentials(session: botocore.session.Session) -> None:
    # The stubs do not say that there may be none.
    credentials = cast("object | None", session.get_credentials())
    if credentials is None:
        raise AccessDenied(_NO_CREDENTIALS)


def _config(connections: int) -> Config:
    return Config(
        # One attempt: a conditional write sent twice would meet its own effect. Who called knows how to go on.
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        tcp_keepalive=True,
        max_pool_connections=connections,
        user_agent_extra=f"kcl-daemon/{__version__}",
    )


def _refused(error: Exception) -> AwsError | ConfigurationError:
    """What keeps clients from being made is a matter of settings or of credentials."""
    if isinstance(error, BotoCoreError):
        told = translated(error, operation="", not_found=AwsError)
        if isinstance(told, AccessDenied):
            return AccessDenied(f"the AWS credentials cannot be loaded: {error}")
    return ConfigurationError(
        f"the AWS SDK cannot work with region, endpoints or profile: {error}; look at regionName, kinesisEndpoint, "
        "dynamoDBEndpoint, AWS_PROFILE and ~/.aws/config"
    )
