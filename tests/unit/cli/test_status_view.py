"""What `kcl-daemon status` and `top` show, from values."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kcl_daemon.admin.site import FORMAT, StatusDocument
from kcl_daemon.admin.view import SHARDS
from kcl_daemon.cli.status_view import build_view, plain_lines, renderable, spark
from kcl_daemon.telemetry.snapshot import Snapshot
from tests.examples import examples
from tests.unit.admin.stage import FOLLOWER, LANED, READING, SNAPSHOT, SPARKING, calmly, many, snapshots
from tests.unit.metrics.snapshots import LANDER

SHOWN = """\
not ready, worst lag 90.0 s (shard 1), 40 KiB/s, 0 failing, 1 stalled
not ready: shardId-000000000002 makes no progress: kinesis for 5 min (Throttled: slow down)
billing, stream orders in eu-west-1, account 123456789012
2026-11-20 12:03:51 UTC, worker w-1, uptime 24 h, leader w-1 (this worker), kcl-daemon 1.2.3
6 leases: 2 of this worker, 1 unowned, 1 in handoff, 1 finished

Shards:
shard                 state          lag  not checkpointed        p50, p99     throughput  waiting  waits for                                 checkpoint             worker
shardId-000000000002  stalled          -                                         20 KiB/s    12345  kinesis for 5 min (Throttled: slow down)  496599...000000123456  w-1
shardId-000000000004  unowned                                                                                                                 TRIM_HORIZON           -
shardId-000000000001  reading     90.0 s             2 min  250 ms, 93.5 s  ▅▁▂█ 20 KiB/s    12345                                            496599...000000123456  w-1
shardId-000000000000  finished                                                                                                                SHARD_END              -
shardId-000000000003  in handoff                                                                                                              TRIM_HORIZON           w-2, then w-1
shardId-000000000005  elsewhere                                                                                                               TRIM_HORIZON           w-2

Workers:
worker  role                 leases   cpu  last report
w-1     leader, this worker       2  44 %      3 s ago
w-2     follower                  2     -            -

Children:
shard                  pid  memory  uptime  restarts  last line of stderr
shardId-000000000001  4242  48 MiB  62 min         2  ready"""

MOVED = """\

Last moves:
    when  lease                 reason
12 s ago  shardId-000000000003  w-2 -> w-1, cpu 81 % -> 44 %"""


SHOWN_OF_SPARK = """\

