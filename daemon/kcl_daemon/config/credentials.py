"""The `AwsCredentialsProvider` strings of the Java daemon: which mean the SDK's own chain, which mean someone else.

Pure. Never decides to run under another identity than the one that was written down: where a string names a role or
a profile, which are not supported yet, it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.kinds import Refused, trimmed
from kcl_daemon.config.notices import Notice
from kcl_daemon.observe.redact import shown

_PREFIX: Final = "AwsCredentialsProvider"
SPELLINGS: Final = (_PREFIX, f"{_PREFIX}DynamoDB", f"{_PREFIX}CloudWatch")

# Every one of these is a part of botocore's chain.
CHAIN: Final = frozenset(
    {
        "DefaultCredentialsProvider",
        "EnvironmentVariableCredentialsProvider",
        "ContainerCredentialsProvider",
        "InstanceProfileCredentialsProvider",
        "WebIdentityTokenFileCredentialsProvider",
        "ProfileCredentialsProvider",
    }
)
# The same of the SDK 1.x; the Java daemon 3.x refuses a file that names nothing else.
CHAIN_OF_SDK_1: Final = frozenset(
    {
        "DefaultAWSCredentialsProviderChain",
        "EC2ContainerCredentialsProviderWrapper",
        "WebIdentityTokenCredentialsProvider",
    }
)
_ROLES: Final = frozenset(
    {
        "StsAssumeRoleCredentialsProvider",
        "KclStsAssumeRoleCredentialsProvider",
        "STSAssumeRoleSessionCredentialsProvider",
    }
)


@dataclass(frozen=True, slots=True)
class Provider:
    """One entry of the list: a class without its package, and whether it has arguments."""

    name: str
    has_arguments: bool


def canonical_name(key: str) -> str | None:
    """The credentials key that is meant; None where it is none.

    The part up to `Provider` is taken in any case, what follows exactly (KCL: KinesisClientLibConfigurator).
    """
    if not key.lower().startswith(_PREFIX.lower()):
        return None
    spelling = _PREFIX + key[len(_PREFIX) :]
    return spelling if spelling in SPELLINGS else None


def read(text: str, *, key: str, line: int) -> tuple[Notice, ...]:
    """What to tell about a credentials string that can be honoured by botocore's chain.

    Raises:
        Refused: it names an identity that the chain would not use, or nothing that is known.
    """
    providers = tuple(_provider(entry) for entry in text.split(",") if trimmed(entry))
    if not providers:
        raise Refused("empty; give a value or take the line out")
    for provider in providers:
        _refuse_other_identity(provider)
    usable = [each for each in providers if each.name in CHAIN | CHAIN_OF_SDK_1]
    if not usable:
        raise Refused(
            "not known here; for the credentials that the AWS SDK finds by itself write DefaultCredentialsProvider"
        )
    notices = [Notice("credentials_from_sdk_chain", shown(key), line, {"chain": "botocore"}, level="info")]
    for provider in providers:
        if provider.name in CHAIN_OF_SDK_1:
            advice = "a name of SDK 1.x, refused by the Java daemon 3.x; write DefaultCredentialsProvider"
        elif provider.name not in CHAIN:
            advice = "not known here and passed over"
        else:
            continue
        facts = {"provider": shown(provider.name), "advice": advice}
        notices.append(Notice("credentials_provider_doubtful", shown(key), line, facts))
    return tuple(notices)


def _provider(entry: str) -> Provider:
    name, _, arguments = trimmed(entry).partition("|")
    return Provider(name.rpartition(".")[2], has_arguments=bool(trimmed(arguments)))


def _refuse_other_identity(provider: Provider) -> None:
    if provider.name in _ROLES:
        raise Refused(
            "assuming a role by this string is not supported yet; give the role in a profile of ~/.aws/config, "
            "start with AWS_PROFILE and write DefaultCredentialsProvider"
        )
    if provider.name == "ProfileCredentialsProvider" and provider.has_arguments:
        raise Refused(
            "naming the profile here is not supported yet; start with AWS_PROFILE and write ProfileCredentialsProvider"
        )
    if provider.name == "AnonymousCredentialsProvider":
        raise Refused("unsigned requests are not supported")
