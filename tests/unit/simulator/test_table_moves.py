"""The checker of the move into one table reports what breaks its rules, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from kcl_daemon.leases.row import Row
from kcl_daemon.ports import Tables
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import at_once
from tests.simulator.memory.table import MemoryTable
from tests.simulator.rules.table_moves import TableMoveRules
from tests.unit.simulator.helpers import violation_in

ROW = "TableMigration3.5"
GOOD = (("INIT", 0), ("DEPLOYED", 60), ("PENDING", 70), ("DEPLOYED", 75), ("PENDING", 80), ("COMPLETE", 180))


def tables() -> Tables:
    made = Tables(MemoryTable("app", "leaseKey"), MemoryTable("workers", "wid"), MemoryTable("states", "key"))
    for table in (made.leases, made.worker_metrics, made.coordinator):
        at_once(table.ensure())
    return made


def state(name: str | None) -> Row | None:
    return None if name is None else {"key": ROW, "tm": f"TABLE_MIGRATION_STATUS_{name}"}


def violation(steps: Sequence[tuple[str | None, float]], *, left: Sequence[str] = ()) -> str | None:
    """What the rules say about these states of the row, one after the other, with rows left in the old table."""

    def action() -> None:
        shared = tables()
        for key in left:
            at_once(shared.coordinator.put({"key": key}))
        rules = TableMoveRules(shared, bakes_s=(60.0, 100.0))
        before: Row | None = None
        for name, at_s in steps:
            rules.row_written(RowWrite(at_s, "w-1", "states", ROW, before, state(name)))
            before = state(name)

    return violation_in(action)


@pytest.mark.parametrize(
    ("decided_s", "written_s", "expected"),
    [(80.0, 98.0, None), (95.0, 98.0, "table_move_hurried"), (20.0, 120.0, "table_move_hurried")],
)
def test_a_state_lasts_from_its_decision_though_the_write_took_effect_late(
    decided_s: float, written_s: float, expected: str | None
) -> None:
    """Not answered, and carried out up to half a minute later; an older date is not believed."""

    def action() -> None:
        rules, before = TableMoveRules(tables(), bakes_s=(60.0, 100.0)), None
        for name, at_s in (("INIT", 0.0), ("DEPLOYED", 60.0), ("PENDING", written_s), ("COMPLETE", 183.0)):
            decided_ms = round((EPOCH_S + (decided_s if name == "PENDING" else at_s)) * 1000)
            after: Row = {"key": ROW, "tm": f"TABLE_MIGRATION_STATUS_{name}", "mts": decided_ms}
            rules.row_written(RowWrite(at_s, "w-1", "states", ROW, before, after))
            before = after

    assert violation_in(action) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (GOOD, None),
        ((("INIT", 0), (None, 5), ("INIT", 9)), None),
        ((("DEPLOYED", 0),), "table_move_order"),
        ((("INIT", 0), ("PENDING", 99)), "table_move_order"),
        ((*GOOD, ("PENDING", 400)), "table_move_order"),
        ((("INIT", 0), ("DEPLOYED", 30)), "table_move_hurried"),
        ((*GOOD[:-1], ("COMPLETE", 120)), "table_move_hurried"),
    ],
)
def test_a_step_of_a_table_move_out_of_order_or_too_early_is_a_violation(
    steps: Sequence[tuple[str | None, float]], expected: str | None
) -> None:
    assert violation(steps) == expected


@pytest.mark.parametrize(
    ("ahead_s", "at_s", "expected"),
    [
        ({"w-1": -20.0}, 40.0, None),
        ({"w-1": -20.0}, 30.0, "table_move_hurried"),
        ({"w-2": 20.0}, 40.0, None),
        ({"w-1": 20.0, "w-2": 20.0}, 40.0, "table_move_hurried"),
        ({"w-2": -20.0}, 60.0, "table_move_hurried"),
    ],
)
def test_a_step_dated_by_a_clock_that_is_ahead_is_judged_by_that_clock(
    ahead_s: Mapping[str, float], at_s: float, expected: str | None
) -> None:
    def action() -> None:
        rules = TableMoveRules(tables(), bakes_s=(60.0, 100.0))
        rules.ahead_s = lambda worker: ahead_s.get(worker, 0.0)
        rules.row_written(RowWrite(0.0, "w-1", "states", ROW, None, state("INIT")))
        rules.row_written(RowWrite(at_s, "w-2", "states", ROW, state("INIT"), state("DEPLOYED")))

    assert violation_in(action) == expected


def test_a_row_left_in_the_old_table_after_a_move_is_a_violation() -> None:
    assert violation(GOOD, left=["Leader", ROW]) is None
    assert violation(GOOD, left=["Leader", "Migration3.0"]) == "table_move_incomplete"


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({"entityType": "STREAM"}, None),
        ({"cv": "without a kind"}, "table_move_lost"),
        (None, "table_move_lost"),
    ],
)
def test_a_row_that_is_taken_away_is_in_the_lease_table(there: Row | None, expected: str | None) -> None:
    def action() -> None:
        shared = tables()
        if there is not None:
            at_once(shared.leases.put({"leaseKey": "orders", **there}))
        rules = TableMoveRules(shared, bakes_s=(60.0, 100.0))
        rules.row_written(RowWrite(5.0, "w-1", "states", "orders", {"key": "orders"}, None))

    assert violation_in(action) == expected


def test_an_end_that_was_never_reached_is_reported() -> None:
    rules = TableMoveRules(tables(), bakes_s=(60.0, 100.0))
    assert violation_in(lambda: rules.judge({})) == "table_move_unfinished"
