"""Fixtures of the peer tier: Kinesis is kinesis-local (Node), DynamoDB is ours."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from kcl_local.demo.check import monotonic_s
from tests.process.daemon import wait_until
from tests.process.local import Local, local_process

PROGRAM: Final = "PEER_KINESIS_LOCAL"
UP_WITHIN_S: Final = 60.0


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Generator[Local, None, None]:
    """Local endpoints of which the one for Kinesis is kinesis-local."""
    program = Path(os.environ[PROGRAM])
    with (
        local_process() as ours,
        kinesis_local(program, tmp_path_factory.mktemp("kinesis-local")) as url,
    ):
        yield replace(ours, kinesis_url=url)


@contextmanager
def kinesis_local(program: Path, folder: Path) -> Generator[str, None, None]:
    """The program while the block runs, and where it answers."""
    plain, tls = free_port(), free_port()
    environment = {
        **os.environ,
        "KINESIS_MOCK_PLAIN_PORT": str(plain),
        "KINESIS_MOCK_TLS_PORT": str(tls),
        "KINESIS_MOCK_CERT_PATH": str(program.with_name("server.json")),
        "LOG_LEVEL": "ERROR",
    }
    command = ["node", "--require", str(Path(__file__).with_name("loopback.js")), str(program)]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log) as process,
    ):
        try:
            began_s = monotonic_s()
            wait_until(
                lambda: answers(plain) or process.poll() is not None, "kinesis-local is up", UP_WITHIN_S
            )
            assert process.poll() is None, (folder / "log").read_text()
            print(f"kinesis-local is up after {monotonic_s() - began_s:.1f} s")  # noqa: T201
            yield f"http://127.0.0.1:{plain}"
        finally:
            process.kill()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
