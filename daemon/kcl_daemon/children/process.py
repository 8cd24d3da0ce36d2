"""Behind the ports `Child` and `Children`.

The guard kills children of a killed daemon.
A parent-death signal would reach only the child, is lost on some execs, and must be set between fork and exec, where
Python with threads may not run.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from signal import Signals
from types import TracebackType
from typing import Final, Self

from anyio import CancelScope, Event, create_task_group, to_thread
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from kcl_daemon.children import platform
from kcl_daemon.children.pipes import LineBudget, PipeReader, PipeWriter, StderrPassThrough
from kcl_daemon.children.start import (
    FINISH_BATCHES,
    FRAMES,
    LANE,
    LOG_MESSAGES,
    PRELOAD_FD,
    REJECTS,
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
from kcl_daemon.ports import ChildLane, Clock, Log, StreamRef
from kcl_protocol.messages import FRAMES_VERSION

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
_RECEIVE_BYTES = 64 * 1024
# Every message is a JSON object.
_FIRST_BYTE = b"{"
_READING_LOOK_S = 0.05
# A killed process lasts longer only if it hangs in the kernel.
_KILL_PATIENCE_S = 5.0


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


class ProcessGroup:
    """`on_ended` is called when all are killed, before the kernel can reuse the number."""

    def __init__(
        self,
        leader: platform.Leader,
        reap: Callable[[], Awaitable[int]],
        log: Log,
        on_ended: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.pid: Final = leader.pid
        self._leader = leader
        self._reap = reap
        self._log = log
        self._on_ended = on_ended
        self._has_ended = False
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        """Negative for a signal; None until the leader is reaped."""
        return self._status

    def signal(self, number: Signals) -> None:
        self._send(os.killpg, number)

    def signal_leader(self, number: Signals) -> None:
        self._send(os.kill, number)

    def _send(self, send: Callable[[int, int], None], number: Signals) -> None:
        if self._has_ended:
            return
        seen = self._leader.look()
        if seen is not platform.Seen.RUNS:
            self._end(seen)
            return
        try:
            send(self.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            self._log_refused(number)

    def pipe_closed(self) -> None:
        self._leader.pipe_closed()

    async def reaped(self) -> int:
        """If cancelled, nothing is reaped."""
        seen = await self._leader.ended()
        if not self._has_ended:
            self._end(seen)
        self._status = await self._reap()
        return self._status

    def _end(self, seen: platform.Seen) -> None:
        self._has_ended = True
        if seen is platform.Seen.ENDED and not platform.kill_rest(self.pid, signal.SIGKILL):
            self._log_refused(signal.SIGKILL)
        self._on_ended(self.pid)

    def _log_refused(self, number: Signals) -> None:
        self._log.warning("child_not_signalled", signal=number.name, reason="it runs as another user")


class ProcessChild:
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
        self._log = log.bind(pid=started.pid)
        self._clock = clock
        self._on_closed = on_closed
        guard.watch(started.pid)
        self._group = ProcessGroup(started.leader, started.reap, self._log, guard.forget)
        self._stdin = PipeWriter(started.stdin, started.stdin_reader)
        self._stdout = PipeReader(started.stdout)
        self._stderr_pipe = PipeReader(started.stderr)
        self._stderr = StderrPassThrough(
            self._stderr_pipe, self._log, options.stderr_level, LineBudget(options.stderr_lines_per_s), clock
        )
        self._ended = Event()
        self._begun = False

    @property
    def pid(self) -> int:
        return self._group.pid

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        return self._stderr.tail

    async def send(self, line: bytes) -> None:
        """One caller at a time. If cancelled within a line, stdin is closed.

        ChildExited: nobody reads stdin; `status` is None if the process is not reaped yet.
        """
        try:
            self._stdin.forget_reader()
            await self._stdin.send(line[1:] if self._begun else line)
            self._begun = False
        except BrokenPipeError as error:
            raise ChildExited(doing="send", status=self._group.status) from error

    async def receive(self) -> bytes:
        """At most 64 KiB, empty after the end; one caller at a time."""
        return await self._stdout.receive(_RECEIVE_BYTES)

    async def until_reading(self) -> None:
        try:
            await self._stdin.send(_FIRST_BYTE)
        except BrokenPipeError:
            return
        self._begun = True
        while self._stdin.unread_bytes:
            await self._clock.sleep(_READING_LOOK_S)

    async def close_stdin(self) -> None:
        self._stdin.close()

    async def wait(self) -> int:
        """After reaping and after all stderr is logged; 255 if another process reaped it."""
        await self._ended.wait()
        status = self._group.status
        assert status is not None, "ended without a status"
        return status

    def terminate(self) -> None:
        self._group.signal(signal.SIGTERM)

    def kill(self) -> None:
        self._group.signal(signal.SIGKILL)

    async def aclose(self) -> None:
        """Takes a few seconds at most, shielded from cancellation; safe to repeat."""
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
        """Run it once. If cancelled, nothing is reaped."""
        async with create_task_group() as tasks:
            tasks.start_soon(self._log_stderr)
            await self._group.reaped()
            self._stdin.close()
            self._stdout.finish()
            self._stderr_pipe.finish()
        self._ended.set()

    async def _log_stderr(self) -> None:
        await self._stderr.run()
        self._group.pipe_closed()


class ProcessChildren:
    """Leaving the context ends every child. An error of the body passes through ungrouped.

    If the daemon is killed, its guard keeps `kept_open_by_guard` open until the children are gone.
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
        said = {LOG_MESSAGES: options.log_messages, FINISH_BATCHES: options.finish_batches}
        self._variables = {REJECTS: "1"} | {name: "true" for name, holds in said.items() if holds}
        if options.frames:
            self._variables[FRAMES] = str(FRAMES_VERSION)
        self._guard = Guard(log, kept_open_by_guard)
        self._log = log
        self._clock = clock
        self._tasks: TaskGroup | None = None
        self._open: set[ProcessChild] = set()
        self._supervisors: set[CancelScope] = set()
        self._preload = None
        if options.preload:
            from kcl_daemon.children.preload import Preload

            self._preload = Preload(self._start_template, log, clock)

    async def __aenter__(self) -> Self:
        self._tasks = create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None, "left without having been entered"
        with CancelScope(shield=True):
            async with create_task_group() as closing:
                for child in self._open:
                    closing.start_soon(child.aclose)
            if self._preload is not None:  # the last one: it reaps its children
                await self._preload.aclose()
            await self._guard.aclose()
        # Who survives SIGKILL is left to init.
        for supervisor_scope in self._supervisors:
            supervisor_scope.cancel()
        if isinstance(error, Exception):
            await tasks.__aexit__(None, None, None)
        else:
            await tasks.__aexit__(kind, error, traceback)

    async def start(
        self, shard_id: ShardId, stream: StreamRef | None = None, lane: ChildLane | None = None
    ) -> ProcessChild:
        """If this raises or is cancelled, nothing was started."""
        await checkpoint()  # a start blocks the event loop for a moment
        environment = self._variables | _environment(shard_id, stream, lane)
        started = None if self._preload is None else await self._preload.fork(environment)
        child = self._supervised(
            started or spawn(self._command, self._options, environment),
            self._log.bind(
                **({} if stream is None or stream.identity is None else {"stream": stream.name}),
                shard_id=shard_id,
                **({} if lane is None else {"lane": lane.number}),
            ),
        )
        self._open.add(child)
        return child

    def _start_template(self, fd: int) -> ProcessChild:
        environment = self._variables | {PRELOAD_FD: str(fd)}
        return self._supervised(spawn(self._command, self._options, environment, fd), self._log)

    def _supervised(self, started: StartedProcess, log: Log) -> ProcessChild:
        assert self._tasks is not None, "children are started inside `async with`"
        child = ProcessChild(
            started, log, self._clock, options=self._options, guard=self._guard, on_closed=self._open.discard
        )
        self._tasks.start_soon(self._supervise, child)
        return child

    async def _supervise(self, child: ProcessChild) -> None:
        """Shielded: `aclose` waits for the reaping done here."""
        with CancelScope(shield=True) as supervisor_scope:
            self._supervisors.add(supervisor_scope)
            try:
                await child.supervise()
            finally:
                self._supervisors.discard(supervisor_scope)


def _environment(shard_id: ShardId, stream: StreamRef | None, lane: ChildLane | None) -> dict[str, str]:
    variables = {} if lane is None else {LANE: str(lane.number)}
    if stream is None:
        return variables
    arn = {} if stream.arn is None else {STREAM_ARN: stream.arn}
    return {STREAM_NAME: stream.name, **arn, SHARD_ID: shard_id, **variables}
