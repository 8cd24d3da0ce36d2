"""`make bench-landing`: what it costs a host to land records on its disk: daemon, relays and lander together.

A real daemon reads 1 million records of 1 KiB from a Kinesis that makes its answers beforehand, in a process of its own;
leases are in the local DynamoDB. Neither of these counts. Afterwards the log is read: every record must be there, once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio
import orjson
import psutil

from kcl_landing import segments
from kcl_landing.folder_store import FolderStore
from kcl_landing.log import Entry, entry_path
from kcl_landing.manifests import ShardLog, known_log
from kcl_local.demo.check import monotonic_s
from kcl_local.demo.processes import Processes, environment
from kcl_local.demo.stream import Urls, properties_text
from tests.benchmarks.canned import Canned, plain, serve

GIB: Final = 2**30
BOUND: Final = 8.0
BATCH: Final = 5_000
SIZE: Final = 1024
STREAM: Final = "bench"
_FIRST_NUMBER: Final = 49680402648584475383664798923336567125215930000000000000
_FIRST_S: Final = 1_795_190_000
_SECONDS: Final = 5
"""Of arrivals, in one answer: as many records as a shard can take."""
_SEED: Final = "@answer@"


class Growing(Canned):
    """Each answer of a shard has later records than the one before, until its last."""

    template: bytes = b""
    shards = answers = 0

    def _body(self, request: bytes) -> bytes:
        asked = orjson.loads(request)
        if "ShardIterator" in asked:
            return self._records(asked["ShardIterator"])
        if "ShardId" in asked:
            first = int(asked.get("StartingSequenceNumber") or _FIRST_NUMBER) - _FIRST_NUMBER
            return orjson.dumps({"ShardIterator": f"{asked['ShardId']}:{first // 100_000}"})
        return orjson.dumps({"Shards": self._shards(), "StreamDescriptionSummary": self._summary()})

    def _records(self, iterator: str) -> bytes:
        shard, _, number = iterator.partition(":")
        index = int(number)
        if index >= self.answers:
            return b'{"MillisBehindLatest":0,"NextShardIterator":"%s","Records":[]}' % iterator.encode()
        answer = self.template.replace(_SEED.encode(), b"%08d" % index)
        for second in range(_SECONDS):
            answer = answer.replace(b"@sec%06d" % second, b"%d" % (_FIRST_S + index * _SECONDS + second))
        return answer.replace(b"@next", f"{shard}:{index + 1}".encode())

    def _shards(self) -> list[dict[str, object]]:
        width = 2**128 // self.shards
        return [
            {
                "ShardId": f"shardId-{number:012d}",
                "HashKeyRange": {
                    "StartingHashKey": str(number * width),
                    "EndingHashKey": str((number + 1) * width - 1),
                },
                "SequenceNumberRange": {"StartingSequenceNumber": str(_FIRST_NUMBER)},
            }
            for number in range(self.shards)
        ]

    def _summary(self) -> dict[str, object]:
        arn = f"arn:aws:kinesis:us-east-1:123456789012:stream/{STREAM}"
        return {
            "StreamName": STREAM,
            "StreamARN": arn,
            "StreamStatus": "ACTIVE",
            "StreamCreationTimestamp": float(_FIRST_S),
            "RetentionPeriodHours": 24,
            "OpenShardCount": self.shards,
        }


def template() -> bytes:
    """An answer; what changes from one to the next is marked."""
    number = str(_FIRST_NUMBER)[: -len(_SEED) - 5]
    per_second = BATCH // _SECONDS
    records = [
        f'{{"SequenceNumber":"{number}{_SEED}{each:05d}",'
        f'"ApproximateArrivalTimestamp":@sec{each // per_second:06d}.{each % per_second:03d},'
        f'"Data":"{b64encode(plain(each, SIZE)).decode()}","PartitionKey":"user-{each * 7919 % 10**9}"}}'
        for each in range(BATCH)
    ]
    joined = ",".join(records)
    return f'{{"MillisBehindLatest":60000,"NextShardIterator":"@next","Records":[{joined}]}}'.encode()


def serve_stream(shards: int, answers: int) -> None:
    Growing.template, Growing.shards, Growing.answers = template(), shards, answers
    anyio.run(serve, "empty", "", [], Growing)


Spent = dict[str, float]


def spent_s(daemon: psutil.Process) -> Spent:
    """CPU seconds by kind of process."""
    found: Spent = {"daemon": 0.0, "lander": 0.0, "relay": 0.0}
    for each in [daemon, *daemon.children(recursive=True)]:
        try:
            words, times = " ".join(each.cmdline()), each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        kind = next((name for name in ("lander", "relay") if f"kcl_landing.{name}" in words), "daemon")
        found[kind if "kcl_landing/relay" not in words else "relay"] += times.user + times.system
    return found


def landed_rows(log: Path) -> int:
    """By the manifests, without opening a segment."""
    if not (log / "_kcl_landing.json").exists():
        return 0
    store = FolderStore(log)
    shards = [each.path.split("/")[2] for each in store.listing(f"_manifests/{STREAM}")]
    return sum(entry.rows for shard in shards for entry in _entries(store, shard.removesuffix(".json")))


def _entries(store: FolderStore, shard: str) -> list[Entry]:
    return list(ShardLog(store, known_log(store), STREAM, shard).entries())


def check(log: Path, shards: int, answers: int) -> None:
    """Every record, once."""
    store, info = FolderStore(log), known_log(FolderStore(log))
    for number in range(shards):
        shard, distinct = f"shardId-{number:012d}", set[str]()
        for entry in _entries(store, shard):
            table = segments.decode(store.read(entry_path(info, STREAM, shard, entry)), info.format)
            names = table.column("sequence_number").unique().to_pylist()
            assert len(names) == table.num_rows, entry
            assert distinct.isdisjoint(names), entry
            distinct.update(names)
        assert len(distinct) == answers * BATCH, (shard, len(distinct))


async def measure(folder: Path, url: str, records: int, shards: int, more: dict[str, str]) -> None:
    processes, log = Processes(), folder / "log"
    async with processes.endpoints(folder) as (_, urls):
        own = {"streamName": STREAM, "applicationName": "bench", "landing": str(log)}
        properties = folder / "bench.properties"
        properties.write_text(properties_text(Urls(url, urls.dynamodb), own, more))
        command = [sys.executable, "-m", "kcl_daemon", "--log-format", "console", "--properties"]
        began_s = monotonic_s()
        with (folder / "daemon.log").open("wb") as said:
            running = subprocess.Popen(  # noqa: ASYNC220 - nothing else is waiting
                [*command, str(properties)], env=environment(), stderr=said, stdout=said
            )
        try:
            daemon = psutil.Process(running.pid)
            started, started_s, rows, first_rows = Spent(), 0.0, 0, 0
            while rows < records:
                assert running.poll() is None, (folder / "daemon.log").read_text()[-5000:]
                await anyio.sleep(0.1 if not started else 0.5)
                rows = landed_rows(log)
                if rows and not started:
                    started, started_s, first_rows = spent_s(daemon), monotonic_s(), rows
            took_s, spent = monotonic_s() - started_s, spent_s(daemon)
            peak = max(each.memory_info().rss for each in daemon.children(recursive=True)) / 2**20
        finally:
            running.terminate()
            running.wait(60)
    check(log, shards, records // shards // BATCH)
    report(spent, records, f"with the start of all processes, {monotonic_s() - began_s:.0f} s")
    steady = {kind: seconds - started[kind] for kind, seconds in spent.items()}
    report(steady, records - first_rows, f"after the first {first_rows} records, {took_s:.0f} s")
    print(f"memory of the lander at the end: {peak:.0f} MiB; load {os.getloadavg()[0]:.1f}")  # noqa: T201
    total = sum(spent.values()) / records / SIZE * GIB
    print(f"{total:.2f} CPU-s/GiB (<= {BOUND:g})")  # noqa: T201


def report(spent: Spent, records: int, what: str) -> None:
    each = {kind: seconds / records / SIZE * GIB for kind, seconds in sorted(spent.items())}
    parts = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in each.items())
    print(f"{sum(each.values()):.2f} CPU-s/GiB ({parts}) {what}")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure landing on the local disk.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--property", action="append", default=[], help="NAME=VALUE, more of the daemon's")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    answers = arguments.records // arguments.shards // BATCH
    if arguments.serve is not None:
        serve_stream(arguments.shards, answers)
        return
    more = dict(each.split("=", 1) for each in arguments.property)
    command = [sys.executable, "-m", "tests.benchmarks.landing", "--serve", "1"]
    sizes = ["--records", str(arguments.records), "--shards", str(arguments.shards)]
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen([*command, *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server,
    ):
        assert server.stdout is not None
        url = f"http://localhost:{int(server.stdout.readline())}"
        records = answers * arguments.shards * BATCH
        anyio.run(measure, Path(folder), url, records, arguments.shards, more)
        assert server.stdin is not None
        server.stdin.close()


if __name__ == "__main__":
    main()
