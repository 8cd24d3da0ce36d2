"""A child and everything it started, as one process group: its end, its status, and signals that never hit others.

A child starts in its own session, so it leads a process group that has its process id as number. The kernel does not
give that number away while the leader has not been reaped. So: signals go out only before the leader is reaped, what
is left of the group is killed just before that, and both happen in the event loop with no await between them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from signal import Signals

import anyio
from anyio import CapacityLimiter, to_thread

from kcl_daemon.ports import Log

# What asyncio reports, too, when somebody else has reaped the child (SIGCHLD ignored).
_UNKNOWN_STATUS = 255


class ProcessGroup:
    """The processes of one child.

    What has moved to a session of its own (`setsid`) is out of reach.

    Args:
        process: the leader, just started in a new session.
        log: the shard's.
        on_ended: called with the number of the group when all of it has been killed, before the number is free.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], log: Log, on_ended: Callable[[int], object] = lambda _: None
    ) -> None:
        self._process = process
        self._log = log
        self._on_ended = on_ended
        self._status: int | None = None

    @property
    def pid(self) -> int:
        """Process id of the leader and number of the group."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The leader's exit code, negative for a signal; None until it has been reaped."""
        return self._status

    def signal(self, number: Signals) -> None:
        """Send a signal to all of the group; no effect once the leader has been reaped."""
        self._send(os.killpg, number)

    def signal_leader(self, number: Signals) -> None:
        """The same to the leader alone."""
        self._send(os.kill, number)

    def _send(self, send: Callable[[int, int], None], number: Signals) -> None:
        if self._status is not None:
            return
        try:
            # Raises where somebody else has reaped it: then the number may be another's by now.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            send(self.pid, number)
        except (ChildProcessError, ProcessLookupError):
            return
        except PermissionError:
            self._log.warning("child_not_signalled", signal=number.name, reason="it runs as another user")

    async def reaped(self) -> int:
        """Wait for the end of the leader, kill what is left of the group, reap; the leader's exit code.

        Cancelled, nothing has been reaped.
        """
        await self._leader_ended()
        self.signal(signal.SIGKILL)
        self._on_ended(self.pid)
        self._status = self._reap()
        self._process.returncode = self._status  # else its finalizer warns and waits for it once more
        return self._status

    async def _leader_ended(self) -> None:
        """Wait until the leader can be reaped: by a pidfd, or in a thread where the kernel (or a filter) has none."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            await to_thread.run_sync(
                _block_until_ended, self.pid, abandon_on_cancel=True, limiter=CapacityLimiter(1)
            )
            return
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)

    def _reap(self) -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return _UNKNOWN_STATUS


def _block_until_ended(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
