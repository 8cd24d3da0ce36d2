"""How landing grows with hosts: `python -m tests.benchmarks.landing_hosts`.

Each host is a process with a lander and relays that always have records; its way to the store takes so many bytes a second, as a
network does. Prints what all hosts land per second, for 1, 2 and 4 of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from kcl_landing.control import monotonic_s, pause
from kcl_landing.folder_store import FolderStore
from tests.landing.daemon import Given, ShardOfDaemon
from tests.landing.landers import LanderThread, options

MIB = 1024 * 1024
SHARDS = 2
BATCH = 1_000
RECORD_BYTES = 1_024


class ShapedStore(FolderStore):
    """A folder at the end of a line of so many bytes a second."""

    def __init__(self, folder: Path, bytes_per_s: float) -> None:
        super().__init__(folder)
        self._bytes_per_s = bytes_per_s
        self._line = threading.Lock()
        self.landed_bytes = 0

    def create(self, path: str, content: bytes | memoryview) -> bool:
        with self._line:
            pause(len(content) / self._bytes_per_s)
            self.landed_bytes += len(content)
        return super().create(path, content)


def feed(path: Path, shard: str, until_s: float) -> None:
    payload = os.urandom(RECORD_BYTES * BATCH)
    with ShardOfDaemon(path, shard) as relay:
        relay.initialize()
        number = 1
        while monotonic_s() < until_s:
            records = [
                Given(number + row, payload[row * RECORD_BYTES : (row + 1) * RECORD_BYTES])
                for row in range(BATCH)
            ]
            relay.give(records, behind_ms=1_000)
            number += BATCH


def host(folder: Path, name: str, seconds: float, mib_per_s: float) -> None:
    store = ShapedStore(folder / "log", mib_per_s * MIB)
    chosen = options(folder, window_ms=1_000, max_bytes=2 * MIB, memory_bytes=16 * MIB)
    with LanderThread(chosen, store):
        began_s = monotonic_s()
        threads = [
            threading.Thread(
                target=feed, args=(Path(chosen.socket), f"shardId-{name}-{number}", began_s + seconds)
            )
            for number in range(SHARDS)
        ]
        for each in threads:
            each.start()
        pause(seconds)
        landed, took_s = store.landed_bytes, monotonic_s() - began_s
        for each in threads:
            each.join()
    sys.stdout.write(json.dumps({"mib_per_s": landed / took_s / MIB}))


def together(hosts: int, seconds: float, mib_per_s: float) -> float:
    this = (sys.executable, "-m", "tests.benchmarks.landing_hosts")
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [
                    *this,
                    "--host",
                    folder,
                    str(number),
                    "--seconds",
                    str(seconds),
                    "--mib-per-s",
                    str(mib_per_s),
                ],
                stdout=subprocess.PIPE,
            )
            for number in range(hosts)
        ]
        return sum(float(json.loads(each.communicate()[0])["mib_per_s"]) for each in running)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", nargs=2, metavar=("FOLDER", "NAME"))
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--mib-per-s", type=float, default=8.0, help="of each host's way to the store")
    given = parser.parse_args()
    if given.host is not None:
        host(Path(given.host[0]), given.host[1], given.seconds, given.mib_per_s)
        return
    one = 0.0
    for hosts in (1, 2, 4):
        rate = together(hosts, given.seconds, given.mib_per_s)
        one = one or rate
        sys.stdout.write(f"{hosts} hosts  {rate:6.1f} MiB/s  {rate / one:.2f} x\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
