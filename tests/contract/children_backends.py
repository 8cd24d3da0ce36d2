"""The adapters of the port `Children` that must keep its contract. Add a factory to `BACKENDS` to put one more to it."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum

import pytest

from kcl_daemon.children import platform
from kcl_daemon.children.start import ChildOptions
from kcl_daemon.ports import Children
from tests.process.children.support import RecordingLog, children_of, command, preloaded


class Program(Enum):
    """What the started program does; a backend stands in for each."""

    ECHO = "gives every line back; ends with 0 at the end of stdin; SIGTERM ends it"
    EXIT_3 = "ends at once with exit code 3"
    DEAF = "never reads its stdin; a signal ends it"
    MUTE = "closes its stdout at once, reads and drops its stdin, ends with 0 at its end"
    STUBBORN = "ignores SIGTERM and the end of stdin; writes `ready` and LF once it does"
    MISSING = "cannot be started"


@dataclass(frozen=True)
class ChildrenBackend:
    """One adapter.

    Args:
        name: shown in the test's id.
        open: a `Children` that starts this program, for as long as the context lasts.
        anyio_backend: the event loop that it needs, as the anyio plugin takes it (virtual time for a simulated one).
    """

    name: str
    open: Callable[[Program], AbstractAsyncContextManager[Children]]
    anyio_backend: tuple[str, dict[str, object]] = field(
        default_factory=lambda: ("asyncio", dict[str, object]())
    )


_COMMANDS: dict[Program, tuple[str, ...]] = {
    Program.ECHO: command("echo"),
    Program.EXIT_3: command("exit_with", "3"),
    Program.DEAF: command("deaf"),
    Program.MUTE: command("mute"),
    Program.STUBBORN: command("stubborn"),
    Program.MISSING: ("/nowhere/program",),
}


@asynccontextmanager
async def _processes(program: Program) -> AsyncGenerator[Children]:
    async with children_of(_COMMANDS[program]) as children:
        yield children


@asynccontextmanager
async def _processes_without_pidfd(program: Program) -> AsyncGenerator[Children]:
    def refused(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "as kernels before 5.3 say")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pidfd_open", refused)
        async with children_of(_COMMANDS[program]) as children:
            yield children


@asynccontextmanager
async def _processes_elsewhere(program: Program) -> AsyncGenerator[Children]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "LINUX", False)
        async with children_of(_COMMANDS[program]) as children:
            yield children


_FORKED: dict[Program, tuple[str, ...]] = {
    program: argv if program is Program.MISSING else preloaded(*argv[-2:])
    for program, argv in _COMMANDS.items()
}


@asynccontextmanager
async def _forked(program: Program) -> AsyncGenerator[Children]:
    log = RecordingLog()
    async with children_of(_FORKED[program], log, ChildOptions(preload=True)) as children:
        yield children
    expected = [] if program is Program.MISSING else ["child_template_started"]
    assert [event for _, event, _ in log.recorded.last] == expected


@asynccontextmanager
async def _forked_elsewhere(program: Program) -> AsyncGenerator[Children]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "LINUX", False)
        async with _forked(program) as children:
            yield children


BACKENDS: list[ChildrenBackend] = [
    ChildrenBackend("processes", _processes),
    ChildrenBackend("processes_without_pidfd", _processes_without_pidfd),
    ChildrenBackend("processes_elsewhere", _processes_elsewhere),
    ChildrenBackend("forked", _forked),
    ChildrenBackend("forked_elsewhere", _forked_elsewhere),
]
