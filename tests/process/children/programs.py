"""The programs that the tests start as children: `python programs.py NAME [ARGUMENT]`. Standard library only."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress


def write_all(fd: int, data: bytes) -> None:
    """os.write takes what fits."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def live_on() -> None:
    """Until a signal ends it."""
    while True:
        signal.pause()


def echo(_: str) -> None:
    """Every line back; ends with 0 at the end of stdin."""
    for line in sys.stdin.buffer:
        write_all(1, line)


def slow_echo(_: str) -> None:
    """Everything back in small pieces."""
    while piece := os.read(0, 4096):
        write_all(1, piece)


def sink(_: str) -> None:
    """Reads and drops."""
    while os.read(0, 1 << 18):
        pass


def exit_with(code: str) -> None:
    """Ends at once."""
    sys.exit(int(code))


def deaf(_: str) -> None:
    """Never reads; ends by a signal only."""
    live_on()


def mute(_: str) -> None:
    """Closes stdout, lives on to the end of stdin, ends with 0."""
    os.close(1)
    sink("")


def stubborn(_: str) -> None:
    """Ignores SIGTERM and the end of stdin; says `ready` once it does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write_all(1, b"ready\n")
    live_on()


def parent(how: str) -> None:
    """Starts a grandchild that keeps all pipes, tells both pids, and waits for the end of stdin.

    `same`: in the same session; `away`: in its own one.
    """
    grandchild = os.fork()
    if grandchild == 0:
        if how == "away":
            os.setsid()
        write_all(1, f"{os.getpid()}\n".encode())
        live_on()
    sink("")


def last_words(text: str) -> None:
    """A process that moved away keeps all pipes open; this one writes on both and ends with 4."""
    if os.fork() == 0:
        os.setsid()
        write_all(1, f"{os.getpid()}\n".encode())
        live_on()
    sys.stdin.buffer.readline()
    write_all(1, f"out {text}\n".encode())
    write_all(2, f"err {text}".encode())
    os._exit(4)


def one_line(megabytes: str) -> None:
    """That many megabytes of bytes that are no text and no line on stdout."""
    piece = bytes([0xFF, 0x00, 0x80, 0x7B]) * 256 * 1024
    for _ in range(int(megabytes)):
        write_all(1, piece)


def flood(megabytes: str) -> None:
    """That many megabytes of lines on stderr, then echo."""
    lines = (b"e" * 1023 + b"\n") * 1024
    for _ in range(int(megabytes)):
        write_all(2, lines)
    write_all(2, b"end of flood\n")
    echo("")


def say(text: str) -> None:
    """Writes hexadecimal bytes to stderr and ends."""
    write_all(2, bytes.fromhex(text))


def report(_: str) -> None:
    """What a child sees of how it was started."""
    facts = {
        "session": os.getsid(0) == os.getpid(),
        "group": os.getpgid(0) == os.getpid(),
        "cwd": os.getcwd(),  # noqa: PTH109
        "mark": os.environ.get("KCL_TEST_MARK"),
        "fds": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],  # noqa: PTH208 - the last one is the listing
        "blocking": all(os.get_blocking(fd) for fd in range(3)),
    }
    write_all(1, f"{facts}\n".encode())


PROGRAMS: dict[str, Callable[[str], None]] = {
    program.__name__: program
    for program in (
        echo,
        slow_echo,
        sink,
        exit_with,
        deaf,
        mute,
        stubborn,
        parent,
        last_words,
        one_line,
        flood,
        say,
        report,
    )
}

if __name__ == "__main__":
    with suppress(BrokenPipeError):
        PROGRAMS[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")
