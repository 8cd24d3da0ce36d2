"""Whom the `AwsCredentialsProvider` strings name, and what is said about them."""

from __future__ import annotations

import pytest

from kcl_daemon.config.load import Loaded
from kcl_daemon.config.services import CredentialsProvider, CredentialsSettings, CredentialsSource
from tests.unit.config.helpers import read, refusals

ROLE = "arn:aws:iam::111122223333:role/team/reader"
PLAIN = [source for source in CredentialsSource if source is not CredentialsSource.ROLE]


def kinesis(value: str) -> tuple[CredentialsProvider, ...]:
    """What the string means for Kinesis."""
    return read(f"AwsCredentialsProvider = {value}\n").settings.endpoints.credentials.kinesis


def reported(loaded: Loaded) -> list[tuple[str, str]]:
    """Level and event of every notice."""
    return [(notice.level, notice.event) for notice in loaded.warnings]


@pytest.mark.parametrize("source", PLAIN, ids=lambda source: source.name)
@pytest.mark.parametrize("package", ["", "software.amazon.awssdk.auth.credentials."])
def test_a_class_without_arguments_is_its_source(source: CredentialsSource, package: str) -> None:
    assert kinesis(package + source.value) == (CredentialsProvider(source),)


@pytest.mark.parametrize(
    "key", ["AwsCredentialsProvider", "AWSCredentialsProvider", "awscredentialsprovider"]
)
def test_the_first_part_of_the_name_is_taken_in_any_case(key: str) -> None:
    loaded = read(f"{key} = DefaultCredentialsProvider\n")
    assert loaded.settings.endpoints.credentials.kinesis == (CredentialsProvider(),)
    assert reported(loaded) == [("info", "credentials_from_sdk_chain")]


def test_a_list_is_kept_in_its_order_and_blanks_do_not_count() -> None:
    assert kinesis(" InstanceProfileCredentialsProvider ,EnvironmentVariableCredentialsProvider,") == (
        CredentialsProvider(CredentialsSource.INSTANCE),
        CredentialsProvider(CredentialsSource.ENVIRONMENT),
    )


def test_a_profile_is_named_by_its_argument() -> None:
    assert kinesis("ProfileCredentialsProvider|data team") == (
        CredentialsProvider(CredentialsSource.PROFILE, profile_name="data team"),
    )


@pytest.mark.parametrize(
    "name",
    [
        "StsAssumeRoleCredentialsProvider",
        "KclStsAssumeRoleCredentialsProvider",
        "software.amazon.kinesis.multilang.auth.KclStsAssumeRoleCredentialsProvider",
        "STSAssumeRoleSessionCredentialsProvider",
    ],
)
def test_a_role_has_an_arn_and_a_session(name: str) -> None:
    assert kinesis(f"{name}|{ROLE}|kcl-a") == (
        CredentialsProvider(CredentialsSource.ROLE, role_arn=ROLE, session_name="kcl-a"),
    )


@pytest.mark.parametrize(
    ("nested", "region_name", "endpoint_url"),
    [
        ("endpointRegion=eu-west-1", "eu-west-1", None),
        ("endpoint=sts.example^eu-west-2", "eu-west-2", "https://sts.example"),
        ("endpoint=http://127.0.0.1:4566^us-east-1", "us-east-1", "http://127.0.0.1:4566"),
        ("endpoint=sts.example^eu-west-2|endpointRegion=eu-west-1", "eu-west-1", "https://sts.example"),
    ],
)
def test_a_role_may_have_its_own_sts_in_any_order(
    nested: str, region_name: str, endpoint_url: str | None
) -> None:
    expected = CredentialsProvider(
        CredentialsSource.ROLE,
        role_arn=ROLE,
        session_name="kcl-a",
        region_name=region_name,
        endpoint_url=endpoint_url,
        external_id="q7",
    )
    role = f"StsAssumeRoleCredentialsProvider|{ROLE}|kcl-a"
    assert kinesis(f"{role}|{nested}|externalId=q7") == (expected,)
    assert kinesis(f"{role}|externalId=q7 | {nested}") == (expected,)


