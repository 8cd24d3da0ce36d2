"""One run of the engine as a process: started, listened to, ended.

Owns its pipes and its process group. What its events mean is known to `supervisor`.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Final

import anyio

from kcl_daemon.children.group import ProcessGroup
from kcl_daemon.children.pipes import PipeReader, PipeWriter
from kcl_daemon.children.stderr import LineCutter
from kcl_daemon.ports import Clock, Log
from kcl_daemon.spark.lines import Event, EventCutter, Unreadable

_EVENTS_BYTES: Final = 64 * 1024
_OUTPUT_BYTES: Final = 16 * 1024
# A killed process is gone at once, unless it hangs in the kernel (a dead network file system).
_KILL_PATIENCE_S: Final = 5.0


class EngineProcess:
    """An engine that has been started. `listen` once; `stop` meanwhile.

    Args:
        process: leads a process group of its own, in which its JVM is, too; its pipes belong to this object from now on.
        clock: for the patience at its end.
        log: for signals that cannot be sent.
    """

    def __init__(self, process: subprocess.Popen[bytes], clock: Clock, log: Log) -> None:
        self._group = ProcessGroup(process, log)
        self._stdin = PipeWriter(_taken(process.stdin))
        self._stdout = PipeReader(_taken(process.stdout))
        self._stderr = PipeReader(_taken(process.stderr))
        self._clock = clock
        self._ended = anyio.Event()

    @classmethod
    def start(
        cls, command: tuple[str, ...], environment: Mapping[str, str], *, clock: Clock, log: Log
    ) -> EngineProcess:
        """Start one in this environment; OSError where that is impossible.

        No await is in between: whoever wants to stop it finds it either not started or here.
        """
        process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process, clock, log)

    @property
    def pid(self) -> int:
        """Process id, and number of its process group."""
        return self._group.pid

    async def listen(self, options: bytes, on_event: Callable[[Event | Unreadable], None], log: Log) -> int:
        """Give it its options and pass on what it says until it ends; the exit code.

        Its JVM and its workers are ended with it, also where this is cancelled.
        """
        try:
            async with anyio.create_task_group() as pipes:
                pipes.start_soon(self._give, options)
                pipes.start_soon(_pass_on, self._stderr, log)
                pipes.start_soon(_events, self._stdout, on_event)
                await self._group.reaped()
                # A process that left the group may hold the other ends open: wait for none of it.
                self._stdin.close()
                self._stdout.finish()
                self._stderr.finish()
        finally:
            await self._end()
        status = self._group.status
        assert status is not None, "ended without a status"
        return status

    async def stop(self, within_s: float) -> None:
        """SIGTERM, and SIGKILL to all of its group where that takes longer; `listen` goes on meanwhile."""
        self._group.signal_leader(signal.SIGTERM)  # the JVM must finish the batch under way
        with self._clock.move_on_after(within_s):
            await self._ended.wait()
        self._group.signal(signal.SIGKILL)

    async def _give(self, options: bytes) -> None:
        with suppress(BrokenPipeError):  # its end tells more
            await self._stdin.send(options)

    async def _end(self) -> None:
        """Nothing of it is left after this; takes no time where it has ended by itself."""
        if self._group.status is None:
            self._group.signal(signal.SIGKILL)
            patience = self._clock.move_on_after(_KILL_PATIENCE_S)
            patience.shield = True
            with patience:
                await self._group.reaped()
        self._ended.set()
        self._stdin.close()
        self._stdout.close()
        self._stderr.close()


def _taken(pipe: IO[bytes] | None) -> int:
    """The descriptor of a pipe, without the file object around it."""
    assert pipe is not None
    with pipe:
        return os.dup(pipe.fileno())


async def _events(pipe: PipeReader, on_event: Callable[[Event | Unreadable], None]) -> None:
    cutter = EventCutter()
    while piece := await pipe.receive(_EVENTS_BYTES):
        for told in cutter.feed(piece):
            on_event(told)


async def _pass_on(pipe: PipeReader, log: Log) -> None:
    """What Spark, Java and the pipeline print."""
    cutter = LineCutter()
    while piece := await pipe.receive(_OUTPUT_BYTES):
        for line in cutter.feed(piece):
            log.info("spark_output", line=line)
    for line in cutter.finish():
        log.info("spark_output", line=line)
