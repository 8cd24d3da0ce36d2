"""Which tables an application uses."""

from __future__ import annotations

from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.layout import (
    FoundTables,
    LeaseTableContents,
    PastState,
    StateCodec,
    StateRow,
    StateRowCreation,
    TableLayout,
    UnusableState,
    decide_layout,
    lease_table_contents,
)
from kcl_daemon.leases.row import Absent, Row, Value


class Move(StrEnum):
    BEGUN = "begun"
    DONE = "done"


NO_TABLE, NOTHING, PLAIN, TYPED, OTHER = LeaseTableContents
SEPARATE, SINGLE = TableLayout
CODEC = StateCodec("Move", "MOVE", "status", tuple(Move))
STATE: Row = {"key": "Move", "entityType": "MOVE", "status": "begun", "mb": "w-1", "mts": 7}
PLAIN_LEASE: Row = {"leaseKey": "shardId-1", "leaseCounter": 1}
TYPED_LEASE: Row = {**PLAIN_LEASE, "entityType": "LEASE"}


@pytest.mark.parametrize(
    ("rows", "holds"),
    [
        ([], NOTHING),
        ([PLAIN_LEASE], PLAIN),
        ([PLAIN_LEASE, TYPED_LEASE, PLAIN_LEASE], TYPED),
        ([TYPED_LEASE, {"leaseKey": "w-1", "entityType": "WORKER_METRIC_STATS"}], OTHER),
        ([PLAIN_LEASE, {"leaseKey": "Leader"}], OTHER),
        ([{"leaseKey": "of-a-later-version", "entityType": "A_NEW_KIND"}], OTHER),
        ([{"leaseKey": "of-a-later-version", "entityType": "THE_NEWEST_KIND"}], OTHER),
        ([{"leaseKey": "Migration3.0", "entityType": "CLIENT_VERSION_MIGRATION"}], OTHER),
    ],
)
def test_rows_tell_who_wrote_them(rows: list[Row], holds: LeaseTableContents) -> None:
    assert lease_table_contents(rows) is holds


@pytest.mark.parametrize(
    ("coordinator", "metrics", "leases", "layout"),
    [
        (True, True, PLAIN, SEPARATE),
        (True, False, NO_TABLE, SEPARATE),  # another worker is making them
        (True, True, OTHER, SEPARATE),  # as Java decides; the migration row tells the rest
        (False, True, NO_TABLE, SEPARATE),
        (False, True, TYPED, SEPARATE),
        (False, True, OTHER, SINGLE),
        (False, False, OTHER, SINGLE),
        (False, False, TYPED, SINGLE),  # KCL 3.5 in phase 1
    ],
)
def test_existing_tables_win_over_the_settings(
    coordinator: bool, metrics: bool, leases: LeaseTableContents, layout: TableLayout
) -> None:
    for asked in TableLayout:
        for migrate_all in (False, True):
            found = FoundTables(coordinator, metrics, leases, migration_row=True)
            assert decide_layout(found, asked, migrate_all=migrate_all).layout is layout


@pytest.mark.parametrize("leases", [NO_TABLE, NOTHING, PLAIN])
def test_a_fresh_application_goes_by_its_settings(leases: LeaseTableContents) -> None:
    found = FoundTables(False, False, leases)
    assert decide_layout(found, SEPARATE, migrate_all=False).layout is SEPARATE
    single = decide_layout(found, SINGLE, migrate_all=False)
    assert single.layout is SINGLE
    assert "metadataTableLayout=single" in single.reason


def test_a_fresh_application_that_shall_migrate_begins_where_it_would_end() -> None:
    decision = decide_layout(FoundTables(False, False, NO_TABLE), SEPARATE, migrate_all=True)
    assert decision.layout is SINGLE
    assert "migrateAllEntitiesToLeaseTable" in decision.reason


def test_one_is_warned_before_rows_are_put_where_a_2x_worker_would_fail_on_them() -> None:
    old = decide_layout(FoundTables(False, False, PLAIN), SINGLE, migrate_all=False)
    fresh = decide_layout(FoundTables(False, False, NOTHING), SINGLE, migrate_all=False)
    assert old.warning is not None
    assert "3.4" in old.warning
    assert fresh.warning is None


