"""A record processor without a library, that rejects records whose data begins with `bad`, and checkpoints each batch."""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Mapping
from typing import Any


def say(message: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def ask(*requests: Mapping[str, object]) -> list[Any]:
    """The answers, read once all is asked."""
    for request in requests:
        say(request)
    return [json.loads(sys.stdin.readline()) for _ in requests]


def process(records: list[Any]) -> None:
    bad = [record for record in records if b64decode(record["data"]).startswith(b"bad")]
    numbers = ("sequenceNumber", "subSequenceNumber")
    answers = ask(
        *(
            {"action": "reject", "reason": "it is bad", **{each: record[each] for each in numbers}}
            for record in bad
        )
    )
    for answer in answers:
        sys.stderr.write(f"answer {answer['error']} {answer['message']}\n")
    if records:
        ask({"action": "checkpoint", "sequenceNumber": None, "subSequenceNumber": None})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if message["action"] == "processRecords":
            process(message["records"])
        elif message["action"] in {"shardEnded", "shutdownRequested"}:
            ask({"action": "checkpoint", "sequenceNumber": None, "subSequenceNumber": None})
        say({"action": "status", "responseFor": message["action"]})


if __name__ == "__main__":
    main()
