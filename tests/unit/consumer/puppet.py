"""A child whose strings the test pulls: it hears what is sent and says what the test tells it to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio

from kcl_daemon.errors import ChildExited
from kcl_protocol.codec import FRAME_START, decode_daemon_line, encode
from kcl_protocol.frames import decode_frame
from kcl_protocol.messages import CheckpointAnswer, CheckpointRequest, DaemonMessage, ProcessRecords, Status

Answer = Callable[[DaemonMessage], bytes | None]


def obedient(message: DaemonMessage) -> bytes | None:
    """Answers every action with its status."""
    return None if isinstance(message, CheckpointAnswer) else encode(Status(message.action))


def saying(*lines: bytes) -> Answer:
    """Answers with these, one after another, and then falls silent."""
    left = deque(lines)
    return lambda message: left.popleft() if left else None


def checkpoint_then_status(
    sequence_number: str | None = None, sub_sequence_number: int | None = None
) -> Answer:
    """Asks for a checkpoint in every action, and answers the action once it has its answer."""
    doing: list[str] = []

    def answer(message: DaemonMessage) -> bytes | None:
        if isinstance(message, CheckpointAnswer):
            return encode(Status(doing.pop()))
        doing.append(message.action)
        return encode(CheckpointRequest(sequence_number, sub_sequence_number))

    return answer


class Puppet:
    """The Child port without a process."""

    def __init__(self, answer: Answer = obedient) -> None:
        self.heard: list[DaemonMessage] = []
        self.answer = answer
        self.status: int | None = None
        self.signals: list[str] = []
        self.deaf_to: set[str] = set()
        self._out: deque[bytes] = deque()
        self._said = anyio.Event()
        self._ended = anyio.Event()
        self._stdout_closed = False

    @property
    def pid(self) -> int:
        return 4711

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        return ("last words",)

    async def send(self, line: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self.status is not None:
            raise ChildExited("writing", self.status)
        is_frame = line.startswith(FRAME_START)
        for each in (line,) if is_frame else line.splitlines():
            message = ProcessRecords(*decode_frame(each)) if is_frame else decode_daemon_line(each)
            self.heard.append(message)
            reply = self.answer(message)
            if reply is not None:
                self.say(reply)

    def say(self, data: bytes) -> None:
        """Print something of its own accord."""
        self._out.append(data)
        self._said.set()

    async def receive(self) -> bytes:
        while not self._out and not self._stdout_closed:
            self._said = anyio.Event()
            await self._said.wait()
        return self._out.popleft() if self._out else b""

    async def until_reading(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def close_stdin(self) -> None:
        self.signals.append("EOF")
        if "EOF" not in self.deaf_to:
            self.end(0)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.status is not None
        return self.status

    def terminate(self) -> None:
        self.signals.append("TERM")
        if "TERM" not in self.deaf_to:
            self.end(-15)

    def kill(self) -> None:
        self.signals.append("KILL")
        self.end(-9)

    async def aclose(self) -> None:
        self.end(-9)

    def close_stdout(self) -> None:
        """Say nothing more, but live on."""
        self._stdout_closed = True
        self._said.set()

    def end(self, status: int) -> None:
        """Go."""
        if self.status is None:
            self.status = status
            self._ended.set()
        self.close_stdout()
