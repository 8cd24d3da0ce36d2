"""Each open shard has a reader or a cause why nobody reads it, and the time of both is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.coverage import CoverageLog, ShardCoverage, TablesSeen, Unread, coverage
from kcl_daemon.leases.holds import Hold
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.shards.lineage import Shard
from kcl_daemon.shards.sync import new_lease
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.unit.shards.trees import Tree, checkpoints, trees

WORKER = WorkerId("w-1")
KEYS = [LeaseKey(f"shardId-{number:012d}") for number in range(4)]


def lease_of(shard: Shard, owner: WorkerId | None = WORKER) -> Lease:
    return replace(new_lease(shard, TRIM_HORIZON), lease_owner=owner)


def seen(leases: Sequence[Lease], **others: object) -> TablesSeen:
    return replace(TablesSeen(leases, living={WORKER}), **others)  # type: ignore[arg-type]


def one(tables: TablesSeen) -> ShardCoverage:
    (found,) = coverage(None, Tree(1).shards, tables)
    return found


def test_a_shard_whose_lease_is_renewed_is_read_by_its_owner() -> None:
    assert one(seen([lease_of(Tree(1).shards[0])])) == ShardCoverage(KEYS[0], WORKER)


def test_a_handed_over_shard_is_read_by_the_old_owner() -> None:
    lease = replace(lease_of(Tree(1).shards[0]), lease_owner=WorkerId("next"), checkpoint_owner=WORKER)
    assert one(seen([lease])).reader == WORKER


MINE = lease_of(Tree(1).shards[0])
PAUSE = Hold(by="ann@host", reason="deploy", since_ms=0)


@pytest.mark.parametrize(
    ("tables", "cause", "why"),
    [
        (seen([]), Unread.NO_LEASE, "it has no lease"),
        (TablesSeen([]), Unread.NO_LEASE, "it has no lease, and no worker runs"),
        (seen([], unreadable={KEYS[0]}), Unread.UNREADABLE, "the row of its lease cannot be read"),
        (seen([replace(MINE, lease_owner=None)]), Unread.NO_OWNER, "no worker has its lease"),
        (
            TablesSeen([replace(MINE, lease_owner=None)]),
            Unread.NO_OWNER,
            "no worker has its lease, and no worker runs",
        ),
        (
            seen([replace(MINE, checkpoint=SHARD_END)]),
            Unread.FINISHED,
            "its lease says that it is finished, and it is open",
        ),
        (
            seen([MINE], silent_s={KEYS[0]: 42.0}),
            Unread.SILENT,
            "worker w-1 has not renewed its lease for 42 s",
        ),
        (
            TablesSeen([MINE], silent_s={KEYS[0]: 42.0}),
            Unread.SILENT,
            "worker w-1 has not renewed its lease for 42 s, and does not report",
        ),
        (seen([MINE], another={KEYS[0]: "other keys"}), Unread.OTHER_STREAM, "other keys"),
        (seen([MINE], failing={KEYS[0]: "its children fail"}), Unread.FAILING, "its children fail"),
        (seen([MINE], pauses=[PAUSE]), Unread.PAUSED, "ann@host has paused it: deploy"),
        (
            seen([replace(MINE, checkpoint=SHARD_END)], another={KEYS[0]: "older"}),
            Unread.OTHER_STREAM,
            "older",
        ),
    ],
)
def test_an_unread_shard_has_a_cause_in_words(tables: TablesSeen, cause: Unread, why: str) -> None:
    found = one(tables)
    assert (found.cause, found.why) == (cause, why)


def test_a_shard_is_read_while_its_parent_is_read_first() -> None:
    tree = Tree(1)
    tree.split(0)
    parent, *children = tree.shards
    waiting = [lease_of(each, None) for each in children]
    covered = coverage(None, tree.shards, seen([lease_of(parent), *waiting]))
    assert covered == tuple(ShardCoverage(key, WORKER, waits_for=parent.shard_id) for key in KEYS[1:3])
    assert coverage(None, tree.shards, seen([lease_of(parent)])) == covered  # its leases come later


def test_an_unread_parent_is_the_cause_for_its_child_shards() -> None:
    tree = Tree(1)
    tree.split(0)
    parent, *children = tree.shards
    leases = [lease_of(parent, None), *map(lease_of, children)]
    found = coverage(None, tree.shards, seen(leases))
    assert {(each.cause, each.waits_for) for each in found} == {(Unread.NO_OWNER, parent.shard_id)}


def test_of_two_parents_the_one_that_nobody_reads_counts() -> None:
    tree = Tree(2)
    tree.merge(0)
    leases = [lease_of(tree.shards[0]), lease_of(tree.shards[1], None), lease_of(tree.shards[2])]
    (found,) = coverage(None, tree.shards, seen(leases))
    assert (found.cause, found.waits_for) == (Unread.NO_OWNER, tree.shards[1].shard_id)


def test_a_finished_parent_does_not_excuse_a_missing_lease() -> None:
    tree = Tree(1)
    tree.split(0)
    finished = replace(lease_of(tree.shards[0]), checkpoint=SHARD_END)
    found = coverage(None, tree.shards, seen([finished, lease_of(tree.shards[1])]))
    assert [each.cause for each in found] == [None, Unread.NO_LEASE]


def test_without_a_list_of_shards_unfinished_leases_stand_for_them() -> None:
    tree = Tree(2)
    leases = [lease_of(tree.shards[0]), replace(lease_of(tree.shards[1], None), checkpoint=SHARD_END)]
    assert coverage(None, None, seen(leases)) == (ShardCoverage(KEYS[0], WORKER),)


def test_without_a_list_of_shards_unreadable_rows_of_the_stream_stand_for_them() -> None:
    of_another = LeaseKey("123456789012:bills:7:shardId-000000000000")
    found = coverage(None, None, seen([MINE], unreadable={KEYS[1], of_another}))
    assert [(each.key, each.cause) for each in found] == [(KEYS[0], None), (KEYS[1], Unread.UNREADABLE)]


def test_leases_that_name_each_other_as_parents_end_the_search() -> None:
    shards = Tree(2).shards
    first, second = (lease_of(each) for each in shards)
    leases = [
        replace(first, parent_shard_ids=frozenset({second.shard_id})),
        replace(second, parent_shard_ids=frozenset({first.shard_id})),
    ]
    assert len(coverage(None, shards, seen(leases))) == 2


@given(trees(), st.data())
def test_every_open_shard_has_either_a_reader_or_a_cause(tree: Tree, data: st.DataObject) -> None:
    owners = st.sampled_from([None, WORKER])
    kept = [each for each in tree.shards if data.draw(st.booleans())]
    leases = [replace(lease_of(each, data.draw(owners)), checkpoint=data.draw(checkpoints)) for each in kept]
    found = coverage(None, tree.shards, seen(leases))
    assert [str(each.key) for each in found] == sorted(map(str, (shard.shard_id for shard in tree.open())))
    for each in found:
        assert bool(each.why) is (each.cause is not None)
        assert each.cause is not None or each.reader == WORKER
        by_id = {lease.shard_id: lease for lease in leases}
        mine = by_id.get(ShardId(each.key))
        if mine is None and each.waits_for is None:
            assert each.cause is Unread.NO_LEASE


def logged(
    log: CoverageLog, now_s: float, cause: Unread | None, *, silent_s: float = 0.0, at: str = "5"
) -> CoverageLog:
    """The log after a look in which the first shard has this cause and stands at this position."""
    lease = replace(MINE, checkpoint=ExtendedSequenceNumber(at))
    tables = seen([lease], silent_s={KEYS[0]: silent_s} if silent_s else {})
    return log.seen([ShardCoverage(KEYS[0], WORKER, cause, "" if cause is None else "why")], tables, now_s)


def unread(log: CoverageLog) -> list[tuple[str, float]]:
    """Cause, and since when."""
    return [(each.cause, log.since_s[LeaseKey(each.key)]) for each in log.unread(1000.0)]


def test_a_lease_that_was_not_renewed_is_unread_since_its_last_renewal() -> None:
    assert unread(logged(CoverageLog(), 100.0, Unread.SILENT, silent_s=12.0)) == [(Unread.SILENT, 88.0)]


def test_a_shard_stays_unread_while_its_causes_follow_each_other() -> None:
    log = logged(CoverageLog(), 100.0, Unread.SILENT, silent_s=12.0)
    log = logged(logged(log, 110.0, Unread.NO_OWNER), 200.0, Unread.FAILING)
    assert unread(log) == [(Unread.FAILING, 88.0)]


def test_a_shard_that_is_read_again_is_unread_only_from_then() -> None:
    log = logged(logged(CoverageLog(), 1.0, Unread.SILENT), 2.0, None)
    assert unread(log) == []
    assert unread(logged(log, 3.0, Unread.SILENT)) == [(Unread.SILENT, 3.0)]


@pytest.mark.parametrize("given_back", [None, Unread.NO_OWNER])
def test_a_failing_shard_stays_failing_with_its_next_owner_until_its_checkpoint_moves(
    given_back: Unread | None,
) -> None:
    log = logged(logged(CoverageLog(), 1.0, Unread.FAILING), 5.0, given_back)
    assert unread(log) == [(Unread.FAILING, 1.0)]
    assert log.covered[0].why == "why; nothing was checkpointed since"
    assert unread(logged(log, 9.0, None)) == [(Unread.FAILING, 1.0)]
    assert unread(logged(log, 9.0, None, at="6")) == []


def test_a_worse_cause_than_failing_is_said() -> None:
    log = logged(logged(CoverageLog(), 1.0, Unread.FAILING), 5.0, Unread.SILENT)
    assert unread(log) == [(Unread.SILENT, 1.0)]


def test_the_longest_unread_shard_comes_first() -> None:
    first, second = (ShardCoverage(key, None, Unread.NO_LEASE, "a") for key in KEYS[:2])
    log = CoverageLog().seen([second], seen([]), 1.0).seen([first, second], seen([]), 2.0)
    assert [(each.key, each.seconds) for each in log.unread(5.0)] == [(KEYS[1], 4.0), (KEYS[0], 3.0)]
