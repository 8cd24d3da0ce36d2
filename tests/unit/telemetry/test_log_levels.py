"""Levels by component: what may be written, which deepest name counts, what a wrong one is told."""

from __future__ import annotations

import io
import json
from types import ModuleType

import pytest

from kcl_daemon.ports import Log, at_level
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.logs import LogLevels, Threshold, build_log, component, parse_levels

SAYS = """
def all_four(log):
    for level in ("debug", "info", "warning", "error"):
        getattr(log.bind(shard_id="s"), level)(level)

def chosen(log, at_level):
    at_level(log, "debug")("debug")
"""


def module(name: str) -> ModuleType:
    """A module of that name that logs."""
    made = ModuleType(name)
    exec(SAYS, made.__dict__)
    return made


def written(levels: LogLevels, name: str) -> list[str]:
    """What of the four levels a module of that name gets through."""
    stream = io.StringIO()
    log: Log = build_log(level=levels, form="json", stream=stream, clock=SystemClock())
    module(name).all_four(log)
    return [json.loads(line)["event"] for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("text", "root", "components"),
    [
        ("INFO", "info", {}),
        (" warn ", "warning", {}),
        ("debug,", "debug", {}),
        ("", "info", {}),
        ("OFF", "off", {}),
        ("INFO,kcl_daemon.retrieval=DEBUG", "info", {"kcl_daemon.retrieval": "debug"}),
        ("retrieval=trace, error ,consumer.connection=off", "error", {
            "kcl_daemon.retrieval": "debug",
            "kcl_daemon.consumer.connection": "off",
        }),
        ("kcl_daemon=error", "info", {"kcl_daemon": "error"}),
    ],
)  # fmt: skip
def test_levels_are_read(text: str, root: Threshold, components: dict[str, Threshold]) -> None:
    assert parse_levels(text) == LogLevels(root, components)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("LOUD", "'LOUD': no such level; levels are debug, info, warning, error, off"),
        ("retrieval=", "'retrieval=': no such level"),
        ("INFO,retreival=DEBUG", "'retreival': no such component; there are "),
        ("software.amazon.kinesis=DEBUG", "no such component"),
        ("../../etc=DEBUG", "no such component"),
    ],
)
def test_an_unknown_level_or_component_is_reported(text: str, reported: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_levels(text)
    assert reported in str(error.value)


def test_a_component_may_be_a_module_and_may_come_without_the_daemons_name() -> None:
    assert component("retrieval.polling") == component("kcl_daemon.retrieval.polling")


LEVELS = LogLevels(
    "warning",
    {"kcl_daemon.retrieval": "debug", "kcl_daemon.retrieval.fan_out": "error", "kcl_daemon.worker": "off"},
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kcl_daemon.retrieval.polling", "debug info warning error"),
        ("kcl_daemon.retrieval", "debug info warning error"),
        ("kcl_daemon.retrieval.fan_out", "error"),
        ("kcl_daemon.retrieval.fan_outs", "debug info warning error"),
        ("kcl_daemon.retrieval_of_others", "warning error"),
        ("kcl_daemon.worker", ""),
        ("kcl_daemon.consumer.consumer", "warning error"),
        ("another", "warning error"),
    ],
)
def test_the_deepest_component_that_is_named_counts(name: str, expected: str) -> None:
    assert written(LEVELS, name) == expected.split()


@pytest.mark.parametrize("root", ["off", "error", "debug"])
def test_a_level_for_all_is_for_all(root: Threshold) -> None:
    expected = {"off": 0, "error": 1, "debug": 4}[root]
    assert len(written(LogLevels(root), "kcl_daemon.retrieval")) == expected


def test_a_level_that_is_chosen_belongs_to_who_chooses_it() -> None:
    stream = io.StringIO()
    log = build_log(level=LEVELS, form="json", stream=stream, clock=SystemClock())
    module("kcl_daemon.consumer").chosen(log, at_level)
    assert stream.getvalue() == ""
    module("kcl_daemon.retrieval.source").chosen(log, at_level)
    assert json.loads(stream.getvalue())["level"] == "debug"


def test_a_broken_stream_is_put_up_with() -> None:
    broken = io.StringIO()
    broken.close()
    build_log(level="info", form="json", stream=broken, clock=SystemClock()).info("something")
