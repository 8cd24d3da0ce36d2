"""`python -m tests.benchmarks.rejects`: what it costs to reject 1 % of the records, over the full record path.

One reader over TLS from `canned`, in a process of its own, and four children: one of a daemon without
deadLetterDestination (`none`), one that rejects nothing although it may (`kept`), and two that reject every hundredth
record, all of a batch before they read the answers (`together`) or `one by one`. They take turns every few batches, so
that a busy machine is as busy for all. The first children do nothing else, without a library, in lines and in frames; the
last ones use `kcl_client` and read the data of each record.
"""

from __future__ import annotations

import argparse
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Final, Literal, cast, get_args

import anyio
from anyio.abc import TaskGroup

from kcl_daemon.children.platform import keep_freed_memory
from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.children.start import ChildOptions
from kcl_daemon.config.children import ChildSettings, FailureSettings
from kcl_daemon.config.dead_letters import file_at
from kcl_daemon.config.retrieval import RetrievalSettings
from kcl_daemon.consumer.connection import ChildConnection, ChildMetrics
from kcl_daemon.consumer.context import ConsumerContext, StopSignal
from kcl_daemon.consumer.lane import OnlyLane
from kcl_daemon.consumer.set_aside import Rejects, SetAside
from kcl_daemon.destinations.file import DeadLetterFile
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, Throughput
from kcl_daemon.ports import NO_METERS, StreamRef
from kcl_daemon.progress.progress import LeaseProgress
from kcl_daemon.records.batch_text import FRAMINGS, BatchEncoder
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import DeliveryBatch, ShardSource, StartMemory
from kcl_daemon.system import SystemClock
from kcl_daemon.transport.kinesis import HttpKinesis
from kcl_protocol.messages import FRAMES_VERSION, CheckpointAnswer, CheckpointRequest, Initialize
from kcl_protocol.sequence import TRIM_HORIZON
from tests.benchmarks.canned import SHAPES
from tests.benchmarks.frames import cpu_s
from tests.process.children.support import RecordingLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.transport.certificate import write_certificate
from tests.unit.transport.scripted import calling

_TURN_BATCHES: Final = 10
_WARM_UP_TURNS: Final = 1
# Each of the children looks at all records, and is told by `initialize` what to do.
_PROGRAM: Final = """
import sys
sys.path[:0] = {paths!r}
import orjson
from kcl_protocol.frames import decode_frame
out, inp = sys.stdout.buffer, sys.stdin.buffer
way, frames = "none", {frames!r}
def say(*messages):
    out.write(b"".join(orjson.dumps(each) + b"\\n" for each in messages))
    out.flush()
def answered(count):
    for _ in range(count):
        answer = orjson.loads(inp.readline())
        assert answer["error"] is None, answer
for line in inp:
    message, numbers = orjson.loads(line), []
    if message["action"] == "initialize":
        way = message["shardId"]
        say({{"action": "status", "responseFor": "initialize", **({{"frames": 1}} if frames else {{}})}})
        continue
    if "frame" in message:
        rows = list(decode_frame(line + inp.read(message["frame"]))[0].rows())
        numbers = [(row[2], row[4]) for row in rows[::100]]
    elif "records" in message:
        numbers = [(each["sequenceNumber"], each["subSequenceNumber"]) for each in message["records"][::100]]
    rejects = [
        {{"action": "reject", "sequenceNumber": number, "subSequenceNumber": sub, "reason": "not an order"}}
        for number, sub in numbers
    ]
    if way == "together" and rejects:
        say(*rejects)
        answered(len(rejects))
    elif way == "one by one":
        for reject in rejects:
            say(reject)
            answered(1)
    say({{"action": "status", "responseFor": message["action"]}})
"""
_CLIENT: Final = """
import sys
sys.path[:0] = {paths!r}
from kcl_client import RecordProcessor, run
class Orders(RecordProcessor):
    def initialize(self, start):
        self.rejects = start.shard_id == "together"
    def process_records(self, batch, checkpointer):
        for number, record in enumerate(batch):
            record.data
            if self.rejects and number % 100 == 0:
                batch.reject(record, "not an order")
run(Orders())
"""
WAYS: Final = ("none", "kept", "together", "one by one")
Child = Literal["lines", "frames", "kcl_client"]


@dataclass
class Turns:
    """What one child has cost so far."""

    connection: ChildConnection
    pid: int
    records: int = 0
    wall_s: float = 0.0
    ours_s: float = 0.0
    theirs_s: float = 0.0

    async def take(self, reader: PollingReader) -> None:
        """Some batches, one after the other."""
        began = time.perf_counter(), time.process_time(), cpu_s(self.pid)
        for _ in range(_TURN_BATCHES):
            batch = await reader.next()
            assert isinstance(batch, DeliveryBatch)
            self.records += batch.count
            self.connection.invariants.begins(TRIM_HORIZON)  # the answers are all the same
            await self.connection.deliver(batch)
        self.wall_s += time.perf_counter() - began[0]
        self.ours_s += time.process_time() - began[1]
        self.theirs_s += cpu_s(self.pid) - began[2]

    def row(self, way: str, base: Turns) -> str:
        """Of the table."""
        each = [1e6 * spent / self.records for spent in (self.ours_s, self.theirs_s)]
        rate = self.records / self.wall_s
        ratio = rate / (base.records / base.wall_s)
        return f"| {way} | {rate:,.0f} | {ratio:.3f} | {each[0]:.2f} | {each[1]:.2f} |"


