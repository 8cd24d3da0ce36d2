"""The properties of the Spark client: what they need of each other, and what begins with `sparkConf.`."""

from __future__ import annotations

import pytest

from kcl_daemon.app import lease_settings_of
from kcl_daemon.config.load import RELAY, interpret
from kcl_daemon.errors import ConfigurationError

FILE = "applicationName = orders\nstreamName = clicks\n"


def read(text: str) -> object:
    return interpret((FILE + text).encode(), file="app.properties", default_worker_id="w")


def test_a_pipeline_stands_in_for_a_program() -> None:
    loaded = interpret(
        f"{FILE}sparkPipeline = jobs.orders:totals\n".encode(), file="f", default_worker_id="w"
    )
    assert loaded.settings.spark.pipeline == "jobs.orders:totals"
    assert loaded.settings.child.command == RELAY
    assert loaded.warnings == ()


def test_without_a_pipeline_a_program_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="executableName is missing"):
        read("sparkTrigger = 1 second\n")


def test_a_bad_pipeline_is_the_only_complaint() -> None:
    with pytest.raises(ConfigurationError) as raised:
        read("sparkPipeline = orders\n")
    assert str(raised.value).splitlines() == [
        "app.properties:3: sparkPipeline = orders: not a valid name; allowed: module:function"
    ]


def test_children_of_a_pipeline_are_not_forked_from_a_template() -> None:
    with pytest.raises(ConfigurationError) as raised:
        read("sparkPipeline = a:b\nchildPreload = true\n")
    assert str(raised.value) == (
        "app.properties:4: childPreload = true: children of a sparkPipeline cannot be forked from a template; "
        "remove this line"
    )
    read("sparkPipeline = a:b\nchildPreload = false\n")


def test_children_of_a_pipeline_do_not_stand_by() -> None:
    text = f"{FILE}sparkPipeline = a:b\nchildStandbyMillis = 9000\n"
    loaded = interpret(text.encode(), file="f", default_worker_id="w")
    (notice,) = loaded.warnings
    assert (notice.event, notice.key) == ("property_has_no_effect", "childStandbyMillis")
    assert lease_settings_of(loaded.settings).standby_ms == 0
    plain = interpret(f"{FILE}executableName = a\n".encode(), file="f", default_worker_id="w")
    assert lease_settings_of(plain.settings).standby_ms == 40_000


def test_settings_of_spark_are_passed_on_by_their_own_names() -> None:
    text = f"{FILE}sparkPipeline = a:b\nsparkConf.spark.ui.enabled = false\nsparkConf.spark.sql.x = a b \n"
    loaded = interpret(text.encode(), file="f", default_worker_id="w")
    assert loaded.settings.spark.conf == (("spark.ui.enabled", "false"), ("spark.sql.x", "a b"))
    assert loaded.warnings == ()


def conf_of(text: str, **environment: str) -> dict[str, str]:
    data = f"{FILE}sparkPipeline = a:b\nexpandEnvironment = true\n{text}".encode()
    loaded = interpret(data, file="f", default_worker_id="w", environment=environment)
    return dict(loaded.settings.spark.conf)


def test_variables_in_settings_of_spark_are_replaced_where_that_is_asked_for() -> None:
    text = "sparkConf.spark.x = ${FOO}/y\nsparkConf.spark.z = ${NONE:-d}\n"
    assert conf_of(text, FOO=" a ") == {"spark.x": "a /y", "spark.z": "d"}
    plain = interpret(
        f"{FILE}sparkPipeline = a:b\n{text}".encode(),
        file="f",
        default_worker_id="w",
        environment={"FOO": "a"},
    )
    assert dict(plain.settings.spark.conf)["spark.x"] == "${FOO}/y"


def test_a_variable_that_is_missing_in_a_setting_of_spark_is_reported_with_its_line() -> None:
    assert complaint("expandEnvironment = true\nsparkConf.spark.x = ${NONE}\n") == (
        "app.properties:5: sparkConf.spark.x = ${NONE}: the environment variable NONE is not set; set it, or write ${NONE:-DEFAULT}"
    )


def test_a_setting_of_spark_that_is_given_twice_is_reported() -> None:
    text = f"{FILE}sparkPipeline = a:b\nsparkConf.spark.x = 1\nsparkConf.spark.x = 2\n"
    loaded = interpret(text.encode(), file="f", default_worker_id="w")
    assert loaded.settings.spark.conf == (("spark.x", "2"),)
    (notice,) = loaded.warnings
    assert (notice.event, notice.key, notice.line) == ("property_given_twice", "sparkConf.spark.x", 5)


def complaint(text: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        read(f"sparkPipeline = a:b\n{text}")
    return str(raised.value)


def transport(text: str) -> str:
    loaded = interpret(f"{FILE}sparkPipeline = a:b\n{text}".encode(), file="f", default_worker_id="w")
    return loaded.settings.spark.used_transport


def test_records_reach_the_workers_wherever_they_are() -> None:
    assert transport("") == "local"
    assert transport("sparkMaster = local[4]\n") == "local"
    assert transport("sparkMaster = spark://a:7077\n") == "inline"
    assert transport("sparkMaster = yarn\nsparkTransport = shared\nsparkSpoolDir = s3://b/x\n") == "shared"
    assert transport("sparkRemote = sc://a:15002\nsparkSpoolDir = /m/a\nsparkStateDir = /m/b\n") == "shared"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("sparkMaster = spark://a:7077\nsparkTransport = local\n", "use shared or inline"),
        ("sparkMaster = mesos://a\n", r"spark://HOST:PORT"),
        ("sparkTransport = shared\n", "needs sparkSpoolDir"),
        ("sparkSpoolDir = s3://bucket/x\n", "needs sparkTransport=shared"),
        ("sparkRemote = sc://a:15002\n", "needs sparkSpoolDir and sparkStateDir"),
        ("sparkRemote = sc://a:15002\nsparkMaster = yarn\n", "remove this line"),
        ("sparkRemote = sc://a:15002\nsparkTransport = inline\n", "needs sparkTransport=shared"),
        ("sparkEngine = a:1\n", "needs sparkEngineTokenFile"),
        ("sparkEngine = a\n", "HOST:PORT"),
        ("sparkEngineListen = a:1\n", "needs sparkEngineTokenFile and sparkEngineCertificate"),
        ("sparkEngine = a:1\nsparkEngineListen = b:1\nsparkEngineTokenFile = t\n", "not both"),
        ("sparkEngine = a:1\nsparkEngineTokenFile = t\nsparkTrigger = availableNow\n", "never ends"),
    ],
)
def test_what_cannot_go_together_is_said_with_the_way_out(text: str, advice: str) -> None:
    assert advice in complaint(text)


@pytest.mark.parametrize(
    ("trigger", "good"), [("0.5 seconds", True), ("availableNow", True), ("2 minutes", True), ("soon", False)]
)
def test_triggers(trigger: str, *, good: bool) -> None:
    if good:
        read(f"sparkPipeline = a:b\nsparkTrigger = {trigger}\n")
    else:
        with pytest.raises(ConfigurationError, match="availableNow"):
            read(f"sparkPipeline = a:b\nsparkTrigger = {trigger}\n")