def test_each_service_may_have_its_own() -> None:
    loaded = read(
        "AwsCredentialsProvider = ProfileCredentialsProvider|a\n"
        "AWSCREDENTIALSPROVIDERDynamoDB = ProfileCredentialsProvider|b\n"
        "cloudWatchCredentialsProvider.class = ContainerCredentialsProvider\n"
    )
    assert loaded.settings.endpoints.credentials == CredentialsSettings(
        kinesis=(CredentialsProvider(CredentialsSource.PROFILE, profile_name="a"),),
        dynamodb=(CredentialsProvider(CredentialsSource.PROFILE, profile_name="b"),),
        cloudwatch=(CredentialsProvider(CredentialsSource.CONTAINER),),
    )
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("value", "expected", "events"),
    [
        (
            "DefaultAWSCredentialsProviderChain",
            (CredentialsProvider(),),
            ["credentials_from_sdk_chain", "credentials_provider_doubtful"],
        ),
        (
            "EC2ContainerCredentialsProviderWrapper",
            (
                CredentialsProvider(CredentialsSource.CONTAINER),
                CredentialsProvider(CredentialsSource.INSTANCE),
            ),
            ["credentials_provider_doubtful"],
        ),
        (
            "SystemPropertyCredentialsProvider, EnvironmentVariableCredentialsProvider",
            (CredentialsProvider(CredentialsSource.ENVIRONMENT),),
            ["credentials_provider_doubtful"],
        ),
    ],
)
def test_an_old_credentials_provider_or_one_of_the_jvm_is_reported(
    value: str, expected: tuple[CredentialsProvider, ...], events: list[str]
) -> None:
    loaded = read(f"AwsCredentialsProvider = {value}\n")
    assert loaded.settings.endpoints.credentials.kinesis == expected
    assert [event for _, event in reported(loaded)] == events
    assert all(level == "warning" for level, event in reported(loaded) if event.endswith("doubtful"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (" , ", "empty"),
        ("SystemPropertyCredentialsProvider", "Java system properties do not exist"),
        ("StaticCredentialsProvider|AKIAABCDEFGHIJKLMNOP|secret", "keys do not belong in this file"),
        ("ProcessCredentialsProvider", "credential_process"),
        ("EnvironmentVariableCredentialsProvider|x", "takes no arguments"),
        ("ProfileCredentialsProvider|a|b", "takes one argument"),
        ("ProfileCredentialsProvider|", "takes one argument"),
        ("defaultcredentialsprovider", "is unknown"),
        (
            f"STSAssumeRoleWithWebIdentitySessionCredentialsProvider|{ROLE}|s|/var/run/token",
            "use WebIdentityTokenFileCredentialsProvider alone; role and token come from AWS_ROLE_ARN",
        ),
        (f"StsWebIdentityTokenFileCredentialsProvider|{ROLE}", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        (
            f"WebIdentityTokenFileCredentialsProvider|{ROLE}|s|/token",
            "takes no arguments; role and token come",
        ),
        ("StsAssumeRoleCredentialsProvider", "needs a role and a session"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}", "needs a role and a session"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|a b", "not a session name"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|kcl|endpointRegion=EU WEST", "not a region"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|kcl|endpoint=sts.example", "HOST^REGION"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|kcl|endpoint=http://[^r", "HOST^REGION"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|kcl|externalId=x", "externalId must have 2 to"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|kcl|duration=900", "is not one of endpointRegion"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|kcl|externalId", "is not one of endpointRegion"),
    ],
)
def test_a_credentials_provider_of_another_identity_is_refused_in_one_line(value: str, reason: str) -> None:
    (line,) = refusals(f"AwsCredentialsProvider = {value}\n")
    assert line.startswith("app.properties:4: AwsCredentialsProvider = ")
    assert reason in line
    assert "AKIAABCDEFGHIJKLMNOP" not in line


@pytest.mark.parametrize(
    "name", ["auth.profile.ProfileCredentialsProvider", "auth.InstanceProfileCredentialsProvider"]
)
def test_a_class_of_sdk_1_is_one_although_sdk_2_has_its_short_name(name: str) -> None:
    (notice,) = read(f"AwsCredentialsProvider = com.amazonaws.{name}\n").warnings
    short = name.rpartition(".")[2]
    assert (notice.event, notice.level) == ("credentials_provider_doubtful", "warning")
    assert notice.facts["provider"] == f"com.amazonaws.{name}"
    assert notice.facts["advice"] == f"a name of SDK 1.x, refused by the Java daemon 3.x; use {short}"
    assert read(f"AwsCredentialsProvider = software.amazon.awssdk.auth.credentials.{short}\n").warnings == ()
