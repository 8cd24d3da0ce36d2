"""Every call that only Linux has, and what does the same on macOS.

With `KCL_POSIX_ONLY=1` Linux is taken for such a system, and there is no branch for macOS alone: the tests run what a
Mac runs.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

import anyio

POSIX_ONLY: Final = "KCL_POSIX_ONLY"
LINUX: Final = sys.platform == "linux" and os.environ.get(POSIX_ONLY) != "1"
PROC: Final = Path("/proc") if LINUX else None
# Without a descriptor that tells the end. Most ends show at once, because stderr closes with the process.
_NOW_AND_THEN_S: Final = 0.5
_SOON_S: Final = 0.001
_PACKET_BYTES: Final = 64 * 1024
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
# From malloc.h. Up to so much is kept; mmap is for what is larger than any answer.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 * 2**20
_MMAP_BYTES: Final = 32 * 2**20


class Seen(Enum):
    RUNS = "runs"
    ENDED = "has ended, not reaped: its number is still that of its group"
    LOST = "reaped by somebody else: its number may be that of another process"


class Leader(ABC):
    def __init__(self, pid: int) -> None:
        self.pid: Final = pid
        self._is_closed = anyio.Event()

    @abstractmethod
    def look(self) -> Seen: ...

    def pipe_closed(self) -> None:
        self._is_closed.set()

    async def ended(self) -> Seen:
        """Returns without a pause after the look that found it ended.

        A look takes some microseconds. A process that closes its stderr and runs on is looked at less and less often.
        """
        pause_s = _SOON_S
        while (seen := self.look()) is Seen.RUNS:
            if self._is_closed.is_set():
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, _NOW_AND_THEN_S)
            else:
                with anyio.move_on_after(_NOW_AND_THEN_S):
                    await self._is_closed.wait()
        return seen


class _LinuxChild(Leader):
    def look(self) -> Seen:
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return Seen.LOST
        return Seen.RUNS if found is None else Seen.ENDED

    async def ended(self) -> Seen:
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:  # no descriptors, or a kernel before 5.3
            return await super().ended()
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        return self.look()


class _LinuxFork(Leader):
    """Forked by another process, so `waitid` knows nothing of it. `ended` closes the descriptor."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self._pidfd = os.pidfd_open(pid)

    def look(self) -> Seen:
        return Seen.RUNS

    async def ended(self) -> Seen:
        try:
            await anyio.wait_readable(self._pidfd)
        finally:
            os.close(self._pidfd)
        return Seen.ENDED


class _PosixLeader(Leader):
    """A child of this process or of another one.

    macOS has `waitid` only from Python 3.13 on, and `waitpid` reaps. But one that has ended is a zombie until it is
    reaped, and psutil compares the time it started, and so sees that the number is another's by now.
    """

    def __init__(self, pid: int) -> None:
        import psutil

        super().__init__(pid)
        self._psutil = psutil
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess as error:
            raise ProcessLookupError from error

    def look(self) -> Seen:
        try:
            if not self._process.is_running():
                return Seen.LOST
            is_zombie = self._process.status() == self._psutil.STATUS_ZOMBIE
        except self._psutil.ZombieProcess:
            return Seen.ENDED
        except self._psutil.NoSuchProcess:
            return Seen.LOST
        return Seen.ENDED if is_zombie else Seen.RUNS

    def is_forked_by(self, template: int) -> bool:
        """On macOS a zombie tells no group; a signal to its number reaches its group or nothing."""
        try:
            if self._process.ppid() != template:
                return False
            return self.look() is Seen.ENDED or os.getpgid(self.pid) == self.pid
        except self._psutil.NoSuchProcess as error:
            raise ProcessLookupError from error


def child_leader(pid: int) -> Leader:
    """`pid`: a child of this process, which we have not reaped."""
    if LINUX:
        return _LinuxChild(pid)
    try:
        return _PosixLeader(pid)
    except ProcessLookupError:
        return _Lost(pid)


class _Lost(Leader):
    def look(self) -> Seen:
        return Seen.LOST


