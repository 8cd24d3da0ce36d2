"""What children find in their environment."""

from __future__ import annotations

import pytest

from kcl_daemon.children.start import environment_of

PLAIN = {
    "PATH": "/bin",
    "LANG": "C",
    "MY_AWS_NOTE": "x",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
    "KCL_ADMIN_PORT": "9464",
    "KCL_ADMIN_TOKEN_FILE": "/run/token",
}
PLACES = {
    "AWS_REGION": "eu-west-1",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_CA_BUNDLE": "/ca.pem",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:4566",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:4567",
}
# As the AWS SDKs and tools reference guide has them, and what older SDKs read.
CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CREDENTIAL_EXPIRATION",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AWS_SOMETHING_NEW",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
)
INHERITED = {**PLAIN, **PLACES, **dict.fromkeys(CREDENTIALS, "secret")}


def test_by_default_a_child_finds_what_the_daemon_finds() -> None:
    assert environment_of(INHERITED, {}, credentials=True) == INHERITED


def test_without_credentials_none_is_left_and_nothing_else_is_missing() -> None:
    found = environment_of(INHERITED, {}, credentials=False)
    assert found == {**PLAIN, **PLACES, "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.mark.parametrize("credentials", [True, False])
@pytest.mark.parametrize("name", ["KCL_ADMIN_TOKEN", "KCL_ADMINTOKEN", "kcl_adminToken"])
def test_the_token_of_the_status_page_is_no_childs_business(name: str, credentials: bool) -> None:
    assert name not in environment_of({**PLAIN, name: "0123456789abcdef"}, {}, credentials=credentials)


@pytest.mark.parametrize("credentials", [True, False])
def test_a_child_is_told_by_nobody_but_the_daemon_what_is_offered_to_it(credentials: bool) -> None:
    private = ("LOG_MESSAGES", "PRELOAD_FD", "FRAMES", "LANE", "FINISH_BATCHES", "REJECTS")
    inherited = {**PLAIN, "KCL_STREAM_NAME": "orders", **{f"KCL_{name}": "1" for name in private}}
    found = environment_of(inherited, {}, credentials=credentials)
    assert found == {**environment_of(PLAIN, {}, credentials=credentials), "KCL_STREAM_NAME": "orders"}
    assert found["KCL_STREAM_NAME"] == "orders"  # a processor may go by it, as under the Java daemon
    reported = {"KCL_LOG_MESSAGES": "true", "KCL_STREAM_NAME": "returns"}
    assert environment_of(inherited, reported, credentials=credentials).items() >= reported.items()


@pytest.mark.parametrize("credentials", [True, False])
def test_given_variables_win_over_inherited_ones(credentials: bool) -> None:
    found = environment_of(INHERITED, {"PATH": "/opt", "AWS_PROFILE": "child"}, credentials=credentials)
    assert (found["PATH"], found["AWS_PROFILE"]) == ("/opt", "child")
