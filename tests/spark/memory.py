"""How much memory an engine with Spark in itself takes, at its highest: all its processes, while two queries work."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import psutil

from kcl_landing.control import monotonic_s, pause
from tests.spark.daemon import Daemon, Shard

WITHIN_S = 300
RECORDS = 20_000


def used_mb(pid: int) -> float:
    """Of a process and all below it; what several share counts once (PSS)."""
    total = 0
    try:
        root = psutil.Process(pid)
        for each in (root, *root.children(recursive=True)):
            total += each.memory_full_info().pss
    except psutil.NoSuchProcess:  # a worker has just ended
        return 0.0
    return total / 1e6


def measured() -> tuple[float, float]:
    """Megabytes at the highest, and seconds from its start until the engine took records."""
    with tempfile.TemporaryDirectory(prefix="kcl-memory-") as name:
        folder = Path(name)
        shutil.copy(Path(__file__).with_name("jobs.py"), folder / "jobs.py")
        shards = [Shard(f"shardId-{number:012}", RECORDS, bytes_each=1_024) for number in range(4)]
        with Daemon(folder, shards, most_records=2_000) as daemon:
            started_s = monotonic_s()
            conf = {"spark.ui.enabled": "false"}
            engine = daemon.start_engine(pipeline="jobs:two_sinks", driver_memory="1g", conf=conf)
            ready_s = monotonic_s() - started_s
            highest = 0.0
            daemon.start_relays()
            while not daemon.is_done() and monotonic_s() - started_s < WITHIN_S:
                highest = max(highest, used_mb(engine.process.pid))
                pause(0.2)
            assert daemon.is_done(), daemon.engine_log()
            daemon.drain()
            assert engine.stop() == 0
    return highest, ready_s
