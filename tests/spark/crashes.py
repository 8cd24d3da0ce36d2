"""Kills at named points: where each is, and how to be there. Played by the crash suite and by one test of every run."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.dataset as ds

from kcl_landing.control import pause
from tests.spark.daemon import Daemon, Relay, Shard, wait_for

SPOT_WITHIN_S = 240  # a busy machine takes a minute to start Spark
_MAX_BYTES = 60_000


@dataclass
class Account:
    """What one run of kills came to, for one sink."""

    lost: int
    repeated: int


def stage(folder: Path, *, records: int = 6_000, seed: int = 1) -> Daemon:
    """Two shards, of which one ends, and the pipeline with two sinks."""
    shutil.copy(Path(__file__).with_name("jobs.py"), folder / "jobs.py")
    shards = [Shard("shardId-000000000000", records), Shard("shardId-000000000001", records, ends=True)]
    return Daemon(folder, shards, seed=seed, most_records=120, pace_s=0.03)


def run_until(daemon: Daemon, reached: Callable[[], bool]) -> None:
    """Start an engine and relays, and run to a point."""
    start(daemon)
    engine = daemon.engine
    assert engine is not None
    wait_for(lambda: reached() or engine.process.poll() is not None, SPOT_WITHIN_S)
    assert engine.process.poll() is None, (
        f"the engine ended by itself: {engine.events}\n{daemon.engine_log()}"
    )


def start(daemon: Daemon) -> None:
    engine = daemon.start_engine(pipeline="jobs:two_sinks", max_bytes_per_trigger=_MAX_BYTES)
    assert engine.process.poll() is None, engine.events
    daemon.start_relays()


def hold_at(daemon: Daemon, point: str) -> Callable[[], bool]:
    """Have the pipeline's function stop at a point from its third batch on; whether it stands there."""
    (daemon.folder / "held").unlink(missing_ok=True)
    hold = daemon.folder / "hold"
    seen = committed(daemon, "batches")

    def stands() -> bool:
        if (
            not hold.exists()
            and not (daemon.folder / "held").exists()
            and committed(daemon, "batches") > seen + 1
        ):
            hold.write_text(point)
        return (daemon.folder / "held").exists()

    return stands


def committed(daemon: Daemon, query: str) -> int:
    """The newest batch in Spark's commit log."""
    folder = daemon.folder / "state" / "queries" / query / "commits"
    return max((int(each.name) for each in folder.glob("[0-9]*")), default=-1)


