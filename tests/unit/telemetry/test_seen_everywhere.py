"""One rich state on the page, in `status` and `top`, in the documents and in the metrics, compared with `tests/golden/seen.txt`.

`python -m tests.unit.telemetry.test_seen_everywhere` writes the file anew: look at the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
import msgspec
import orjson
import pytest
from rich.console import Console

from kcl_daemon.admin.page import live_part
from kcl_daemon.admin.site import FORMAT, StatusDocument, status_document
from kcl_daemon.admin.view import ThroughputHistory
from kcl_daemon.capacity.figures import Capacity
from kcl_daemon.cli.common import json_text
from kcl_daemon.cli.status_view import build_view, plain_lines, renderable
from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.telemetry.prometheus import PrometheusExposition, Totals
from kcl_daemon.telemetry.snapshot import HoldView, Snapshot
from tests.unit.admin.stage import LANED, READING, SNAPSHOT, SPARKING
from tests.unit.consumer.poison_stage import Ways, perform
from tests.unit.consumer.test_consumer_shown import Seen
from tests.unit.metrics.snapshots import BEHIND, LANDER, latencies

GOLDEN: Final = Path("tests/golden/seen.txt")
_MARK: Final = "=== "
_STREAM: Final = "123456789012:orders:1700000000"
_NAMED: Final = replace(
    READING,
    key="orders/shardId-000000000007",
    shard_id="shardId-000000000007",
    stream="orders",
    stream_id=_STREAM,
    cause=WaitReason.PAUSED,
    waits_s=120.0,
    detail="maintenance",
    failures=3,
    last_error="exit code 70",
    stderr_tail=("ValueError: <not> an order",),
    next_try_s=4.0,
    set_aside={"rejected": 12, "expired": 30},
    last_set_aside="no <such> customer",
    ahead_s=3.5,
    speed=1.5,
    read_records=20_000,
    read_bytes=4_000_000,
    waiting_bytes=65_536,
    records_per_s=12.5,
    in_records_per_s=13.5,
    in_bytes_per_s=1400.0,
)
RICH: Final = replace(
    LANED,
    shards=(*LANED.shards, replace(READING, key="shardId-000000000009", restarts=0), _NAMED),
    spark=SPARKING.spark,
    landing=LANDER,
    holds=(HoldView("orders is paused", True, _STREAM, None, "me", "maintenance", 1, None, None, 0.0),),
    violations=2,
    last_violation="shard-1: memory",
    capacity=Capacity(0, WorkerId("w-1"), 2, 0, 3, "a reason", "a sentence", "", BEHIND),
    latencies=latencies(*SNAPSHOT.shards),
)


def _history() -> ThroughputHistory:
    history = ThroughputHistory()
    for at_s in range(4):
        shards = tuple(replace(each, bytes_per_s=1000.0 * at_s) for each in RICH.shards)
        history.remember(replace(RICH, shards=shards), float(at_s))
    return history


def _drawn(document: StatusDocument, width: int, max_lines: int | None = None) -> str:
    console = Console(width=width, force_terminal=True, color_system="standard", legacy_windows=False)
    with console.capture() as captured:
        console.print(renderable(build_view(document, max_lines=max_lines), width=width, note="a note"))
    return captured.get()


def _taken() -> Snapshot:
    """Of a worker with a lane that fails, and one that has nothing to do."""
    stage, found = Seen(Ways(status=70)), list[Snapshot]()

    async def scene() -> None:
        stage.put(["poison", "fine"])
        await anyio.sleep(40.0)
        found.append(stage.snapshots.now())
        stage.ways.dies_at = lambda text: False

    perform(
        stage, scene, concurrency=ConcurrencySettings(LaneCounts(2), ShardOrder.NONE, window_bytes=20_000)
    )
    return replace(found[0], version="1.2.3")


def seen() -> Iterator[tuple[str, str]]:
    history = _history()
    document = StatusDocument(
        FORMAT, replace(RICH, latencies=()), {READING.key: [(2.0, 4_000.0), (0.0, 20_000.0)]}
    )
    yield "/live", "".join(live_part(RICH, history, now_s=4.0, every_s=2.0)).replace("<tr", "\n<tr")
    yield "status", "\n".join(plain_lines(build_view(document)))
    for width, lines in ((60, None), (80, 24), (100, 40), (132, None), (240, None)):
        yield f"top, {width} columns, {lines} lines", _drawn(document, width, lines)
    yield "status --json", json_text(document)
    yield "/status.json", b"".join(status_document(RICH, history, now_s=4.0)).decode()
    taken = msgspec.to_builtins(_taken().shards)
    for lane in taken[0]["lanes"]["lanes"]:
        lane["child"] = lane["child"] and lane["child"] | {"rss_bytes": None}
    yield "a shard with lanes, as taken", orjson.dumps(taken, option=orjson.OPT_INDENT_2).decode()
    text = anyio.run(PrometheusExposition(Totals(), lambda: RICH).render).body.decode()
    yield "/metrics", text.partition("# HELP process_")[0]


def _golden() -> dict[str, str]:
    sections = GOLDEN.read_text("utf-8").split(f"\n{_MARK}")[1:]
    return dict(section.split("\n", 1) for section in sections)


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    return dict(seen())


@pytest.mark.parametrize("place", list(_golden()))
def test_one_state_looks_as_before_in_every_place(place: str, shown: dict[str, str]) -> None:
    assert shown[place].splitlines() == _golden()[place].splitlines()


def test_every_place_has_its_golden(shown: dict[str, str]) -> None:
    assert list(shown) == list(_golden())


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"\n{_MARK}{place}\n{text}" for place, text in seen()), "utf-8")
