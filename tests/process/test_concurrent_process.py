"""A child that works on many records at once under a real daemon, killed in the middle."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process.daemon import PROCESSORS, Application, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

SHARD: Final = "shardId-000000000000"
KEYS: Final = 20
QUICK: Final = {"idleTimeBetweenReadsInMillis": 200, "childRestartBackoffMillis": 20, "maxRecords": 50}


def put(app: Application, count: int) -> list[int]:
    """Write records with `KEYS` keys, the first of all of them slow; their sequence numbers."""
    records: list[Any] = [
        {"Data": b"slow" if number == 150 else b"x", "PartitionKey": f"key {number % KEYS}"}
        for number in range(count)
    ]
    answer = app.kinesis.put_records(StreamName=app.name, Records=records)
    return [int(result.get("SequenceNumber", "")) for result in answer["Records"]]


def notes(app: Application) -> list[dict[str, Any]]:
    path = app.directory / "ledgers" / "worker" / "notes"
    whole = path.read_text("utf-8").rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def ended(app: Application) -> set[int]:
    return {int(note["number"]) for note in notes(app) if note["what"] == "ended"}


def starts(app: Application) -> list[str]:
    return [note["number"] for note in notes(app) if note["what"] == "start"]


def stored(app: Application) -> int:
    text = app.rows().get(SHARD, {}).get("checkpoint", {}).get("S", "")
    return int(text) if text.isdigit() else -1


def assert_nothing_unfinished_is_stored(app: Application, numbers: list[int]) -> None:
    mark, done = stored(app), ended(app)  # in this order: what is done later is no excuse
    assert [number for number in numbers if number <= mark and number not in done] == []


def assert_order_by_key(app: Application) -> None:
    """In each process a record begins when the one before it with its key has ended; each key begins in order."""
    first_begun: dict[str, list[int]] = defaultdict(list)
    open_now: dict[tuple[int, str], str] = {}
    for note in notes(app):
        place, number = (note["pid"], note["key"]), note["number"]
        if note["what"] == "begun":
            assert place not in open_now, f"{number} begins beside {open_now.get(place)}"
            open_now[place] = number
            if int(number) not in first_begun[note["key"]]:
                first_begun[note["key"]].append(int(number))
        elif note["what"] == "ended":
            assert open_now.pop(place) == number
    for numbers in first_begun.values():
        assert all(before < after for before, after in pairwise(numbers))


def test_a_killed_child_loses_nothing_and_no_checkpoint_passes_an_unfinished_record(
    local: Local, tmp_path: Path
) -> None:
    with application(local, tmp_path, "concurrent", shards=1) as app:
        numbers = put(app, 400)
        slow = numbers[150]
        with app.daemon(f"{PROCESSORS}.concurrent", QUICK) as daemon:
            wait_until(lambda: stored(app) == numbers[149], "all before the slow record is stored")
            wait_until(lambda: max(ended(app)) == numbers[-1], "the others go on, over many batches")
            assert_nothing_unfinished_is_stored(app, numbers)
            assert slow not in ended(app)
            os.kill(notes(app)[-1]["pid"], signal.SIGKILL)
            daemon.wait_for("child_failed", shard_id=SHARD)
            wait_until(lambda: len(starts(app)) == 2, "another child has begun")
            assert starts(app)[1] == str(numbers[149]), "from below the slow record"
            (app.directory / "ledgers" / "worker" / "go").touch()
            wait_until(
                lambda: stored(app) == numbers[-1], "in a quiet stream, everything is stored in a while"
            )
            assert ended(app) == set(numbers)
            assert_nothing_unfinished_is_stored(app, numbers)
            more = put(app, 100)
            wait_until(lambda: ended(app) & set(more) != set(), "it goes on")
            daemon.stop()
        assert_nothing_unfinished_is_stored(app, [*numbers, *more])
        assert_order_by_key(app)
