"""The log of a daemon: what the command line and a logback file ask for, opened.

Owns which of the two wins, and the files that are opened. Knows nothing of what is logged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TextIO

from kcl_daemon.errors import ConfigurationError
from kcl_daemon.observe.levels import Levels
from kcl_daemon.observe.logback import FileTarget, LogConfiguration, Stream, read_logback
from kcl_daemon.observe.logs import LogForm, build_log
from kcl_daemon.ports import Log
from kcl_daemon.system import SystemClock

_FILE_BYTES_MOST: Final = 1024 * 1024
_OWNER_ONLY: Final = 0o600  # children's stderr is in it, which may be anything


@dataclass(frozen=True, slots=True)
class LogRequest:
    """What is asked for.

    Args:
        configuration: a logback file.
        levels: of the command line; they win over the file's. None: the file's, or info.
        form: `auto`: console on a terminal, else JSON.
    """

    configuration: Path | None = None
    levels: Levels | None = None
    form: LogForm | Literal["auto"] = "auto"


@dataclass(frozen=True, slots=True)
class OpenLog:
    """A log that can be written to.

    Args:
        log: for all.
        passed_over: what of the logback file means nothing here.
        files: that were opened for it.
    """

    log: Log
    passed_over: tuple[str, ...] = ()
    files: tuple[TextIO, ...] = ()

    def close(self) -> None:
        """Close the files; what is logged afterwards goes to the console only."""
        for file in self.files:
            file.close()


def open_log(request: LogRequest) -> OpenLog:
    """Open the log; whoever calls closes it, as the last thing.

    Raises:
        ConfigurationError: the logback file cannot be read, is none, or names a file that cannot be written.
    """
    found = LogConfiguration(Levels(), (), ())
    if request.configuration is not None:
        found = _read(request.configuration)
    streams = list(_streams(found.targets)) or [sys.stderr]
    form = request.form
    if form == "auto":
        form = "console" if streams[0].isatty() else "json"
    levels = request.levels or found.levels
    log = build_log(level=levels, form=form, stream=streams[0], more_streams=streams[1:], clock=SystemClock())
    files = tuple(stream for stream in streams if stream not in (sys.stdout, sys.stderr))
    return OpenLog(log, found.passed_over, files)


def _read(file: Path) -> LogConfiguration:
    try:
        with file.open("rb") as opened:
            text = opened.read(_FILE_BYTES_MOST + 1)
        if len(text) > _FILE_BYTES_MOST:
            raise ConfigurationError(f"--log-configuration {file}: larger than 1 MiB; not a logback file")
        return read_logback(text.decode("utf-8"), os.environ)
    except OSError as error:
        raise ConfigurationError(f"--log-configuration {file}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigurationError(
            f"--log-configuration {file}: {error}; or omit it and use --log-level"
        ) from None


def _streams(targets: tuple[Stream | FileTarget, ...]) -> Iterator[TextIO]:
    for target in targets:
        match target:
            case "stdout":
                yield sys.stdout
            case "stderr":
                yield sys.stderr
            case FileTarget(path, append):
                yield _opened(Path(path), append=append)


def _opened(path: Path, *, append: bool) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Always at the end: what truncates it in place (logrotate with copytruncate) does no harm.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if append else os.O_TRUNC)
        descriptor = os.open(path, flags, _OWNER_ONLY)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigurationError(
            f"--log-configuration: cannot write {path}: {error.strerror or error}"
        ) from None
