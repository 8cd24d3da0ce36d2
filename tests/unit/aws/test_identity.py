"""As whom the services are asked: `kcl_daemon.aws.session`, and what each service's session is made of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from kcl_daemon.aws.session import Services, make_clients, session_as
from kcl_daemon.config.services import (
    CredentialsProvider,
    CredentialsSettings,
    CredentialsSource,
    Endpoints,
    ServiceSettings,
)
from kcl_daemon.errors import AccessDenied

ROLE = "arn:aws:iam::111122223333:role/reader"
REGION = "eu-west-1"
_FORGET = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
    "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ENDPOINT_URL", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Two profiles with keys, and keys in the environment."""
    for name in _FORGET:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = of-default\naws_secret_access_key = s\n"
        "[staging]\naws_access_key_id = of-staging\naws_secret_access_key = s\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    return monkeypatch


def key_of(*providers: CredentialsProvider) -> str | None:
    """The access key that these providers give."""
    found = session_as(providers, REGION).get_credentials()
    return None if found is None else found.access_key


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("providers", "key"),
    [
        ((), "of-environment"),
        ((CredentialsProvider(),), "of-environment"),
        ((CredentialsProvider(CredentialsSource.ENVIRONMENT),), "of-environment"),
        ((CredentialsProvider(CredentialsSource.PROFILE),), "of-default"),
        ((CredentialsProvider(CredentialsSource.PROFILE, profile_name="staging"),), "of-staging"),
        ((CredentialsProvider(CredentialsSource.CONTAINER),), None),
        ((CredentialsProvider(CredentialsSource.INSTANCE),), None),
        ((CredentialsProvider(CredentialsSource.WEB_IDENTITY),), None),
        (
            (
                CredentialsProvider(CredentialsSource.CONTAINER),
                CredentialsProvider(CredentialsSource.PROFILE),
                CredentialsProvider(CredentialsSource.ENVIRONMENT),
            ),
            "of-default",
        ),
    ],
)
def test_only_the_sources_that_are_named_are_asked_in_their_order(
    providers: tuple[CredentialsProvider, ...], key: str | None
) -> None:
    assert key_of(*providers) == key


