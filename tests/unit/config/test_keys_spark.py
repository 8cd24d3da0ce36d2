"""The properties of the Spark client: what they need of each other, and what begins with `sparkConf.`."""

from __future__ import annotations

import pytest

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
        "app.properties:3: sparkPipeline = orders: not such a name; allowed: module:function"
    ]


def test_settings_of_spark_are_passed_on_by_their_own_names() -> None:
    text = f"{FILE}sparkPipeline = a:b\nsparkConf.spark.ui.enabled = false\nsparkConf.spark.sql.x = a b \n"
    loaded = interpret(text.encode(), file="f", default_worker_id="w")
    assert loaded.settings.spark.conf == (("spark.ui.enabled", "false"), ("spark.sql.x", "a b"))
    assert loaded.warnings == ()


def test_clusters_are_refused_as_their_executors_could_not_read_the_spool() -> None:
    with pytest.raises(ConfigurationError, match=r"sparkMaster = yarn: .*local\[\*\] or local\[N\]"):
        read("sparkPipeline = a:b\nsparkMaster = yarn\n")


@pytest.mark.parametrize(
    ("trigger", "good"), [("0.5 seconds", True), ("availableNow", True), ("2 minutes", True), ("soon", False)]
)
def test_triggers(trigger: str, *, good: bool) -> None:
    if good:
        read(f"sparkPipeline = a:b\nsparkTrigger = {trigger}\n")
    else:
        with pytest.raises(ConfigurationError, match="availableNow"):
            read(f"sparkPipeline = a:b\nsparkTrigger = {trigger}\n")
