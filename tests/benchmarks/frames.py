"""`python -m tests.benchmarks.frames`: CPU from Kinesis' answer to the child's function, of the daemon and its Python child.

Each row is a reader over TLS from `canned`, in a process of its own, and one real child whose function touches every
byte of data.
"""

from __future__ import annotations

import argparse
import os
import ssl
import subprocess
import sys
import time
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
from kcl_daemon.records.batch_text import LINES
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import DeliveryBatch, ShardSource, StartMemory
from kcl_daemon.system import SystemClock
from kcl_daemon.transport.kinesis import HttpKinesis
from kcl_protocol.messages import CheckpointAnswer, CheckpointRequest, Initialize
from kcl_protocol.sequence import TRIM_HORIZON
from tests.benchmarks.canned import SHAPES
from tests.dropin.obtain import kclpy
from tests.process.children.support import RecordingLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.transport.certificate import write_certificate
from tests.unit.transport.scripted import calling

GIB: Final = 2**30
_WARM_UP_RECORDS: Final = 50_000
_PROGRAM: Final = "program.py"
CLIENT: Final = """
import sys, zlib
{before}
from kcl_client import *
class Program(RecordProcessor):
    def process_records(self, batch, checkpointer):
        crc = 0
        {work}
run(Program())
"""
KCLPY: Final = """
import sys, zlib
sys.path.insert(0, {folder!r})
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
class Program(processor.RecordProcessorBase):
    def initialize(self, given): pass
    def process_records(self, given):
        crc = 0
        for record in given.records:
            crc = zlib.crc32(record.binary_data, crc)
    def lease_lost(self, given): pass
    def shard_ended(self, given): given.checkpointer.checkpoint()
    def shutdown_requested(self, given): given.checkpointer.checkpoint()
kcl.KCLProcess(Program()).run()
"""
_EACH: Final = "for record in batch: crc = zlib.crc32(record.data, crc)"
PROGRAMS: Final = {
    "frames": CLIENT.format(before="", work=_EACH),
    "frames, Batch.arrow()": CLIENT.format(
        before="", work="crc = zlib.crc32(batch.arrow().column('data').buffers()[2], crc)"
    ),
    "lines": CLIENT.format(before="", work=_EACH),
    "lines, memory given back": CLIENT.format(before="", work=_EACH),
    "lines, child without orjson": CLIENT.format(before="sys.modules['orjson'] = None", work=_EACH),
    "lines, amazon_kclpy": KCLPY,
}


async def measure(mode: str, shape: str, records: int, url: str, folder: Path) -> str:
    """One row of the table."""
    clock, log = SystemClock(), RecordingLog()
    context = ssl.create_default_context(cafile=f"{folder}/localhost.pem")
    command = (sys.executable, "-E", str(folder / _PROGRAM))
    options = ChildOptions(frames=mode.startswith("frames"))
    count, ours_s, theirs_s = 0, 0.0, 0.0
    async with (
        calling(url, tls=context) as caller,
        ProcessChildren(command, log, clock, options) as children,
        anyio.create_task_group() as tasks,
    ):
        child = await children.start(ShardId(shape))
        connection = ChildConnection(
            child,
            ChildSettings(command),
            clock=clock,
            log=log,
            metrics=ChildMetrics(NO_METERS, clock, {}),
            on_checkpoint=_stored,
        )
        tasks.start_soon(connection.pump)
        await connection.perform(Initialize(shape, "TRIM_HORIZON", 0))
        assert (connection.encoder.framing is not LINES) is options.frames
        source = ShardSource(
            StreamRef("bench"),
            ShardId(shape),
            TRIM_HORIZON,
            None,
            StartMemory(),
            split=Deaggregator(None, _complain),
            encoder=connection.encoder,
        )
        reader = PollingReader(
            source,
            worker_context(clock=clock),
            ByteBudget(clock),
            kinesis=HttpKinesis(caller),
            settings=RetrievalSettings(),
            limited=False,
        )
        tasks.start_soon(reader.run)
        await _deliver(reader, connection, _WARM_UP_RECORDS)
        ours_s, theirs_s = time.process_time(), cpu_s(child.pid)
        count = await _deliver(reader, connection, records)
        ours_s, theirs_s = time.process_time() - ours_s, cpu_s(child.pid) - theirs_s
        tasks.cancel_scope.cancel()
    return row(mode, shape, count, ours_s, theirs_s)


async def _deliver(reader: PollingReader, connection: ChildConnection, records: int) -> int:
    count = 0
    while count < records:
        batch = await reader.next()
        assert isinstance(batch, DeliveryBatch)
        count += batch.count
        connection.invariants.begins(TRIM_HORIZON)  # the answers are all the same
        await connection.deliver(batch)
    return count


async def _stored(request: CheckpointRequest) -> CheckpointAnswer:
    return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, None)


def _complain(why: str, sequence_number: str) -> None:
    raise AssertionError(f"record {sequence_number}: {why}")


def cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def row(mode: str, shape: str, count: int, ours_s: float, theirs_s: float) -> str:
    """CPU-seconds for each GiB of data, and microseconds for each record."""
    size = SHAPES[shape][1]
    gibs = count * size / GIB
    spent = (ours_s, theirs_s, ours_s + theirs_s)
    cells = (
        shape,
        mode,
        *(f"{each / gibs:.2f}" for each in spent),
        *(f"{each / count * 1e6:.2f}" for each in spent),
    )
    return f"| {' | '.join(cells)} |"


def run(mode: str, shape: str, records: int) -> str:
    """Measure in this process, with a server of its own."""
    if mode != "lines, memory given back":  # as all was before frames
        keep_freed_memory()
    with TemporaryDirectory() as name:
        folder = Path(name)
        certificate = write_certificate(folder)
        text = PROGRAMS[mode].replace("{folder!r}", repr(str(kclpy())) if "{folder" in PROGRAMS[mode] else "")
        paths = [str(Path(__file__).parents[2] / each) for each in ("protocol", "clients/python")]
        (folder / _PROGRAM).write_text(f"import sys\nsys.path[:0] = {paths!r}\n{text}", "utf-8")
        command = [sys.executable, "-m", "tests.benchmarks.canned", shape, str(certificate)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            url = f"https://localhost:{int(server.stdout.readline())}"
            return anyio.run(measure, mode, shape, records, url, folder)


def main() -> None:
    """Print the table, or one row of it."""
    parser = argparse.ArgumentParser(description="Measure daemon and child, with lines and with frames.")
    parser.add_argument("--records", type=int, default=1_000_000, help="for each row (1,000,000)")
    parser.add_argument("--shapes", nargs="+", default=["1k", "aggregated"], choices=sorted(SHAPES))
    parser.add_argument("--only", choices=PROGRAMS)
    arguments = parser.parse_args()
    if arguments.only:
        for shape in arguments.shapes:
            sys.stdout.write(run(arguments.only, shape, arguments.records) + "\n")
        return
    sys.stdout.write(
        "| shape | what | daemon: CPU-s/GiB | child | both | daemon: µs/record | child | both |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    for shape in arguments.shapes:
        for mode in PROGRAMS:
            sys.stdout.flush()
            command = [sys.executable, "-m", "tests.benchmarks.frames", "--only", mode]
            subprocess.run([*command, "--shapes", shape, "--records", str(arguments.records)], check=True)


if __name__ == "__main__":
    main()
