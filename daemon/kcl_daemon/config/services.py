"""Unknown or Java-only providers are refused, as are other properties with these prefixes.

No daemon may run under another identity than the one written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from kcl_daemon.config.kinds import (
    SOMETHING,
    Form,
    InvalidValue,
    Key,
    ValueKind,
    choice,
    endpoint,
    java,
    keys,
    keys_of,
    name,
    ours,
    trimmed,
    truth,
)
from kcl_daemon.config.properties import Notice
from kcl_daemon.text import shown

REGION: Final = name(r"[A-Za-z0-9-]{1,63}", "a region such as eu-west-1")
_PREFIX: Final = "AwsCredentialsProvider"
_ROLE_OF_KCL: Final = "KclStsAssumeRoleCredentialsProvider"
_OF_THE_JVM: Final = frozenset({"SystemPropertyCredentialsProvider", "SystemPropertiesCredentialsProvider"})
_REFUSED: Final = {
    "AnonymousCredentialsProvider": "the services require signed requests; for local endpoints set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY to any text and use DefaultCredentialsProvider",
    "StaticCredentialsProvider": "keys do not belong in this file; put them in a profile or in environment variables",
    "ProcessCredentialsProvider": "put credential_process into a profile and use "
    "ProfileCredentialsProvider|NAME",
}
_OF_WEB_IDENTITY: Final = (
    "role and token come from AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE, which EKS sets"
)
_ROLE_ARN: Final = re.compile(r"arn:aws[a-z0-9-]*:iam::[0-9]{12}:role/[!-~]{1,576}")
_SESSION_NAME: Final = re.compile(r"[A-Za-z0-9_+=,.@-]{2,64}")
_EXTERNAL_ID: Final = re.compile(r"[A-Za-z0-9_+=,.@:/-]{2,1224}")
_PROFILE_NAME: Final = re.compile(r"[^\x00-\x1f\]\[]{1,128}")
_REGION: Final = re.compile(r"[a-z0-9-]{1,63}")
_FROM_SDK: Final = "from the AWS SDK"
_AS_KINESIS: Final = f"`{_PREFIX}`"
CLIENT_PREFIXES: Final = ("kinesisClient", "dynamoDbClient", "cloudWatchClient", "glueClient")
_DISCOVERY: Final = Key(
    "dynamoDbClient.endpointDiscoveryEnabled",
    truth(),
    "endpoint_discovery",
    "Whether endpoint discovery of DynamoDB is used.",
    default=_FROM_SDK,
)
_ENDPOINT_MODE: Final = Key(
    "dynamoDbClient.accountIdEndpointMode",
    choice({word.upper(): word for word in ("preferred", "disabled", "required")}),
    "account_id_endpoint_mode",
    "Whether the account-based endpoint of DynamoDB is used.",
    default=_FROM_SDK,
)


class CredentialsSource(Enum):
    CHAIN = "DefaultCredentialsProvider"
    ENVIRONMENT = "EnvironmentVariableCredentialsProvider"
    PROFILE = "ProfileCredentialsProvider"
    CONTAINER = "ContainerCredentialsProvider"
    INSTANCE = "InstanceProfileCredentialsProvider"
    WEB_IDENTITY = "WebIdentityTokenFileCredentialsProvider"
    ROLE = "StsAssumeRoleCredentialsProvider"


@dataclass(frozen=True, slots=True)
class CredentialsProvider:
    """All but `profile_name` is for ROLE, with STS's region and endpoint."""

    source: CredentialsSource = CredentialsSource.CHAIN
    profile_name: str | None = None
    role_arn: str = ""
    session_name: str = ""
    region_name: str | None = None
    endpoint_url: str | None = None
    external_id: str | None = None


SOURCES: Final = {source.value: (source,) for source in CredentialsSource}
# The Java daemon 3.x knows none of these.
SOURCES_OF_SDK_1: Final = {
    "DefaultAWSCredentialsProviderChain": (CredentialsSource.CHAIN,),
    "EC2ContainerCredentialsProviderWrapper": (CredentialsSource.CONTAINER, CredentialsSource.INSTANCE),
    "WebIdentityTokenCredentialsProvider": (CredentialsSource.WEB_IDENTITY,),
    "STSAssumeRoleSessionCredentialsProvider": (CredentialsSource.ROLE,),
}
_WEB_IDENTITY: Final = CredentialsSource.WEB_IDENTITY.value


def _providers(text: str) -> tuple[CredentialsProvider, ...]:
    entries = [trimmed(entry) for entry in text.split(",") if trimmed(entry)]
    if not entries:
        raise InvalidValue("empty; give a value or remove the line")
    found = tuple(provider for entry in entries for provider in _providers_in(entry))
    if not found:
        raise InvalidValue("Java system properties do not exist here; use another provider")
    return found


def _class(entry: str) -> str:
    return trimmed(entry.partition("|")[0])


def _name(entry: str) -> str:
    return _class(entry).rpartition(".")[2]


def _sources(name: str) -> tuple[CredentialsSource, ...]:
    if name == _ROLE_OF_KCL:
        return (CredentialsSource.ROLE,)
    return SOURCES.get(name) or SOURCES_OF_SDK_1.get(name, ())


