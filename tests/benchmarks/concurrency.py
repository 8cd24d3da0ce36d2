"""What `process_record` gains and costs: `python -m tests.benchmarks.concurrency`.

The client as a process of its own, over pipes, with all batches there at once: 10,000 records with 200 keys that sleep 0 to
5 ms each; then 200,000 records of 100 bytes and no work, against `process_records`.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the client's asynchronous form is asyncio's
import os
import subprocess
import sys
import time
import zlib
from typing import Final

from kcl_client import AsyncCheckpointer, AsyncRecordProcessor, Batch, Record, run
from kcl_client.testing import make_record
from kcl_local.demo.check import monotonic_s
from kcl_protocol.codec import decode_child_line, encode
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    DaemonMessage,
    Initialize,
    ProcessRecords,
    ShardEnded,
)

KEYS: Final = 200
BATCH: Final = 1000
SLEEPERS: Final = 10_000
IDLERS: Final = 200_000
RUNS: Final = 3


class Sleeping(AsyncRecordProcessor):
    """Sleeps 0 to 5 ms, the same for a record in every run."""

    async def process_record(self, record: Record) -> None:
        await asyncio.sleep(zlib.crc32(record.sequence_number.encode()) % 5001 / 1e6)


class Counting(AsyncRecordProcessor):
    """Looks at each record, by itself."""

    def __init__(self) -> None:
        self.count = 0

    async def process_record(self, record: Record) -> None:
        self.count += len(record.data)


class CountingBatches(AsyncRecordProcessor):
    """Looks at each record, in batches."""

    def __init__(self) -> None:
        self.count = 0

    async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
        for record in batch:
            self.count += len(record.data)


def child(kind: str, concurrency: int) -> None:
    """Run the client, and say on stderr how much CPU it took."""
    kinds = {"sleeping": Sleeping, "counting": Counting, "batches": CountingBatches}
    began_s = time.process_time()
    try:
        run(kinds[kind](), concurrency=concurrency or None)
    finally:
        sys.stderr.write(f"{time.process_time() - began_s}\n")


def lines(count: int) -> bytes:
    """Everything the daemon says, but for the answer to the last checkpoint."""
    records = [
        make_record(b"x" * 100, sequence_number=str(10**55 + number), partition_key=f"key-{number % KEYS}")
        for number in range(count)
    ]
    batches = [ProcessRecords(records[first : first + BATCH], 0) for first in range(0, count, BATCH)]
    said: tuple[DaemonMessage, ...] = (Initialize("shardId-0", "TRIM_HORIZON", 0), *batches, ShardEnded())
    return b"".join(encode(message) for message in said)


def measured(kind: str, concurrency: int, said: bytes) -> tuple[float, float]:
    """Seconds until the end of the shard is asked for, and CPU seconds of the child."""
    words = [sys.executable, "-m", "tests.benchmarks.concurrency", kind, str(concurrency)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        first, _, rest = said.partition(b"\n")
        process.stdin.write(first + b"\n")
        process.stdin.flush()
        while not process.stdout.readline().strip():
            pass
        began_s = monotonic_s()
        process.stdin.write(rest)
        process.stdin.flush()
        for line in process.stdout:
            asked = decode_child_line(line.strip())
            if isinstance(asked, CheckpointRequest):
                process.stdin.write(
                    encode(CheckpointAnswer(asked.sequence_number, asked.sub_sequence_number, None))
                )
                process.stdin.flush()
                if asked.sequence_number is None:
                    break
        took_s = monotonic_s() - began_s
        _, cpu_s = process.communicate(timeout=60)
    return took_s, float(cpu_s)


def main() -> None:
    """Print both tables, the best of three runs each."""
    said = lines(SLEEPERS)
    alone_s = 0.0
    for concurrency in (1, 16, 64):
        took_s = min(
            measured("sleeping", concurrency, said)[0] for _ in range(RUNS if concurrency > 1 else 1)
        )
        alone_s = alone_s or took_s
        print(f"concurrency {concurrency:2}: {took_s:6.2f} s, {alone_s / took_s:5.1f} x")  # noqa: T201
    said = lines(IDLERS)
    for kind, concurrency in (("batches", 0), ("counting", 1), ("counting", 64)):
        cpu_s = min(measured(kind, concurrency, said)[1] for _ in range(RUNS))
        print(f"{kind:8} concurrency {concurrency:2}: {cpu_s / IDLERS * 1e6:5.2f} us of CPU a record")  # noqa: T201
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores")  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1], int(sys.argv[2]))
    else:
        main()
