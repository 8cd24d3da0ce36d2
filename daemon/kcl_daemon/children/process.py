"""Real child processes behind the ports `Child` and `Children`.

Owns the life of each child from start to reaping, and the tasks that watch it. Knows nothing of messages: what goes
through the pipes are lines and bytes. A child that the daemon leaves behind (SIGKILL) sees the end of its stdin, and is
killed by the guard where that does not end it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

from anyio import CancelScope, Event, create_task_group
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from kcl_daemon.children.environment import LOG_MESSAGES, SHARD_ID, STREAM_ARN, STREAM_NAME
from kcl_daemon.children.group import ProcessGroup
from kcl_daemon.children.guard import Guard
from kcl_daemon.children.options import AS_THE_DAEMON, ChildOptions
from kcl_daemon.children.pipes import PipeReader, PipeWriter
from kcl_daemon.children.start import Started, spawn
from kcl_daemon.children.stderr import StderrPassThrough
from kcl_daemon.errors import ChildExited
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Clock, Log, StreamRef

_RECEIVE_BYTES = 64 * 1024
# A killed process is gone at once, unless it hangs in the kernel (a dead network file system).
_KILL_PATIENCE_S = 5.0


class ProcessChild:
    """One child process; `Child` says the contract. Made by `ProcessChildren`, which runs its `mind`.

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
        started: Started,
        log: Log,
        clock: Clock,
        *,
        options: ChildOptions = AS_THE_DAEMON,
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

    async def mind(self) -> None:
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
        held_by_guard: an open file that the guard of a killed daemon keeps open until its children are gone.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        log: Log,
        clock: Clock,
        options: ChildOptions = AS_THE_DAEMON,
        *,
        held_by_guard: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._command = command
        self._options = options
        self._guard = Guard(log, held_by_guard)
        self._log = log
        self._clock = clock
        self._tasks: TaskGroup | None = None
        self._open: set[ProcessChild] = set()
        self._minders: set[CancelScope] = set()

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
        for minder in self._minders:
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
        self._tasks.start_soon(self._mind, child)
        return child

    def _environment(self, shard_id: ShardId, stream: StreamRef | None) -> dict[str, str]:
        told = {LOG_MESSAGES: "true"} if self._options.log_messages else {}
        return told | _environment(shard_id, stream)

    async def _mind(self, child: ProcessChild) -> None:
        """Cancellation must not stop this: `aclose` waits for the reaping that happens in here."""
        with CancelScope(shield=True) as minder:
            self._minders.add(minder)
            try:
                await child.mind()
            finally:
                self._minders.discard(minder)


def _environment(shard_id: ShardId, stream: StreamRef | None) -> dict[str, str]:
    if stream is None:
        return {}
    arn = {} if stream.arn is None else {STREAM_ARN: stream.arn}
    return {STREAM_NAME: stream.name, **arn, SHARD_ID: shard_id}
