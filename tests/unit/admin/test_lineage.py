"""The order of shards, the states, and what is ready."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from kcl_daemon.admin.view import (
    SHARDS,
    DisplayState,
    count_states,
    in_words,
    is_trouble,
    lineage,
    needs_attention,
    not_ready,
    shard_entries,
    told_by_leader,
)
from kcl_daemon.capacity.figures import Capacity
from kcl_daemon.coverage import UnreadShard
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.telemetry.shards import ShardView
from kcl_daemon.telemetry.snapshot import LeaseView, Snapshot
from tests.examples import examples
from tests.unit.admin.stage import FOLLOWER, READING, READY, SNAPSHOT, calmly, lease, snapshots
from tests.unit.metrics.snapshots import BEHIND


def drawn(snapshot: Snapshot) -> list[str]:
    return [f"{placed.lead}{placed.entry.shard_id[-1]}" for placed in lineage(shard_entries(snapshot))]


def test_shards_stand_below_what_they_came_out_of_and_merged_ones_once() -> None:
    assert drawn(SNAPSHOT) == ["0", "├─ 1", "│  └─ 3", "└─ 2", "4", "5"]


@given(snapshots)
@calmly(max_examples=examples(60))
def test_every_lease_is_shown_once_whatever_the_rows_say(snapshot: Snapshot) -> None:
    known = shard_entries(snapshot)
    keys = {shard.key for shard in snapshot.shards} | {row.key for row in snapshot.fleet}
    assert sorted(placed.entry.key for placed in lineage(known)) == sorted(keys)


def test_rows_that_are_each_others_parents_are_shown() -> None:
    circle = (
        lease(1, owner=None, parents=("shardId-000000000002",)),
        lease(2, owner=None, parents=("shardId-000000000001",)),
    )
    assert drawn(replace(SNAPSHOT, shards=(), fleet=circle)) == ["1", "└─ 2"]


def test_a_lineage_of_a_thousand_generations_is_drawn_no_further_to_the_right_than_there_is_room() -> None:
    line = tuple(lease(n, owner=None, parents=(f"shardId-{n - 1:012}",)) for n in range(1000))
    placed = list(lineage(shard_entries(replace(SNAPSHOT, shards=(), fleet=line))))
    assert [each.depth for each in placed] == list(range(1000))
    assert max(len(each.lead) for each in placed) == 3 * 8


def test_streams_are_kept_apart_though_their_shards_have_the_same_names() -> None:
    fleet = (
        lease(1, owner=None, key="b:1", stream="b", parents=("shardId-000000000000",)),
        lease(0, owner=None, key="a:0", stream="a"),
    )
    placed = list(lineage(shard_entries(replace(SNAPSHOT, shards=(), fleet=fleet))))
    assert [(each.entry.key, each.depth) for each in placed] == [("a:0", 0), ("b:1", 0)]


def test_streams_of_one_name_are_kept_apart_and_called_by_what_tells_them_apart() -> None:
    streams = {"1:clicks:7": "clicks", "2:clicks:7": "clicks", "1:orders:7": "orders"}
    fleet = [
        lease(number, owner=None, key=f"{stream}:{number}", stream=name, stream_id=stream, parents=parents)
        for stream, name in streams.items()
        for number, parents in ((0, ()), (1, ("shardId-000000000000",)))
    ]
    held = replace(READING, key="2:clicks:7:1", stream="clicks", stream_id="2:clicks:7")

    placed = list(lineage(shard_entries(replace(SNAPSHOT, shards=(held,), fleet=tuple(fleet)))))

    assert [(each.entry.key, each.entry.stream, each.depth) for each in placed] == [
        ("1:clicks:7:0", "1:clicks:7", 0),
        ("1:clicks:7:1", "1:clicks:7", 1),
        ("2:clicks:7:0", "2:clicks:7", 0),
        ("2:clicks:7:1", "2:clicks:7", 1),
        ("1:orders:7:0", "orders", 0),
        ("1:orders:7:1", "orders", 1),
    ]


KEY = READING.key


@pytest.mark.parametrize(
    ("row", "held", "state"),
    [
        (None, READING, DisplayState.READING),
        (None, replace(READING, cause=WaitReason.NOTHING_NEW), DisplayState.AT_TIP),
        (None, replace(READING, cause=WaitReason.PARENT), DisplayState.WAITING),
        (None, replace(READING, cause=WaitReason.RESTART), DisplayState.STARTING),
        (None, replace(READING, checkpoint="SHARD_END"), DisplayState.FINISHED),
        (None, replace(READING, failures=1, cause=WaitReason.RESTART), DisplayState.STARTING),
        (None, replace(READING, failures=2, cause=WaitReason.CHILD), DisplayState.FAILING),
        (None, replace(READING, failures=9, stalled=True), DisplayState.FAILING),
        (None, replace(READING, stalled=True, cause=WaitReason.NOTHING_NEW), DisplayState.STALLED),
        (lease(1, owner="w-1", next_owner="w-2"), READING, DisplayState.HANDING_OFF),
        (lease(1, owner="w-2", next_owner="w-1"), None, DisplayState.HANDING_OFF),
        (lease(1, owner=None), None, DisplayState.NOBODY),
        (lease(1, owner="w-2"), None, DisplayState.ELSEWHERE),
        (lease(1, owner="w-1"), None, DisplayState.UNSETTLED),
        (lease(1, owner="w-2", checkpoint="SHARD_END"), None, DisplayState.FINISHED),
    ],
)
def test_a_shard_has_one_state(row: LeaseView | None, held: ShardView | None, state: DisplayState) -> None:
    shards = () if held is None else (held,)
    (entry,) = shard_entries(replace(SNAPSHOT, shards=shards, fleet=() if row is None else (row,)))
    assert (entry.key, entry.state) == (KEY, state)


def test_a_lease_of_this_worker_is_shown_as_the_worker_knows_it_not_as_the_table_had_it() -> None:
    old = lease(1, owner="w-2", checkpoint="TRIM_HORIZON")
    (entry,) = shard_entries(replace(SNAPSHOT, shards=(READING,), fleet=(old,)))
    assert (entry.owner, entry.checkpoint) == ("w-1", READING.checkpoint)


def test_leases_are_counted_by_where_they_are() -> None:
    states = count_states(shard_entries(SNAPSHOT))
    assert (states.total(), states[DisplayState.STALLED], states[DisplayState.FAILING]) == (6, 1, 0)
    assert (states[DisplayState.NOBODY], states[DisplayState.HANDING_OFF]) == (1, 1)
    assert states[DisplayState.FINISHED] == 1


@pytest.mark.parametrize(
    ("snapshot", "reasons"),
    [
        (READY, ()),
        (FOLLOWER, ()),
        (replace(READY, started=False), ("it has not started yet: tables or streams do not exist",)),
        (replace(READY, stopping=True), ("it is stopping",)),
        (
            SNAPSHOT,
            ("shardId-000000000002 makes no progress: kinesis for 5 min (Throttled: slow down)",),
        ),
    ],
)
def test_a_worker_is_ready_when_it_works_and_no_shard_is_stalled(
    snapshot: Snapshot, reasons: tuple[str, ...]
) -> None:
    assert not_ready(snapshot) == reasons


FAILING = replace(
    READING,
    failures=8,
    child=None,
    next_try_s=12.3,
    last_error="child ended with exit code 1 during processRecords",
    stderr_tail=("Traceback", "ValueError: not an order"),
)


def test_a_worker_with_a_crash_loop_is_not_ready_and_says_what_the_child_said_last() -> None:
    failing = replace(READY, shards=(replace(FAILING, stalled=True),))
    assert not_ready(failing) == (
        (
            f"{KEY} is failing: 8 in a row, next try in 12 s: child ended with exit code 1 during processRecords "
            "(ValueError: not an order)"
        ),
    )
    assert in_words(failing, count_states(shard_entries(replace(failing, fleet=())))) == (
        "This worker is not ready, is the leader and holds 1 of its 2 shards, 1 failing."
    )
    assert not_ready(replace(READY, shards=(replace(FAILING, failures=1),))) == (), (
        "it may be a passing reason"
    )


def test_of_many_stalled_shards_a_few_are_named() -> None:
    shards = tuple(
        replace(READING, key=f"shard-{number}", stalled=True, detail=f"cause {number}") for number in range(9)
    )
    reasons = not_ready(replace(READY, shards=shards))
    assert (len(reasons), reasons[-1]) == (6, "4 more shards make no progress, for other causes")


def test_the_stalled_shards_of_one_cause_are_one_reason() -> None:
    shards = tuple(
        replace(
            READING, key=f"shardId-{number:012d}", stalled=True, idle_s=float(number), waits_s=10.0 * number
        )
        for number in range(1, 9)
    )
    other = replace(READING, key="shardId-000000000009", stalled=True, cause=WaitReason.KINESIS, waits_s=90.0)
    assert not_ready(replace(READY, shards=(other, *shards))) == (
        "shards 1, 2, 3, 4, 5 and 3 more make no progress: child for 80 s",
        "shardId-000000000009 makes no progress: kinesis for 90 s",
    )


def unread(number: int, cause: str, seconds: float) -> UnreadShard:
    return UnreadShard(f"shardId-{number:012d}", cause, f"why of {cause}", seconds)


def test_a_leader_is_not_ready_while_nobody_reads_a_shard() -> None:
    shards = (unread(3, "silent owner", 70.0), unread(4, "silent owner", 90.0), unread(5, "no owner", 10.0))
    assert not_ready(replace(READY, unread=shards)) == (
        "nobody reads shards 4 and 3 for 90 s: why of silent owner (silent owner)",
    )


@pytest.mark.parametrize("cause", ["failing", "stalled", "paused"])
def test_the_words_of_a_shards_own_worker_do_not_make_the_leader_unready(cause: str) -> None:
    assert not_ready(replace(READY, unread=(unread(3, cause, 900.0),))) == ()


@pytest.mark.parametrize(
    ("leads", "age_s", "says"),
    [
        (False, 100.0, ("nobody reads shard 3 for 4 min: why, says worker w-9",)),
        (False, 200.0, ()),
        (True, 0.0, ()),
    ],
    ids=["fresh", "old", "it leads itself"],
)
def test_a_worker_that_does_not_lead_hands_on_what_the_leader_says(
    leads: bool, age_s: float, says: tuple[str, ...]
) -> None:
    said = Capacity(
        READY.at_ms - round(1000 * age_s), WorkerId("w-9"), 2, 0, 2, "reason", "sentence", "", BEHIND,
        unread=("shard 3 for 4 min: why",),
    )  # fmt: skip
    snapshot = replace(READY, leads=leads, capacity=said)
    assert told_by_leader(snapshot) == says
    assert set(says) <= set(needs_attention(snapshot))
    assert not_ready(snapshot) == (), "probes of the others stay good"


@pytest.mark.parametrize(("seconds", "state"), [(5.0, DisplayState.UNSETTLED), (30.0, DisplayState.UNREAD)])
def test_a_lease_of_this_worker_that_it_does_not_get_is_unread_after_a_while(
    seconds: float, state: DisplayState
) -> None:
    mine = lease(8, owner=SNAPSHOT.worker_id)
    snapshot = replace(SNAPSHOT, shards=(), fleet=(mine,), unread=(unread(8, "silent owner", seconds),))
    (entry,) = shard_entries(snapshot)
    assert entry.state is state
    assert SHARDS.cells(entry)["waits_for"] == (
        "silent owner for 30 s (why of silent owner)"
        if state is DisplayState.UNREAD
        else "lease (assigned to this worker, not taken)"
    )
    assert is_trouble(entry)


def test_the_sentence_that_is_read_out_changes_only_when_something_happens() -> None:
    later = replace(
        SNAPSHOT,
        uptime_s=90_000.0,
        renewed_s=0.1,
        shards=tuple(replace(s, waits_s=9) for s in SNAPSHOT.shards),
    )
    said = in_words(SNAPSHOT, count_states(shard_entries(SNAPSHOT)))
    assert said == "This worker is not ready, is the leader and holds 2 shards, 1 stalled."
    assert in_words(later, count_states(shard_entries(later))) == said
