"""Stand-ins for the libraries of Ruby and .NET: exactly as strict about what they read, and as they are in what they write.

`strict.py ruby|dotnet`. Keep a ledger where the environment names one, tell on stderr what they were told, checkpoint
each batch. What either library cannot read ends the process with a trace, as it does there.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any, Final  # Any: JSON

from kcl_local.demo.check import DIRECTORY_VARIABLE, CountedRecord, EntryKind, LedgerWriter, monotonic_s

DOTNET: Final = sys.argv[1] == "dotnet"
RECORD_FIELDS: Final = ("data", "partitionKey", "sequenceNumber")


def whole(value: object) -> None:
    """A nullable long of .NET: no fraction, no text."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError(f"not a whole number: {value!r}")


def read() -> dict[str, Any] | None:
    """The next message; None at the end. Whoever sends what the library cannot read has ended this process."""
    while line := sys.stdin.readline():
        if not line.strip() and not DOTNET:
            continue  # Ruby skips a blank line, .NET's parser fails on it
        message: dict[str, Any] = json.loads(line)
        if DOTNET:
            whole(message.get("subSequenceNumber"))
            whole(message.get("millisBehindLatest"))
            for record in message.get("records") or ():
                whole(record["subSequenceNumber"])
                float(record["approximateArrivalTimestamp"])  # a double that cannot be null
        return message
    return None


def write(action: str, **fields: object) -> None:
    """A message: compact; Ruby puts a line end before it, .NET sorts the fields behind the action."""
    names = sorted(fields) if DOTNET else list(fields)
    text = json.dumps({"action": action, **{name: fields[name] for name in names}}, separators=(",", ":"))
    sys.stdout.write(f"{text}\n" if DOTNET else f"\n{text}\n")
    sys.stdout.flush()


class Processor:
    """A processor and the library around it."""

    def __init__(self) -> None:
        self._ledger: LedgerWriter | None = None

    def run(self) -> None:
        """Until the end of stdin."""
        while (message := read()) is not None:
            action = message["action"]
            getattr(self, f"on_{action}")(message)
            write("status", responseFor=action)

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()

    def on_initialize(self, message: dict[str, Any]) -> None:
        if not DOTNET:
            _ = message["sequenceNumber"]  # Ruby raises where it is missing
        if DIRECTORY_VARIABLE in os.environ:
            self._ledger = LedgerWriter(Path(os.environ[DIRECTORY_VARIABLE]), message["shardId"])
        self._note("start")

    def on_processRecords(self, message: dict[str, Any]) -> None:  # noqa: N802 - named after the action
        if not DOTNET:
            _ = message["millisBehindLatest"]
        records = message["records"]
        if self._ledger is not None:
            self._ledger.records(
                monotonic_s(), [CountedRecord(each["sequenceNumber"], {}) for each in records]
            )
        for record in records:
            _ = [record[name] for name in RECORD_FIELDS]
            report(f"record {record['partitionKey']!a} {len(b64decode(record['data'], validate=True))}")
        if self._checkpoint():
            self._note("checkpoint")

    def on_leaseLost(self, _: dict[str, Any]) -> None:  # noqa: N802
        self._note("lost")

    def on_shardEnded(self, _: dict[str, Any]) -> None:  # noqa: N802
        self._note("ended")
        self._checkpoint()

    def on_shutdownRequested(self, _: dict[str, Any]) -> None:  # noqa: N802
        self._note("stopping")
        self._checkpoint()

    def _checkpoint(self) -> bool:
        fields: dict[str, object] = {"sequenceNumber": None}
        if DOTNET:
            fields["error"] = None
        write("checkpoint", **fields)
        answer = read()
        if answer is None or answer["action"] != "checkpoint":
            report("told InvalidStateException")
            return False
        error = answer.get("error")
        failed = bool(error) if DOTNET else error is not None
        if failed:
            report(f"told {error}")
        return not failed

    def _note(self, kind: EntryKind) -> None:
        if self._ledger is not None:
            self._ledger.note(kind)


def report(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    processor = Processor()
    try:
        processor.run()
    finally:
        processor.close()
