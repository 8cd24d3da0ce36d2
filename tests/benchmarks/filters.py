"""`python -m tests.benchmarks.filters`: CPU of daemon and child for JSON records of 1 KiB, with and without a `recordFilter`.

Each row is a reader over TLS from a server of answers made beforehand, in a process of its own, and one real child that
parses each record that it is given. The filters keep one record in a hundred.
"""

from __future__ import annotations

import argparse
import json
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio

from kcl_daemon.children.platform import keep_freed_memory
from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.children.start import ChildOptions
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.retrieval import RetrievalSettings
from kcl_daemon.consumer.connection import ChildConnection, ChildMetrics
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import NO_METERS, StreamRef
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.retrieval.filtering import ShardFilter
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import DeliveryBatch, ShardSource, StartMemory
from kcl_daemon.system import SystemClock
from kcl_daemon.transport.kinesis import HttpKinesis
from kcl_protocol.messages import CheckpointAnswer, CheckpointRequest, Initialize
from kcl_protocol.sequence import TRIM_HORIZON
from tests.benchmarks.frames import cpu_s
from tests.dropin.obtain import kclpy
from tests.process.children.support import RecordingLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.transport.certificate import write_certificate
from tests.unit.transport.scripted import calling

_SHAPE: Final = "json"
_KEPT_OF: Final = 100
_WARM_UP: Final = 50_000
PATTERNS: Final = {
    "no filter": None,
    "a text": '{"data": {"order": {"type": ["new"]}}}',
    "a number": json.dumps({"data": {"id": list(range(0, 5_000, _KEPT_OF))}}),
}
CLIENT: Final = """
import sys, json
sys.path[:0] = {paths!r}
from kcl_client import *
class Program(RecordProcessor):
    def process_records(self, batch, checkpointer):
        found = 0
        for record in batch:
            found += %s
run(Program())
"""
KCLPY: Final = """
import sys, json
sys.path.insert(0, {folder!r})
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
class Program(processor.RecordProcessorBase):
    def initialize(self, given): pass
    def process_records(self, given):
        found = 0
        for record in given.records:
            found += json.loads(record.binary_data)["order"]["type"] == "new"
    def lease_lost(self, given): pass
    def shard_ended(self, given): given.checkpointer.checkpoint()
    def shutdown_requested(self, given): given.checkpointer.checkpoint()
kcl.KCLProcess(Program()).run()
"""
PROGRAMS: Final = {
    "amazon_kclpy, parses each record": KCLPY,
    "kcl_client, parses each record": CLIENT % 'json.loads(record.data)["order"]["type"] == "new"',
    "kcl_client, does nothing": CLIENT % "len(record.data)",
}


async def measure(pattern: str, program: str, records: int, url: str, folder: Path) -> tuple[float, float]:
    """Microseconds of daemon and child for each record in the stream."""
    clock, log = SystemClock(), RecordingLog()
    command = (sys.executable, "-E", str(folder / "program.py"))
    count, ours_s, theirs_s = 0, 0.0, 0.0
    async with (
        calling(url, tls=ssl.create_default_context(cafile=f"{folder}/localhost.pem")) as caller,
        ProcessChildren(command, log, clock, ChildOptions(frames="kclpy" not in program)) as children,
        anyio.create_task_group() as tasks,
    ):
        child = await children.start(ShardId(_SHAPE))
        metrics = ChildMetrics(NO_METERS, clock, {})
        connection = ChildConnection(
            child, ChildSettings(command), clock=clock, log=log, metrics=metrics, on_checkpoint=_stored
        )
        tasks.start_soon(connection.pump)
        await connection.perform(Initialize(_SHAPE, "TRIM_HORIZON", 0))
        reader = _reader(PATTERNS[pattern], connection, HttpKinesis(caller), clock)
        tasks.start_soon(reader.run)
        in_stream = 1 if PATTERNS[pattern] is None else _KEPT_OF
        await _deliver(reader, connection, _WARM_UP // in_stream)
        ours_s, theirs_s = time.process_time(), cpu_s(child.pid)
        count = in_stream * await _deliver(reader, connection, records // in_stream)
        ours_s, theirs_s = time.process_time() - ours_s, cpu_s(child.pid) - theirs_s
        tasks.cancel_scope.cancel()
    return ours_s / count * 1e6, theirs_s / count * 1e6


def _reader(
    pattern: str | None, connection: ChildConnection, kinesis: HttpKinesis, clock: SystemClock
) -> PollingReader:
    source = ShardSource(
        StreamRef("bench"),
        ShardId(_SHAPE),
        TRIM_HORIZON,
        None,
        StartMemory(),
        split=Deaggregator(None, _complain),
        encoder=connection.encoder,
    )
    if pattern is not None:
        source = replace(source, stages=(ShardFilter(RecordFilter.of(pattern)).filtered,))
    context, settings = worker_context(clock=clock), RetrievalSettings()
    return PollingReader(
        source, context, ByteBudget(clock), kinesis=kinesis, settings=settings, limited=False
    )


async def _deliver(reader: PollingReader, connection: ChildConnection, records: int) -> int:
    count = 0
    while count < records:
        batch = await reader.next()
        if isinstance(batch, DeliveryBatch):
            count += batch.count
            connection.invariants.begins(TRIM_HORIZON)  # the answers are all the same
            await connection.deliver(batch)
    return count


async def _stored(request: CheckpointRequest) -> CheckpointAnswer:
    return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, None)


def _complain(why: str, sequence_number: str) -> None:
    raise AssertionError(f"record {sequence_number}: {why}")


def run(pattern: str, program: str, records: int) -> tuple[float, float]:
    """Measure in this process, with a server of its own."""
    keep_freed_memory()
    with TemporaryDirectory() as name:
        folder = Path(name)
        certificate = write_certificate(folder)
        paths = [str(Path(__file__).parents[2] / each) for each in ("protocol", "clients/python")]
        text = PROGRAMS[program].replace("{paths!r}", repr(paths))
        text = text.replace("{folder!r}", repr(str(kclpy())) if "{folder!r}" in text else "")
        (folder / "program.py").write_text(text, "utf-8")
        command = [sys.executable, "-m", "tests.benchmarks.canned", _SHAPE, str(certificate)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            url = f"https://localhost:{int(server.stdout.readline())}"
            return anyio.run(measure, pattern, program, records, url, folder)


def main() -> None:
    """Print the table, or one row of it."""
    parser = argparse.ArgumentParser(description="Measure daemon and child, with filters and without.")
    parser.add_argument(
        "--records", type=int, default=1_000_000, help="in the stream, for each row (1,000,000)"
    )
    parser.add_argument("--only", nargs=2, metavar=("FILTER", "CHILD"))
    arguments = parser.parse_args()
    if arguments.only:
        sys.stdout.write("{} {}\n".format(*run(arguments.only[0], arguments.only[1], arguments.records)))
        return
    sys.stdout.write(
        "| the child | filter | daemon: \u00b5s/record | child | both | of that without |\n|---|---|---|---|---|---|\n"
    )
    for program in PROGRAMS:
        without = 0.0
        for pattern in PATTERNS:
            sys.stdout.flush()
            command = [sys.executable, "-m", "tests.benchmarks.filters", "--only", pattern, program]
            asked = [*command, "--records", str(arguments.records)]
            told = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
            ours, theirs = map(float, told.split())
            without = without or ours + theirs
            cells = (
                program,
                pattern,
                f"{ours:.2f}",
                f"{theirs:.2f}",
                f"{ours + theirs:.2f}",
                f"{(ours + theirs) / without:.0%}",
            )
            sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
