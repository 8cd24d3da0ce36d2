"""A logback file of the Java daemon: levels and targets, everything else named, nothing dangerous."""

from __future__ import annotations

import pytest

from kcl_daemon.observe.levels import Levels, exists
from kcl_daemon.observe.logback import PACKAGES, FileTarget, LogConfiguration, read_logback

# In the form that comes with the client libraries.
USUAL = """<?xml version="1.0" encoding="UTF-8"?>
<configuration>
    <appender name="CONSOLE" class="ch.qos.logback.core.ConsoleAppender">
        <encoder><pattern>%d [%thread] %-5level %logger{36} - %msg%n</pattern></encoder>
    </appender>
    <root level="INFO"><appender-ref ref="CONSOLE" /></root>
</configuration>
"""
RICH = """<configuration scan="true">
  <property name="FOLDER" value="/var/log/kcl"/>
  <appender name="ERR" class="ch.qos.logback.core.ConsoleAppender"><target>System.err</target></appender>
  <appender name="FILE" class="ch.qos.logback.core.rolling.RollingFileAppender">
    <file>${FOLDER}/${APP:-kcl}.log</file>
    <append>false</append>
    <rollingPolicy class="x"/>
  </appender>
  <appender name="MAIL" class="ch.qos.logback.classic.net.SMTPAppender"/>
  <appender name="UNUSED" class="ch.qos.logback.core.ConsoleAppender"/>
  <logger name="software.amazon.kinesis.leases" level="${LEVEL}"/>
  <logger name="software.amazon.kinesis.coordinator" level="ERROR"/>
  <logger name="software.amazon.kinesis.retrieval"><level value="TRACE"/></logger>
  <logger name="software.amazon.kinesis.retrieval.fanout" level="OFF"/>
  <logger name="software.amazon.kinesis.lifecycle" level="INHERITED"/>
  <logger name="org.apache.http" level="WARN"/>
  <root level="warn">
    <appender-ref ref="ERR"/><appender-ref ref="FILE"/><appender-ref ref="MAIL"/><appender-ref ref="ERR"/>
  </root>
  <shutdownHook/>
</configuration>"""


def inside(text: str, environment: dict[str, str] | None = None) -> LogConfiguration:
    return read_logback(f"<configuration>{text}</configuration>", environment or {})


def test_the_usual_file_is_understood_but_for_its_pattern() -> None:
    assert read_logback(USUAL, {}) == LogConfiguration(
        Levels("info"), ("stdout",), ("<encoder> of appender CONSOLE",)
    )


def test_levels_targets_and_variables_are_understood() -> None:
    found = read_logback(RICH, {"LEVEL": "DEBUG", "FOLDER": "/elsewhere"})
    assert found.levels == Levels(
        "warning",
        {
            "kcl_daemon.coordination": "debug",  # of leases and coordinator the more talkative one
            "kcl_daemon.retrieval": "debug",
            "kcl_daemon.retrieval.fanout": "off",
            "kcl_daemon.retrieval.fanout_consumer": "off",
            "kcl_daemon.transport": "debug",
            "kcl_daemon.worker": "error",
        },
    )
    assert found.targets == ("stderr", FileTarget("/var/log/kcl/kcl.log", append=False))
    assert set(found.passed_over) == {
        "<shutdownHook>",
        "logger org.apache.http",
        "appender MAIL of class SMTPAppender",
        "<rollingPolicy> of appender FILE",
        "appender UNUSED, which the root logger does not use",
    }


def test_a_package_is_deeper_than_the_one_around_it_in_whatever_order() -> None:
    for lines in (
        '<logger name="software.amazon.kinesis" level="ERROR"/><logger name="software.amazon" level="DEBUG"/>',
        '<logger name="software.amazon" level="DEBUG"/><logger name="software.amazon.kinesis" level="ERROR"/>',
    ):
        assert inside(lines).levels == Levels("info", {"kcl_daemon": "error"})


def test_a_file_that_nobody_can_name_is_passed_over() -> None:
    text = '<appender name="F" class="FileAppender"><file>${NOWHERE}/x</file></appender><root><appender-ref ref="F"/></root>'
    found = inside(text)
    assert found.targets == ()
    assert found.passed_over == ("appender F: no file that is known at the start",)
    assert inside(text, {"NOWHERE": "/var/log"}).targets == (FileTarget("/var/log/x"),)


def test_a_level_that_nobody_knows_and_an_appender_that_is_missing_are_named() -> None:
    found = inside('<root level="SOME"><appender-ref ref="GONE"/></root>')
    assert found == LogConfiguration(Levels("info"), (), ("level SOME", "appender GONE of class unknown"))


def test_an_empty_file_changes_nothing() -> None:
    assert inside("") == LogConfiguration(Levels("info"), (), ())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it is not XML"),
        ("<configuration>", "it is not XML"),
        ("rootLogger=INFO", "it is not XML"),
        ("<Configuration status='WARN'/>", "begins with <Configuration>"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><configuration/>', "document type"),
        ('<!DOCTYPE configuration SYSTEM "file:///etc/passwd"><configuration/>', "document type"),
    ],
)
def test_what_is_no_logback_file_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_logback(text, {})


def test_every_package_stands_for_something_that_exists() -> None:
    assert all(any(map(exists, components)) for components in PACKAGES.values())
    # `metrics` may come or stay away; whatever else is named must be there.
    named = {each for components in PACKAGES.values() for each in components} - {"metrics"}
    assert {each for each in named if not exists(each)} == set()
