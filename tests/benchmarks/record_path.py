"""`make bench`: what the record path costs, from Kinesis' answer to the child's stdin.

Each row runs in a process of its own against `canned` in another: own transport, prefetch, transformation, pipes. Only
the reader's CPU counts. Children, leases and DynamoDB are not part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Final

import anyio

from kcl_daemon.children.pipes import PipeWriter
from kcl_daemon.children.platform import keep_freed_memory
from kcl_daemon.config.retrieval import FanOutSettings, RetrievalSettings
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Kinesis, StreamRef
from kcl_daemon.records.batch_text import BatchEncoder
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.retrieval.fan_out import ConsumerRegistration, FanOutReader
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import DeliveryBatch, ShardReader, ShardSource, StartMemory
from kcl_daemon.system import SystemClock
from kcl_daemon.transport.caller import AwsJsonClient
from kcl_daemon.transport.event_stream import HttpFanOut
from kcl_daemon.transport.kinesis import HttpKinesis
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import TRIM_HORIZON
from tests.benchmarks.canned import SHAPES
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fleet.contexts import worker_context
from tests.unit.transport.certificate import write_certificate
from tests.unit.transport.scripted import calling

GIB: Final = 2**30
MIB: Final = 2**20
_TICK_S: Final = 0.01
_HEADER: Final = (
    "| what | shards | TLS | CPU-s/GiB | records/s | MiB/s | CPU % | µs/answer | RSS MiB | loop lag p99 ms | load |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Case:
    """What is measured.

    Args:
        shape: of the answers, one of `SHAPES`; `empty` and `paced` come at the tip, all others as fast as they can.
        shards: readers.
        tls: whether the connection is encrypted.
        idle_ms: pause at the tip.
        fan_out: by subscriptions instead of polling.
    """

    shape: str
    shards: int
    tls: bool = False
    idle_ms: int = 1_500
    fan_out: bool = False


CASES: Final = (
    *(Case(shape, 4, tls) for tls in (False, True) for shape in ("100b", "1k", "10k", "aggregated")),
    *(
        Case(shape, 4, tls, fan_out=True)
        for tls in (False, True)
        for shape in ("100b", "1k", "10k", "aggregated")
    ),
    *(Case("1k", shards) for shards in (64, 256)),
    *(Case("1k", shards, fan_out=True) for shards in (64, 256)),
    Case("paced", 256, idle_ms=1_700),
    Case("paced", 256, tls=True, idle_ms=1_700),
    *(Case("empty", shards, tls) for tls in (False, True) for shards in (4, 64, 256)),
)


@dataclass
class Count:
    """What has been delivered."""

    answers: int = 0
    records: int = 0


async def measure(case: Case, url: str, certificate: Path, pipes: list[int], seconds: float) -> str:
    """One row of the table."""
    clock, lags, count, row = SystemClock(), list[float](), Count(), ""
    tls = ssl.create_default_context(cafile=str(certificate)) if case.tls else None
    async with calling(url, tls=tls) as caller, anyio.create_task_group() as group:
        kinesis = HttpKinesis(caller)
        budget = ByteBudget(clock)
        for number, fd in enumerate(pipes):
            reader = _pushed(case, caller, budget) if case.fan_out else _polled(case, kinesis, budget)
            delay_s = number / len(pipes) * case.idle_ms / 1000 if case.shape in {"empty", "paced"} else 0.0
            group.start_soon(_later, delay_s, reader)
            group.start_soon(_deliver, reader, PipeWriter(fd), count)
        await anyio.sleep(1.0 + case.idle_ms / 1000)
        count.answers = count.records = 0
        began_s, began_cpu_s = clock.monotonic(), time.process_time()
        while clock.monotonic() < began_s + seconds:
            before_s = clock.monotonic()
            await anyio.sleep(_TICK_S)
            lags.append((clock.monotonic() - before_s - _TICK_S) * 1000)
        row = _row(case, count, clock.monotonic() - began_s, time.process_time() - began_cpu_s, lags)
        group.cancel_scope.cancel()
    return row


def _polled(case: Case, kinesis: Kinesis, budget: ByteBudget) -> ShardReader:
    return PollingReader(
        _source(case),
        worker_context(clock=SystemClock()),
        budget,
        kinesis=kinesis,
        settings=RetrievalSettings(idle_time_between_reads_ms=case.idle_ms),
        limited=False,
    )


def _pushed(case: Case, caller: AwsJsonClient, budget: ByteBudget) -> ShardReader:
    model = MemoryKinesis(KinesisModel(time.time))  # noqa: TID251 - never asked
    fan_out = HttpFanOut(caller)
    context = worker_context(clock=SystemClock())
    return FanOutReader(
        _source(case),
        context,
        budget,
        fan_out=fan_out,
        kinesis=model,
        consumer=ConsumerRegistration(
            context,
            fan_out=fan_out,
            kinesis=model,
            stream=StreamRef("bench"),
            settings=FanOutSettings(
                consumer_arn="arn:aws:kinesis:us-east-1:123456789012:stream/bench/consumer/b:1"
            ),
            application_name="bench",
        ),
        reports_empty=True,
    )


def _source(case: Case) -> ShardSource:
    return ShardSource(
        StreamRef("bench"),
        ShardId(case.shape),
        TRIM_HORIZON,
        None,
        StartMemory(),
        split=Deaggregator(None, _complain),
    )


def _complain(why: str, sequence_number: str) -> None:
    raise AssertionError(f"record {sequence_number}: {why}")


async def _later(delay_s: float, reader: ShardReader) -> None:
    await anyio.sleep(delay_s)
    await reader.run()


async def _deliver(reader: ShardReader, pipe: PipeWriter, count: Count) -> None:
    while True:
        batch = await reader.next()
        assert isinstance(batch, DeliveryBatch)
        await pipe.send(batch.take_encoded(BatchEncoder()).data)
        batch.release()
        count.answers += 1
        count.records += batch.count


def _row(case: Case, count: Count, wall_s: float, cpu_s: float, lags: list[float]) -> str:
    data_bytes = count.records * SHAPES[case.shape][1]
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cells = (
        f"{case.shape}, fan-out" if case.fan_out else case.shape,
        case.shards,
        "yes" if case.tls else "no",
        f"{cpu_s / data_bytes * GIB:.2f}" if data_bytes else "-",
        f"{count.records / wall_s:,.0f}",
        f"{data_bytes / wall_s / MIB:.1f}",
        f"{cpu_s / wall_s * 100:.1f}",
        f"{cpu_s / max(count.answers, 1) * 1e6:,.0f}",
        f"{rss_mib:.0f}",
        f"{quantiles(lags, n=100)[98]:.1f}",
        f"{os.getloadavg()[0]:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def run(case: Case, seconds: float) -> str:
    """Measure in this process, with a server of its own."""
    keep_freed_memory()
    pipes = [os.pipe() for _ in range(case.shards)]
    with tempfile.TemporaryDirectory() as folder:
        certificate = write_certificate(Path(folder))
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.canned",
            case.shape,
            str(certificate) if case.tls else "",
        ]
        reading = [reading for reading, _ in pipes]
        with subprocess.Popen(
            [*command, *map(str, reading)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=reading,
        ) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            for fd in reading:
                os.close(fd)
            url = f"{'https' if case.tls else 'http'}://localhost:{port}"
            return anyio.run(measure, case, url, certificate, [writing for _, writing in pipes], seconds)


def main() -> None:
    """Print the table, or one row of it."""
    parser = argparse.ArgumentParser(description="Measure the record path.")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row (5)")
    parser.add_argument("--only", default="", help="rows whose description holds this text")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        sys.stdout.write(run(Case(**json.loads(arguments.case)), arguments.seconds) + "\n")
        return
    sys.stdout.write("\n".join(_HEADER) + "\n")
    for case in CASES:
        if arguments.only in repr(case):
            reported = json.dumps(asdict(case))
            command = [
                sys.executable,
                "-m",
                "tests.benchmarks.record_path",
                "--seconds",
                str(arguments.seconds),
            ]
            sys.stdout.flush()
            subprocess.run([*command, "--case", reported], check=True)


if __name__ == "__main__":
    main()
