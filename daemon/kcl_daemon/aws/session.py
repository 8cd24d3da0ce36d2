"""The clients: where the services are, who we are, how long we wait. Nothing is retried here.

Uses botocore without boto3: the same clients, chains and configuration, with less memory and a quicker start. Knows
nothing of streams and tables.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import botocore.session
from anyio import to_thread
from botocore.config import Config
from botocore.exceptions import BotoCoreError, MetadataRetrievalError
from botocore.utils import IMDSRegionProvider

from kcl_daemon import __version__
from kcl_daemon.aws.bodies import ParserFactory, PlainParserFactory
from kcl_daemon.aws.calls import SDK_ERRORS, translated
from kcl_daemon.aws.identity import session_as
from kcl_daemon.aws.lanes import DYNAMODB_CONNECTIONS, GLUE_CONNECTIONS, KINESIS_CONNECTIONS
from kcl_daemon.config.access_settings import Provider, ServiceSettings
from kcl_daemon.config.settings import Endpoints
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    ConfigurationError,
    NoCredentials,
    NoRegion,
    Unavailable,
)

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import Credentials
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_glue import GlueClient
    from mypy_boto3_kinesis import KinesisClient

Service = Literal["kinesis", "dynamodb", "cloudwatch", "glue"]

_CONNECT_TIMEOUT_S: Final = 5
# Between two pieces of an answer. A lease call that takes longer is of no use to a lease, and a stopped daemon ends
# only when its last thread does.
_READ_TIMEOUT_S: Final = 10

_PARSERS: Final = "response_parser_factory"
_NO_REGION: Final = "no AWS region: set regionName in the properties file, or AWS_REGION, or a region in the profile of ~/.aws/config"
_NO_METADATA: Final = "AWS_EC2_METADATA_DISABLED"
_NO_CREDENTIALS: Final = (
    "no AWS credentials: give this host or task a role, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """How one service is asked.

    Args:
        service: its name.
        client: of it.
        credentials: with which; they renew themselves when they are asked, which may block.
        ca_bundle: file of the certificates that are trusted, where one is configured.
    """

    service: Service
    client: BaseClient
    credentials: Credentials
    ca_bundle: str | None


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of one daemon; may be used from several threads.

    Args:
        kinesis: answers come as the service's JSON: `Data` base64 text, timestamps numbers (`bodies`).
        dynamodb: an ordinary one.
        credentials: what Kinesis is asked with; they renew themselves when they are asked, which may block.
        dynamodb_credentials: what DynamoDB is asked with, as good.
        ca_bundle: file of the certificates that are trusted, where one is configured.
        glue: an ordinary one; None: it was not asked for.
        discovers_dynamodb: whether the SDK asks DynamoDB now and then where to go.
    """

    kinesis: KinesisClient
    dynamodb: DynamoDBClient
    credentials: Credentials
    dynamodb_credentials: Credentials
    ca_bundle: str | None
    glue: GlueClient | None = None
    discovers_dynamodb: bool = False

    @property
    def of_kinesis(self) -> Asked:
        """How Kinesis is asked."""
        return Asked("kinesis", self.kinesis, self.credentials, self.ca_bundle)

    @property
    def of_dynamodb(self) -> Asked:
        """How DynamoDB is asked."""
        return Asked("dynamodb", self.dynamodb, self.dynamodb_credentials, self.ca_bundle)

    def close(self) -> None:
        """Close every idle connection."""
        self.kinesis.close()
        self.dynamodb.close()
        if self.glue is not None:
            self.glue.close()


@asynccontextmanager
async def open_clients(endpoints: Endpoints, *, glue: bool = False) -> AsyncGenerator[Clients, None]:
    """The clients while the context is open.

    Args:
        endpoints: where, and as whom.
        glue: whether there is to be one of Glue, which takes 10 MB.

    Raises:
        ConfigurationError: there is no region, or region, profile or endpoint cannot be used.
        Unavailable: the instance, which was asked for the region, did not tell it.
        AccessDenied: there are no credentials.
    """
    # Loading takes a tenth of a second, and the search for credentials may ask the network.
    clients = await to_thread.run_sync(partial(make_clients, endpoints, glue=glue), abandon_on_cancel=True)
    try:
        yield clients
    finally:
        clients.close()


