"""Ctrl-C at any moment of any command: exit code 130 and no traceback."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

INTERRUPTED = 130
PROPERTIES = (
    "executableName = python -c 0\napplicationName = app\nstreamName = orders\nregionName = us-east-1\n"
    "kinesisEndpoint = {endpoint}\ndynamoDBEndpoint = {endpoint}\n"
)
# As `kcl_daemon.__main__` begins; what the interpreter itself does before that takes longer on a busy machine.
PROGRAM = (
    "from kcl_daemon import interrupt; interrupt.begin(); print(flush=True)\n"
    "from kcl_daemon.__main__ import main; main()"
)
PROCESSOR = "import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(60)"


def interrupted(words: list[str], directory: Path, *, after_s: float) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that got SIGINT so long after its first statement."""
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as mute:  # it connects and never answers: no command ends by itself
        endpoint = f"http://127.0.0.1:{mute.getsockname()[1]}"
        (directory / "app.properties").write_text(PROPERTIES.format(endpoint=endpoint), encoding="ascii")
        return signalled(words, directory, after_s=after_s)


def signalled(words: list[str], directory: Path, *, after_s: float) -> tuple[int, str, str]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=directory,
        env={
            **os.environ,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_EC2_METADATA_DISABLED": "true",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            Event().wait(after_s)
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=60)
        finally:
            process.kill()
        return process.returncode, out, said


@pytest.mark.parametrize("after_s", [0, 0.03, 0.1, 0.2, 0.35, 0.5, 0.8, 1.2])
@pytest.mark.parametrize(
    "words",
    [
        ["local"],
        ["run-child", "--", sys.executable, "-c", PROCESSOR],
        ["leases", "explain", "app.properties", "--watch", "60"],
    ],
    ids=["local", "run-child", "explain"],
)
def test_ctrl_c_ends_a_command_with_130_from_the_first_moment_on(
    tmp_path: Path, words: list[str], after_s: float
) -> None:
    code, out, said = interrupted(words, tmp_path, after_s=after_s)
    assert "Traceback" not in said
    # Endpoints that are up stop in order.
    assert code == INTERRUPTED or (code == 0 and "AWS_ENDPOINT_URL_KINESIS" in out), said


@pytest.mark.parametrize("after_s", [0, 0.05, 0.1, 0.2, 0.3])
def test_ctrl_c_ends_a_daemon_that_is_not_up_with_130(tmp_path: Path, after_s: float) -> None:
    code, _, said = interrupted(["app.properties"], tmp_path, after_s=after_s)
    assert "Traceback" not in said
    # Where the machine is fast, it has begun: then it stops in order.
    assert code == INTERRUPTED or "stop_requested" in said, said


def test_ctrl_c_at_a_prompt_is_130(tmp_path: Path) -> None:
    ask = (
        "import click, kcl_daemon.cli.leases.command as leases, kcl_daemon.__main__ as program, sys\n"
        "leases.tree.callback = lambda **_: click.confirm('reset?', abort=True)\n"
        "sys.argv[1:] = ['leases', 'tree']\n"
        "program.main()\n"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", ask], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while b"reset?" not in said:
            said += os.read(ours, 4096)
        code = None
        while (
            code is None
        ):  # the first may come right before it reads, which CPython does not notice until then
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=5)  # another one while it ends would end it otherwise
        os.close(ours)
    assert code == INTERRUPTED
