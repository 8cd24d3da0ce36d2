"""What `kcl-daemon status` and `top` show, from values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kcl_daemon.admin.document import FORMAT, Status
from kcl_daemon.cli.status_rich import renderable
from kcl_daemon.cli.status_view import plain_lines, spark, view
from kcl_daemon.observe.snapshot import Snapshot
from tests.unit.admin.stage import FOLLOWER, READING, SNAPSHOT, SPARKING, calmly, many, snapshots

SHOWN = """\
billing, worker w-1, kcl-daemon 1.2.3, up for 24 h
This worker is running, leads the fleet and holds 2 shards, 1 stalled. Leader: w-1 (this worker).
6 leases: 2 held here, 1 without a reader, 1 in hand-off, 1 finished
not ready: shardId-000000000002 makes no progress: kinesis for 5 min (Throttled: slow down)

Workers:
worker  part                 leases   cpu  last report
w-1     leader, this worker       2  44 %      3 s ago
w-2                               2     -            -

Shards:
shard                       state            waits for                                 behind     throughput  records  checkpoint             worker
shardId-000000000000        finished                                                                                   SHARD_END              -
├─ shardId-000000000001     reading          child                                     90.0 s  ▅▁▂█ 20 KiB/s    12345  496599...000000123456  w-1
│  └─ shardId-000000000003  handing over                                                                               TRIM_HORIZON           w-2, then w-1
└─ shardId-000000000002     stalled          kinesis for 5 min (Throttled: slow down)       -       20 KiB/s    12345  496599...000000123456  w-1
shardId-000000000004        nobody reads it                                                                            TRIM_HORIZON           -
shardId-000000000005        elsewhere                                                                                  TRIM_HORIZON           w-2

Last moves:
    when  lease                 reason
12 s ago  shardId-000000000003  shardId-3: w-2 -> w-1, cpu 81 % -> 44 %

Children:
shard                  pid  memory  runs for  restarts  last line of stderr
shardId-000000000001  4242  48 MiB    62 min         2  ready"""


SHOWN_OF_SPARK = """\

Spark queries (http://127.0.0.1:4040):
query   state                 batch  last commit  rows in  rows done  batch took  rows in state
counts  running                  12      0 s ago    100/s      200/s      1.25 s             30
raw     failed, starts again      -     40 s ago        -          -           -              -

Shards in Spark:
shard                 rows  committed  waiting  oldest waits
shardId-000000000002  1000        900      100         2 min
shardId-000000000001  1000       1000        0             -"""


def status(snapshot: Snapshot) -> Status:
    samples = [(6.0, 10_000.0), (4.0, 0.0), (2.0, 4_000.0), (0.0, 20_000.0)]
    return Status(FORMAT, snapshot, {READING.key: samples})


def drawn(snapshot: Snapshot, *, width: int = 200, rows_most: int | None = None) -> str:
    console = Console(
        width=width, record=True, force_terminal=True, file=None, quiet=False, color_system=None
    )
    with console.capture() as captured:
        console.print(renderable(view(status(snapshot), rows_most=rows_most), note=""))
    return captured.get()


def test_everything_of_the_page_is_shown_in_lines() -> None:
    assert "\n".join(plain_lines(view(status(SNAPSHOT)))) == SHOWN


def test_the_spark_engine_stands_below() -> None:
    assert "\n".join(plain_lines(view(status(SPARKING)))) == f"{SHOWN}\n{SHOWN_OF_SPARK}"
    assert "failed, starts again" in drawn(SPARKING)


def test_a_worker_that_knows_nothing_yet_says_so() -> None:
    text = "\n".join(plain_lines(view(status(replace(FOLLOWER, shards=(), started=False)))))
    for words in ("it has not started yet", "have not been read", "no lease is known", "no child runs"):
        assert words in text


def test_a_terminal_shows_the_same_words() -> None:
    text = drawn(SNAPSHOT)
    for words in (
        "not ready: shardId-000000000002",
        "leader, this worker",
        "│  └─ shardId-000000000003",
        "▅▁▂█",
    ):
        assert words in text


@pytest.mark.parametrize("width", [40, 80, 132])
def test_a_terminal_of_any_width_is_kept_to(width: int) -> None:
    assert max(map(len, drawn(SNAPSHOT, width=width).splitlines())) <= width
    assert "stalled" in drawn(SNAPSHOT, width=80)


def test_where_there_is_little_room_what_needs_attention_comes_first() -> None:
    large = many(100)
    odd = tuple(
        replace(shard, stalled=number == 70, lag_s=float(number)) for number, shard in enumerate(large.shards)
    )
    shown = view(status(replace(large, shards=odd)), rows_most=30)
    workers, shards, moves, children = shown.blocks
    assert [row[0] for row in shards.rows[:3]] == [f"shardId-{number:012}" for number in (70, 99, 98)]
    assert sum(len(block.rows) for block in shown.blocks) <= 30
    assert (shards.left_out, children.left_out) == (100 - len(shards.rows), 100 - len(children.rows))
    assert f"{shards.left_out} more" in drawn(replace(large, shards=odd), rows_most=30)
    assert (workers.left_out, moves.left_out) == (0, 0)


@given(snapshots, st.none() | st.integers(0, 50))
@calmly(max_examples=40)
def test_whatever_is_told_nothing_reaches_the_terminal_but_printable_text(
    snapshot: Snapshot, rows_most: int | None
) -> None:
    shown = view(status(snapshot), rows_most=rows_most)
    assert all(line.isprintable() for line in plain_lines(shown))
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(renderable(shown, note="note"))
    assert all(line.isprintable() for line in captured.get().split("\n"))


def test_bars_are_of_the_last_samples_and_none_where_nothing_flowed() -> None:
    assert spark([]) == spark([(1.0, 0.0)]) == ""
    assert spark([(n, float(n)) for n in range(40)]) == "▅▆▆▆▆▆▇▇▇▇▇▇███"
