"""The properties of the Spark client: what they need of each other, and what begins with `sparkConf.`."""

from __future__ import annotations

import pytest

from kcl_daemon.app import lease_settings_of
from kcl_daemon.config.load import RELAY, interpret
from kcl_daemon.config.spark import REMOVED
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


@pytest.mark.parametrize("place", ["s3a://bucket/state", "file:///var/state"])
def test_state_beside_the_daemon_is_no_uri(place: str) -> None:
    """It would be a folder of that name below the working directory, which nobody would look for."""
    with pytest.raises(ConfigurationError) as raised:
        read(f"sparkPipeline = a:b\nsparkStateDir = {place}\n")
    assert str(raised.value) == (
        f"app.properties:4: sparkStateDir = {place}: a URI, which only Spark elsewhere can have (landing); give a local "
        "folder"
    )
    read(f"landing = /log\nsparkPipeline = a:b\nsparkStateDir = {place}\n")


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


INSTEAD = "set landing = FOLDER_OR_URI, and start the pipeline with kcl-daemon spark-submit"


@pytest.mark.parametrize(
    "text", ["sparkMaster = yarn", "sparkMaster = spark://a:1", "sparkSpoolDir = s3://b/x"]
)
def test_a_spark_elsewhere_is_referred_to_the_landing_log(text: str) -> None:
    assert INSTEAD in complaint(f"{text}\n")


@pytest.mark.parametrize("name", sorted(set(REMOVED) - {"sparkOnLostRange"}))
def test_a_removed_property_of_spark_is_named_with_its_replacement(name: str) -> None:
    assert complaint(f"{name} = x\n").startswith(f"app.properties:4: {name} = x: is gone; ")
    assert INSTEAD in complaint(f"{name} = x\n")
    with pytest.raises(ConfigurationError, match=f"environment, KCL_{name}: {name} = x: is gone"):
        interpret(
            f"{FILE}sparkPipeline = a:b\n".encode(),
            file="f",
            default_worker_id="w",
            environment={f"KCL_{name}": "x"},
        )


def test_a_token_in_a_removed_property_is_masked_in_the_error() -> None:
    assert "SECRET" not in complaint("sparkRemote = sc://h:15002/;token=SECRETSECRET\n")


def test_a_lost_range_needs_no_word_any_more() -> None:
    assert "remove this line" in complaint("sparkOnLostRange = skip\n")


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]"])
def test_masters(master: str) -> None:
    read(f"sparkPipeline = a:b\nsparkMaster = {master}\n")
    assert "allowed: local[*] or local[N]" in complaint("sparkMaster = local[0]\n")


@pytest.mark.parametrize(
    ("trigger", "good"), [("0.5 seconds", True), ("availableNow", True), ("2 minutes", True), ("soon", False)]
)
def test_triggers(trigger: str, *, good: bool) -> None:
    if good:
        read(f"sparkPipeline = a:b\nsparkTrigger = {trigger}\n")
    else:
        with pytest.raises(ConfigurationError, match="availableNow"):
            read(f"sparkPipeline = a:b\nsparkTrigger = {trigger}\n")