def fork_leader(pid: int, template: int) -> Leader | None:
    """None: it leads no group of its own, so that a signal would reach others. ProcessLookupError: it has ended.

    `template` must be its parent; on Linux the number comes from the kernel.
    """
    if pid <= 1:
        return None
    if LINUX:
        return _LinuxFork(pid) if os.getpgid(pid) == pid else None
    leader = _PosixLeader(pid)
    return leader if leader.is_forked_by(template) else None


def kill_rest(group: int, number: int) -> bool:
    """For a group whose leader has ended and is not reaped. False: it has a process that we may not signal."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        # macOS says so of a group with only zombies, too, and that is nearly always the case.
        return not LINUX
    return True


def enlarge_pipe(fd: int, size_bytes: int) -> None:
    """A user with too many large pipes is refused; other systems size pipes themselves."""
    if LINUX:
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size_bytes)


def limit_process(pid: int, limits: Sequence[tuple[int, int]]) -> None:
    """Not what it forked already; OSError if this process may not set the limit."""
    assert LINUX or not limits, "limits are refused where there is no prlimit"
    for kind, most in limits:
        try:
            resource.prlimit(pid, kind, (most, most))
        except ProcessLookupError:
            return


class TemplateSocket(ABC):
    def __init__(self, kind: socket.SocketKind) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, kind)
        self._ours.setblocking(False)

    def close(self) -> None:
        anyio.notify_closing(self._ours)
        self._ours.close()

    @abstractmethod
    async def send(self, line: bytes, descriptors: Sequence[int]) -> None:
        """OSError when the template has closed its end."""

    @abstractmethod
    async def receive(self) -> tuple[bytes, int | None]:
        """A message, empty at the end, and who sent it, if the kernel tells; OSError, ClosedResourceError."""


class _Packets(TemplateSocket):
    def __init__(self) -> None:
        super().__init__(socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    async def send(self, line: bytes, descriptors: Sequence[int]) -> None:
        socket.send_fds(self._ours, [line], descriptors)

    async def receive(self) -> tuple[bytes, int | None]:
        await anyio.wait_readable(self._ours)
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        packet, control, _, _ = self._ours.recvmsg(_PACKET_BYTES, room)
        return (packet, _CREDENTIALS.unpack(control[0][2])[0]) if control else (b"", None)


class _Lines(TemplateSocket):
    """A message ends with its line, or with its JSON object, as a program for packets sends it."""

    def __init__(self) -> None:
        super().__init__(socket.SOCK_STREAM)

    async def send(self, line: bytes, descriptors: Sequence[int]) -> None:
        rest = line[socket.send_fds(self._ours, [line], descriptors) :]
        while rest:
            await anyio.wait_writable(self._ours)
            with suppress(BlockingIOError):
                rest = rest[self._ours.send(rest) :]

    async def receive(self) -> tuple[bytes, int | None]:
        message = b""
        while not _is_whole(message) and len(message) < _PACKET_BYTES:
            await anyio.wait_readable(self._ours)
            piece = self._ours.recv(_PACKET_BYTES)
            if not piece:
                break
            message += piece
        return message, None


def _is_whole(message: bytes) -> bool:
    if message.endswith((b"}", b"]")):
        from kcl_protocol.codec import plain_load  # only where there are no packets

        with suppress(ValueError):
            plain_load(message)
            return True
    return message.endswith(b"\n")


def template_socket() -> TemplateSocket:
    return _Packets() if LINUX else _Lines()


def boot_id(proc: Path | None = PROC) -> str | None:
    """The same in all containers on a host until that is started again."""
    if proc is None:
        return None
    try:
        return (proc / "sys/kernel/random/boot_id").read_text("ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def keep_freed_memory() -> bool:
    """Let malloc give back what the start has freed, then keep the memory of a batch for the next one.

    To get it anew costs a third of the record path. False where malloc is not that of glibc.
    """
    if not LINUX:
        return False
    try:
        libc = ctypes.CDLL(None)
        mallopt, trim = libc.mallopt, libc.malloc_trim
    except (AttributeError, OSError):
        return False
    trim(0)
    return bool(mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
