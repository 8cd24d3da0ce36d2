"""Daemons that are forked where everything is imported already: a sixth of the CPU that `python -m kcl_daemon` takes to start.

What is forked does what the program does from `main()` on, as a process of its own: with its own directory, environment,
signals and exit code. That the program itself starts is shown where it is started as users do, in `test_cli_process`,
`test_daemon_signals`, `test_bounds` and `test_demo`. Linux only, as the daemon.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

_ROOT: Final = Path(__file__).parents[2]
# What every daemon loads sooner or later.
IMPORTED: Final = ("kcl_daemon.cli.run", "anyio._backends._asyncio")
SERVICES: Final = ("kinesis", "dynamodb")
_REQUEST_MOST_BYTES: Final = 1 << 17
_DESCRIPTORS_MOST: Final = 256
_END_S: Final = 60.0


class ForkedProcess:
    """What is used of `subprocess.Popen`; only one thread may wait for it."""

    def __init__(self, pid: int, status: IO[bytes], stderr: IO[str]) -> None:
        self.pid = pid
        self.stderr = stderr
        self.returncode: int | None = None
        self._status = status

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; subprocess.TimeoutExpired where it has not come in time."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("a forked daemon", timeout or 0.0)
            self.returncode = int(self._status.readline())
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._status.close()
        self.stderr.close()


def fork_daemon(words: Sequence[str], directory: Path, environment: Mapping[str, str]) -> ForkedProcess:
    """A daemon with this command line, folder and whole environment; its stdin and stdout lead nowhere."""
    stderr, its_stderr = os.pipe()
    status, its_status = os.pipe()
    request = json.dumps([list(words), str(directory), dict(environment)]).encode()
    try:
        socket.send_fds(_server(), [request], [its_stderr, its_status])
    finally:
        os.close(its_stderr)
        os.close(its_status)
    reported = os.fdopen(status, "rb", buffering=0)
    return ForkedProcess(int(reported.readline()), reported, os.fdopen(stderr, encoding="utf-8"))


@cache
def _server() -> socket.socket:
    """Where to ask for daemons of this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.process.forked"],
            cwd=_ROOT,
            env={**kept, "PYTHONPATH": path},
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        process.wait(_END_S)

    atexit.register(end)
    return ours


class _Start(NamedTuple):
    words: list[str]
    directory: str
    environment: dict[str, str]


def _prepare() -> None:
    """Import and read what every daemon does, so that those that are forked share it."""
    for name in IMPORTED:
        importlib.import_module(name)
    session = importlib.import_module("botocore.session").get_session()
    for service in SERVICES:
        session.create_client(
            service, region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"
        ).close()
    gc.collect()
    gc.freeze()


def _serve(control: socket.socket) -> _Start | None:
    """Fork for each request. Returns in what was forked, with what it is to be, and None when nobody asks any more."""
    statuses: dict[int, tuple[int, int]] = {}
    with selectors.PollSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in statuses:
                    selector.unregister(key.fd)
                    _report_end(key.fd, *statuses.pop(key.fd))
                    continue
                request, descriptors, _, _ = socket.recv_fds(control, _REQUEST_MOST_BYTES, 2)
                if not request:
                    return None
                stderr, status = descriptors
                pid = os.fork()
                if pid == 0:
                    os.dup2(stderr, 2)
                    control.detach()
                    os.closerange(3, _DESCRIPTORS_MOST)
                    return _Start(*json.loads(request))
                os.close(stderr)
                os.write(status, b"%d\n" % pid)
                ended = os.pidfd_open(pid)
                statuses[ended] = (pid, status)
                selector.register(ended, selectors.EVENT_READ)


def _report_end(ended: int, pid: int, status: int) -> None:
    os.close(ended)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):  # whoever asked for it is gone
        os.write(status, b"%d\n" % code)
    os.close(status)


def _become(start: _Start) -> None:
    """This process is the daemon from now on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    os.chdir(start.directory)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.path[0] = start.directory
    sys.argv = ["kcl-daemon", *start.words]


def main() -> None:
    """Serve; in what is forked, run the daemon."""
    # Ctrl-C is for those who ask, and for what they have started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from tests.models import read_once  # not needed where daemons are asked for

    with read_once():
        _prepare()
        with socket.socket(fileno=0) as control:  # in what is forked it is detached already
            start = _serve(control)
        if start is not None:
            _become(start)
            importlib.import_module("kcl_daemon.__main__").main()


if __name__ == "__main__":
    main()
