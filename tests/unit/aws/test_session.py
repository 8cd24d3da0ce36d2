"""The clients and what they need: `kcl_daemon.aws.session`."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from kcl_daemon import __version__
from kcl_daemon.aws import session
from kcl_daemon.aws.access import DYNAMODB_CONNECTIONS
from kcl_daemon.aws.session import Clients, make_clients, open_clients
from kcl_daemon.cli.common import advice_for, exit_code
from kcl_daemon.config.services import Endpoints, ServiceSettings
from kcl_daemon.errors import AccessDenied, ConfigurationError, NoCredentials, NoRegion, Unavailable

_FORGET = (
    "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_KINESIS", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_DYNAMODB_STREAMS", "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine with credentials and nothing else."""
    for name in _FORGET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return monkeypatch


@pytest.fixture
def clients(environment: pytest.MonkeyPatch) -> Generator[Clients, None, None]:
    made = make_clients(Endpoints("eu-west-1"))
    yield made
    made.close()


def test_models_of_services_are_given_back_and_can_be_had_again(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("AWS_DATA_PATH", f"~/models{os.pathsep}{tmp_path}")
    made = session.session_as((), "eu-west-1")
    models = made.get_component("data_loader")
    assert {str(Path("~/models").expanduser()), str(tmp_path)} <= set(models.search_paths)
    models.load_data("partitions")
    models.forget()
    assert not vars(models)["_cache"]
    assert made.create_client("sts", region_name="eu-west-1").meta.region_name == "eu-west-1"


def test_models_are_read_without_their_documentation() -> None:
    model = session.session_as((), "eu-west-1").get_service_model("dynamodb")
    assert model.operation_model("GetItem").documentation == ""
    shape = model.operation_model("GetItem").input_shape
    assert shape is not None
    assert shape.required_members == ["TableName", "Key"]


def test_open_clients_keep_no_models(clients: Clients) -> None:
    assert not any(vars(vars(each)["_loader"])["_cache"] for each in (clients.kinesis, clients.dynamodb))
    assert "list_shards" in clients.kinesis.meta.method_to_api_mapping


def region_of(endpoints: Endpoints) -> str:
    made = make_clients(endpoints)
    made.close()
    assert made.kinesis.meta.region_name == made.dynamodb.meta.region_name
    return made.kinesis.meta.region_name


def test_clients_do_not_try_again_and_do_not_wait_for_ever(clients: Clients) -> None:
    for client in (clients.kinesis, clients.dynamodb):
        config = client.meta.config
        retries: object = config.retries  # type: ignore[attr-defined]
        assert retries == {"total_max_attempts": 1, "mode": "standard"}
        assert (config.connect_timeout, config.read_timeout) == (5, 10)  # type: ignore[attr-defined]
        assert config.tcp_keepalive is True  # type: ignore[attr-defined]


def test_every_call_that_may_run_has_a_connection(clients: Clients) -> None:
    assert clients.dynamodb.meta.config.max_pool_connections == DYNAMODB_CONNECTIONS  # type: ignore[attr-defined]


def test_clients_say_who_they_are(clients: Clients) -> None:
    for client in (clients.kinesis, clients.dynamodb):
        assert client.meta.config.user_agent_extra == f"kcl-daemon/{__version__}"  # type: ignore[attr-defined]


def test_endpoints_are_the_services_own_where_none_is_set(clients: Clients) -> None:
    assert clients.kinesis.meta.endpoint_url == "https://kinesis.eu-west-1.amazonaws.com"
    assert clients.dynamodb.meta.endpoint_url == "https://dynamodb.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("setting", "variable", "expected"),
    [
        (None, None, "https://streams.dynamodb.eu-west-1.amazonaws.com"),
        (None, "http://127.0.0.1:3", "http://127.0.0.1:3"),
        ("http://127.0.0.1:1", "http://127.0.0.1:3", "http://127.0.0.1:1"),
    ],
)
def test_the_streams_of_dynamodb_have_an_endpoint_of_their_own(
    environment: pytest.MonkeyPatch, setting: str | None, variable: str | None, expected: str
) -> None:
    if variable is not None:
        environment.setenv("AWS_ENDPOINT_URL_DYNAMODB_STREAMS", variable)
    made = make_clients(Endpoints("eu-west-1", dynamodb_streams=setting), changes=True)
    made.close()
    assert made.of_changes is not None
    assert made.of_changes.client.meta.endpoint_url == expected
    assert made.of_changes.client.meta.region_name == "eu-west-1"


def test_nothing_is_opened_for_streams_that_are_not_read(clients: Clients) -> None:
    assert clients.of_changes is None


