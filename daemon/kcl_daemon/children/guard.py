"""Ends what a daemon that was killed leaves behind: one small process for each daemon, that outlives it for a second.

The guard is a shell that reads from a pipe whose other end only the daemon has. It is told the process group of each
child, and when that has ended. When the pipe ends, the daemon is gone, by whatever way: children have seen the end of
their stdin by then, get a second to finish, and what is left of their groups is killed.

Why not a parent-death signal: the kernel sends it to the child alone and not to what the child has started, forgets it
when a program with other rights is executed, sends it when the thread that forked ends, and it has to be asked for
between fork and exec, where Python may not run with threads around. A guard costs one process of 2 MB, nothing for each
child, and works wherever there is a shell.
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
_NAME: Final = "kcl-daemon-guard"  # what `ps` shows
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
    """The guard of one daemon. Starts with the first child; starts again where somebody has ended it.

    Where it cannot be started each further child is another try: descriptors may be short for a moment only.

    Args:
        log: the daemon's.
        holds: an open file that it keeps open as well, None: none. What is locked by it stays so until the last child
            of a killed daemon is gone.
    """

    def __init__(self, log: Log, holds: Callable[[], int | None] = lambda: None) -> None:
        self._holds = holds
        self._log = log
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._is_reported = False  # that it could not be started

    @property
    def pid(self) -> int | None:
        """Its process id; None where it does not run."""
        return None if self._process is None else self._process.pid

    def watch(self, group: int) -> None:
        """A child has started; it leads this process group. Takes a millisecond the first time; never raises."""
        self._groups.add(group)
        if self._process is None:
            self._start()
        else:
            self._send(f"+ {group}\n")

    def forget(self, group: int) -> None:
        """This group has ended. To be called before its leader is reaped: then its number may be given to others."""
        if group in self._groups:
            self._groups.discard(group)
            self._send(f"- {group}\n")

    async def aclose(self) -> None:
        """End the guard; groups that have not ended are killed by it."""
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
        """Once, until there is a guard again."""
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
        except OSError as error:  # it has ended, or does not read: another one is told everything
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
    """The shell, and the end of its pipe that is ours; OSError, with nothing left behind, where it cannot be started."""
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
