from __future__ import annotations

import gzip
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import botocore.loaders
import botocore.session
from anyio import to_thread
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
    create_credential_resolver,
)
from botocore.exceptions import BotoCoreError, MetadataRetrievalError
from botocore.utils import IMDSRegionProvider

from kcl_daemon import __version__
from kcl_daemon.aws.access import DYNAMODB_CONNECTIONS, GLUE_CONNECTIONS, SDK_ERRORS, CallLimiters, translated
from kcl_daemon.config.services import CredentialsProvider, CredentialsSource, Endpoints, ServiceSettings
from kcl_daemon.errors import AccessDenied, AwsError, ConfigurationError, NoCredentials, NoRegion, Unavailable

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import Credentials
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_glue import GlueClient
    from mypy_boto3_kinesis import KinesisClient

T = TypeVar("T")
_LOADER: Final = "data_loader"
_RESOLVER: Final = "credential_provider"
_ROLE_METHOD: Final = "kcl-assume-role"
_PARTS: Final = {
    CredentialsSource.ENVIRONMENT: ("env",),
    CredentialsSource.CONTAINER: ("container-role",),
    CredentialsSource.INSTANCE: ("iam-role",),
    CredentialsSource.WEB_IDENTITY: ("assume-role-with-web-identity",),
    CredentialsSource.PROFILE: (
        "assume-role",
        "assume-role-with-web-identity",
        "sso",
        "shared-credentials-file",
        "login",
        "custom-process",
        "config-file",
    ),
}
_CONNECT_TIMEOUT_S: Final = 5
# A slower lease call is useless, and shutdown waits for the last thread.
_READ_TIMEOUT_S: Final = 10
_NO_CALLS: Final = 1
_NO_REGION: Final = "no AWS region: set regionName in the properties file, or AWS_REGION, or a region in the profile of ~/.aws/config"
_NO_METADATA: Final = "AWS_EC2_METADATA_DISABLED"
_NO_CREDENTIALS: Final = (
    "no AWS credentials: give this host or task a role, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)


class _Lean(botocore.loaders.JSONFileLoader):
    """Without the documentation, which is most of a model, and in plain dictionaries."""

    def load_file(self, file_path: str) -> object:
        for suffix, opened in ((".json", open), (".json.gz", gzip.open)):
            if Path(path := file_path + suffix).is_file():
                with opened(path, "rb") as file:
                    return json.loads(file.read(), object_hook=_undocumented)
        return None


def _undocumented(found: dict[str, object]) -> dict[str, object]:
    if isinstance(found.get("documentation"), str):
        found["documentation"] = ""  # botocore asks for it in places
    return found


class _Models(botocore.loaders.Loader):
    """Dropped once the clients are made; with it they keep 12 MB for ever."""

    def __init__(self, data_path: str | None) -> None:
        folders = data_path.split(os.pathsep) if data_path else []
        more = [str(Path(os.path.expandvars(each)).expanduser()) for each in folders]
        super().__init__(more, file_loader=_Lean())

    def forget(self) -> None:
        self._cache: dict[object, object] = {}


def session_as(providers: tuple[CredentialsProvider, ...], region_name: str) -> botocore.session.Session:
    """Without providers, botocore's chain. `region_name` is for roles without a region."""
    session = botocore.session.get_session()
    session.register_component(_LOADER, _Models(session.get_config_variable("data_path")))
    if providers and providers != (CredentialsProvider(),):
        chain = [part for provider in providers for part in _chain(provider, region_name)]
        session.register_component(_RESOLVER, CredentialResolver(providers=chain))
    return session


def _chain(provider: CredentialsProvider, region_name: str) -> list[CredentialProvider]:
    if provider.source is CredentialsSource.ROLE:
        return [_RoleProvider(provider, region_name)]
    session = botocore.session.get_session()
    if provider.source is CredentialsSource.PROFILE:
        # Makes botocore ignore the keys of the environment.
        name = provider.profile_name or session.get_config_variable("profile") or "default"
        session.set_config_variable("profile", name)
    resolver = create_credential_resolver(session, region_name=region_name)
    # Any: the stubs lack `providers`.
    parts = cast("list[CredentialProvider]", cast("Any", resolver).providers)
    wanted = _PARTS.get(provider.source)
    return parts if wanted is None else [part for part in parts if part.METHOD in wanted]


class _RoleProvider(CredentialProvider):
    """KCL: KclStsAssumeRoleCredentialsProvider."""

    METHOD = _ROLE_METHOD
    CANONICAL_NAME = None

    def __init__(self, role: CredentialsProvider, region_name: str) -> None:
        super().__init__()
        self._role = role
        self._region_name = role.region_name or region_name

    def load(self) -> Credentials | None:
        session = botocore.session.get_session()
        source = session.get_credentials()
        if source is None:
            return None
        more = {"RoleSessionName": self._role.session_name}
        if self._role.external_id is not None:
            more["ExternalId"] = self._role.external_id

        def client(service: str, **keys: Any) -> Any:
            return session.create_client(
                service, region_name=self._region_name, endpoint_url=self._role.endpoint_url, **keys
            )

        fetcher = AssumeRoleCredentialFetcher(client, source, self._role.role_arn, extra_args=more)
        return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method=_ROLE_METHOD)