def make_clients(endpoints: Endpoints, *, glue: bool = False) -> Clients:
    """As `open_clients`; blocks for a moment, and the caller closes."""
    try:
        services = Services(endpoints)
        credentials = services.credentials("kinesis")
        dynamodb_credentials = services.credentials("dynamodb")
        dynamodb = services.client("dynamodb", DYNAMODB_CONNECTIONS)
        discovers = services.discovers("dynamodb")
        registry = services.client("glue", GLUE_CONNECTIONS) if glue else None
        session = services.session("kinesis")
        parsers = cast("ParserFactory", session.get_component(_PARSERS))
        session.register_component(_PARSERS, PlainParserFactory(parsers))
        kinesis = services.client("kinesis", KINESIS_CONNECTIONS)
        session.register_component(_PARSERS, parsers)
    except (*SDK_ERRORS, ValueError) as error:
        raise refused(error) from error
    return Clients(
        kinesis=cast("KinesisClient", kinesis),
        dynamodb=cast("DynamoDBClient", dynamodb),
        credentials=credentials,
        dynamodb_credentials=dynamodb_credentials,
        ca_bundle=_ca_bundle(session),
        glue=cast("GlueClient | None", registry),
        discovers_dynamodb=discovers,
    )


class Services:
    """Sessions and clients of each service, by the settings; services that are asked as the same share a session.

    Every method may raise what the SDK raises, and blocks for a moment.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        credentials = endpoints.credentials
        self._settings = {
            "kinesis": (endpoints.kinesis, endpoints.of_kinesis, credentials.kinesis),
            "dynamodb": (
                endpoints.dynamodb,
                endpoints.of_dynamodb,
                credentials.dynamodb or credentials.kinesis,
            ),
            "cloudwatch": (
                endpoints.cloudwatch,
                endpoints.of_cloudwatch,
                credentials.cloudwatch or credentials.kinesis,
            ),
            "glue": (endpoints.glue, endpoints.of_glue, credentials.glue or credentials.kinesis),
        }
        self._common_region = endpoints.region_name
        self._sessions: dict[tuple[Provider, ...], botocore.session.Session] = {}

    def session(self, service: Service) -> botocore.session.Session:
        """The session that a service is asked in."""
        providers = self._settings[service][2]
        found = self._sessions.get(providers)
        if found is None:
            found = self._sessions[providers] = session_as(providers, self.region_name(service))
        return found

    def region_name(self, service: Service) -> str:
        """Its region.

        Raises:
            ConfigurationError: nobody names one.
            Unavailable: nobody but the instance could, and it did not.
        """
        own = self._settings[service][1].region_name or self._common_region
        return own or _region_name(botocore.session.get_session())

    def credentials(self, service: Service) -> Credentials:
        """What it is asked with.

        Raises:
            AccessDenied: there are none.
        """
        found = self.session(service).get_credentials()
        if found is None:
            asked = self._settings[service][2]
            # An instance may not have its role's credentials yet while it starts.
            raise (AccessDenied if _on_instance() else NoCredentials)(_no_credentials(asked))
        return found

    def discovers(self, service: Service) -> bool:
        """Whether its endpoints are to be discovered; one that is given never is, to the SDK either."""
        address, own, _ = self._settings[service]
        if address is not None:
            return False
        said = own.endpoint_discovery
        if said is None:
            said = (
                str(self.session(service).get_config_variable("endpoint_discovery_enabled")).lower() == "true"
            )
        return said

    def client(self, service: Service, connections: int) -> object:
        """A new client for so many calls at a time."""
        address, own, _ = self._settings[service]
        return self.session(service).create_client(
            service,
            region_name=self.region_name(service),
            endpoint_url=address,
            config=_config(connections).merge(_particular(own)),
        )

    def asked(self, service: Service, connections: int) -> Asked:
        """How it is asked, with a new client for so many calls at a time.

        Raises:
            AccessDenied: there are no credentials.
        """
        client = cast("BaseClient", self.client(service, connections))
        return Asked(service, client, self.credentials(service), _ca_bundle(self.session(service)))

    def client_elsewhere(self, name: str, *, region_name: str | None, address: str | None) -> object:
        """A client of a service that has no settings of its own, asked as Kinesis is, for one call at a time.

        Args:
            name: of the service, as the SDK has it.
            region_name: None: Kinesis' one.
            address: None: the service's own.
        """
        return self.session("kinesis").create_client(
            name,
            region_name=region_name or self.region_name("kinesis"),
            endpoint_url=address,
            config=_config(1),
        )


def _ca_bundle(session: botocore.session.Session) -> str | None:
    return session.get_config_variable("ca_bundle") or None


def _particular(own: ServiceSettings) -> Config:
    """What is different for one service; what is not said is left to the SDK's own configuration."""
    options: dict[str, Any] = {}  # Any: names and types are those of Config
    if own.fips:
        options["use_fips_endpoint"] = True
    if own.dualstack:
        options["use_dualstack_endpoint"] = True
    if own.endpoint_discovery is not None:
        options["endpoint_discovery_enabled"] = own.endpoint_discovery
    if own.account_id_endpoint_mode is not None:
        options["account_id_endpoint_mode"] = own.account_id_endpoint_mode
    return Config(**options)


