"""What makes transfers happen once, seen to fail: each guard is taken away, and what it prevents is noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from kcl_client import Record
from kcl_client.once import Cursor, Once, _sql
from kcl_daemon.consumer import child_session
from kcl_daemon.leases import row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import RowUpdate
from tests.simulator.plans.plan import Plan
from tests.simulator.rules.bank import BankPlan, Fencing
from tests.simulator.runner import run_plan
from tests.simulator.scenarios.all import draw_plan

Work = Callable[[Sequence[Record], Cursor], object]
Patch = Callable[[pytest.MonkeyPatch], None]
# Each guard is needed in about every fourth run.
SEEDS = range(7, 20)


def violation(change: Callable[[Plan], Plan] = lambda plan: plan) -> str | None:
    """The first one of the bank with these seeds."""
    for seed in SEEDS:
        found = run_plan(change(draw_plan("bank", seed)), scenario="bank", seed=seed).violation
        if found is not None:
            return found.name
    return None


def no_token(plan: Plan) -> Plan:
    assert plan.bank is not None
    return replace(plan, bank=BankPlan(Fencing.POSITION, plan.bank.sleeps_s))


def test_without_the_token_a_reader_that_is_late_writes() -> None:
    assert violation(no_token) == "old_reader_wrote"


def test_without_the_position_a_transfer_happens_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    is_where_expected = "sequence_number = ? AND sub_sequence_number = ?"
    anywhere = _sql._COMMIT.replace(f"AND {is_where_expected}", "AND ? >= '' AND ? >= 0")
    assert anywhere != _sql._COMMIT
    monkeypatch.setattr(_sql, "_COMMIT", anywhere)
    assert violation() == "transfer_twice"


def same_token(patch: pytest.MonkeyPatch) -> None:
    claimed = row.claimed

    def with_the_old(update: RowUpdate, lease: Lease, now_ms: int) -> RowUpdate:
        written = claimed(update, lease, now_ms)
        return (
            written
            if lease.fence is None
            else replace(written, put={**written.put, "daemonFence": lease.fence})
        )

    patch.setattr(row, "claimed", with_the_old)


def ignored_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(child_session, "own_position", lambda answer, has_lanes: None)


def forgotten_records(patch: pytest.MonkeyPatch) -> None:
    process = Once.process

    def without_the_first(once: Once[Cursor], records: Sequence[Record], work: Work) -> object:
        return process(once, records, lambda part, transaction: work(part[1:], transaction))

    patch.setattr(Once, "process", without_the_first)


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (same_token, "claimed_without_token"),
        (ignored_position, "out_of_order"),
        (forgotten_records, "not_finished"),
    ],
)
def test_each_rule_can_be_broken(broken: Patch, noticed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    assert violation() == noticed
