"""A child that speaks the bare protocol and, for one shard, breaks it in the way its first argument names.

It does so in each incarnation, until a file `healed` is in its directory. For every other shard, and for the bad one
from then on, it keeps a ledger and checkpoints each batch. A batch that it spoils is not in its ledger: should the
daemon call it done, it counts as lost.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kcl_local.demo.check import DIRECTORY_VARIABLE, CountedRecord, LedgerWriter, monotonic_s

BAD_SHARD = "shardId-000000000001"
HEALED = Path("healed")
LONG_LINE_BYTES = 100 * 1024 * 1024
Message = dict[str, Any]


def say(data: bytes) -> None:
    """Write all of it to the daemon."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def send(**message: object) -> None:
    """Write one message."""
    say(json.dumps(message).encode() + b"\n")


def receive() -> Message | None:
    """The next message; None at the end of stdin."""
    line = sys.stdin.buffer.readline()
    return json.loads(line) if line else None


def checkpoint(number: str | None) -> str | None:
    """Ask for a checkpoint; the name of the error."""
    send(action="checkpoint", sequenceNumber=number, subSequenceNumber=None if number is None else 0)
    answer = receive()
    return "no answer" if answer is None else answer["error"]


def until_the_end() -> None:
    """Wait for the end of stdin and end well: the daemon may have its peace."""
    while sys.stdin.buffer.readline():
        pass
    sys.exit(0)


def garbage(_: Message) -> None:
    """Lines that are no messages, then on as if nothing had been."""
    say(
        b'no JSON\n\n\xff\xfe\x00\x01\n[1, 2]\n"status"\n{"action": "dance"}\n{"responseFor": "initialize"}\n{{{\n'
    )


def long_line(_: Message) -> None:
    """A line of 100 MiB, then on as if nothing had been."""
    piece = b"x" * (1024 * 1024)
    for _piece in range(LONG_LINE_BYTES // len(piece)):
        say(piece)
    say(b"\n")


def half_line(_: Message) -> None:
    """An answer without its end."""
    say(b'{"action": "status", "responseFor": "processRec')
    until_the_end()


def half_line_and_exit(_: Message) -> None:
    """The start of an answer, then death."""
    say(b'{"action": "status", "responseFor": "processRec')
    sys.exit(4)


def wrong_answer(_: Message) -> None:
    """An answer to what was not asked."""
    send(action="status", responseFor="shutdownRequested")
    until_the_end()


def answer_twice(message: Message) -> None:
    """One answer too many, in one piece with the first."""
    say(2 * (json.dumps({"action": "status", "responseFor": message["action"]}).encode() + b"\n"))
    until_the_end()


def exit_at_once(_: Message) -> None:
    """No answer but an exit code."""
    sys.exit(3)


def silence(_: Message) -> None:
    """No answer; ends when asked to."""
    until_the_end()


def deafness(_: Message) -> None:
    """No answer, and neither the end of stdin nor SIGTERM ends it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def closed_stdout(_: Message) -> None:
    """Nothing can come any more, but the process lives."""
    os.close(1)
    until_the_end()


def foreign_checkpoint(message: Message) -> None:
    """Checkpoints of what it was never given, and of what is no number."""
    beyond = str(int(message["records"][-1]["sequenceNumber"]) + 1)
    for number in (beyond, "twelve"):
        print("refused with", checkpoint(number), file=sys.stderr, flush=True)  # noqa: T201


# What is done at which place. A lapse that returns is followed by the proper answer.
LAPSES: dict[str, tuple[str, Callable[[Message], None]]] = {
    "garbage": ("processRecords", garbage),
    "long_line": ("processRecords", long_line),
    "half_line": ("processRecords", half_line),
    "half_line_and_exit": ("processRecords", half_line_and_exit),
    "wrong_answer": ("processRecords", wrong_answer),
    "answer_twice": ("initialize", answer_twice),
    "exit_at_once": ("initialize", exit_at_once),
    "silence": ("processRecords", silence),
    "silence_at_start": ("initialize", silence),
    "deafness": ("processRecords", deafness),
    "closed_stdout": ("processRecords", closed_stdout),
    "foreign_checkpoint": ("checkpoint", foreign_checkpoint),
}


class Processor:
    """Answers the daemon to the end of stdin."""

    def __init__(self, place: str, lapse: Callable[[Message], None]) -> None:
        self._place = place
        self._lapse = lapse
        self._is_bad = False
        self._open_ledger: LedgerWriter | None = None

    def serve(self) -> None:
        """One action after the other."""
        while (message := receive()) is not None:
            action = message["action"]
            if action == "initialize":
                self._initialize(message["shardId"])
            self._lapsed_at(action, message)
            if action == "processRecords":
                self._process(message)
            send(action="status", responseFor=action)

    def _initialize(self, shard_id: str) -> None:
        self._is_bad = shard_id == BAD_SHARD
        self._open_ledger = LedgerWriter(Path(os.environ[DIRECTORY_VARIABLE]), shard_id)
        self._open_ledger.note("start")

    def _process(self, message: Message) -> None:
        assert self._open_ledger is not None, "initialize comes before all else"
        numbers = [record["sequenceNumber"] for record in message["records"]]
        self._open_ledger.records(monotonic_s(), [CountedRecord(number, {}) for number in numbers])
        if self._lapsed_at("checkpoint", message):
            return
        if (error := checkpoint(numbers[-1])) is not None:
            sys.exit(f"the checkpoint was refused: {error}")

    def _lapsed_at(self, place: str, message: Message) -> bool:
        if self._is_bad and place == self._place and not HEALED.exists():
            self._lapse(message)
            return True
        return False


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        Processor(*LAPSES[sys.argv[1]]).serve()
