"""The `AwsCredentialsProvider` strings of the Java daemon: whom they name.

Pure. Nobody ever runs under another identity than the one that was written down: what is not known, or cannot be had
without Java, is refused. What the sources mean to the AWS SDK is in `kcl_daemon.aws.identity`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from kcl_daemon.config.access_settings import Provider, Source
from kcl_daemon.config.key import Key
from kcl_daemon.config.kinds import Kind, Refused, trimmed
from kcl_daemon.config.notices import Notice
from kcl_daemon.observe.redact import shown

_PREFIX: Final = "AwsCredentialsProvider"
GLUE_CREDENTIALS: Final = f"{_PREFIX}Glue"

SOURCES: Final = {source.value: (source,) for source in Source}
# What the SDK 1.x called them; the Java daemon 3.x knows none of these names.
SOURCES_OF_SDK_1: Final = {
    "DefaultAWSCredentialsProviderChain": (Source.CHAIN,),
    "EC2ContainerCredentialsProviderWrapper": (Source.CONTAINER, Source.INSTANCE),
    "WebIdentityTokenCredentialsProvider": (Source.WEB_IDENTITY,),
    "STSAssumeRoleSessionCredentialsProvider": (Source.ROLE,),
}
_ROLE_OF_KCL: Final = "KclStsAssumeRoleCredentialsProvider"
_OF_THE_JVM: Final = frozenset({"SystemPropertyCredentialsProvider", "SystemPropertiesCredentialsProvider"})
_REFUSED: Final = {
    "AnonymousCredentialsProvider": "the services require signed requests; for local endpoints set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY to any text and use DefaultCredentialsProvider",
    "StaticCredentialsProvider": "keys do not belong in this file; put them in a profile or in environment variables",
    "ProcessCredentialsProvider": "put credential_process into a profile and use "
    "ProfileCredentialsProvider|NAME",
}
_ROLE_ARN: Final = re.compile(r"arn:aws[a-z0-9-]*:iam::[0-9]{12}:role/[!-~]{1,576}")
_SESSION_NAME: Final = re.compile(r"[A-Za-z0-9_+=,.@-]{2,64}")
_EXTERNAL_ID: Final = re.compile(r"[A-Za-z0-9_+=,.@:/-]{2,1224}")
_PROFILE_NAME: Final = re.compile(r"[^\x00-\x1f\]\[]{1,128}")
_REGION: Final = re.compile(r"[a-z0-9-]{1,63}")
_ALLOWED: Final = f"{', '.join(SOURCES)}; several separated by commas"


def providers() -> Kind:
    """A list of providers; gives a tuple of `Provider`."""

    def read(text: str) -> tuple[Provider, ...]:
        entries = [trimmed(entry) for entry in text.split(",") if trimmed(entry)]
        if not entries:
            raise Refused("empty; give a value or remove the line")
        found = tuple(provider for entry in entries for provider in _providers(entry))
        if not found:
            raise Refused("Java system properties do not exist here; use another provider")
        return found

    return Kind(read, _ALLOWED)


def _key(
    suffix: str, builder: str, target: str, meaning: str, default: str, *, extension: bool = False
) -> Key:
    return Key(
        f"{_PREFIX}{suffix}",
        providers(),
        f"endpoints.credentials.{target}",
        meaning,
        aliases=(f"{builder}.class",),
        default=default,
        extension=extension,
    )


CREDENTIALS_KEYS: Final = (
    _key(
        "",
        "kinesisCredentialsProvider",
        "kinesis",
        "Credentials providers for Kinesis; the first that has credentials is used. See "
        "[Credentials](#credentials).",
        "DefaultCredentialsProvider",
    ),
    _key("DynamoDB", "dynamoDBCredentialsProvider", "dynamodb", "The same for DynamoDB.", f"`{_PREFIX}`"),
    _key(
        "CloudWatch",
        "cloudWatchCredentialsProvider",
        "cloudwatch",
        "The same for CloudWatch.",
        f"`{_PREFIX}`",
    ),
    _key(
        "Glue",
        "glueCredentialsProvider",
        "glue",
        "The same for Glue, for example a role in the account of the schema registry.",
        f"`{_PREFIX}`",
        extension=True,
    ),
)
SPELLINGS: Final = tuple(key.name for key in CREDENTIALS_KEYS)
BUILDER_PREFIXES: Final = tuple(key.aliases[0].removesuffix("class") for key in CREDENTIALS_KEYS)


def canonical_name(key: str) -> str | None:
    """The credentials key that is meant; None where it is none.

    The part up to `Provider` is taken in any case, what follows exactly (KCL: KinesisClientLibConfigurator).
    """
    if not key.lower().startswith(_PREFIX.lower()):
        return None
    spelling = _PREFIX + key[len(_PREFIX) :]
    return spelling if spelling in SPELLINGS else None


def notices(text: str, *, key: str, line: int) -> Iterator[Notice]:
    """What to tell about a list of providers that can be honoured.

    Args:
        text: as written.
        key: the property as it is written.
        line: where it stands.
    """
    names = [_name(entry) for entry in text.split(",") if trimmed(entry)]
    if any(Source.CHAIN in _sources(name) for name in names):
        yield Notice("credentials_from_sdk_chain", shown(key), line, {"chain": "botocore"}, level="info")
    for name in names:
        if name in SOURCES_OF_SDK_1:
            today = " or ".join(source.value for source in SOURCES_OF_SDK_1[name])
            advice = f"a name of SDK 1.x, refused by the Java daemon 3.x; use {today}"
        elif name in _OF_THE_JVM:
            advice = "Java system properties do not exist here; ignored"
        else:
            continue
        facts = {"provider": shown(name), "advice": advice}
        yield Notice("credentials_provider_doubtful", shown(key), line, facts)


def _name(entry: str) -> str:
    """The class without its package."""
    return trimmed(entry.partition("|")[0]).rpartition(".")[2]


def _sources(name: str) -> tuple[Source, ...]:
    if name == _ROLE_OF_KCL:
        return (Source.ROLE,)
    return SOURCES.get(name) or SOURCES_OF_SDK_1.get(name, ())


def _providers(entry: str) -> Iterator[Provider]:
    name = _name(entry)
    arguments = [trimmed(argument) for argument in entry.split("|")[1:]]
    if name in _OF_THE_JVM:
        return
    if name in _REFUSED:
        raise Refused(f"{name} is not supported: {_REFUSED[name]}")
    sources = _sources(name)
    if not sources:
        raise Refused(
            f"{shown(name)!r} is unknown; for the default chain of the AWS SDK use DefaultCredentialsProvider"
        )
    for source in sources:
        if source is Source.ROLE:
            yield _role(name, arguments)
        elif source is Source.PROFILE and arguments:
            yield _profile(arguments)
        elif arguments:
            raise Refused(f"{name} takes no arguments")
        else:
            yield Provider(source)


def _profile(arguments: list[str]) -> Provider:
    if len(arguments) > 1 or not _PROFILE_NAME.fullmatch(arguments[0]):
        raise Refused("ProfileCredentialsProvider takes one argument, the name of a profile")
    return Provider(Source.PROFILE, profile_name=arguments[0])


def _role(name: str, arguments: list[str]) -> Provider:
    """KCL: KclStsAssumeRoleCredentialsProvider, NestedPropertyKey."""
    if len(arguments) < 2:
        raise Refused(f"{name} needs a role and a session: {name}|ROLE_ARN|SESSION_NAME")
    role_arn, session_name, *nested = arguments
    if not _ROLE_ARN.fullmatch(role_arn):
        raise Refused(f"{shown(role_arn)!r} is not the ARN of a role")
    if not _SESSION_NAME.fullmatch(session_name):
        raise Refused(f"{shown(session_name)!r} is not a session name: 2 to 64 letters, digits or _+=,.@-")
    given = dict(_nested(argument) for argument in nested)
    url, of_url = _sts(given.pop("endpoint")) if "endpoint" in given else (None, None)
    region_name = given.get("endpointRegion") or of_url
    if region_name is not None and not _REGION.fullmatch(region_name):
        raise Refused(f"{shown(region_name)!r} is not a region")
    external_id = given.get("externalId")
    if external_id is not None and not _EXTERNAL_ID.fullmatch(external_id):
        raise Refused("externalId must have 2 to 1224 letters, digits or _+=,.@:/-")
    return Provider(
        Source.ROLE,
        role_arn=role_arn,
        session_name=session_name,
        region_name=region_name,
        endpoint_url=url,
        external_id=external_id,
    )


def _nested(argument: str) -> tuple[str, str]:
    name, equals, value = (trimmed(part) for part in argument.partition("="))
    if not equals or not value or name not in {"endpoint", "endpointRegion", "externalId"}:
        raise Refused(
            f"{shown(argument)!r} is not one of endpointRegion=REGION, endpoint=HOST^REGION and externalId=ID"
        )
    return name, value


def _sts(text: str) -> tuple[str, str]:
    """`HOST^REGION`, with https where no scheme is written."""
    host, _, region_name = text.partition("^")
    url = host if "://" in host else f"https://{host}"
    try:
        good = urlsplit(url).scheme in {"http", "https"} and bool(urlsplit(url).hostname)
    except ValueError:
        good = False
    if not good or not region_name or " " in host:
        raise Refused(f"{shown(text)!r} is not an STS endpoint with its region: endpoint=HOST^REGION")
    return url, region_name
