"""The log that the command line asks for."""

from __future__ import annotations

import json

import pytest

from kcl_daemon.cli.run import open_log
from kcl_daemon.telemetry.logs import LogLevels


@pytest.mark.parametrize(("levels", "logged"), [(None, ["two"]), (LogLevels("debug"), ["one", "two"])])
def test_the_log_is_on_stderr_from_info_on_unless_levels_are_given(
    capsys: pytest.CaptureFixture[str], levels: LogLevels | None, logged: list[str]
) -> None:
    log = open_log(levels)
    log.debug("one")
    log.info("two")
    out, err = capsys.readouterr()
    assert (out, [json.loads(line)["event"] for line in err.splitlines()]) == ("", logged)
