"""The log of a real daemon: levels by component, and what children send to it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.process.daemon import run_daemon
from tests.process.local import Local, kinesis_client

pytestmark = pytest.mark.timeout(300)

CONSUMER = """\
import logging, os, sys
from kcl_client import RecordProcessor, run
from kcl_client.logs import DaemonLogHandler

logging.basicConfig(handlers=[DaemonLogHandler()], level="INFO", format="%(message)s")

class Orders(RecordProcessor):
    def initialize(self, start):
        logging.debug("not wanted")
        logging.warning("order %s has no customer, key AKIAIOSFODNN7EXAMPLE", 7)
        print("printed")
        if os.fork() == 0:
            logging.error("of a copy")
            os._exit(0)
        os.wait()

    def process_records(self, batch, checkpointer):
        checkpointer.checkpoint()

run(Orders())
"""


def properties(name: str, *more: str) -> str:
    lines = (
        f"executableName = {sys.executable} consumer.py",
        f"streamName = {name}",
        f"applicationName = {name}",
        "childStderrLevel = WARNING",
        *more,
    )
    return "\n".join((*lines, ""))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a processor that logs."""
    (tmp_path / "consumer.py").write_text(CONSUMER)
    return tmp_path


def create(local: Local, name: str) -> None:
    with kinesis_client(local.kinesis_url) as kinesis:
        kinesis.create_stream(StreamName=name, ShardCount=1)


def test_children_write_to_the_log_and_a_logback_file_that_is_not_there_has_no_effect(
    local: Local, folder: Path
) -> None:
    create(local, "logs-allowed")
    (folder / "app.properties").write_text(properties("logs-allowed", "childLogMessages = true"))
    with run_daemon(folder, "app.properties", "-l", "logback.xml", environment=local.environment) as daemon:
        daemon.wait_for("child_log", message="order 7 has no customer, key ***", level="warning")
        daemon.wait_for("child_stderr", line="printed", level="warning")
        daemon.wait_for("child_stderr", line="ERROR: of a copy")
        assert daemon.named("child_started")
        assert not daemon.named("child_stray_output")
        (reported,) = daemon.named("log_configuration_ignored")
        assert reported["file"] == "logback.xml"
        assert "--log-level" in str(reported["advice"])
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0


def test_without_leave_the_clients_log_is_stderr_and_levels_go_by_component(
    local: Local, folder: Path
) -> None:
    create(local, "logs-refused")
    (folder / "app.properties").write_text(properties("logs-refused"))
    levels = "off,kcl_daemon.children=INFO,consumer.connection=debug"
    with run_daemon(folder, "app.properties", "--log-level", levels, environment=local.environment) as daemon:
        daemon.wait_for("child_stderr", line="WARNING: order 7 has no customer, key ***")
        daemon.wait_for("child_stderr", line="printed")
        assert {event["event"] for event in daemon.loud()} == {"child_stderr"}
        assert not daemon.named("daemon_starting")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