def in_sink_not_in_log(daemon: Daemon) -> Callable[[], bool]:
    """Stop Spark when the file sink has finished a batch and before Spark's log has it; whether it stands there.

    Between the two are some 50 ms, which a busy machine may sleep through in every batch until there are no more. But
    Hadoop's local file system runs `chmod` for each file that it creates, so that one of ours can hold it at any file.
    """
    seen = committed(daemon, "files")
    hold, held = daemon.folder / "hold-commit", daemon.folder / "held-commit"
    program = daemon.folder / "bin" / "chmod"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in */queries/files/commits/*) [ -e {hold} ] && touch {held} && exec sleep 600 ;; esac\n'
        f'exec {shutil.which("chmod")} "$@"\n'
    )
    program.chmod(0o755)
    daemon.environment["PATH"] = f"{program.parent}:{os.environ['PATH']}"

    def stands() -> bool:
        if not hold.exists() and committed(daemon, "files") > seen:
            hold.touch()
        return held.exists()

    return stands


def assert_in_sink_not_in_log(daemon: Daemon) -> None:
    """What the kill has left: one batch more in the sink than in Spark's log."""
    names = (daemon.folder / "out" / "files" / "_spark_metadata").glob("[0-9]*")
    newest = max(int(each.name.partition(".")[0]) for each in names)
    assert newest == committed(daemon, "files") + 1


def stop_at(daemon: Daemon, point: str) -> Callable[[], bool]:
    """Have the daemon stand still at a point of the conversation; whether it does."""
    at: list[Relay] = []

    def stand(relay: Relay) -> None:
        at.append(relay)
        if point == "checkpoint":
            pause(3)  # the request is not answered any more

    daemon.hooks[point] = stand
    return lambda: bool(at)


def kill_in_drain(daemon: Daemon) -> None:
    """All shards are asked to drain while there is much to do."""
    run_until(daemon, lambda: committed(daemon, "batches") >= 1)
    for relay in daemon.relays:
        relay.drain.set()
    pause(0.05)
    assert daemon.engine is not None
    daemon.engine.kill()


def kill_at(daemon: Daemon, point: str) -> None:
    """Run to a point and kill there."""
    if point == "in_drain":
        kill_in_drain(daemon)
        return
    reached = {
        "in_batch": lambda: hold_at(daemon, "in_batch"),
        "after_sink": lambda: hold_at(daemon, "after_sink"),
        "file_sink_before_log": lambda: in_sink_not_in_log(daemon),
        "after_log": lambda: _commits_more(daemon),
        "before_checkpoint": lambda: stop_at(daemon, "checkpoint"),
        "in_shard_end": lambda: stop_at(daemon, "shard_end"),
        "parent_alone": lambda: hold_at(daemon, "in_batch"),
        "spool_deleted": lambda: hold_at(daemon, "after_sink"),
    }[point]()
    run_until(daemon, reached)
    assert daemon.engine is not None
    if point == "parent_alone":
        daemon.engine.kill_parent()
    else:
        daemon.engine.kill()
    if point == "spool_deleted":
        shutil.rmtree(daemon.folder / "state" / "spool")
    if point == "file_sink_before_log":
        assert_in_sink_not_in_log(daemon)
        daemon.environment.clear()
    daemon.hooks.clear()
    (daemon.folder / "hold").unlink(missing_ok=True)


POINTS = (
    "in_batch",
    "after_sink",
    "file_sink_before_log",
    "after_log",
    "before_checkpoint",
    "in_shard_end",
    "in_drain",
    "parent_alone",
    "spool_deleted",
)


def _commits_more(daemon: Daemon) -> Callable[[], bool]:
    seen = committed(daemon, "files")
    return lambda: committed(daemon, "files") > seen + 1


def finish(daemon: Daemon) -> dict[str, Account]:
    """Run to the end in peace, and count."""
    for relay in daemon.relays:
        relay.join(60)
    run_until(daemon, daemon.is_done)
    daemon.drain()
    assert daemon.engine is not None
    assert daemon.engine.stop() == 0, daemon.engine.events
    return {
        "files": account(daemon, daemon.folder / "out" / "files"),
        "batches": account(daemon, daemon.folder / "out" / "batches"),
    }


def account(daemon: Daemon, folder: Path) -> Account:
    """Lost and repeated records of an output, by the files that Spark would read."""
    found = Counter(text.rstrip("x").rstrip(":") for text in texts(folder))
    expected = daemon.expected()
    assert not found.keys() - set(expected), "records that nobody wrote"
    return Account(
        lost=sum(1 for each in expected if not found[each]),
        repeated=sum(count - 1 for count in found.values()),
    )


def texts(folder: Path) -> list[str]:
    """The column `text` of a parquet output; of a file sink only what its log of batches names."""
    log = folder / "_spark_metadata"
    if log.exists():
        files = [str(path) for path in _committed_files(log)]
    else:
        files = [str(path) for path in folder.rglob("*.parquet")]
    found: list[str] = ds.dataset(files, format="parquet").to_table(columns=["text"])["text"].to_pylist()
    return found


def newest_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of windows in batches, of each window and shard only the last."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    batches = [each for each in folder.glob("batch_id=*") if list(each.glob("*.parquet"))]
    for batch in sorted(batches, key=lambda each: int(each.name.partition("=")[2])):
        for row in ds.dataset([str(each) for each in batch.glob("*.parquet")]).to_table().to_pylist():
            found[row["window"]["start"], row["shard_id"]] = row
    return list(found.values())


def _committed_files(log: Path) -> list[Path]:
    lines = [line for entry in log.glob("[0-9]*") for line in entry.read_text().splitlines()[1:]]
    return sorted({Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines})
