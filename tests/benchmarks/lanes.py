"""What `shardConcurrency` gains and costs: `python -m tests.benchmarks.lanes`.

The daemon on local endpoints with one shard: 10,000 records with 200 keys, each of which takes its child 0 to 5 ms; from the
first record that a child begins to the last that one ends. Then 200,000 records of 100 bytes that take no time.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import psutil

from kcl_client import Batch, Checkpointer, RecordProcessor, run
from tests.process.daemon import Application, application, wait_until
from tests.process.local import Local, local_process

if TYPE_CHECKING:
    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

KEYS: Final = 200
SLEEPERS: Final = 10_000
IDLERS: Final = 200_000
NOTES: Final = "BENCHMARK_NOTES"


class Sleeping(RecordProcessor):
    """Each record takes 0 to 5 ms, the same in every run; one line of notes a batch: records, begin, end."""

    def __init__(self, *, sleeps: bool) -> None:
        self._sleeps = sleeps
        self._notes = Path(os.environ[NOTES], str(os.getpid())).open("w", encoding="ascii", buffering=1)  # noqa: SIM115

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        began_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        for record in batch:
            if self._sleeps:
                time.sleep(zlib.crc32(record.data) % 5001 / 1e6)  # noqa: TID251 - the work of a program
        checkpointer.checkpoint()
        self._notes.write(f"{len(batch)} {began_s} {time.clock_gettime(time.CLOCK_MONOTONIC)}\n")


def put(app: Application, count: int, size: int) -> None:
    for first in range(0, count, 500):
        entries: list[PutRecordsRequestEntryTypeDef] = [
            {"Data": b"%d" % number + b"x" * size, "PartitionKey": f"key-{number % KEYS}"}
            for number in range(first, first + 500)
        ]
        app.kinesis.put_records(StreamName=app.name, Records=entries)


def measured(local: Local, lanes: int, *, count: int, sleeps: bool) -> tuple[float, float, float]:
    """Seconds from the first record to the last, and CPU seconds of the daemon and of its children."""
    name = f"bench-{lanes}-{count}"
    with TemporaryDirectory() as folder, application(local, Path(folder), name, shards=1) as app:
        notes = Path(folder, "notes")
        notes.mkdir()
        os.environ[NOTES] = str(notes)
        put(app, count, 0 if sleeps else 100)
        command = f"{sys.executable} -m tests.benchmarks.lanes {'sleeping' if sleeps else 'counting'}"
        settings = {"shardConcurrency": lanes, "idleTimeBetweenReadsInMillis": 200}

        def batches() -> list[list[float]]:
            return [
                [float(word) for word in line.split()]
                for file in notes.iterdir()
                for line in file.read_text("ascii").splitlines()
            ]

        with app.daemon(command, settings, fresh=True) as daemon:
            wait_until(lambda: sum(words[0] for words in batches()) >= count, "all are processed", 300)
            process = psutil.Process(daemon.process.pid)
            mine, children = (
                process.cpu_times(),
                [each.cpu_times() for each in process.children(recursive=True)],
            )
            daemon.stop()
        took_s = max(words[2] for words in batches()) - min(words[1] for words in batches())
        return took_s, mine.user + mine.system, sum(each.user + each.system for each in children)


def main() -> None:
    """Print both tables."""
    with local_process() as local:
        alone_s = 0.0
        for lanes in (1, 4, 16):
            took_s, _, _ = measured(local, lanes, count=SLEEPERS, sleeps=True)
            alone_s = alone_s or took_s
            print(f"shardConcurrency {lanes:2}: {took_s:6.2f} s, {alone_s / took_s:5.1f} x")  # noqa: T201
        for lanes in (1, 4, 16):
            took_s, mine_s, children_s = measured(local, lanes, count=IDLERS, sleeps=False)
            mine, theirs = (seconds / IDLERS * 1e6 for seconds in (mine_s, children_s))
            print(  # noqa: T201
                f"shardConcurrency {lanes:2}: {took_s:6.2f} s; CPU a record: daemon {mine:5.2f} us, children {theirs:5.2f} us"
            )
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores")  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Sleeping(sleeps=sys.argv[1] == "sleeping"))
    else:
        main()
