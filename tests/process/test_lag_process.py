"""The lag that a daemon tells is the age of the oldest record that is not done: slow children, hung ones, idle ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from kcl_local.demo.check import monotonic_s
from tests.process.daemon import PROCESSORS, Application, Daemon, application, wait_until
from tests.process.local import Local

SECONDS = 8
EACH_SECOND = 40


def shard_of(port: int) -> dict[str, Any]:
    """The only shard of `/status.json`."""
    with urlopen(f"http://127.0.0.1:{port}/status.json", timeout=5) as answer:
        (shard,) = json.load(answer)["snapshot"]["shards"]
    found: dict[str, Any] = shard
    return found


def told_s(port: int) -> tuple[float, float, float]:
    """The lag by `/status.json`, the same by `/metrics`, and how far behind the last read was."""
    shard = shard_of(port)
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = {
        name: float(value)
        for name, value in re.findall(r"^(kcl_shard_\w+_seconds)\{\S+ (\S+)$", text, re.MULTILINE)
    }
    read_s = found["kcl_shard_read_behind_seconds"]
    return shard["lag_s"], found["kcl_shard_behind_latest_seconds"], read_s


def is_idle(port: int) -> bool:
    """Whether it has caught up, and everything is done."""
    try:
        return told_s(port)[:2] == (0.0, 0.0)
    except (OSError, KeyError, ValueError, TypeError):
        return False  # it starts, or has not heard of Kinesis yet


def done_in(directory: Path) -> int:
    """How many records are in batches that were answered."""
    file = directory / "ledgers" / "worker" / "done"
    return int(file.read_text("ascii")) if file.exists() else 0


def port_of(daemon: Daemon) -> int:
    """Where its status page is."""
    return urlsplit(daemon.wait_for("status_page_served")["url"]).port or 0


def put(app: Application, data: bytes, count: int) -> None:
    """Write records."""
    entry: Any = {"Data": data, "PartitionKey": "k"}
    app.kinesis.put_records(StreamName=app.name, Records=[entry] * count)


@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
def test_the_lag_of_a_slow_child_is_the_age_of_the_oldest_record_that_is_not_done(
    local: Local, tmp_path: Path, mode: str
) -> None:
    """10 records a second are done, 40 are put."""
    more = {"adminPort": 0, "retrievalMode": mode, "shutdownGraceMillis": 500}
    put_s: list[float] = []
    named = f"slow-{mode.lower()}"
    with (
        application(local, tmp_path, named, shards=1) as app,
        app.daemon(f"{PROCESSORS}.slow", more) as daemon,
    ):
        port = port_of(daemon)
        wait_until(lambda: is_idle(port), "it has caught up")
        began_s = monotonic_s()
        for second in range(1, SECONDS + 1):
            put(app, b"a record", EACH_SECOND)
            put_s += [monotonic_s()] * EACH_SECOND
            Event().wait(max(0.0, began_s + second - monotonic_s()))
            oldest_s = put_s[done_in(tmp_path)]
            now_s, reported = monotonic_s(), told_s(port)
            for lag_s in reported[:2]:
                assert lag_s == pytest.approx(now_s - oldest_s, rel=0.2, abs=1.5)
        assert told_s(port)[0] > SECONDS / 2


def test_the_lag_of_a_child_that_hangs_grows_with_the_clock(local: Local, tmp_path: Path) -> None:
    more = {"adminPort": 0, "shutdownGraceMillis": 500}
    with (
        application(local, tmp_path, "hung", shards=1) as app,
        app.daemon(f"{PROCESSORS}.slow", more) as daemon,
    ):
        port = port_of(daemon)
        wait_until(lambda: is_idle(port), "it has caught up")
        put(app, b"hang", 1)
        began_s = monotonic_s()
        for _ in range(3):
            Event().wait(1.0)
            lag_s, metric_s, read_s = told_s(port)
            since_s = monotonic_s() - began_s
            assert lag_s == pytest.approx(since_s, abs=0.5)
            assert metric_s == pytest.approx(since_s, abs=0.5)
            assert read_s < 1.0, "the last read led to the tip"


def test_records_that_are_read_up_to_four_answers_ahead_are_as_old_as_they_are(
    local: Local, tmp_path: Path
) -> None:
    """Each answer has five records, which take the child half a second."""
    more = {"adminPort": 0, "shutdownGraceMillis": 500, "maxRecords": 5, "idleTimeBetweenReadsInMillis": 200}
    with (
        application(local, tmp_path, "ahead", shards=1) as app,
        app.daemon(f"{PROCESSORS}.slow", more) as daemon,
    ):
        port = port_of(daemon)
        wait_until(lambda: is_idle(port), "it has caught up")
        put(app, b"a record", 60)
        began_s = monotonic_s()
        wait_until(lambda: shard_of(port)["waiting_records"] >= 15, "it has read ahead")
        assert 15 <= shard_of(port)["waiting_records"] <= 30, "it reads no more than four answers ahead"
        seen_s = [
            0.0,
            0.0,
        ]  # when the last look saw no more than half of them done, and when the next one saw more
        while (done := done_in(tmp_path)) < 50:
            shard, since_s = shard_of(port), monotonic_s() - began_s
            if seen_s[1] == 0.0:
                seen_s[done > 30] = since_s
            assert shard["lag_s"] == pytest.approx(since_s, abs=1.0)
            assert shard["uncheckpointed_s"] == pytest.approx(since_s, abs=1.0)
            assert shard["read_records"] - shard["records"] == pytest.approx(shard["waiting_records"], abs=10)
            Event().wait(0.5)
        wait_until(lambda: is_idle(port), "all is done")
        took_s, shard = monotonic_s() - began_s, shard_of(port)
        assert (shard["waiting_records"], shard["waiting_bytes"], shard["uncheckpointed_s"]) == (0, 0, 0.0)
        assert shard["read_records"] == shard["records"] == 60
        assert shard["read_bytes"] == shard["data_bytes"] > 0
        wait_until(
            lambda: (shard_of(port)["p99_s"] or 0.0) > 0.7 * took_s,
            "its latency, up to ten seconds old, is told",
        )
        shard = shard_of(port)
        assert 0.9 * seen_s[0] - 1.0 <= shard["p50_s"] <= 1.1 * seen_s[1] + 1.0, "half were done by then"
        assert shard["p99_s"] == pytest.approx(took_s, rel=0.1, abs=1.0)


def test_a_child_that_does_not_checkpoint_is_seen(local: Local, tmp_path: Path) -> None:
    more = {"adminPort": 0, "shutdownGraceMillis": 500}
    with (
        application(local, tmp_path, "unstored", shards=1) as app,
        app.daemon(f"{PROCESSORS}.slow", more) as daemon,
    ):
        port = port_of(daemon)
        wait_until(lambda: is_idle(port), "it has caught up")
        put(app, b"quick", 3)
        began_s = monotonic_s()
        wait_until(lambda: done_in(tmp_path) == 3 and is_idle(port), "they are done")
        for _ in range(3):
            Event().wait(1.0)
            shard, since_s = shard_of(port), monotonic_s() - began_s
            assert shard["lag_s"] == 0.0
            assert shard["uncheckpointed_s"] == pytest.approx(since_s, abs=0.5)
        put(app, b"a record", 1)
        wait_until(
            lambda: done_in(tmp_path) == 4 and is_idle(port), "it is done, and checkpointed with all before"
        )
        assert shard_of(port)["uncheckpointed_s"] == 0.0