def _providers_in(entry: str) -> Iterator[CredentialsProvider]:
    name = _name(entry)
    arguments = [trimmed(argument) for argument in entry.split("|")[1:]]
    if name in _OF_THE_JVM:
        return
    if name in _REFUSED:
        raise InvalidValue(f"{name} is not supported: {_REFUSED[name]}")
    sources = _sources(name)
    if not sources and "webidentity" in name.lower():
        raise InvalidValue(f"{shown(name)} is not supported: use {_WEB_IDENTITY} alone; {_OF_WEB_IDENTITY}")
    if not sources:
        raise InvalidValue(
            f"{shown(name)!r} is unknown; for the default chain of the AWS SDK use DefaultCredentialsProvider"
        )
    for source in sources:
        if source is CredentialsSource.ROLE:
            yield _role(name, arguments)
        elif source is CredentialsSource.PROFILE and arguments:
            yield _profile(arguments)
        elif arguments:
            more = f"; {_OF_WEB_IDENTITY}" if source is CredentialsSource.WEB_IDENTITY else ""
            raise InvalidValue(f"{name} takes no arguments{more}")
        else:
            yield CredentialsProvider(source)


def _profile(arguments: list[str]) -> CredentialsProvider:
    if len(arguments) > 1 or not _PROFILE_NAME.fullmatch(arguments[0]):
        raise InvalidValue("ProfileCredentialsProvider takes one argument, the name of a profile")
    return CredentialsProvider(CredentialsSource.PROFILE, profile_name=arguments[0])


def _role(name: str, arguments: list[str]) -> CredentialsProvider:
    if len(arguments) < 2:
        raise InvalidValue(f"{name} needs a role and a session: {name}|ROLE_ARN|SESSION_NAME")
    role_arn, session_name, *nested = arguments
    if not _ROLE_ARN.fullmatch(role_arn):
        raise InvalidValue(f"{shown(role_arn)!r} is not the ARN of a role")
    if not _SESSION_NAME.fullmatch(session_name):
        raise InvalidValue(
            f"{shown(session_name)!r} is not a session name: 2 to 64 letters, digits or _+=,.@-"
        )
    given = dict(_nested(argument) for argument in nested)
    url, of_url = _sts(given.pop("endpoint")) if "endpoint" in given else (None, None)
    region_name = given.get("endpointRegion") or of_url
    if region_name is not None and not _REGION.fullmatch(region_name):
        raise InvalidValue(f"{shown(region_name)!r} is not a region")
    external_id = given.get("externalId")
    if external_id is not None and not _EXTERNAL_ID.fullmatch(external_id):
        raise InvalidValue("externalId must have 2 to 1224 letters, digits or _+=,.@:/-")
    return CredentialsProvider(
        CredentialsSource.ROLE,
        role_arn=role_arn,
        session_name=session_name,
        region_name=region_name,
        endpoint_url=url,
        external_id=external_id,
    )


def _nested(argument: str) -> tuple[str, str]:
    name, equals, value = (trimmed(part) for part in argument.partition("="))
    if not equals or not value or name not in {"endpoint", "endpointRegion", "externalId"}:
        raise InvalidValue(
            f"{shown(argument)!r} is not one of endpointRegion=REGION, endpoint=HOST^REGION and externalId=ID"
        )
    return name, value


def _sts(text: str) -> tuple[str, str]:
    """`HOST^REGION`; https if there is no scheme."""
    host, _, region_name = text.partition("^")
    url = host if "://" in host else f"https://{host}"
    try:
        good = urlsplit(url).scheme in {"http", "https"} and bool(urlsplit(url).hostname)
    except ValueError:
        good = False
    if not good or not region_name or " " in host:
        raise InvalidValue(f"{shown(text)!r} is not an STS endpoint with its region: endpoint=HOST^REGION")
    return url, region_name


_PROVIDERS: Final = ValueKind(
    _providers, f"{', '.join(SOURCES)}; several separated by commas", form=Form(SOMETHING)
)


