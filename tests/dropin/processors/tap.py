"""A record processor that keeps every byte it is given: `tap.py FILE`. Standard library only, answers everything."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Until the end of stdin."""
    with open(sys.argv[1], "ab", buffering=0) as file:  # noqa: PTH123 - the quickest way there is
        for line in sys.stdin.buffer:
            file.write(line)
            action = json.loads(line)["action"]
            if action == "checkpoint":
                continue
            if action == "shardEnded":
                answer({"action": "checkpoint"})
                file.write(sys.stdin.buffer.readline())
            answer({"action": "status", "responseFor": action})


def answer(message: dict[str, str]) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