def _no_credentials(asked: tuple[Provider, ...]) -> str:
    if not asked or Provider() in asked:
        return _NO_CREDENTIALS
    names = ", ".join(each.source.value for each in asked)
    return f"no AWS credentials: AwsCredentialsProvider names {names}, but they have none"


def _region_name(session: botocore.session.Session) -> str:
    """As the Java SDK looks for it: AWS_REGION, the profile, the instance. botocore adds its own variable."""
    found = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    return str(found or _region_of_instance(session))


def _region_of_instance(session: botocore.session.Session) -> str:
    """The region as the instance's metadata service tells it.

    Raises:
        ConfigurationError: it must not be asked, so that only a setting can help.
        NoRegion: it did not tell, and this is no instance of EC2.
        Unavailable: it did not tell here on EC2, where it may be away while the machine starts: that is over when the
            daemon is started again.
    """
    if os.environ.get(_NO_METADATA, "").lower() == "true":
        raise ConfigurationError(_NO_REGION)
    try:
        found = IMDSRegionProvider(session).provide()
    except MetadataRetrievalError:
        found = None
    if not found:
        if not _on_instance():
            raise NoRegion(_NO_REGION)
        raise Unavailable(f"{_NO_REGION}; the metadata service of the instance returned none")
    return str(found)


def _on_instance(root: Path = Path("/sys")) -> bool:
    """Whether this is a machine of EC2, by what its firmware says; False where it says nothing."""
    for name, beginning in (("class/dmi/id/sys_vendor", "amazon ec2"), ("hypervisor/uuid", "ec2")):
        try:
            said = (root / name).read_text("ascii", "replace")
        except OSError:
            continue
        if said.lower().startswith(beginning):
            return True
    return False


def unknown_regions(endpoints: Endpoints) -> list[tuple[str, str | None]]:
    """Regions of services without an address in the settings that the SDK does not know, each with the nearest.

    They may be newer than the SDK is, so that none of them is refused. Blocks for a moment.
    """
    common = (
        endpoints.region_name or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None
    )
    addressed = (
        (endpoints.kinesis, endpoints.of_kinesis.region_name),
        (endpoints.dynamodb, endpoints.of_dynamodb.region_name),
    )
    named = {own or common for address, own in addressed if address is None}
    session = botocore.session.get_session()
    known = {
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("dynamodb", partition)
    }
    unknown = sorted(name for name in named if name is not None and name not in known)
    return [(name, next(iter(get_close_matches(name, sorted(known), n=1)), None)) for name in unknown]


def who_asks(endpoints: Endpoints) -> str:
    """The ARN of user or role as whom Kinesis is asked. Blocks for a call of STS, which needs no permission.

    Raises:
        AwsError: STS did not tell.
    """
    services = Services(endpoints)
    try:
        # Any: there are no types of this service.
        client: Any = services.client_elsewhere("sts", region_name=None, address=None)
        try:
            arn = str(client.get_caller_identity()["Arn"])
        finally:
            client.close()
    except SDK_ERRORS as error:
        raise translated(error, operation="GetCallerIdentity", not_found=AwsError) from error
    return arn


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


def refused(error: Exception) -> AwsError | ConfigurationError:
    """What keeps clients from being made is a matter of settings or of credentials."""
    if isinstance(error, BotoCoreError):
        told = translated(error, operation="", not_found=AwsError)
        if isinstance(told, AccessDenied):
            return AccessDenied(f"the AWS credentials cannot be loaded: {error}")
    return ConfigurationError(
        f"the AWS SDK cannot work with region, endpoints or profile: {error}; look at regionName, kinesisEndpoint, "
        "dynamoDBEndpoint, AWS_PROFILE and ~/.aws/config"
    )
