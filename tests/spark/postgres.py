"""A PostgreSQL of its own for a test: on loopback, on a free port, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kcl_landing.control import monotonic_s, pause
from tests.ports import free_port

WITHIN_S = 60
USER = "kcl"


def programs() -> Path | None:
    """Where PostgreSQL's programs are; None: it is not installed."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@dataclass(frozen=True)
class Postgres:
    """A running one."""

    bin: Path
    port: int

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def query(self, sql: str) -> list[list[str]]:
        """The rows of a statement, as texts."""
        done = subprocess.run(
            [
                *(
                    str(self.bin / "psql"),
                    "-h",
                    "127.0.0.1",
                    "-p",
                    str(self.port),
                    "-U",
                    USER,
                    "-d",
                    "postgres",
                ),
                *("-A", "-t", "-F", "|", "-v", "ON_ERROR_STOP=1", "-q", "-c", sql),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=WITHIN_S,
        )
        return [line.split("|") for line in done.stdout.splitlines()]


@contextmanager
def postgres(programs_folder: Path) -> Generator[Postgres]:
    """A server for the time of the block; it refuses to run as root, so that root lends it another user's name."""
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="kcl-postgres-") as name:
        if user is not None:
            shutil.chown(name, user)
        port = free_port()
        data = Path(name) / "data"
        subprocess.run(
            [str(programs_folder / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-N"],
            check=True,
            capture_output=True,
            user=user,
            cwd=name,
        )
        server = subprocess.Popen(
            [
                *(str(programs_folder / "postgres"), "-D", str(data), "-p", str(port), "-k", name),
                *("-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user,
            cwd=name,
        )
        try:
            made = Postgres(programs_folder, port)
            _wait(made, server)
            yield made
        finally:
            server.terminate()
            server.wait(WITHIN_S)


def _wait(made: Postgres, server: subprocess.Popen[bytes]) -> None:
    deadline_s = monotonic_s() + WITHIN_S
    while True:
        try:
            made.query("SELECT 1")
        except subprocess.CalledProcessError:
            assert server.poll() is None, "PostgreSQL ended"
            assert monotonic_s() < deadline_s, "PostgreSQL does not answer"
            pause(0.1)
        else:
            return