Service = Literal["kinesis", "dynamodb", "dynamodbstreams", "cloudwatch", "glue"]


@dataclass(frozen=True, slots=True)
class ServiceClient:
    service: Service
    client: BaseClient
    credentials: Credentials
    ca_bundle: str | None


@dataclass(frozen=True, slots=True)
class Clients:
    """Thread-safe. Renewing credentials may block."""

    kinesis: KinesisClient
    dynamodb: DynamoDBClient
    credentials: Credentials
    dynamodb_credentials: Credentials
    ca_bundle: str | None
    glue: GlueClient | None = None
    streams: BaseClient | None = None
    discovers_dynamodb: bool = False
    limiters: CallLimiters = field(default_factory=CallLimiters)

    @property
    def of_kinesis(self) -> ServiceClient:
        return ServiceClient("kinesis", self.kinesis, self.credentials, self.ca_bundle)

    @property
    def of_changes(self) -> ServiceClient | None:
        if self.streams is None:
            return None
        return ServiceClient("dynamodbstreams", self.streams, self.credentials, self.ca_bundle)

    @property
    def of_dynamodb(self) -> ServiceClient:
        return ServiceClient("dynamodb", self.dynamodb, self.dynamodb_credentials, self.ca_bundle)

    def close(self) -> None:
        self.kinesis.close()
        self.dynamodb.close()
        for other in (self.glue, self.streams):
            if other is not None:
                other.close()


@asynccontextmanager
async def open_clients(
    endpoints: Endpoints, *, glue: bool = False, changes: bool = False
) -> AsyncGenerator[Clients, None]:
    """`glue` takes 10 MB.

    Raises:
        ConfigurationError: region, profile or endpoint is missing or invalid.
        Unavailable: the instance metadata did not return the region.
        AccessDenied: there are no credentials.
    """
    # Takes 0.1 s, and may use the network.
    make = partial(make_clients, endpoints, glue=glue, changes=changes)
    clients = await to_thread.run_sync(make, abandon_on_cancel=True)
    try:
        yield clients
    finally:
        clients.close()


def make_clients(endpoints: Endpoints, *, glue: bool = False, changes: bool = False) -> Clients:
    """As `open_clients`, but blocks; the caller closes."""
    try:
        services = Services(endpoints)
        credentials = services.credentials("kinesis")
        dynamodb_credentials = services.credentials("dynamodb")
        dynamodb = services.client("dynamodb", DYNAMODB_CONNECTIONS)
        discovers = services.discovers("dynamodb")
        registry = services.client("glue", GLUE_CONNECTIONS) if glue else None
        streams = services.client("dynamodbstreams", _NO_CALLS) if changes else None
        kinesis = services.client("kinesis", _NO_CALLS)
        services.forget_models()
    except (*SDK_ERRORS, ValueError) as error:
        raise refused(error) from error
    return Clients(
        kinesis=cast("KinesisClient", kinesis),
        dynamodb=cast("DynamoDBClient", dynamodb),
        credentials=credentials,
        dynamodb_credentials=dynamodb_credentials,
        ca_bundle=_ca_bundle(services.session("kinesis")),
        glue=cast("GlueClient | None", registry),
        streams=cast("BaseClient | None", streams),
        discovers_dynamodb=discovers,
    )


