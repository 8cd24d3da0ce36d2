"""One run of the engine as a process: started, listened to, ended.

Owns its pipes and its process group. What its events mean is known to `supervisor`.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import anyio
import orjson
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from kcl_daemon.children.stderr import LineCutter
from kcl_daemon.ports import Clock, Log

Event = Mapping[str, object]
_EVENT_BYTES_MOST: Final = 8 * 1024 * 1024  # figures of thousands of shards


class EngineProcess:
    """An engine that has been started.

    Args:
        process: leads a process group of its own, in which its JVM is, too.
        clock: for the patience at its end.
    """

    def __init__(self, process: Process, clock: Clock) -> None:
        self._process = process
        self._clock = clock

    @classmethod
    async def start(
        cls, command: tuple[str, ...], options: bytes, clock: Clock, environment: Mapping[str, str]
    ) -> EngineProcess:
        """Start one in this environment and give it its options; OSError where that is impossible."""
        process = await anyio.open_process(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        with suppress(anyio.BrokenResourceError):  # its end tells more
            await process.stdin.send(options)
        return cls(process, clock)

    @property
    def pid(self) -> int:
        """Process id, and number of its process group."""
        return self._process.pid

    async def listen(self, on_event: Callable[[Event], None], log: Log) -> int:
        """Pass on what it says until it ends; the exit code. Its JVM and its workers are ended with it."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        code = 0
        async with anyio.create_task_group() as pipes:
            pipes.start_soon(_pass_on, self._process.stderr, log)
            await _events(self._process.stdout, on_event)
            code = await self._process.wait()
            self._signal_group(signal.SIGKILL)
        await self._process.aclose()
        return code

    async def stop(self, within_s: float) -> None:
        """SIGTERM, and SIGKILL to all of its group where that takes longer; `listen` goes on meanwhile."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        with self._clock.move_on_after(within_s):
            await self._process.wait()
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


async def _events(pipe: ByteReceiveStream, on_event: Callable[[Event], None]) -> None:
    lines = BufferedByteReceiveStream(pipe)
    with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
        while True:
            line = await lines.receive_until(b"\n", _EVENT_BYTES_MOST)
            on_event(orjson.loads(line))


async def _pass_on(pipe: ByteReceiveStream, log: Log) -> None:
    """What Spark, Java and the pipeline print."""
    cutter = LineCutter()
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for piece in pipe:
            for line in cutter.feed(piece):
                log.info("spark_output", line=line)
    for line in cutter.finish():
        log.info("spark_output", line=line)