def test_endpoints_of_the_settings_are_used(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL_KINESIS", "http://127.0.0.1:3")
    made = make_clients(Endpoints("eu-west-1", "http://127.0.0.1:1", "http://127.0.0.1:2"))
    made.close()
    assert made.kinesis.meta.endpoint_url == "http://127.0.0.1:1"
    assert made.dynamodb.meta.endpoint_url == "http://127.0.0.1:2"


def test_endpoints_of_the_environment_are_found_by_the_sdk(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL_KINESIS", "http://127.0.0.1:3")
    environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4")
    made = make_clients(Endpoints("eu-west-1"))
    made.close()
    assert made.kinesis.meta.endpoint_url == "http://127.0.0.1:3"
    assert made.dynamodb.meta.endpoint_url == "http://127.0.0.1:4"


def test_the_region_is_looked_for_as_java_does(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion = eu-north-1\n")
    assert region_of(Endpoints()) == "eu-north-1"
    environment.setenv("AWS_DEFAULT_REGION", "eu-south-1")
    assert region_of(Endpoints()) == "eu-south-1"
    environment.setenv("AWS_REGION", "eu-central-1")
    assert region_of(Endpoints()) == "eu-central-1"
    assert region_of(Endpoints("eu-west-1")) == "eu-west-1"


@pytest.mark.usefixtures("environment")
def test_without_a_region_the_error_says_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match="regionName"):
        make_clients(Endpoints())


@pytest.mark.parametrize("v1_disabled", ["false", "true"])
def test_an_instance_that_does_not_tell_its_region_may_do_so_later(
    environment: pytest.MonkeyPatch, v1_disabled: str
) -> None:
    environment.delenv("AWS_EC2_METADATA_DISABLED")
    environment.setenv("AWS_EC2_METADATA_V1_DISABLED", v1_disabled)
    environment.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    environment.setattr(session, "_on_instance", lambda: True)
    with pytest.raises(Unavailable, match="regionName") as raised:
        make_clients(Endpoints())
    assert exit_code(raised.value) == 1  # with 2 a service manager would give up


def test_outside_of_an_instance_a_missing_region_ends_with_exit_code_2(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.delenv("AWS_EC2_METADATA_DISABLED")
    environment.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    environment.setattr(session, "_on_instance", lambda: False)
    with pytest.raises(NoRegion, match="regionName") as raised:
        make_clients(Endpoints())
    assert exit_code(raised.value) == 2
    assert "regionName" in advice_for(raised.value)


@pytest.mark.parametrize(
    ("file", "text", "on"),
    [
        ("class/dmi/id/sys_vendor", "Amazon EC2\n", True),
        ("class/dmi/id/sys_vendor", "QEMU\n", False),
        ("hypervisor/uuid", "ec2e1916-9099-7caf-fd21-012345abcdef\n", True),
        ("nothing", "", False),
    ],
)
def test_an_instance_is_known_by_its_firmware(tmp_path: Path, file: str, text: str, on: bool) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert session._on_instance(tmp_path) is on


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("endpoints", "unknown"),
    [
        (Endpoints("eu-west-1"), []),
        (Endpoints("cn-north-1"), []),
        (Endpoints("eu-wst-1"), [("eu-wst-1", "eu-west-1")]),
        (Endpoints("local", kinesis="http://k", dynamodb="http://d"), []),
        (Endpoints("local", kinesis="http://k"), [("local", None)]),
        (Endpoints("eu-west-1", of_kinesis=ServiceSettings("eu-west-11")), [("eu-west-11", "eu-west-1")]),
        (Endpoints(), []),
    ],
)
def test_a_region_that_the_sdk_does_not_know_is_named_with_the_nearest(
    endpoints: Endpoints, unknown: list[tuple[str, str | None]]
) -> None:
    assert session.unknown_regions(endpoints) == unknown


def test_a_region_of_the_environment_is_looked_at_too(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_REGION", "us-east-7")
    ((name, _),) = session.unknown_regions(Endpoints())
    assert name == "us-east-7"


def test_without_credentials_the_error_says_what_to_set(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    environment.setattr(session, "_on_instance", lambda: False)
    with pytest.raises(NoCredentials, match="AWS_PROFILE") as raised:
        make_clients(Endpoints("eu-west-1"))
    assert exit_code(raised.value) == 2
    environment.setattr(session, "_on_instance", lambda: True)
    with pytest.raises(AccessDenied, match="AWS_PROFILE") as denied:
        make_clients(Endpoints("eu-west-1"))
    assert exit_code(denied.value) == 1  # the role's credentials may come


def test_an_access_key_without_its_secret_is_access_denied(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AccessDenied, match="cannot be loaded"):
        make_clients(Endpoints("eu-west-1"))


def test_a_profile_that_does_not_exist_is_named(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigurationError, match=r"\(nobody\).*AWS_PROFILE"):
        make_clients(Endpoints("eu-west-1"))


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    "endpoints",
    [Endpoints("eu west"), Endpoints("eu-west-1", kinesis="not a url")],
    ids=["region", "endpoint"],
)
def test_a_region_or_endpoint_that_the_sdk_refuses_is_a_configuration_error(endpoints: Endpoints) -> None:
    with pytest.raises(ConfigurationError, match="regionName, kinesisEndpoint"):
        make_clients(endpoints)


@pytest.mark.anyio
@pytest.mark.usefixtures("environment")
async def test_clients_are_made_off_the_loop_and_closed_behind_us() -> None:
    async with open_clients(Endpoints("eu-west-1")) as clients:
        assert clients.kinesis.meta.region_name == "eu-west-1"
