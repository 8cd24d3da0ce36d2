"""Forks children from a template: a process that has imported the program once (`childPreload`).

The fork itself answers over a Unix socket, so its number comes from the kernel and not from a program that may run as
another user. If the kernel does not tell, the fork says its number, and must be a child of the template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from anyio import CancelScope, ClosedResourceError, Lock

from kcl_daemon.children import platform
from kcl_daemon.children.start import UNKNOWN_STATUS, StartedProcess, child_pipes
from kcl_daemon.errors import ChildError, describe_exit
from kcl_daemon.ports import Child, Clock, Log

_PRELOAD_S: Final = 120.0
_ANSWER_S: Final = 30.0
_END_S: Final = 2.0
_AGAIN_S: Final = 600.0
_TRIES: Final = 2
_ENDED: Final = "it has ended"
_Answer: TypeAlias = tuple[dict[str, Any], int | None]
"""With the process that sent it, if the kernel tells."""


class _TemplateLost(ChildError):
    """Another template may work."""


class _ForkRefused(ChildError):
    """The template lives on."""


class Preload:
    """At most one template, started for the first child, and once more if it has died."""

    def __init__(self, start: Callable[[int], Child], log: Log, clock: Clock) -> None:
        self._start = start
        self._log = log
        self._clock = clock
        self._turn = Lock()
        self._template: _Template | None = None
        self._not_before_s = clock.monotonic()

    async def fork(self, environment: Mapping[str, str]) -> StartedProcess | None:
        """None: this child must be started the ordinary way. If cancelled, nothing was forked.

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
        self._connection = platform.template_socket()
        self.is_preloaded = False
        self.status: int | None = None
        try:
            with self._connection.theirs as theirs:
                self.process = start(theirs.fileno())
        except BaseException:
            self._connection.close()
            raise

    async def fork(self, environment: Mapping[str, str]) -> StartedProcess:
        await self._preloaded()
        with child_pipes() as (theirs, ours):
            answer, sender = await self._ask({"action": "fork", "env": environment}, theirs)
            if "error" in answer:
                raise _ForkRefused(str(answer["error"]))
            said = answer.get("pid")
            leader = _leader(said if sender is None else sender, self.process.pid)
            return StartedProcess(leader, *ours, partial(self._reap, said))

    async def aclose(self) -> None:
        """`status` is known afterwards unless it had to be killed. Shielded; takes some seconds at most."""
        self._connection.close()
        with CancelScope(shield=True):
            with self._clock.move_on_after(_END_S):
                self.status = await self.process.wait()
            await self.process.aclose()

    async def _preloaded(self) -> None:
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
                return await self._receive(_ANSWER_S, json.dumps(request).encode() + b"\n", descriptors)
        raise AssertionError("a shielded scope was cancelled")

    async def _receive(
        self, seconds: float, request: bytes = b"", descriptors: Sequence[int] = ()
    ) -> _Answer:
        with self._clock.move_on_after(seconds):
            try:
                if request:
                    await self._connection.send(request, descriptors)
                packet, sender = await self._connection.receive()
            except (OSError, ClosedResourceError) as error:
                raise _TemplateLost(_ENDED) from error
            return _decoded(packet), sender
        raise _TemplateLost(f"it did not answer within {seconds:.0f} s")


def _decoded(packet: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        answer = json.loads(packet)
        if isinstance(answer, dict):
            return answer
    raise _TemplateLost(f"it said what is no JSON object: {packet[:80]!r}" if packet else _ENDED)


def _leader(pid: object, template: int) -> platform.Leader:
    """Signals go to its group, so that must not be ours or another process's."""
    try:
        leader = platform.fork_leader(pid, template) if isinstance(pid, int) else None
    except ProcessLookupError as error:
        raise _TemplateLost(_ENDED) from error
    if leader is None:
        raise _ForkRefused(f"the fork {pid} must lead a process group of its own, and answer itself")
    return leader