def test_one_is_warned_that_asking_for_the_single_table_moves_nothing() -> None:
    found = FoundTables(True, True, PLAIN)
    warning = decide_layout(found, SINGLE, migrate_all=False).warning
    assert warning is not None
    assert "migrateAllEntitiesToLeaseTable" in warning
    assert decide_layout(found, SINGLE, migrate_all=True).warning is None
    assert decide_layout(found, SEPARATE, migrate_all=False).warning is None


def test_one_is_warned_of_two_fleets_with_a_leader_each() -> None:
    split = decide_layout(FoundTables(True, True, OTHER), SEPARATE, migrate_all=False)
    moving = decide_layout(FoundTables(True, True, OTHER, migration_row=True), SEPARATE, migrate_all=False)
    assert split.warning is not None
    assert "two leaders" in split.warning
    assert moving.warning is None


@given(
    coordinator=st.booleans(),
    metrics=st.booleans(),
    leases=st.sampled_from(LeaseTableContents),
    row=st.booleans(),
    asked=st.sampled_from(TableLayout),
    migrate_all=st.booleans(),
)
def test_the_coordinator_table_alone_decides_where_it_exists_and_there_is_always_a_reason(
    *,
    coordinator: bool,
    metrics: bool,
    leases: LeaseTableContents,
    row: bool,
    asked: TableLayout,
    migrate_all: bool,
) -> None:
    decision = decide_layout(FoundTables(coordinator, metrics, leases, row), asked, migrate_all=migrate_all)
    assert decision.reason
    if coordinator:
        assert decision.layout is SEPARATE


def test_the_state_of_a_move_is_read_back_with_its_past() -> None:
    state = StateRow(Move.BEGUN, "w-1", 7)
    assert CODEC.row(state, key_attribute="key") == STATE
    assert CODEC.read(STATE) == state
    assert CODEC.read({name: value for name, value in STATE.items() if name != "entityType"}) == state
    assert CODEC.read(None) is None
    assert CODEC.creation(state, key_attribute="key") == StateRowCreation(STATE, (Absent("key"),))
    done = state.followed_by(Move.DONE, by="w-2", at_ms=9)
    assert done == StateRow(Move.DONE, "w-2", 9, (PastState("begun", "w-1", 7),))
    assert CODEC.read(CODEC.row(done, key_attribute="key")) == done


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"entityType": "LEASE"}, "entityType"),
        ({"entityType": "NEW"}, "entityType"),
        ({"status": "paused"}, "status"),
        ({"status": 7}, "status"),
        ({"mb": 7}, "mb"),
        ({"mts": "soon"}, "mts"),
    ],
)
def test_a_state_that_cannot_be_read_is_refused_and_not_taken_for_none(
    change: dict[str, Value], named: str
) -> None:
    refused = CODEC.read({**STATE, **change})
    assert isinstance(refused, UnusableState)
    assert refused.problem.startswith(f"row Move: {named} holds ")


def test_of_a_long_value_only_the_beginning_is_shown_and_of_none_that_there_is_none() -> None:
    refused = CODEC.read({**STATE, "status": "x" * 1_000})
    assert isinstance(refused, UnusableState)
    assert refused.problem == f"row Move: status holds '{'x' * 79}"
    missing = CODEC.read({name: value for name, value in STATE.items() if name != "mb"})
    assert isinstance(missing, UnusableState)
    assert missing.problem == "row Move: mb holds nothing"


def test_entries_of_the_past_that_cannot_be_read_are_left_out_one_by_one() -> None:
    whole: Row = {"status": "begun", "mb": "w-1", "mts": 7}
    broken: list[Value] = [{**whole, "status": 7}, {**whole, "mb": 7}, {**whole, "mts": "soon"}, "begun", {}]
    read = CODEC.read({**STATE, "h": (*broken, whole)})
    assert isinstance(read, StateRow)
    assert read.history == (PastState("begun", "w-1", 7),)
    odd = CODEC.read({**STATE, "h": "begun"})
    assert isinstance(odd, StateRow)
    assert odd.history == ()


def test_the_past_is_of_ten_states() -> None:
    state = StateRow(Move.BEGUN, "w", 0)
    for at_ms in range(1, 20):
        state = state.followed_by(Move.DONE, by="w", at_ms=at_ms)
    assert [each.at_ms for each in state.history] == list(range(18, 8, -1))
