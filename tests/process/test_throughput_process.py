"""The throughput in the row of a lease is what goes through its shard: bursts, and a child that checkpoints rarely."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kcl_local.demo.check import monotonic_s
from tests.process.daemon import PROCESSORS, Application, application, value_of, wait_until
from tests.process.local import Local

pytestmark = [pytest.mark.prove, pytest.mark.timeout(240)]

SETTLED_S = 40.0
SEEN_S = 80.0
KIB = 1024


def told(app: Application) -> float | None:
    """KiB a second, by the only row."""
    (row,) = app.rows().values()
    return float(value_of(row, "throughputKBps")) if "throughputKBps" in row else None


def wait_for(due_s: float) -> None:
    wait_until(lambda: monotonic_s() >= due_s, "it is time for the next records")


@pytest.mark.parametrize(
    ("size_bytes", "every_s", "more"),
    [(1_000_000, 5.0, {}), (50_000, 0.5, {"batchWindowMillis": 5_000})],
    ids=["bursts", "window"],
)
def test_the_row_of_a_busy_shard_says_how_busy(
    local: Local, tmp_path: Path, size_bytes: int, every_s: float, more: dict[str, object]
) -> None:
    entry: Any = {"Data": bytes(size_bytes // 10), "PartitionKey": "k"}
    true_kbps = size_bytes / every_s / KIB
    figures: list[float | None] = []
    with (
        application(local, tmp_path, f"busy-{size_bytes}", shards=1) as app,
        app.daemon(f"{PROCESSORS}.careful", {**more, "retrievalMode": "POLLING"}),
    ):
        began_s = monotonic_s()
        for number in count():
            due_s = began_s + number * every_s
            wait_for(due_s)
            if due_s - began_s > SETTLED_S:
                figures.append(told(app))
            if due_s - began_s > SEEN_S:
                break
            app.kinesis.put_records(StreamName=app.name, Records=[entry] * 10)
    print(true_kbps, figures)  # noqa: T201 - of interest where it fails
    assert figures == [pytest.approx(true_kbps, rel=0.15)] * len(figures)