def _rejects(folder: Path, log: RecordingLog) -> Rejects:
    """As a consumer makes them, without one."""
    clock = SystemClock()
    stream = SimpleNamespace(ref=StreamRef("bench"))
    destination = file_at(str(folder / "letters"))
    parts = SimpleNamespace(
        context=replace(worker_context(clock=clock), log=log),
        settings=SimpleNamespace(
            failures=FailureSettings(dead_letters=destination), application_name="app", worker_id="worker"
        ),
        streams=SimpleNamespace(of=lambda lease: stream),
        dead_letters=DeadLetterFile(folder / "letters"),
    )
    lease = Lease(LeaseKey("shardId-0"), 0, TRIM_HORIZON)
    held = HeldLease(lease, 0.0, Throughput(1.0, now_s=0.0), LeaseProgress(clock.monotonic))
    return Rejects(
        SetAside(
            parts=cast("ConsumerContext", parts),
            lane=OnlyLane(cast("ConsumerContext", parts), held),
            stop_signal=StopSignal(),
            log=log,
        )
    )


async def _child(way: str, folder: Path, children: ProcessChildren, tasks: TaskGroup) -> Turns:
    log, clock = RecordingLog(), SystemClock()
    child = await children.start(ShardId(way))
    connection = ChildConnection(
        child,
        ChildSettings(("child",)),
        clock=clock,
        log=log,
        metrics=ChildMetrics(NO_METERS, clock, {}),
        on_checkpoint=_stored,
        rejects=None if way == "none" else _rejects(folder, log),
    )
    tasks.start_soon(connection.pump)
    await connection.perform(Initialize(way, "TRIM_HORIZON", 0))
    return Turns(connection, child.pid)


async def _stored(request: CheckpointRequest) -> CheckpointAnswer:
    return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, None)


def _complain(why: str, sequence_number: str) -> None:
    raise AssertionError(f"record {sequence_number}: {why}")


async def measure(shape: str, turns: int, url: str, folder: Path, kind: Child) -> list[str]:
    """The rows of a shape."""
    frames, ways = kind != "lines", WAYS[:3] if kind == "kcl_client" else WAYS
    clock, log = SystemClock(), RecordingLog()
    command = (sys.executable, "-E", str(folder / "program.py"))
    tls = ssl.create_default_context(cafile=f"{folder}/localhost.pem")
    of = dict[str, Turns]()
    async with (
        calling(url, tls=tls) as caller,
        ProcessChildren(command, log, clock, ChildOptions(frames=frames)) as children,
        anyio.create_task_group() as tasks,
    ):
        of = {way: await _child(way, folder, children, tasks) for way in ways}
        reader = PollingReader(
            ShardSource(
                StreamRef("bench"),
                ShardId(shape),
                TRIM_HORIZON,
                None,
                StartMemory(),
                split=Deaggregator(None, _complain),
                encoder=BatchEncoder(FRAMINGS[FRAMES_VERSION if frames else None]),
            ),
            worker_context(clock=clock),
            ByteBudget(clock),
            kinesis=HttpKinesis(caller),
            settings=RetrievalSettings(),
            limited=False,
        )
        tasks.start_soon(reader.run)
        for turn in range(_WARM_UP_TURNS + turns):
            if turn == _WARM_UP_TURNS:
                of = {way: Turns(each.connection, each.pid) for way, each in of.items()}
            for way in ways if turn % 2 else reversed(ways):
                await of[way].take(reader)
        tasks.cancel_scope.cancel()
    return [of[way].row(f"{shape}, {kind}: {way}", of["none"]) for way in ways]


def run(shape: str, turns: int, kind: Child) -> list[str]:
    """Measure in this process, with a server of its own."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        certificate = write_certificate(folder)
        paths = [str(Path(__file__).parents[2] / each) for each in ("protocol", "clients/python")]
        program = _CLIENT if kind == "kcl_client" else _PROGRAM
        (folder / "program.py").write_text(program.format(paths=paths, frames=kind == "frames"), "utf-8")
        command = [sys.executable, "-m", "tests.benchmarks.canned", shape, str(certificate)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            url = f"https://localhost:{int(server.stdout.readline())}"
            return anyio.run(partial(measure, shape, turns, url, folder, kind))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure what rejects cost.")
    parser.add_argument(
        "--turns", type=int, default=20, help=f"of {_TURN_BATCHES} batches, for each child (20)"
    )
    parser.add_argument("--shapes", nargs="+", default=["1k", "100b", "aggregated"], choices=sorted(SHAPES))
    arguments = parser.parse_args()
    keep_freed_memory()
    sys.stdout.write(
        "| what | records/s | ratio to none | daemon: \u00b5s/record | child |\n|---|---|---|---|---|\n"
    )
    for shape in arguments.shapes:
        for kind in get_args(Child):
            rows = run(shape, arguments.turns, kind)
            sys.stdout.write("".join(f"{row}\n" for row in rows))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