class Services:
    """Every method may block and raise `SDK_ERRORS`."""

    def __init__(self, endpoints: Endpoints) -> None:
        credentials = endpoints.credentials
        self._settings = {
            "kinesis": (endpoints.kinesis, endpoints.of_kinesis, credentials.kinesis),
            "dynamodb": (
                endpoints.dynamodb,
                endpoints.of_dynamodb,
                credentials.dynamodb or credentials.kinesis,
            ),
            "dynamodbstreams": (endpoints.dynamodb_streams, endpoints.of_kinesis, credentials.kinesis),
            "cloudwatch": (
                endpoints.cloudwatch,
                endpoints.of_cloudwatch,
                credentials.cloudwatch or credentials.kinesis,
            ),
            "glue": (endpoints.glue, endpoints.of_glue, credentials.glue or credentials.kinesis),
        }
        self._common_region = endpoints.region_name
        self._sessions: dict[tuple[CredentialsProvider, ...], botocore.session.Session] = {}

    def session(self, service: Service) -> botocore.session.Session:
        providers = self._settings[service][2]
        found = self._sessions.get(providers)
        if found is None:
            found = self._sessions[providers] = session_as(providers, self.region_name(service))
        return found

    def forget_models(self) -> None:
        for session in self._sessions.values():
            session.get_component(_LOADER).forget()

    def region_name(self, service: Service) -> str:
        own = self._settings[service][1].region_name or self._common_region
        return own or _region_name(botocore.session.get_session())

    def credentials(self, service: Service) -> Credentials:
        found = self.session(service).get_credentials()
        if found is None:
            asked = self._settings[service][2]
            # A starting instance may not have its role's credentials yet.
            raise (AccessDenied if _on_instance() else NoCredentials)(_no_credentials(asked))
        return found

    def discovers(self, service: Service) -> bool:
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
        address, own, _ = self._settings[service]
        return self.session(service).create_client(
            service,
            region_name=self.region_name(service),
            endpoint_url=address,
            config=_config(connections).merge(_particular(own)),
        )

    def service_client(self, service: Service, connections: int) -> ServiceClient:
        client = cast("BaseClient", self.client(service, connections))
        return ServiceClient(service, client, self.credentials(service), _ca_bundle(self.session(service)))

    def client_for(
        self, name: str, *, region_name: str | None, address: str | None, config: Config | None = None
    ) -> object:
        return self.session("kinesis").create_client(
            name,
            region_name=region_name or self.region_name("kinesis"),
            endpoint_url=address,
            config=_config(_NO_CALLS).merge(config or Config()),
        )


def _ca_bundle(session: botocore.session.Session) -> str | None:
    return session.get_config_variable("ca_bundle") or None


def _particular(own: ServiceSettings) -> Config:
    options: dict[str, Any] = {}
    if own.fips:
        options["use_fips_endpoint"] = True
    if own.dualstack:
        options["use_dualstack_endpoint"] = True
    if own.endpoint_discovery is not None:
        options["endpoint_discovery_enabled"] = own.endpoint_discovery
    if own.account_id_endpoint_mode is not None:
        options["account_id_endpoint_mode"] = own.account_id_endpoint_mode
    return Config(**options)


def _no_credentials(asked: tuple[CredentialsProvider, ...]) -> str:
    if not asked or CredentialsProvider() in asked:
        return _NO_CREDENTIALS
    names = ", ".join(each.source.value for each in asked)
    return f"no AWS credentials: AwsCredentialsProvider names {names}, but they have none"