@dataclass(frozen=True, slots=True)
class CredentialsSettings:
    """The first provider with credentials counts. Empty: those of Kinesis, and for Kinesis the SDK's chain."""

    kinesis: tuple[CredentialsProvider, ...] = java(
        _PREFIX,
        _PROVIDERS,
        (),
        aliases=("kinesisCredentialsProvider.class",),
        shown=CredentialsSource.CHAIN.value,
    )
    """Credentials providers for Kinesis; the first that has credentials is used. See
    [Credentials](#credentials)."""
    dynamodb: tuple[CredentialsProvider, ...] = java(
        f"{_PREFIX}DynamoDB",
        _PROVIDERS,
        (),
        aliases=("dynamoDBCredentialsProvider.class",),
        shown=_AS_KINESIS,
    )
    """As `AwsCredentialsProvider`, for DynamoDB."""
    cloudwatch: tuple[CredentialsProvider, ...] = java(
        f"{_PREFIX}CloudWatch",
        _PROVIDERS,
        (),
        aliases=("cloudWatchCredentialsProvider.class",),
        shown=_AS_KINESIS,
    )
    """As `AwsCredentialsProvider`, for CloudWatch."""
    glue: tuple[CredentialsProvider, ...] = ours(
        f"{_PREFIX}Glue", _PROVIDERS, (), aliases=("glueCredentialsProvider.class",), shown=_AS_KINESIS
    )
    """As `AwsCredentialsProvider`, for Glue, for example a role in the account of the schema registry."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    region_name: str | None = None
    fips: bool = False
    dualstack: bool = False
    endpoint_discovery: bool | None = None
    account_id_endpoint_mode: str | None = None


def _client(prefix: str, service: str, *more: Key) -> Mapping[str, object]:
    glue = prefix == "glueClient"
    region = f"Region of {service} only."
    fips = f"Whether to use the FIPS endpoint of {service}."
    dualstack = f"Whether to use the dual-stack endpoint (IPv4 and IPv6) of {service}."
    return keys(
        Key(f"{prefix}.region", REGION, "region_name", region, default="`regionName`", extension=glue),
        Key(f"{prefix}.fipsEnabled", truth(), "fips", fips, extension=glue),
        Key(f"{prefix}.dualstackEnabled", truth(), "dualstack", dualstack, extension=glue),
        *more,
    )


@dataclass(frozen=True, slots=True)
class Endpoints:
    region_name: str | None = java(
        "regionName", REGION, None, shown="region of `streamArn`, else from the AWS SDK"
    )
    """Region of all AWS services."""
    kinesis: str | None = java(
        "kinesisEndpoint", endpoint(), None, aliases=("kinesisClient.endpointOverride",), shown=_FROM_SDK
    )
    """Endpoint of Kinesis."""
    dynamodb: str | None = java(
        "dynamoDBEndpoint", endpoint(), None, aliases=("dynamoDbClient.endpointOverride",), shown=_FROM_SDK
    )
    """Endpoint of DynamoDB."""
    dynamodb_streams: str | None = ours("dynamoDBStreamsEndpoint", endpoint(), None, shown=_FROM_SDK)
    """Endpoint of DynamoDB Streams; used only for streams of DynamoDB, with the credentials for Kinesis."""
    cloudwatch: str | None = java("cloudWatchClient.endpointOverride", endpoint(), None, shown=_FROM_SDK)
    """Endpoint of CloudWatch."""
    glue: str | None = ours("glueClient.endpointOverride", endpoint(), None, shown=_FROM_SDK)
    """Endpoint of Glue; used only with `schemaRegistry`."""
    s3: str | None = ours("s3Endpoint", endpoint(), None, shown=_FROM_SDK)
    """Endpoint of S3; used only for dead letters. The bucket is part of the path of requests."""
    sns: str | None = ours("snsEndpoint", endpoint(), None, shown=_FROM_SDK)
    """Endpoint of SNS; used only for dead letters."""
    of_kinesis: ServiceSettings = field(
        default_factory=ServiceSettings, metadata=_client("kinesisClient", "Kinesis")
    )
    of_dynamodb: ServiceSettings = field(
        default_factory=ServiceSettings,
        metadata=_client("dynamoDbClient", "DynamoDB", _DISCOVERY, _ENDPOINT_MODE),
    )
    of_cloudwatch: ServiceSettings = field(
        default_factory=ServiceSettings, metadata=_client("cloudWatchClient", "CloudWatch")
    )
    of_glue: ServiceSettings = field(default_factory=ServiceSettings, metadata=_client("glueClient", "Glue"))
    credentials: CredentialsSettings = field(default_factory=CredentialsSettings)


_OF_CREDENTIALS: Final = tuple(keys_of(CredentialsSettings()))
SPELLINGS: Final = tuple(key.name for key in _OF_CREDENTIALS)
BUILDER_PREFIXES: Final = tuple(key.aliases[0].removesuffix("class") for key in _OF_CREDENTIALS)


def canonical_name(key: str) -> str | None:
    """None: no credentials key. Case matters only after `Provider` (KCL: KinesisClientLibConfigurator)."""
    if not key.lower().startswith(_PREFIX.lower()):
        return None
    spelling = _PREFIX + key[len(_PREFIX) :]
    return spelling if spelling in SPELLINGS else None


def notices(text: str, *, key: str, line: int) -> Iterator[Notice]:
    classes = [_class(entry) for entry in text.split(",") if trimmed(entry)]
    if any(CredentialsSource.CHAIN in _sources(_name(each)) for each in classes):
        yield Notice("credentials_from_sdk_chain", shown(key), line, {"chain": "botocore"}, level="info")
    for written in classes:
        chosen = _name(written)
        if chosen in SOURCES_OF_SDK_1 or (written.startswith("com.amazonaws.") and chosen in SOURCES):
            today = " or ".join(source.value for source in _sources(chosen))
            advice = f"a name of SDK 1.x, refused by the Java daemon 3.x; use {today}"
        elif chosen in _OF_THE_JVM:
            advice = "Java system properties do not exist here; ignored"
        else:
            continue
        facts = {"provider": shown(written), "advice": advice}
        yield Notice("credentials_provider_doubtful", shown(key), line, facts)
