"""The matrix library x message x result: each message as the daemon writes it, given to each library.

`python -m tests.dropin.matrix` prints it for docs/from-java.md; a test compares the two.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from typing import Final

from kcl_protocol.codec import encode
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    RecordSchema,
    ShardEnded,
    ShutdownRequested,
)
from tests.dropin.libraries import LIBRARIES, Library

ROOT: Final = Path(__file__).parents[2]
WITHIN_S: Final = 200.0
NUMBER: Final = "49640000000000000000000000000000000000000000000000000115"
PLAIN: Final = Record("eyJpZCI6N30=", "order-7", NUMBER, approximate_arrival_timestamp=1_735_689_600_250)
SCHEMA: Final = RecordSchema("order", "b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63", "JSON", '{"type": "object"}')
ODD_KEY: Final = 'a "quoted" \\ key, \u00e9\U0001f600\u2028 and more'
ANSWERED: Final = "ok"


@dataclass(frozen=True, slots=True)
class Case:
    """One row.

    Args:
        title: in the matrix.
        action: what the daemon says; None: the end of stdin.
        error: what checkpoints are answered with; None: done.
    """

    title: str
    action: Action | None
    error: str | None = None


CASES: Final = (
    Case("`initialize` at `TRIM_HORIZON`", Initialize("shardId-000000000007", "TRIM_HORIZON", 0)),
    Case("`initialize` at a sequence number", Initialize("shardId-000000000007", NUMBER, 2)),
    Case("`processRecords`", ProcessRecords([PLAIN], 840)),
    Case("`processRecords`, empty", ProcessRecords([], 0)),
    Case("`processRecords`, `millisBehindLatest` null", ProcessRecords([PLAIN], None)),
    Case(
        "record without data", ProcessRecords([Record("", "k", NUMBER, approximate_arrival_timestamp=1)], 0)
    ),
    Case(
        "record of 1 MiB",
        ProcessRecords([Record("QUJD" * (2**20 // 3), "k", NUMBER, approximate_arrival_timestamp=1)], 0),
    ),
    Case("record with a schema", ProcessRecords([replace(PLAIN, schema=SCHEMA)], 0)),
    Case(
        "key with quotes, emoji, U+2028; C locale",
        ProcessRecords([Record("YQ==", ODD_KEY, NUMBER, approximate_arrival_timestamp=1)], 0),
    ),
    Case(
        "record without a partition key",
        ProcessRecords([Record("YQ==", None, NUMBER, approximate_arrival_timestamp=1)], 0),
    ),
    Case("checkpoint refused: `ThrottlingException`", ProcessRecords([PLAIN], 0), "ThrottlingException"),
    Case("checkpoint refused: `ShutdownException`", ProcessRecords([PLAIN], 0), "ShutdownException"),
    Case("`shutdownRequested`", ShutdownRequested()),
    Case("`leaseLost`", LeaseLost()),
    Case("`shardEnded`", ShardEnded()),
    Case("end of stdin", None),
)


class Talk:
    """A conversation with one process of a library; at its end the process is gone."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def perform(self, action: Action, *errors: str | None) -> list[str]:
        """The kinds of message that the library answers with, up to its status, and what its processor was told.

        Args:
            action: what the daemon says.
            errors: what one checkpoint after another is answered with, all further ones as the last; none: done.
        """
        answers = iter(errors)
        error: str | None = None
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        said: list[str] = []
        stdin.write(encode(action).decode("ascii"))
        stdin.flush()
        for line in stdout:
            if not line.strip():
                continue
            message = json.loads(line)
            if message["action"] == "status":
                assert message["responseFor"] == action.action
                return [*said, ANSWERED]
            assert message["action"] == "checkpoint"
            said.append("ckpt")
            error = next(answers, error)
            number = message.get("sequenceNumber")
            sub_number = message.get("subSequenceNumber")
            stdin.write(encode(CheckpointAnswer(number, sub_number, error)).decode("ascii"))
            stdin.flush()
        return [*said, f"exit {self._process.wait()}"]

    def finish(self) -> tuple[int, str]:
        """Close stdin; exit code and stderr."""
        _, stderr = self._process.communicate()
        return self._process.returncode, stderr


@contextmanager
def talk(command: str) -> Generator[Talk]:
    """Start a processor as the daemon does, in the C locale; killed when it takes too long."""
    with subprocess.Popen(
        shlex.split(command),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        timer = Timer(WITHIN_S, process.kill)
        timer.start()
        try:
            yield Talk(process)
        finally:
            timer.cancel()
            process.kill()


def result(command: str, case: Case) -> str:
    """What a library does with a message, in a process of its own."""
    with talk(command) as library:
        if not isinstance(case.action, Initialize):
            assert library.perform(Initialize("shardId-000000000007", NUMBER, 0)) == [ANSWERED]
        said = [] if case.action is None else library.perform(case.action, case.error)
        code, stderr = library.finish()
    reported = [
        f"sees {line.removeprefix('told ')}" for line in stderr.splitlines() if line.startswith("told ")
    ]
    words = [*said[:-1], *reported, *said[-1:]]
    if code != 0:
        words.append(f"exit {code}")
    return ", ".join(words) or "exit 0"


def column(library: Library) -> list[str]:
    """The results of one library, in the order of the cases."""
    command = library.command()
    return [result(command, case) for case in CASES]


def table(libraries: Sequence[Library], columns: Callable[[Library], list[str]] = column) -> str:
    """The matrix in Markdown."""
    results = [columns(library) for library in libraries]
    rows = [["message", *(library.name for library in libraries)]]
    rows += [[case.title, *(each[number] for each in results)] for number, case in enumerate(CASES)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(LIBRARIES))
