"""The rules of DynamoDB streams can fail: runs with a broken rule, each with the violation that it must end in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.config.changes import ChangesSettings
from kcl_daemon.consumer import consumer, shard_end
from kcl_daemon.fleet import shard_sync
from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.ports import ScannedPage, ScanPort
from kcl_daemon.retrieval.source import BufferedReader
from kcl_daemon.shards import snapshot
from kcl_daemon.shards.lineage import Shard, child_leases
from kcl_daemon.shards.sync import CleanupVerdict, JudgedLease
from kcl_daemon.transport import table_streams
from kcl_daemon.transport.snapshots import SnapshotSegments, TableScan
from kcl_protocol.sequence import LATEST
from tests.simulator.fleet import workers as fleet
from tests.simulator.plans.plan import (
    ChangesPlan,
    DieAtShardEnd,
    Kill,
    Plan,
    Planned,
    Roll,
    ShardEndStep,
    Split,
    Start,
    SwitchStream,
)
from tests.simulator.rules.deliveries import Deliveries
from tests.simulator.runner import run_plan

Patch = Callable[[pytest.MonkeyPatch], None]
# Tried in turn until one notices it; most do.
SEEDS = range(1, 7)
QUICK = ShardSettings(audit_ms=2_000, audit_confidence=1, cleanup_ms=1_000, cleanup_completed_ms=1)
STARTS = (Planned(0.0, Start()), Planned(0.0, Start()))
CHANGES = ChangesPlan(items=10, is_copied=True)
REPLACED = tuple(Planned(17.0 + 6.0 * number, Kill(0, 1.0)) for number in range(4))


def violation(
    changes: ChangesPlan,
    *events: Planned,
    settings: ShardSettings = QUICK,
    seed: int = 1,
    backlog: int = 0,
) -> str | None:
    plan = Plan(
        shards=2,
        records_per_s=8.0,
        backlog=backlog,
        changes=changes,
        events=(*STARTS, *events),
        calm_at_s=190.0,
        ends_at_s=290.0,
        bound_s=90.0,
        shard_settings=settings,
    )
    found = run_plan(plan, scenario="sabotage of changes", seed=seed).violation
    return None if found is None else found.name


ROLLS = tuple(Planned(30.0 + 10.0 * number, (Roll if number % 2 else Split)(1)) for number in range(4))
SWITCHES = (Planned(35.0, SwitchStream(0, on=False)), Planned(36.0, SwitchStream(0, on=True)))
SCANNED = replace(CHANGES, items=60, snapshot=True, segments=2, read_units=2)
# The fleet is away for longer than changes are kept.
LOST = replace(CHANGES, kept_s=120.0, life_s=40.0, is_whole=False, is_copied=False)
AWAY = (Planned(50.0, Kill(0)), Planned(50.0, Kill(0)), Planned(180.0, Start()))


def test_nothing_is_wrong_with_what_is_broken_below() -> None:
    assert violation(CHANGES, *ROLLS) is None
    assert violation(CHANGES, *SWITCHES) is None
    assert violation(SCANNED, *REPLACED, *ROLLS, backlog=200) is None
    for continues in (False, True):
        assert violation(replace(LOST, continues_trimmed=continues), *AWAY) is None


def nothing_unfinished(*_arguments: object) -> frozenset[ShardId]:
    return frozenset()


def parents_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consumer, "unfinished_parents", nothing_unfinished)


def streams_are_not_joined(patch: pytest.MonkeyPatch) -> None:
    def beside_each_other(streams: Iterable[Sequence[Shard]]) -> tuple[Shard, ...]:
        return tuple(shard for shards in streams for shard in shards)

    patch.setattr(table_streams, "joined", beside_each_other)


def nor_looked_at(patch: pytest.MonkeyPatch) -> None:
    streams_are_not_joined(patch)
    patch.setattr(Deliveries, "_check_parents", lambda self, child: None)


def segments_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def all_begin(shards: Sequence[Shard], leases: Iterable[Lease]) -> tuple[Shard, ...]:
        return tuple(replace(shard, parent_shard_ids=frozenset()) for shard in shards if shard.is_open)

    patch.setattr(snapshot, "with_segments", all_begin)


def one_item_too_far(patch: pytest.MonkeyPatch) -> None:
    scan, find, resumed = TableScan.scan, SnapshotSegments._place, set[ScanPort]()

    def found(self: SnapshotSegments, *arguments: Any) -> Any:
        place = find(self, *arguments)
        if place.after is not None:
            resumed.add(self._scan)
        return place

    async def skips(
        self: TableScan, table: str, part: tuple[int, int], after: str | None, limit: int
    ) -> ScannedPage:
        page = await scan(self, table, part, after, limit)
        if self not in resumed:
            return page
        resumed.discard(self)
        return replace(page, items=page.items[1:])

    patch.setattr(SnapshotSegments, "_place", found)
    patch.setattr(TableScan, "scan", skips)


def changes_since_the_scan_are_skipped(patch: pytest.MonkeyPatch) -> None:
    def at_the_latest(*arguments: Any, **options: Any) -> list[Lease]:
        return [replace(lease, checkpoint=LATEST) for lease in child_leases(*arguments, **options)]

    patch.setattr(shard_end, "child_leases", at_the_latest)


def all_may_go(leases: Iterable[Lease], _shards: Iterable[Shard] | None = None) -> list[JudgedLease]:
    return [JudgedLease(lease, CleanupVerdict.COMPLETED, "") for lease in leases if lease.is_finished]


def cleanup_is_hasty(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_sync, "judge_finished", all_may_go)


def nothing_is_cleaned_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_sync, "judge_finished", lambda *_: [])


def losses_are_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BufferedReader, "_tell_loss", lambda *_, **__: None)


def losses_do_not_stop(patch: pytest.MonkeyPatch) -> None:
    def continuing(**given: Any) -> ChangesSettings:
        return replace(ChangesSettings(**given), continues_trimmed=True)

    patch.setattr(fleet, "ChangesSettings", continuing)


DEATH: Planned = Planned(0.0, DieAtShardEnd(ShardEndStep.FINISHED, nth=1, replaced_after_s=60.0))
ORPHANS = tuple(
    Planned(0.0, DieAtShardEnd(ShardEndStep.CHILD_CREATED, nth=nth, replaced_after_s=5.0)) for nth in (1, 3)
)
SLOW_SCAN = replace(SCANNED, items=300, read_units=10)
# Both streams wait for the workers that come back.
LATE = (
    Planned(20.0, Kill(0)),
    Planned(20.0, Kill(0)),
    *SWITCHES,
    Planned(60.0, Start()),
    Planned(60.0, Start()),
)
MANY_ITEMS = replace(SCANNED, items=1_500, read_units=60)
SHORT_LIVES = replace(CHANGES, life_s=8.0, open_most=True)


@pytest.mark.parametrize(
    ("broken", "noticed", "changes", "events"),
    [
        (parents_are_not_waited_for, {"child_before_parent"}, CHANGES, (*ROLLS, *ORPHANS)),
        (nor_looked_at, {"item_out_of_order"}, CHANGES, LATE),
        (streams_are_not_joined, {"child_before_parent"}, CHANGES, SWITCHES),
        (segments_are_forgotten, {"child_before_parent"}, SCANNED, ()),
        (one_item_too_far, {"record_skipped"}, SLOW_SCAN, REPLACED),
        (changes_since_the_scan_are_skipped, {"other_copy"}, MANY_ITEMS, ()),
        (cleanup_is_hasty, {"deleted_too_early"}, CHANGES, (*ROLLS, DEATH)),
        (nothing_is_cleaned_up, {"lease_table_large"}, SHORT_LIVES, ()),
        (losses_are_not_told, {"trimmed_in_silence"}, replace(LOST, continues_trimmed=True), AWAY),
        (losses_are_not_told, {"trimmed_in_silence"}, LOST, AWAY),
        (losses_do_not_stop, {"trimmed_passed_over"}, replace(LOST, life_s=100.0), AWAY),
    ],
)
def test_each_rule_of_changes_can_be_broken(
    broken: Patch,
    noticed: set[str],
    changes: ChangesPlan,
    events: tuple[Planned, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(monkeypatch)
    backlog = 4 * changes.items if changes.snapshot else 0
    assert any(violation(changes, *events, seed=seed, backlog=backlog) in noticed for seed in SEEDS)
