"""The log of a daemon, as the command line asks for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kcl_daemon.observe.levels import Levels
from kcl_daemon.observe.logs import LogForm, build_log
from kcl_daemon.ports import Log
from kcl_daemon.system import SystemClock


@dataclass(frozen=True, slots=True)
class LogRequest:
    """What is asked for.

    Args:
        configuration: a logback file. Nothing reads it; the log names it.
        levels: what is logged; None: info.
        form: `auto`: console on a terminal, else JSON.
    """

    configuration: Path | None = None
    levels: Levels | None = None
    form: LogForm | Literal["auto"] = "auto"


def open_log(request: LogRequest) -> Log:
    """The log on stderr."""
    form = request.form
    if form == "auto":
        form = "console" if sys.stderr.isatty() else "json"
    return build_log(level=request.levels or Levels(), form=form, stream=sys.stderr, clock=SystemClock())
