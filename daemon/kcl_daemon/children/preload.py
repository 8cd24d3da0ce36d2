"""Forks children from a template: a process that has imported the program once (`childPreload`).

The daemon asks for one thing at a time, over a Unix socket of packets. The forked child itself answers a
`fork`, so that its number comes from the kernel and not from a program that may run as another user.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
from anyio import CancelScope, ClosedResourceError, Lock

from kcl_daemon.children.start import UNKNOWN_STATUS, StartedProcess, child_pipes
from kcl_daemon.errors import ChildError, describe_exit
from kcl_daemon.ports import Child, Clock, Log

_PRELOAD_S: Final = 120.0
_ANSWER_S: Final = 30.0
_END_S: Final = 2.0
_AGAIN_S: Final = 600.0
_TRIES: Final = 2  # a template that has died is replaced
_PACKET_BYTES: Final = 64 * 1024
_ENDED: Final = "it has ended"
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_Answer: TypeAlias = tuple[dict[str, Any], int]
"""And the process that sent it."""


class _TemplateLost(ChildError):
    """It has ended, or does not answer as it must: another one may."""


class _ForkRefused(ChildError):
    """The template lives on."""


class Preload:
    """At most one template; it is started for the first child."""

    def __init__(self, start: Callable[[int], Child], log: Log, clock: Clock) -> None:
        self._start = start
        self._log = log
        self._clock = clock
        self._turn = Lock()
        self._template: _Template | None = None
        self._not_before_s = clock.monotonic()

    async def fork(self, environment: Mapping[str, str]) -> StartedProcess | None:
        """None: this child must be started the ordinary way. If cancelled, nothing was forked.

        Raises:
            ChildStartFailed: the template cannot be started, and so no child.
        """
        async with self._turn:
            for _ in range(_TRIES):
                if self._clock.monotonic() < self._not_before_s:
                    break
                try:
                    template = self._template or _Template(self._start, self._log, self._clock)
                    self._template = template
                    return await template.fork(environment)
                except _TemplateLost as lost:
                    await self._end(str(lost))
                except _ForkRefused as refused:
                    self._give_up(str(refused))
                except OSError:  # no descriptors: the ordinary start says what to do
                    break
        return None

    async def aclose(self) -> None:
        template, self._template = self._template, None
        if template is not None:
            await template.aclose()

    async def _end(self, error: str) -> None:
        template = self._template
        assert template is not None, "it was lost while it was used"
        await self.aclose()
        error = error if template.status is None else f"{error}: {describe_exit(template.status)}"
        if template.is_preloaded:
            self._log.warning("child_template_lost", pid=template.process.pid, error=error)
        else:
            self._give_up(error)

    def _give_up(self, error: str) -> None:
        self._not_before_s = self._clock.monotonic() + _AGAIN_S
        self._log.error(
            "child_template_failed",
            error=error,
            next_try_s=_AGAIN_S,
            advice="children are started one by one, without childPreload: read the child_stderr lines of the "
            "template; if the program does not use kcl_client or the start protocol, remove childPreload",
        )


class _Template:
    def __init__(self, start: Callable[[int], Child], log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._began_s = clock.monotonic()
        self._turn = Lock()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.setblocking(False)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.is_preloaded = False
        self.status: int | None = None
        try:
            with theirs:
                self.process = start(theirs.fileno())
        except BaseException:
            self._connection.close()
            raise

    async def fork(self, environment: Mapping[str, str]) -> StartedProcess:
        await self._preloaded()
        with child_pipes() as (theirs, ours):
            answer, pid = await self._ask({"action": "fork", "env": environment}, theirs)
            if "error" in answer:
                raise _ForkRefused(str(answer["error"]))
            return StartedProcess(pid, *ours, partial(self._reap, answer.get("pid")), _pidfd_of_leader(pid))

    async def aclose(self) -> None:
        """`status` is known afterwards unless it had to be killed. Shielded; takes some seconds at most."""
        anyio.notify_closing(self._connection)
        self._connection.close()
        with CancelScope(shield=True):
            with self._clock.move_on_after(_END_S):
                self.status = await self.process.wait()
            await self.process.aclose()

    async def _preloaded(self) -> None:
        """Cancelling it harms nothing."""
        if self.is_preloaded:
            return
        await self.process.close_stdin()  # a program that knows nothing of templates ends
        answer, _ = await self._receive(self._began_s + _PRELOAD_S - self._clock.monotonic())
        if answer.get("action") != "preloaded":
            raise _TemplateLost(f"it said {answer} instead of preloaded")
        self.is_preloaded = True
        took_s = self._clock.monotonic() - self._began_s
        self._log.info("child_template_started", pid=self.process.pid, seconds=round(took_s, 3))

    async def _reap(self, pid: object) -> int:
        try:
            answer, _ = await self._ask({"action": "reap", "pid": pid})
        except _TemplateLost:
            return UNKNOWN_STATUS
        status = answer.get("status")
        return status if isinstance(status, int) else UNKNOWN_STATUS

    async def _ask(self, request: Mapping[str, object], descriptors: Sequence[int] = ()) -> _Answer:
        """Shielded: nobody else may read this answer."""
        with CancelScope(shield=True):
            async with self._turn:
                try:
                    socket.send_fds(self._connection, [json.dumps(request).encode() + b"\n"], descriptors)
                except OSError as error:
                    raise _TemplateLost(_ENDED) from error
                return await self._receive(_ANSWER_S)
        raise AssertionError("a shielded scope was cancelled")

    async def _receive(self, seconds: float) -> _Answer:
        with self._clock.move_on_after(seconds):
            try:
                await anyio.wait_readable(self._connection)
                room = socket.CMSG_SPACE(_CREDENTIALS.size)
                packet, control, _, _ = self._connection.recvmsg(_PACKET_BYTES, room)
                pid = _CREDENTIALS.unpack(control[0][2])[0]
            except (OSError, ClosedResourceError, LookupError) as error:
                raise _TemplateLost(_ENDED) from error
            return _decoded(packet), pid
        raise _TemplateLost(f"it did not answer within {seconds:.0f} s")


def _decoded(packet: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        answer = json.loads(packet)
        if isinstance(answer, dict):
            return answer
    raise _TemplateLost(f"it said what is no JSON object: {packet[:80]!r}" if packet else _ENDED)


def _pidfd_of_leader(pid: int) -> int:
    """Signals go to its group: never to that of another process, or to ours."""
    try:
        if pid > 1 and os.getpgid(pid) == pid:
            return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise _TemplateLost(_ENDED) from error
    raise _ForkRefused(f"the fork {pid} must lead a process group of its own, and answer itself")
