"""S3 servers of other people, each as a process on loopback."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.peers.conftest import UP_WITHIN_S, answers, free_port
from tests.process.daemon import wait_until

KEY: Final = "peerpeerpeer"


@dataclass(frozen=True, slots=True)
class Server:
    """`arguments` may name `{port}`, `{console}` and `{folder}`."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]

    @property
    def program(self) -> Path:
        return Path(os.environ["PEER_S3_SERVERS"]) / self.name


MINIO: Final = Server(
    "minio",
    [
        "server",
        "--quiet",
        "--address",
        "127.0.0.1:{port}",
        "--console-address",
        "127.0.0.1:{console}",
        "{folder}/data",
    ],
    {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": KEY, "MINIO_BROWSER": "off"},
)
VERSITY: Final = Server(
    "versitygw",
    ["--port", "127.0.0.1:{port}", "posix", "--sidecar", "{folder}/sidecar", "{folder}/data"],
    {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": KEY},
)


@contextmanager
def running(server: Server, folder: Path, port: int | None = None) -> Generator[str]:
    """The server with its data in a folder, and where it answers."""
    port = port or free_port()
    for name in ("data", "sidecar"):
        (folder / name).mkdir(exist_ok=True)
    words = {"port": str(port), "console": str(free_port()), "folder": str(folder)}
    command = [str(server.program), *(each.format_map(words) for each in server.arguments)]
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(
            command, env={**os.environ, **server.environment}, stdout=log, stderr=log
        ) as process,
    ):
        try:
            wait_until(
                lambda: answers(port) or process.poll() is not None, f"{server.name} is up", UP_WITHIN_S
            )
            assert process.poll() is None, Path(log.name).read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