Spark queries (http://127.0.0.1:4040):
query   state                 batch  last commit  rows in  rows done  batch took  rows in state  dropped as late
counts  running                  12      0 s ago    100/s      200/s      1.25 s             30                4
raw     failed, starts again      -     40 s ago        -          -           -              -                -

Shards in Spark:
shard                 rows  committed  waiting  oldest waits
shardId-000000000002  1000        900      100         2 min
shardId-000000000001  1000       1000        0             -"""


SHOWN_OF_LANES = """\

Lanes:
shard                 started  slowest  key hash  holds the checkpoint  not done  bytes of it  bytes of all  restarts
shardId-000000000001   2 of 8  lane 3   00c0ffee                  75 s        14      3.0 MiB       8.0 MiB         2
shardId-000000000002   0 of 4  -        -                            -         -            -           0 B         0

Workers:
"""
CHILDREN_OF_LANES = """\

Children:
shard                         pid  memory  uptime  restarts  last line of stderr
shardId-000000000001 lane 0  4242  48 MiB  62 min         0  ready
shardId-000000000001 lane 3                               2  KeyError: 7

"""


def status(snapshot: Snapshot) -> StatusDocument:
    samples = [(6.0, 10_000.0), (4.0, 0.0), (2.0, 4_000.0), (0.0, 20_000.0)]
    return StatusDocument(FORMAT, snapshot, {READING.key: samples})


def drawn(snapshot: Snapshot, *, width: int = 200, max_lines: int | None = None) -> str:
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(renderable(build_view(status(snapshot), max_lines=max_lines), width=width))
    return captured.get()


def test_everything_of_the_page_is_shown_in_lines() -> None:
    assert "\n".join(plain_lines(build_view(status(SNAPSHOT)))) == f"{SHOWN}\n{MOVED}"


def test_shards_with_several_children_have_a_table_and_a_row_for_each_child() -> None:
    text = "\n".join(plain_lines(build_view(status(LANED))))
    assert SHOWN_OF_LANES in text
    assert CHILDREN_OF_LANES in text
    assert "lane for 12 s (lane 3, at a record whose key has the hash 00c0ffee)" in text
    assert "lane 3" in drawn(LANED, width=80)


def test_the_spark_engine_stands_below() -> None:
    assert "\n".join(plain_lines(build_view(status(SPARKING)))) == f"{SHOWN}\n{SHOWN_OF_SPARK}\n{MOVED}"
    assert "failed, starts again" in drawn(SPARKING)


def test_the_landing_log_stands_below_with_the_trouble_of_its_store() -> None:
    text = "\n".join(plain_lines(build_view(status(replace(SNAPSHOT, landing=LANDER)))))
    assert "not ready: the landing store takes nothing: full since 90 s: no space left" in text
    assert "Landing log, store: full since 90 s: no space left:" in text


def test_a_worker_that_knows_nothing_yet_says_so() -> None:
    text = "\n".join(plain_lines(build_view(status(replace(FOLLOWER, shards=(), started=False)))))
    for words in ("it has not started yet", "were not read yet", "no lease is known", "no child is running"):
        assert words in text


def test_a_terminal_shows_the_same_words() -> None:
    text = drawn(SNAPSHOT)
    for words in (
        "not ready: shardId-000000000002",
        "leader, this worker",
        "shardId-000000000003",
        "▅▁▂█",
    ):
        assert words in text


@pytest.mark.parametrize("width", [40, 80, 132])
def test_a_terminal_of_any_width_is_kept_to(width: int) -> None:
    assert max(map(len, drawn(SNAPSHOT, width=width).splitlines())) <= width
    assert "stalled" in drawn(SNAPSHOT, width=80)


def large(count: int = 64) -> Snapshot:
    """Many shards, the one numbered 40 stalled, each later than the one before it."""
    found = many(count)
    shards = tuple(
        replace(each, stalled=number == 40, waits_s=400.0 if number == 40 else 4.9, lag_s=float(number))
        for number, each in enumerate(found.shards)
    )
    return replace(found, shards=shards)


def headings_at(width: int, snapshot: Snapshot) -> list[str]:
    """Of the table of shards."""
    lines = drawn(snapshot, width=width, max_lines=50).splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("Shards"))
    return re.split(r"\s{2,}", lines[place + 2].strip())


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (40, ["shard", "state", "lag"]),
        (60, ["shard", "state", "lag", "waits for"]),
        (80, ["shard", "state", "lag", "not checkpointed", "throughput", "waits for"]),
        (120, ["shard", "state", "lag", "not checkpointed", "throughput", "waiting", "waits for"]),
        (200, [each.heading.lower() for each in SHARDS.columns]),
    ],
)
def test_columns_give_up_one_after_the_other_and_never_state_and_lag(width: int, headings: list[str]) -> None:
    snapshot = large()
    assert headings_at(width, replace(snapshot, worker_id="worker-of-some-length")) == headings


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (120, 40), (200, 50)])
@pytest.mark.parametrize("snapshot", [SNAPSHOT, large()], ids=["few", "many"])
def test_a_screen_of_a_usual_size_shows_trouble_first_and_is_kept_to(
    width: int, height: int, snapshot: Snapshot
) -> None:
    lines = drawn(snapshot, width=width, max_lines=height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("not ready, worst lag ")
    assert "1 stalled" in lines[0]
    place = next(number for number, line in enumerate(lines) if line.startswith("Shards"))
    first = lines[place + 4].split()
    name = "shardId-000000000040" if snapshot is not SNAPSHOT else "shardId-000000000002"
    assert first[:2] == [name if width >= 110 else name[-2:].lstrip("0"), "stalled"]


def test_the_last_moves_stand_last_and_only_where_there_is_room() -> None:
    assert "Last moves" not in drawn(SNAPSHOT, width=80, max_lines=24)
    shown = drawn(SNAPSHOT, width=120, max_lines=40)
    assert shown.index("Last moves") > shown.index("Children")
    many_moves = replace(SNAPSHOT, moves=SNAPSHOT.moves * 64)
    assert len(build_view(status(many_moves)).blocks[-1].rows) == 8


def test_rows_that_have_no_room_are_counted() -> None:
    shards, workers, children = build_view(status(large(100)), max_lines=60).blocks[:3]
    assert (shards.left_out, workers.left_out) == (100 - len(shards.rows), 0)
    assert children.left_out == 100 - len(children.rows)
    assert [row["shard"][-2:] for row in shards.rows[:3]] == ["40", "99", "98"]
    assert f"{shards.left_out} more" in drawn(large(100), max_lines=60)


@pytest.mark.parametrize(("waits_s", "shown"), [(4.9, ""), (5.0, "child for 5 s")])
def test_a_short_wait_is_not_shown(waits_s: float, shown: str) -> None:
    assert replace(READING, waits_s=waits_s).waits_for == shown


@given(snapshots, st.none() | st.integers(0, 50))
@calmly(max_examples=examples(40))
def test_whatever_is_told_nothing_reaches_the_terminal_but_printable_text(
    snapshot: Snapshot, max_lines: int | None
) -> None:
    shown = build_view(status(snapshot), max_lines=max_lines)
    assert all(line.isprintable() for line in plain_lines(shown))
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(renderable(shown, width=120, note="note"))
    assert all(line.isprintable() for line in captured.get().split("\n"))


def test_bars_are_of_the_last_samples_and_none_where_nothing_flowed() -> None:
    assert spark([]) == spark([(1.0, 0.0)]) == ""
    assert spark([(n, float(n)) for n in range(40)]) == "▅▆▆▆▆▆▇▇▇▇▇▇███"


def test_bugs_that_the_daemon_has_found_in_itself_have_a_line() -> None:
    found = replace(SNAPSHOT, violations=2, last_violation="shard-1: memory; /state/a.jsonl has the evidence")
    shown = build_view(status(found)).lines
    assert "bugs found: 2, the last in shard-1: memory; /state/a.jsonl has the evidence" in shown
