"""What a properties file says about each AWS service: where it is, and as whom it is asked.

Pure values, part of `Settings`. What they mean to the AWS SDK is the business of `kcl_daemon.aws`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Source(Enum):
    """Where credentials come from; the values are Java's class names of today."""

    CHAIN = "DefaultCredentialsProvider"
    ENVIRONMENT = "EnvironmentVariableCredentialsProvider"
    PROFILE = "ProfileCredentialsProvider"
    CONTAINER = "ContainerCredentialsProvider"
    INSTANCE = "InstanceProfileCredentialsProvider"
    WEB_IDENTITY = "WebIdentityTokenFileCredentialsProvider"
    ROLE = "StsAssumeRoleCredentialsProvider"


@dataclass(frozen=True, slots=True)
class Provider:
    """One entry of a list of providers.

    Args:
        source: where the credentials come from.
        profile_name: of PROFILE; None: `AWS_PROFILE`, else `default`.
        role_arn: of ROLE.
        session_name: of ROLE.
        region_name: of ROLE: that of STS; None: as for all services.
        endpoint_url: of ROLE: the address of STS; None: where the SDK finds it.
        external_id: of ROLE.
    """

    source: Source = Source.CHAIN
    profile_name: str | None = None
    role_arn: str = ""
    session_name: str = ""
    region_name: str | None = None
    endpoint_url: str | None = None
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class CredentialsSettings:
    """As whom the services are asked; of several providers the first that has credentials counts.

    Args:
        kinesis: empty: the SDK's own chain.
        dynamodb: empty: those of Kinesis.
        cloudwatch: empty: those of Kinesis.
        glue: empty: those of Kinesis.
    """

    kinesis: tuple[Provider, ...] = ()
    dynamodb: tuple[Provider, ...] = ()
    cloudwatch: tuple[Provider, ...] = ()
    glue: tuple[Provider, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What is different for one service.

    Args:
        region_name: None: that of all services.
        fips: whether to use its FIPS endpoint.
        dualstack: whether to use its endpoint for IPv4 and IPv6.
        endpoint_discovery: of DynamoDB; None: as the SDK is configured.
        account_id_endpoint_mode: of DynamoDB: `preferred`, `disabled` or `required`; None: as the SDK is configured.
    """

    region_name: str | None = None
    fips: bool = False
    dualstack: bool = False
    endpoint_discovery: bool | None = None
    account_id_endpoint_mode: str | None = None
