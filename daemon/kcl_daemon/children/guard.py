"""Kills the children of a daemon that was itself killed.

A parent-death signal would reach only the child, is lost on some execs, and must be set between fork and exec, where
Python with threads may not run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Final

from anyio import to_thread

from kcl_daemon.ports import Log

_SHELL: Final = "/bin/sh"
PATIENCE_S: Final = 1
_NAME: Final = "kcl-daemon-guard"
_SCRIPT: Final = f"""
trap '' HUP INT TERM
groups=' '
while read -r what group; do
  case $what in
    +) groups="$groups$group " ;;
    -) case $groups in *" $group "*) groups="${{groups%% $group *}} ${{groups#* $group }}" ;; esac ;;
  esac
done
[ "$groups" = ' ' ] && exit 0
sleep {PATIENCE_S}
for group in $groups; do kill -s KILL -- "-$group"; done
"""


class Guard:
    """Starts with the first child, and again when it was killed or could not start.

    It holds the file `holds` open, so a lock on it lasts until the last child of a killed daemon is gone.
    """

    def __init__(self, log: Log, holds: Callable[[], int | None] = lambda: None) -> None:
        self._holds = holds
        self._log = log
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._is_reported = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def watch(self, group: int) -> None:
        """Never raises; the first call takes a millisecond."""
        self._groups.add(group)
        if self._process is None:
            self._start()
        else:
            self._send(f"+ {group}\n")

    def forget(self, group: int) -> None:
        """Call it before the leader is reaped."""
        if group in self._groups:
            self._groups.discard(group)
            self._send(f"- {group}\n")

    async def aclose(self) -> None:
        process = self._close_pipe()
        if process is not None:
            await to_thread.run_sync(process.wait)

    def _start(self) -> None:
        try:
            self._process, self._pipe = _started(self._holds())
        except OSError as error:
            self._log_failure(error)
            return
        self._is_reported = False
        for group in sorted(self._groups):
            self._send(f"+ {group}\n")

    def _log_failure(self, error: OSError) -> None:
        if not self._is_reported:
            self._is_reported = True
            advice = (
                "if the daemon is killed, its children run until they see the end of their stdin; check "
                f"that {_SHELL} exists and that more files can be opened. The daemon tries again with "
                "the next child"
            )
            self._log.warning("children_not_guarded", error=str(error), advice=advice)

    def _send(self, line: str) -> None:
        if self._process is None:
            return
        try:
            os.write(self._pipe, line.encode("ascii"))
        except OSError as error:  # it ended or does not read; a new guard gets all groups
            self._log.warning("guard_replaced", pid=self._process.pid, error=str(error))
            self._process.kill()
            process = self._close_pipe()
            if process is not None:
                process.wait()
            self._start()

    def _close_pipe(self) -> subprocess.Popen[bytes] | None:
        process, self._process = self._process, None
        if process is not None:
            os.close(self._pipe)
            self._pipe = -1
        return process


def _started(holds: int | None) -> tuple[subprocess.Popen[bytes], int]:
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - a fixed text, nothing from outside
            [_SHELL, "-c", _SCRIPT, _NAME],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.defpath},
            start_new_session=True,
            pass_fds=() if holds is None else (holds,),
        )
    except OSError:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    os.set_blocking(write_end, False)
    return process, write_end
