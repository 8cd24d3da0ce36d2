"""The checkers of shards can fail: runs with a broken rule, each with the violation it must end in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.consumer import shard_end
from kcl_daemon.fleet import shard_sync
from kcl_daemon.leases import row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import Conditions
from kcl_daemon.shards.lineage import Shard
from kcl_daemon.shards.sync import CleanupVerdict, JudgedLease
from tests.simulator.plans.plan import DeleteLease, DieAtShardEnd, Plan, Planned, ShardEndStep, Split, Start
from tests.simulator.runner import run_plan

QUICK = ShardSettings(audit_ms=2_000, audit_confidence=1, cleanup_ms=1_000, cleanup_completed_ms=1)


def violation(*events: Planned, settings: ShardSettings = QUICK) -> str | None:
    plan = Plan(
        shards=2,
        records_per_s=8.0,
        events=(Planned(0.0, Start()), Planned(0.0, Start()), *events),
        calm_at_s=100.0,
        ends_at_s=240.0,
        bound_s=90.0,
        shard_settings=settings,
    )
    found = run_plan(plan, scenario="sabotage of shards", seed=1).violation
    return None if found is None else found.name


def no_leases(*_arguments: object, **_options: object) -> list[Lease]:
    return []


def no_condition(_lease: Lease) -> Conditions:
    return ()


SPLITS = tuple(Planned(30.0 + 10.0 * number, Split(number)) for number in range(3))
HOLE = Planned(40.0, DeleteLease(0))


def test_nothing_is_wrong_with_what_is_broken_below() -> None:
    assert violation(*SPLITS) is None
    assert violation(HOLE) is None


def test_deleting_every_finished_lease_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_may_go(leases: Iterable[Lease], _shards: Iterable[Shard] | None = None) -> list[JudgedLease]:
        return [JudgedLease(lease, CleanupVerdict.COMPLETED, "") for lease in leases if lease.is_finished]

    monkeypatch.setattr(shard_sync, "judge_finished", all_may_go)
    monkeypatch.setattr(shard_sync, "_ON_ITS_WAY_S", 0.0)
    settings = replace(QUICK, cleanup_ms=1)
    splits = (Planned(30.0, Split(0)), Planned(30.1, Split(0)), Planned(30.2, Split(0)))
    death = Planned(0.0, DieAtShardEnd(ShardEndStep.FINISHED, nth=1, replaced_after_s=60.0))
    assert violation(*splits, death, settings=settings) == "deleted_too_early"


def test_deleting_what_is_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def anything_may_go(leases: Iterable[Lease], _shards: Iterable[Shard] | None = None) -> list[JudgedLease]:
        return [JudgedLease(lease, CleanupVerdict.COMPLETED, "") for lease in leases if not lease.is_finished]

    monkeypatch.setattr(shard_sync, "judge_finished", anything_may_go)
    monkeypatch.setattr(row, "if_still_finished", no_condition)
    assert violation(*SPLITS) == "deleted_unfinished"


def test_a_hole_that_nobody_mends_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_sync, "missing_leases", no_leases)
    assert violation(HOLE) == "lease_missing"


def test_child_shards_without_leases_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_end, "child_leases", no_leases)
    assert violation(*SPLITS, settings=replace(QUICK, audit_ms=1_000_000)) in {
        "lease_missing",
        "shard_stalled",
    }
