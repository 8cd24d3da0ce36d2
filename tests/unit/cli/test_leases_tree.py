"""The lineage as text."""

from __future__ import annotations

from dataclasses import replace

from kcl_daemon.cli.leases.look import LeaseLag
from kcl_daemon.cli.leases.show import tree_lines
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, StreamIdentity, WorkerId, lease_key_of
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.unit.cli.leases_stage import FLEET, seen

ONE, TWO = WorkerId("w-1"), WorkerId("w-2")


def lease(
    name: str, *parents: str, at: ExtendedSequenceNumber = TRIM_HORIZON, owner: WorkerId | None = ONE
) -> Lease:
    return Lease(LeaseKey(name), 1, at, lease_owner=owner, parent_shard_ids=frozenset(map(ShardId, parents)))


def drawn(*leases: Lease, **lags: int) -> list[str]:
    reported = {LeaseKey(name): LeaseLag(millis) for name, millis in lags.items()}
    return list(tree_lines(seen(fleet=replace(FLEET, leases=leases), lags=reported or None)))


def test_a_split_and_a_merge_are_drawn_with_state_and_lag() -> None:
    lines = drawn(
        lease("a", at=SHARD_END, owner=None),
        lease("b", "a", at=ExtendedSequenceNumber("12")),
        lease("c", "a", at=SHARD_END, owner=None),
        lease("d", "b", "c"),
        lease("e", "gone", owner=None),
        b=1500,
    )
    assert lines == [
        "a  finished",
        "├─ b  at 12, w-1, 1.5 s behind",
        "│  └─ d  waits for b, at TRIM_HORIZON, w-1",
        "└─ c  finished",
        "   └─ d, see above",
        "e  at TRIM_HORIZON, no worker reads it",
    ]


def test_a_hand_off_is_reported() -> None:
    (line,) = drawn(replace(lease("a"), lease_owner=TWO, checkpoint_owner=ONE))
    assert line == "a  at TRIM_HORIZON, w-1, moving to w-2"


def test_a_lineage_of_thousands_of_generations_is_drawn() -> None:
    names = [f"{number:05d}" for number in range(3_000)]
    leases = [lease(name, *([f"{int(name) - 1:05d}"] if int(name) else [])) for name in names]
    assert len(drawn(*leases)) == 3_000


def test_an_empty_lease_table_is_shown_as_no_leases() -> None:
    assert drawn() == ["no leases to show"]


def test_streams_are_drawn_one_after_the_other_though_their_shards_have_the_same_names() -> None:
    streams = [StreamIdentity("1", name, 5) for name in ("clicks", "orders")]
    leases = [
        replace(each, lease_key=lease_key_of(stream, ShardId(each.lease_key)), stream=stream)
        for stream in streams
        for each in (lease("a", at=SHARD_END, owner=None), lease("b", "a"))
    ]
    below = ["a  finished", "└─ b  at TRIM_HORIZON, w-1"]
    assert drawn(*leases) == ["1:clicks:5:", *below, "1:orders:5:", *below]
