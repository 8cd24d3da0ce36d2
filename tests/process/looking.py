"""`put`, `tail` and `peek` as programs, for their tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.request import Request, urlopen

from tests.process.commands import run_command
from tests.process.local import Local

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

COMMAND: Final = (sys.executable, "-W", "error", "-m", "kcl_daemon")
END_S: Final = 60.0


class Program:
    """A running command whose lines on stdout are read meanwhile."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.said = ""
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            Thread(target=self._read, args=(process.stdout,)),
            Thread(target=self._hear, args=(process.stderr,)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            self.lines.append(line.decode().rstrip("\n"))

    def _hear(self, stderr: IO[bytes]) -> None:
        for line in stderr:
            self.said += line.decode()

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close(self) -> None:
        """Its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> int:
        code = self.process.wait(END_S)
        for reader in self._readers:
            reader.join(END_S)
        return code


@contextmanager
def program(*words: str, directory: Path, environment: Mapping[str, str]) -> Generator[Program]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with subprocess.Popen(
        [*COMMAND, *words],
        cwd=directory,
        env={**kept, "AWS_EC2_METADATA_DISABLED": "true", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        running = Program(process)
        try:
            yield running
        finally:
            process.kill()
            running.end()


def command(local: Local, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One that ends by itself."""
    return run_command(*words, directory=directory, environment=local.environment)


def tailed(local: Local, directory: Path, stream: str, *words: str) -> list[dict[str, Any]]:
    """All there is in a stream now."""
    ended = command(
        local, directory, "tail", stream, "--from", "TRIM_HORIZON", "--until", "tip", "--json", *words
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def fault(local: Local, **order: object) -> None:
    request = Request(f"{local.kinesis_url}/_local/faults", data=json.dumps(order).encode())
    with urlopen(request) as answer:
        assert answer.status == 204


def no_faults(local: Local) -> None:
    with urlopen(Request(f"{local.kinesis_url}/_local/faults", method="DELETE")) as answer:
        assert answer.status == 204


def stored(kinesis: KinesisClient, stream: str) -> list[dict[str, Any]]:
    """Every record of a stream, as it is there."""
    found: list[dict[str, Any]] = []
    for shard in kinesis.list_shards(StreamName=stream)["Shards"]:
        asked = kinesis.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )
        iterator = asked["ShardIterator"]
        while iterator:
            answer = kinesis.get_records(ShardIterator=iterator)
            found += [dict(record) for record in answer["Records"]]
            iterator = answer.get("NextShardIterator", "") if answer["Records"] else ""
    return found
