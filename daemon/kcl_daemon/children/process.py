"""Real child processes behind the ports `Child` and `Children`.

Owns the life of each child from start to reaping, and the tasks that watch it. Knows nothing of messages: what goes
through the pipes are lines and bytes. A child that the daemon leaves behind (SIGKILL) sees the end of its stdin, and is
killed by the guard where that does not end it.

A child and everything it started, as one process group: its end, its status, and signals that never hit others.

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
from types import TracebackType
from typing import Self

import anyio
from anyio import CancelScope, CapacityLimiter, Event, create_task_group, to_thread
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from kcl_daemon.children.guard import Guard
from kcl_daemon.children.pipes import PipeReader, PipeWriter, StderrPassThrough
from kcl_daemon.children.start import (
    LOG_MESSAGES,
    SAME_AS_DAEMON,
    SHARD_ID,
    STREAM_ARN,
    STREAM_NAME,
    ChildOptions,
    StartedProcess,
    spawn,
)
from kcl_daemon.errors import ChildExited
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Clock, Log, StreamRef

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


_RECEIVE_BYTES = 64 * 1024
# A killed process is gone at once, unless it hangs in the kernel (a dead network file system).
_KILL_PATIENCE_S = 5.0


class ProcessChild:
    """One child process; `Child` says the contract. Made by `ProcessChildren`, which runs its `supervise`.

    The end of the process is the end of all it started: its process group is killed when it ends by itself, too. After
    the end `receive` still delivers what the child had written, then empty pieces, whoever else holds its stdout.

    Args:
        started: the process and its pipes; belong to this object from now on.
        log: the shard's.
        clock: for the patience with a process that does not die.
        options: how loud its stderr is.
        guard: is told of its start and its end.
        on_closed: called once, at the end of `aclose`.
    """

    def __init__(
        self,
        started: StartedProcess,
        log: Log,
        clock: Clock,
        *,
        options: ChildOptions = SAME_AS_DAEMON,
        guard: Guard,
        on_closed: Callable[[ProcessChild], object],
    ) -> None:
        self._log = log.bind(pid=started.process.pid)
        self._clock = clock
        self._on_closed = on_closed
        guard.watch(started.process.pid)
        self._group = ProcessGroup(started.process, self._log, guard.forget)
        self._stdin = PipeWriter(started.stdin)
        self._stdout = PipeReader(started.stdout)
        self._stderr_pipe = PipeReader(started.stderr)
        self._stderr = StderrPassThrough(self._stderr_pipe, self._log, options.stderr_level)
        self._ended = Event()

    @property
    def pid(self) -> int:
        """Process id; also the number of its process group and session."""
        return self._group.pid

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last 20 lines of its stderr, oldest first; complete once `wait` has returned."""
        return self._stderr.tail

    async def send(self, line: bytes) -> None:
        """Write a whole line; one caller at a time.

        Cancelled in the middle of a line, stdin is closed with it: every further `send` raises ChildExited.

        Raises:
            ChildExited: nobody reads it; `status` is None where the end of the process has not been seen yet.
        """
        try:
            await self._stdin.send(line)
        except BrokenPipeError as error:
            raise ChildExited(doing="send", status=self._group.status) from error

    async def receive(self) -> bytes:
        """The next piece of stdout, at most 64 KiB; one caller at a time."""
        return await self._stdout.receive(_RECEIVE_BYTES)

    async def close_stdin(self) -> None:
        """Close it; a `send` under way raises ChildExited."""
        self._stdin.close()

    async def wait(self) -> int:
        """The exit code, once the process has been reaped and its stderr passed on; 255 where others reaped it."""
        await self._ended.wait()
        status = self._group.status
        assert status is not None, "ended without a status"
        return status

    def terminate(self) -> None:
        """SIGTERM to the process group."""
        self._group.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process group."""
        self._group.signal(signal.SIGKILL)

    async def aclose(self) -> None:
        """Kill, reap, close; takes no longer than a few seconds, is not cut short by cancellation. Again: no effect."""
        self.kill()
        patience = self._clock.move_on_after(_KILL_PATIENCE_S)
        patience.shield = True
        with patience:
            await self._ended.wait()
        if not self._ended.is_set():
            self._log.error("child_survives_kill", waited_s=_KILL_PATIENCE_S)
        self._stdin.close()
        self._stdout.close()
        self._stderr_pipe.close()
        self._on_closed(self)

    async def supervise(self) -> None:
        """Pass its stderr on and reap it when it ends; runs until then, once. Cancelled, it is left unreaped."""
        async with create_task_group() as tasks:
            tasks.start_soon(self._stderr.run)
            await self._group.reaped()
            # A process that left the group may hold the other ends open: wait for none of it.
            self._stdin.close()
            self._stdout.finish()
            self._stderr_pipe.finish()
        self._ended.set()


class ProcessChildren:
    """Starts children as processes and minds them; `Children` says the contract.

    An async context manager: its end, by whatever way, is the end of every child. An error that ends the body passes
    through as it is, not in a group.

    Args:
        command: program and arguments.
        log: every event about a child carries `shard_id` and `pid`.
        clock: for deadlines.
        options: as whom children run, and within which limits.
        kept_open_by_guard: an open file that the guard of a killed daemon keeps open until its children are gone.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        log: Log,
        clock: Clock,
        options: ChildOptions = SAME_AS_DAEMON,
        *,
        kept_open_by_guard: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._command = command
        self._options = options
        self._guard = Guard(log, kept_open_by_guard)
        self._log = log
        self._clock = clock
        self._tasks: TaskGroup | None = None
        self._open: set[ProcessChild] = set()
        self._supervisors: set[CancelScope] = set()

    async def __aenter__(self) -> Self:
        self._tasks = create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None, "left without having been entered"
        with CancelScope(shield=True):
            async with create_task_group() as closing:
                for child in self._open:
                    closing.start_soon(child.aclose)
            await self._guard.aclose()
        # Whom SIGKILL did not end is left to init.
        for minder in self._supervisors:
            minder.cancel()
        if isinstance(error, Exception):
            await tasks.__aexit__(None, None, None)
        else:
            await tasks.__aexit__(kind, error, traceback)

    async def start(self, shard_id: ShardId, stream: StreamRef | None = None) -> ProcessChild:
        """Start the program for a shard; where it raises or is cancelled, nothing has been started.

        One of many streams is told by `KCL_STREAM_NAME`, `KCL_STREAM_ARN` and `KCL_SHARD_ID`; that it may send `log`
        messages by `KCL_LOG_MESSAGES`.
        """
        # A start holds the loop for a moment: others get their turn between two of them.
        await checkpoint()
        assert self._tasks is not None, "children are started inside `async with`"
        child = ProcessChild(
            spawn(self._command, self._options, self._environment(shard_id, stream)),
            self._log.bind(**({} if stream is None else {"stream": stream.name}), shard_id=shard_id),
            self._clock,
            options=self._options,
            guard=self._guard,
            on_closed=self._open.discard,
        )
        self._open.add(child)
        self._tasks.start_soon(self._supervise, child)
        return child

    def _environment(self, shard_id: ShardId, stream: StreamRef | None) -> dict[str, str]:
        variables = {LOG_MESSAGES: "true"} if self._options.log_messages else {}
        return variables | _environment(shard_id, stream)

    async def _supervise(self, child: ProcessChild) -> None:
        """Cancellation must not stop this: `aclose` waits for the reaping that happens in here."""
        with CancelScope(shield=True) as minder:
            self._supervisors.add(minder)
            try:
                await child.supervise()
            finally:
                self._supervisors.discard(minder)


def _environment(shard_id: ShardId, stream: StreamRef | None) -> dict[str, str]:
    if stream is None:
        return {}
    arn = {} if stream.arn is None else {STREAM_ARN: stream.arn}
    return {STREAM_NAME: stream.name, **arn, SHARD_ID: shard_id}
