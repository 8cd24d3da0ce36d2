"""Properties from the environment, and variables in values."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kcl_daemon.config.load import NAMES, Loaded, as_properties, interpret
from kcl_daemon.config.metrics_and_page import AdminSettings
from kcl_daemon.config.properties import given_for, is_service_link, normal, overrides, variable_for
from kcl_daemon.config.settings import BY_NAME, KEYS
from kcl_daemon.errors import ConfigurationError
from tests.unit.config.helpers import GOOD, WORKER


def read_in(environment: Mapping[str, str], more: str = "") -> Loaded:
    text = (GOOD + more).encode("iso-8859-1")
    return interpret(text, file="app.properties", default_worker_id=WORKER, environment=environment)


def refused_in(environment: Mapping[str, str], more: str = "") -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        read_in(environment, more)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        ("failoverTimeMillis", "KCL_FAILOVER_TIME_MILLIS"),
        ("fanoutConfig.consumerName", "KCL_FANOUT_CONFIG_CONSUMER_NAME"),
        ("dynamoDBEndpoint", "KCL_DYNAMO_DBENDPOINT"),
        ("AwsCredentialsProvider", "KCL_AWS_CREDENTIALS_PROVIDER"),
    ],
)
def test_a_property_has_a_usual_variable(key: str, variable: str) -> None:
    assert variable_for(key) == variable


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_property_can_be_given_by_its_variable(key: object) -> None:
    name = next(each.name for each in KEYS if each is key)
    (entry,) = overrides({variable_for(name): "x"}, NAMES)
    assert BY_NAME[entry.key].name == name


def test_no_two_properties_have_the_same_variable() -> None:
    meant: dict[str, set[str]] = {}
    for spelling in NAMES:
        meant.setdefault(normal(spelling), set()).add(
            BY_NAME[spelling].name if spelling in BY_NAME else spelling
        )
    assert [names for names in meant.values() if len(names) > 1] == []


@pytest.mark.parametrize(
    "variable",
    [
        "KCL_FAILOVER_TIME_MILLIS",
        "KCL_FAILOVERTIMEMILLIS",
        "KCL_failoverTimeMillis",
        "kcl_failover_time_millis",
    ],
)
def test_a_variable_wins_over_the_file_in_any_spelling(variable: str) -> None:
    loaded = read_in({variable: "7000"}, "failoverTimeMillis = 9000\n")
    assert loaded.settings.leases.failover_time_ms == 7_000
    (notice,) = loaded.warnings
    assert (notice.level, notice.event) == ("info", "property_overridden")
    assert notice.fields("f") == {
        "variable": variable,
        "key": "failoverTimeMillis",
        "ignored_line": 4,
        "ignored_key": "failoverTimeMillis",
    }


@pytest.mark.parametrize(
    ("variable", "value", "line", "admin"),
    [
        (
            "KCL_ADMIN_TOKEN",
            "fedcba9876543210",
            "adminTokenFile = /t",
            AdminSettings(token="fedcba9876543210"),
        ),
        ("KCL_ADMIN_TOKEN_FILE", "/t", "adminToken = 0123456789abcdef", AdminSettings(token_file="/t")),
    ],
)
def test_a_token_of_the_environment_wins_over_that_of_the_file(
    variable: str, value: str, line: str, admin: AdminSettings
) -> None:
    loaded = read_in({variable: value}, f"{line}\n")
    assert loaded.settings.admin == admin
    (notice,) = loaded.warnings
    assert (notice.level, notice.event, notice.variable) == ("info", "property_overridden", variable)
    assert notice.facts == {"ignored_line": 4, "ignored_key": line.partition(" ")[0]}
    again = interpret(as_properties(loaded).encode("ascii"), file="again", default_worker_id=WORKER)
    assert again.settings.admin == admin


def test_two_tokens_of_the_environment_are_two() -> None:
    (line,) = refused_in({"KCL_ADMIN_TOKEN": "fedcba9876543210", "KCL_ADMIN_TOKEN_FILE": "/t"})
    assert "adminTokenFile and adminToken are both set" in line


def test_variables_alone_can_make_a_file() -> None:
    loaded = interpret(
        b"",
        file="empty",
        default_worker_id=WORKER,
        environment={"KCL_EXECUTABLE_NAME": "a b", "KCL_STREAM_NAME": "s", "KCL_APPLICATION_NAME": "app"},
    )
    assert loaded.settings.child.command == ("a", "b")
    assert loaded.warnings == ()


def test_an_empty_variable_is_none() -> None:
    assert read_in({"KCL_FAILOVER_TIME_MILLIS": ""}).settings == read_in({}).settings


def test_a_bad_variable_is_named_in_its_line() -> None:
    (line,) = refused_in({"KCL_MAX_RECORDS": "many"})
    assert line.startswith("environment, KCL_MAX_RECORDS: maxRecords = many: not a whole number")


def test_variables_that_do_not_agree_are_named() -> None:
    (line,) = refused_in({"KCL_LEADER_HEARTBEAT_MILLIS": "20000"})
    assert line.startswith(
        "environment, KCL_LEADER_HEARTBEAT_MILLIS: leaderHeartbeatMillis = 20000: the leader heartbeat"
    )


def test_a_variable_that_is_put_right_is_named() -> None:
    (notice,) = read_in({"KCL_IDLE_TIME_BETWEEN_READS_IN_MILLIS": "5"}).warnings
    assert notice.event == "property_raised"
    assert notice.fields("f")["variable"] == "KCL_IDLE_TIME_BETWEEN_READS_IN_MILLIS"


def test_an_unknown_variable_is_reported_with_its_neighbour() -> None:
    (notice,) = read_in({"KCL_FAILOVER_TIME_MILIS": "1", "PATH": "/bin", "KCL_DEMO_LEDGER": "x"}).warnings
    assert notice.event == "unknown_property"
    assert notice.fields("f")["variable"] == "KCL_FAILOVER_TIME_MILIS"


LINKS = {
    "KCL_PORT": "udp://[fd00::1]:8125",
    "KCL_SERVICE_HOST": "10.0.0.1",
    "KCL_ADMIN_PORT": "tcp://10.0.0.1:80",
    "KCL_ADMIN_PORT_80_TCP": "tcp://10.0.0.1:80",
    "KCL_ADMIN_PORT_80_TCP_ADDR": "10.0.0.1",
    "KCL_ADMIN_PORT_80_TCP_PORT": "80",
    "KCL_ADMIN_PORT_80_TCP_PROTO": "tcp",
    "KCL_ADMIN_SERVICE_HOST": "10.0.0.1",
    "KCL_ADMIN_SERVICE_PORT": "80",
    "KCL_ADMIN_SERVICE_PORT_HTTP_2": "81",
}
"""What Kubernetes sets in each pod beside the Services `kcl` and `kcl-admin`."""


def test_a_service_of_kubernetes_is_no_property() -> None:
    loaded = read_in(LINKS, "adminPort = 9464\n")
    assert (loaded.settings.admin.port, loaded.warnings) == (9464, ())
    assert read_in(LINKS).settings.admin.port is None
    own = {**LINKS, "KCL_ADMIN_PORT": "8080"}
    assert read_in(own).settings.admin.port == 8080


@pytest.mark.parametrize("name", NAMES)
def test_no_property_variable_is_taken_for_a_service_link(name: str) -> None:
    assert not is_service_link(variable_for(name), "1")


def test_a_variable_that_only_resembles_one_of_a_kubernetes_service_is_reported() -> None:
    (line,) = refused_in({"KCL_ADMIN_PORT": "tcp://10.0.0.1"})
    assert line.startswith("environment, KCL_ADMIN_PORT: adminPort = tcp://10.0.0.1: not a whole number")
    (notice,) = read_in({"KCL_ADMIN_PORTS": "tcp://10.0.0.1:80"}).warnings
    assert notice.event == "unknown_property"


def test_the_variable_of_a_property_is_the_one_that_the_daemon_takes() -> None:
    environment = {"KCL_ADMINPORT": "1", "KCL_ADMIN_PORT": "2", "kcl_adminPort": "", "KCL_MAX_RECORDS": "3"}
    assert given_for("adminPort", environment) == ("KCL_ADMIN_PORT", "2")
    assert read_in(environment).settings.admin.port == 2
    assert given_for("adminPort", LINKS) is None


def test_a_reference_to_a_variable_is_expanded_only_with_expand_environment() -> None:
    more = "workerId = ${HOST}-1\n"
    assert read_in({"HOST": "h"}, more).settings.worker_id == "${HOST}-1"
    assert read_in({"HOST": "h"}, more + "expandEnvironment = true\n").settings.worker_id == "h-1"
    assert read_in({"HOST": "h", "KCL_EXPAND_ENVIRONMENT": "yes"}, more).settings.worker_id == "h-1"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "1"),
        ("x${A}y${A}", "x1y1"),
        ("${NONE:-d}", "d"),
        ("${NONE:-}z", "z"),
        ("${EMPTY:-d}", "d"),
        ("${LOOP}", "${A}"),
        ("$A", "$A"),
        ("${1A}", "${1A}"),
    ],
)
def test_a_reference_is_replaced_once(text: str, value: str) -> None:
    environment = {"A": "1", "EMPTY": "", "LOOP": "${A}"}
    loaded = read_in(environment, f"expandEnvironment = true\nworkerId = {text}\n")
    assert loaded.settings.worker_id == value


def test_a_reference_to_nothing_is_an_error_that_shows_no_value() -> None:
    more = "expandEnvironment = true\nworkerId = ${SECRET}-${NONE}\n"
    (line,) = refused_in({"SECRET": "hunter2"}, more)
    assert line.startswith(
        "app.properties:5: workerId = ${SECRET}-${NONE}: the environment variable NONE is not set"
    )
    assert "hunter2" not in line


def test_a_command_that_a_child_runs_does_not_take_the_childs_stream_for_that_of_its_file() -> None:
    told = {
        "KCL_STREAM_NAME": "of-the-child",
        "KCL_STREAM_ARN": "arn:aws:...",
        "KCL_FRAMES": "1",
        "KCL_LANE": "2",
    }
    inside = read_in({**told, "KCL_SHARD_ID": "shardId-000000000000", "KCL_FAILOVER_TIME_MILLIS": "20000"})
    assert inside.settings.stream_name == read_in({}).settings.stream_name
    assert inside.settings.leases.failover_time_ms == 20_000
    assert inside.warnings == read_in({}).warnings
    assert read_in({"KCL_STREAM_NAME": "of-the-operator"}).settings.stream_name == "of-the-operator"