def _region_name(session: botocore.session.Session) -> str:
    """As the Java SDK: AWS_REGION, profile, instance; botocore adds its own variable."""
    return _configured_region(session) or str(_region_of_instance(session))


def _configured_region(session: botocore.session.Session) -> str | None:
    return os.environ.get("AWS_REGION") or session.get_config_variable("region")


def _has_no_metadata() -> bool:
    return os.environ.get(_NO_METADATA, "").lower() == "true"


def _region_of_instance(session: botocore.session.Session) -> str:
    """NoRegion: no answer, and this is not EC2. Unavailable: EC2 does not answer yet."""
    if _has_no_metadata():
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
    for name, beginning in (("class/dmi/id/sys_vendor", "amazon ec2"), ("hypervisor/uuid", "ec2")):
        try:
            said = (root / name).read_text("ascii", "replace")
        except OSError:
            continue
        if said.lower().startswith(beginning):
            return True
    return False


def refused_here(endpoints: Endpoints) -> str | None:
    """By variables and files alone."""
    credentials = endpoints.credentials
    try:
        common = endpoints.region_name or _configured_region(botocore.session.get_session())
        for providers in (credentials.kinesis, credentials.dynamodb or credentials.kinesis):
            session_as(providers, common or "").get_scoped_config()
    except (*SDK_ERRORS, ValueError) as error:
        return str(refused(error))
    is_named = all(own.region_name or common for own in (endpoints.of_kinesis, endpoints.of_dynamodb))
    return None if is_named or (_on_instance() and not _has_no_metadata()) else _NO_REGION


def unknown_regions(endpoints: Endpoints) -> list[tuple[str, str | None]]:
    """They may be newer than the SDK, so they are not refused. Blocks."""
    common = (
        endpoints.region_name or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None
    )
    addressed = (
        (endpoints.kinesis, endpoints.of_kinesis.region_name),
        (endpoints.dynamodb, endpoints.of_dynamodb.region_name),
    )
    named = {own or common for address, own in addressed if address is None}
    if not any(named):
        return []
    # Its regions are those of DynamoDB; botocore's list of endpoints takes 12 MB.
    table: Any = botocore.session.get_session().get_component(_LOADER).load_data("partitions")
    known = {name for each in table["partitions"] for name in each["regions"] if not name.endswith("-global")}
    unknown = sorted(name for name in named if name is not None and name not in known)
    return [(name, next(iter(get_close_matches(name, sorted(known), n=1)), None)) for name in unknown]


def ask(endpoints: Endpoints, service: str, operation: str, call: Callable[[Any], T]) -> T:
    """Blocks; raises ConfigurationError and AwsError."""
    try:
        client: Any = Services(endpoints).client_for(service, region_name=None, address=None)
        with closing(client):
            return call(client)
    except SDK_ERRORS as error:
        raise translated(error, operation=operation, not_found=AwsError) from error


def caller_identity(endpoints: Endpoints) -> str:
    """Of our user or role. Needs no permission. Blocks."""
    return ask(endpoints, "sts", "GetCallerIdentity", lambda client: str(client.get_caller_identity()["Arn"]))


def _config(connections: int) -> Config:
    return Config(
        # A repeated conditional write would meet its own effect. Callers retry.
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        tcp_keepalive=True,
        max_pool_connections=connections,
        user_agent_extra=f"kcl-daemon/{__version__}",
    )


def refused(error: Exception) -> AwsError | ConfigurationError:
    if isinstance(error, BotoCoreError):
        translated_error = translated(error, operation="", not_found=AwsError)
        if isinstance(translated_error, AccessDenied):
            return AccessDenied(f"the AWS credentials cannot be loaded: {error}")
    return ConfigurationError(
        f"the AWS SDK cannot work with region, endpoints or profile: {error}; look at regionName, kinesisEndpoint, "
        "dynamoDBEndpoint, dynamoDBStreamsEndpoint, AWS_PROFILE and ~/.aws/config"
    )