def test_a_profile_without_a_name_is_that_of_the_environment(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("AWS_PROFILE", "staging")
    assert key_of(CredentialsProvider(CredentialsSource.PROFILE)) == "of-staging"


def test_sources_that_have_nothing_are_named_in_the_error(machine: pytest.MonkeyPatch) -> None:
    machine.delenv("AWS_ACCESS_KEY_ID")
    credentials = CredentialsSettings(
        kinesis=(
            CredentialsProvider(CredentialsSource.ENVIRONMENT),
            CredentialsProvider(CredentialsSource.CONTAINER),
        )
    )
    with pytest.raises(
        AccessDenied, match="EnvironmentVariableCredentialsProvider, ContainerCredentialsProvider"
    ):
        make_clients(Endpoints(REGION, credentials=credentials))


@pytest.mark.usefixtures("machine")
def test_each_service_is_asked_as_its_own_and_else_as_kinesis_is() -> None:
    def keys(credentials: CredentialsSettings) -> list[str]:
        services = Services(Endpoints(REGION, credentials=credentials))
        return [
            services.credentials("kinesis").access_key,
            services.credentials("dynamodb").access_key,
            services.credentials("cloudwatch").access_key,
            services.credentials("glue").access_key,
        ]

    staging = (CredentialsProvider(CredentialsSource.PROFILE, profile_name="staging"),)
    assert keys(CredentialsSettings()) == ["of-environment"] * 4
    assert keys(CredentialsSettings(kinesis=staging)) == ["of-staging"] * 4
    other = ["of-environment"]
    assert keys(CredentialsSettings(dynamodb=staging)) == [*other, "of-staging", *other, *other]
    apart = CredentialsSettings(kinesis=staging, cloudwatch=(CredentialsProvider(),))
    assert keys(apart) == ["of-staging", "of-staging", *other, "of-staging"]
    assert keys(CredentialsSettings(glue=staging)) == [*other * 3, "of-staging"]


@pytest.mark.usefixtures("machine")
def test_each_service_has_its_own_region_and_kind_of_endpoint() -> None:
    services = Services(
        Endpoints(
            REGION,
            cloudwatch="http://127.0.0.1:9",
            of_kinesis=ServiceSettings(region_name="us-east-1", fips=True),
            of_dynamodb=ServiceSettings(
                dualstack=True, account_id_endpoint_mode="disabled", endpoint_discovery=False
            ),
            of_cloudwatch=ServiceSettings(region_name="us-west-2"),
            of_glue=ServiceSettings(region_name="us-east-1", fips=True),
        )
    )
    clients: list[Any] = [services.client(name, 1) for name in ("kinesis", "dynamodb", "cloudwatch", "glue")]
    assert [client.meta.endpoint_url for client in clients] == [
        "https://kinesis-fips.us-east-1.amazonaws.com",
        "https://dynamodb.eu-west-1.api.aws",
        "http://127.0.0.1:9",
        "https://glue-fips.us-east-1.amazonaws.com",
    ]
    assert clients[2].meta.region_name == "us-west-2"
    assert clients[1].meta.config.account_id_endpoint_mode == "disabled"
    for client in clients:
        client.close()


class Sts:
    """An STS that remembers what it was asked, in the place of botocore's client."""

    def __init__(self, **made: object) -> None:
        self.made = made
        self.asked: dict[str, object] = {}

    def assume_role(self, **asked: object) -> dict[str, object]:
        self.asked = asked
        expires = datetime(2999, 1, 1, tzinfo=UTC)
        keys = {"AccessKeyId": "of-role", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": expires}
        return {"Credentials": keys, "AssumedRoleUser": {"Arn": f"{ROLE}/x", "AssumedRoleId": "i"}}


@pytest.fixture
def sts(machine: pytest.MonkeyPatch) -> list[Sts]:
    """The clients of STS that were made."""
    made: list[Sts] = []
    real: Callable[..., object] = botocore.session.Session.create_client

    def create(session: botocore.session.Session, service: str, *words: Any, **options: Any) -> object:
        if service != "sts":
            return real(session, service, *words, **options)
        made.append(Sts(**options))
        return made[-1]

    machine.setattr(botocore.session.Session, "create_client", create)
    return made


@pytest.mark.parametrize(
    ("provider", "region_name", "endpoint_url"),
    [
        (CredentialsProvider(CredentialsSource.ROLE, role_arn=ROLE, session_name="kcl"), REGION, None),
        (
            CredentialsProvider(
                CredentialsSource.ROLE,
                role_arn=ROLE,
                session_name="kcl",
                region_name="us-east-2",
                endpoint_url="https://s",
            ),
            "us-east-2",
            "https://s",
        ),
    ],
)
def test_a_role_is_assumed_when_it_is_needed_with_what_the_chain_finds(
    sts: list[Sts], provider: CredentialsProvider, region_name: str, endpoint_url: str | None
) -> None:
    found = session_as((provider,), REGION).get_credentials()
    assert found is not None
    assert sts == []
    assert found.get_frozen_credentials().access_key == "of-role"
    (client,) = sts
    assert client.asked == {"RoleArn": ROLE, "RoleSessionName": "kcl"}
    assert client.made["region_name"] == region_name
    assert client.made["endpoint_url"] == endpoint_url
    assert client.made["aws_access_key_id"] == "of-environment"


def test_an_external_id_is_reported(sts: list[Sts]) -> None:
    role = CredentialsProvider(CredentialsSource.ROLE, role_arn=ROLE, session_name="kcl", external_id="q7")
    found = session_as((role,), REGION).get_credentials()
    assert found is not None
    found.get_frozen_credentials()
    assert sts[0].asked["ExternalId"] == "q7"


def test_nobody_assumes_a_role_without_credentials(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.delenv("AWS_ACCESS_KEY_ID")
    (tmp_path / "credentials").unlink()
    assert key_of(CredentialsProvider(CredentialsSource.ROLE, role_arn=ROLE, session_name="kcl")) is None
