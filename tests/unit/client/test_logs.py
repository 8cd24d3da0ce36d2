"""The handler for `logging` away from a daemon: stderr, and nothing that could hurt the program."""

from __future__ import annotations

import logging

import pytest

from kcl_client._run import pipes_in_use
from kcl_client.logs import DaemonLogHandler


@pytest.fixture
def logger() -> logging.Logger:
    """A logger with the handler and nothing else."""
    made = logging.Logger("some", level=logging.INFO)
    made.addHandler(DaemonLogHandler())
    return made


def test_outside_of_run_lines_go_to_stderr_even_where_it_is_allowed(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCL_LOG_MESSAGES", "true")
    assert pipes_in_use() is None
    logger.warning("order %s", 7)
    logger.debug("not wanted")
    assert capsys.readouterr() == ("", "WARNING: order 7\n")


def test_a_record_that_cannot_be_formatted_does_not_end_the_program(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.info("order %d", "seven")
    assert "Logging error" in capsys.readouterr().err
