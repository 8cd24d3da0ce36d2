"""None may be left behind.

They have their own sessions, so Ctrl-C reaches only the demo. If the demo dies, endpoints and children end with their
stdin, the daemons by a `tie`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final, TypeVar

import anyio
import orjson
import psutil
from anyio.abc import Process, TaskStatus

from kcl_local import ACCESS
from kcl_local.demo.check import DIRECTORY_VARIABLE
from kcl_local.demo.stream import Urls
from kcl_local.demo.text import DemoError

T = TypeVar("T")
ENDPOINTS_READY_WITHIN_S: Final = 60.0
ENDPOINTS_END_WITHIN_S: Final = 20.0
DAEMON_ENDS_WITHIN_S: Final = 60.0
TAIL_LINES: Final = 30
DAEMON: Final = (sys.executable, "-m", "kcl_daemon", "--log-format", "console", "--properties")
_POLL_S: Final = 0.02
# It reads a line at the end of the block. Without one, the pipe has ended with the process that had it.
_TIE: Final = 'read -r line || kill -s KILL -- "-$1"'


class RunningProcess:
    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, negative for a signal."""
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                # Process.send_signal could reap the process and lose its exit code.
                os.kill(self._process.pid, number)

    def kill_group(self) -> None:
        """Also what it started in its session, such as a Spark driver's JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def descendants(self) -> list[int]:
        with suppress(psutil.NoSuchProcess):
            return [each.pid for each in psutil.Process(self._process.pid).children(recursive=True)]
        return []

    async def stop(self, within_s: float = DAEMON_ENDS_WITHIN_S) -> int:
        self.signal(signal.SIGTERM)
        return await self.ended(within_s)

    async def ended(self, within_s: float) -> int:
        """SIGKILL after that time; the exit code."""
        with anyio.move_on_after(within_s):
            return await self._process.wait()
        self.signal(signal.SIGKILL)
        return await self._process.wait()

    async def end(self) -> None:
        """By EOF if it reads stdin, else by SIGTERM."""
        if self._process.stdin is not None:
            await self._process.stdin.aclose()
            await self.ended(ENDPOINTS_END_WITHIN_S)
        elif self.exit_code is None:
            await self.stop()

    async def fail_when_ended(self) -> None:
        code = await self.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise DemoError(f"{self.name} ended with {how}\n{log_tail(self.log)}")


def log_tail(log: Path, lines: int = TAIL_LINES) -> str:
    try:
        text = log.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        return f"its log cannot be read: {error}"
    return "\n".join([f"the end of its log {log}:", *(f"  {line}" for line in text[-lines:])])


class Processes:
    def __init__(self) -> None:
        self._running: list[RunningProcess] = []

    def kill_all(self) -> None:
        for running in self._running:
            running.signal(signal.SIGKILL)

    @asynccontextmanager
    async def endpoints(self, directory: Path) -> AsyncGenerator[tuple[RunningProcess, Urls]]:
        answer = directory / "endpoints.json"
        command = [sys.executable, "-m", "kcl_local", "--until-eof", "--format", "json"]
        log = directory / "endpoints.log"
        async with self._running_process("the local endpoints", command, log, answer, stdin=PIPE) as running:
            yield running, await _urls(running, answer)

    @asynccontextmanager
    async def daemon(
        self,
        name: str,
        properties: Path,
        ledgers: Path,
        *,
        program: Sequence[str] = DAEMON,
        base: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[RunningProcess]:
        """`program` gets the file's name as its last argument; `base` None: an environment without the user's account."""
        given = {**(environment() if base is None else base), DIRECTORY_VARIABLE: str(ledgers)}
        log, command = properties.with_suffix(".log"), [*program, str(properties)]
        async with self._running_process(name, command, log, log, given=given) as running:
            with tie(running.pid):
                yield running

    @asynccontextmanager
    async def _running_process(
        self,
        name: str,
        command: list[str],
        log: Path,
        output: Path,
        *,
        stdin: int = DEVNULL,
        given: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[RunningProcess]:
        with _open_files(output, log) as (stdout, stderr):
            process = await anyio.open_process(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=log.parent,
                env=environment() if given is None else given,
                start_new_session=True,
            )
        running = RunningProcess(name, process, log)
        self._running.append(running)
        try:
            yield running
        finally:
            with anyio.CancelScope(shield=True):
                await running.end()
                self._running.remove(running)


async def stoppable(
    act: Callable[[], Awaitable[T]],
    stopped_by: list[signal.Signals],
    *,
    first: Callable[[signal.Signals], None],
    again: Callable[[signal.Signals], None],
) -> T | None:
    """The first signal cancels it. None: one has come."""
    outcome: T | None = None
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as acting:
            await tasks.start(_watch_signals, acting, stopped_by, first, again)
            outcome = await act()
        tasks.cancel_scope.cancel()
    return outcome


async def _watch_signals(
    acting: anyio.CancelScope,
    stopped_by: list[signal.Signals],
    first: Callable[[signal.Signals], None],
    again: Callable[[signal.Signals], None],
    *,
    task_status: TaskStatus[None],
) -> None:
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in asked if signal.getsignal(number) is not signal.SIG_IGN]
    with anyio.open_signal_receiver(*heard) as received:
        task_status.started()
        async for number in received:
            stopped_by.append(number)
            if len(stopped_by) > 1:
                again(number)
            else:
                first(number)
                acting.cancel()


@contextmanager
def tie(group: int) -> Generator[None]:
    """If this process is killed in the block, a small shell kills that group of processes."""
    with subprocess.Popen(  # noqa: S603 - a fixed text
        ["/bin/sh", "-c", _TIE, "kcl-demo-tie", str(group)],
        stdin=PIPE,
        stdout=DEVNULL,
        stderr=DEVNULL,
        cwd="/",
        start_new_session=True,
    ) as shell:
        try:
            yield
        finally:
            assert shell.stdin is not None
            with suppress(BrokenPipeError):
                shell.stdin.write(b"\n")
                shell.stdin.flush()


@contextmanager
def _open_files(*paths: Path) -> Generator[tuple[int, ...]]:
    descriptors = tuple(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for path in paths)
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


async def _urls(running: RunningProcess, answer: Path) -> Urls:
    with anyio.move_on_after(ENDPOINTS_READY_WITHIN_S):
        while running.exit_code is None:
            line, end, _ = (await anyio.Path(answer).read_bytes()).partition(b"\n")
            if end:
                reported: Mapping[str, str] = orjson.loads(line)
                return Urls(reported["kinesis_url"], reported["dynamodb_url"])
            await anyio.sleep(_POLL_S)
        await running.fail_when_ended()
    raise DemoError(
        f"{running.name} did not start in {ENDPOINTS_READY_WITHIN_S:g} s\n{log_tail(running.log)}"
    )


def environment(
    more: Mapping[str, str] | None = None, base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Without the user's AWS settings; with keys for the local endpoints."""
    kept = {name: value for name, value in base.items() if not name.startswith("AWS_")}
    return {**kept, **ACCESS, **(more or {})}
