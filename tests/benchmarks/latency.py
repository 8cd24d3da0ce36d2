"""`python -m tests.benchmarks.latency`: from the put of a record to its child, and what that costs in reads.

The daemon on local endpoints that keep the limits of Kinesis, with 4 shards: first a silent stream, then 20 records a second
and shard. The times are those of the producer before its call and of the child when it begins with the batch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING, Final

from kcl_client import Batch, Checkpointer, RecordProcessor, run
from kcl_local.demo.check import monotonic_s
from tests.benchmarks.tables import table
from tests.process.daemon import Application, application, wait_until
from tests.process.local import Local, local_process

if TYPE_CHECKING:
    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

SHARDS: Final = 4
RATE: Final = 20
# Until `auto` has found out that the stream is silent.
SETTLE_S: Final = 9.0
# And that it is not. Until then a record waits for up to two seconds, which is not the rule.
WAKE_S: Final = 3.0
NOTES: Final = "BENCHMARK_NOTES"
MODES: Final[Mapping[str, Mapping[str, object]]] = {
    "polling, default": {"retrievalMode": "POLLING"},
    "polling, 200 ms": {"idleTimeBetweenReadsInMillis": 200},
    "polling, auto": {"idleTimeBetweenReadsInMillis": "auto"},
    "fan-out": {"retrievalMode": "FANOUT"},
}


class Noting(RecordProcessor):
    """A line of notes for each record: when it was put, when it came. A checkpoint a second."""

    def __init__(self) -> None:
        self._stored_s = 0.0
        self._notes = Path(os.environ[NOTES], str(os.getpid())).open("w", encoding="ascii", buffering=1)  # noqa: SIM115

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        now_s = monotonic_s()
        self._notes.write("".join(f"{record.data.decode()} {now_s}\n" for record in batch))
        if now_s > self._stored_s + 1.0:
            checkpointer.checkpoint()
            self._stored_s = now_s


@dataclass(frozen=True, slots=True)
class Figures:
    """Latencies of all records in seconds; GetRecords calls a minute, of all shards together."""

    latencies_s: list[float]
    calls_silent: float
    calls_busy: float

    @property
    def p50_s(self) -> float:
        return quantiles(self.latencies_s, n=100)[49]

    def row(self, mode: str) -> tuple[str, ...]:
        p99_s = quantiles(self.latencies_s, n=100)[98]
        times = (f"{each * 1000:,.0f}" for each in (self.p50_s, p99_s, max(self.latencies_s)))
        return mode, *times, f"{self.calls_busy:,.0f}", f"{self.calls_silent:,.0f}"


def reads(local: Local) -> int:
    with urllib.request.urlopen(f"{local.kinesis_url}/_local/calls", timeout=30) as answer:
        return int(json.load(answer).get("GetRecords", 0))


def put(app: Application, seconds: float) -> int:
    """Records at an even pace, each with its time; their number. A call that was late is not made up for."""
    pause, end_s, count = Event(), monotonic_s() + seconds, 0
    while (began_s := monotonic_s()) < end_s:
        records: list[PutRecordsRequestEntryTypeDef] = [
            {
                "Data": str(began_s).encode(),
                "PartitionKey": "k",
                "ExplicitHashKey": str(shard * 2**128 // SHARDS),
            }
            for shard in range(SHARDS)
        ]
        app.kinesis.put_records(StreamName=app.name, Records=records)
        count += SHARDS
        pause.wait(max(0.0, began_s + 1 / RATE - monotonic_s()))
    return count


def noted(notes: Path, from_s: float = 0.0) -> list[float]:
    """The latency of each record that was put at this time or later, so far."""
    lines = [line.split() for file in notes.iterdir() for line in file.read_text("ascii").splitlines()]
    pairs = [(float(line[0]), float(line[1])) for line in lines if len(line) > 1]
    return [came_s - put_s for put_s, came_s in pairs if put_s >= from_s]


def measured(mode: str, *, busy_s: float, silent_s: float) -> Figures:
    """One row; without `silent_s` nothing is said of a silent stream."""
    with ExitStack() as stack:
        local = stack.enter_context(local_process("--throttle"))
        folder = Path(stack.enter_context(TemporaryDirectory()))
        notes = folder / "notes"
        notes.mkdir()
        app = stack.enter_context(application(local, folder, "latency", shards=SHARDS))
        os.environ[NOTES] = str(notes)
        daemon = stack.enter_context(
            app.daemon(f"{sys.executable} -m tests.benchmarks.latency child", MODES[mode], fresh=True)
        )
        wait_until(lambda: len(list(notes.iterdir())) == SHARDS, "all children have begun")
        before = reads(local)
        if silent_s:
            Event().wait(SETTLE_S)
            before = reads(local)
            Event().wait(silent_s)
        between = reads(local)
        count = put(app, WAKE_S)
        busy, from_s = reads(local), monotonic_s()
        count += put(app, busy_s)
        after = reads(local)
        wait_until(lambda: len(noted(notes)) >= count, "all records have come")
        daemon.stop()
        silent = (between - before) * 60 / silent_s if silent_s else 0.0
        return Figures(noted(notes, from_s), silent, (after - busy) * 60 / busy_s)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure the time from the put of a record to its child.")
    parser.add_argument("--seconds", type=float, default=10.0, help="with records, each row (10)")
    parser.add_argument("--silent", type=float, default=10.0, help="seconds without, each row (10)")
    given = parser.parse_args()
    rows = [measured(mode, busy_s=given.seconds, silent_s=given.silent).row(mode) for mode in MODES]
    head = ("", "p50, ms", "p99, ms", "longest, ms", "GetRecords a minute", "on a silent stream")
    sys.stdout.write(f"{SHARDS} shards, {RATE} records a second and shard\n\n{table(head, rows)}\n")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "child":
        run(Noting())
    else:
        main()
