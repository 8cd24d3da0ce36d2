"""What the leader does to move an application into one table, over tables in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.config.tables import complete_bake_s
from kcl_daemon.leases.layout import (
    TABLE_STATUS_CODEC,
    MigrationRow,
    StateRow,
    StateRowCreation,
    TableStatus,
    UnusableState,
)
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Conditions, Row, RowCheck, RowDelete, RowPut, Value
from kcl_daemon.migrations.one_table_rules import (
    MAX_BATCH_ROWS,
    AdvanceStatus,
    CreateStatusRow,
    MigrationCompletion,
    MigrationReadiness,
    MigrationStep,
    NoStep,
    RowBatch,
    RowWrite,
    SwitchOver,
    TableSide,
    WithdrawStatusRow,
    next_migration_step,
)
from tests.simulator.memory.updates import apply_update, holds

INIT, DEPLOYED, PENDING, COMPLETE = TableStatus
LEGACY, LEASES = TableSide
ME, OTHER = WorkerId("w-1"), WorkerId("w-2")
KEY_OF: Mapping[TableSide, str] = {LEGACY: "key", LEASES: "leaseKey"}
BAKE_S = 86_400


def at(status: TableStatus, at_ms: int = 0) -> MigrationRow:
    return StateRow(status, "w-0", at_ms)


class World:
    """Two tables in memory, and transactions over them."""

    def __init__(self, rows: Mapping[TableSide, Sequence[Row]]) -> None:
        self.tables: dict[TableSide, dict[str, Row]] = {place: {} for place in TableSide}
        for place, each in rows.items():
            for row in each:
                self.tables[place][str(row[KEY_OF[place]])] = row

    def rows(self, place: TableSide) -> dict[str, Row]:
        return self.tables[place]

    def allows(self, place: TableSide, key: str, require: Conditions) -> bool:
        return all(holds(condition, self.tables[place].get(key)) for condition in require)

    def transact(self, parts: Sequence[RowWrite]) -> bool:
        if not all(self.allows(part.place, self.key(part), part.what.require) for part in parts):
            return False
        for part in parts:
            match part.what:
                case RowPut(row):
                    self.tables[part.place][self.key(part)] = row
                case RowDelete(key):
                    del self.tables[part.place][key]
                case RowCheck():
                    pass
        return True

    @staticmethod
    def key(part: RowWrite) -> str:
        what = part.what
        return str(what.row[KEY_OF[part.place]]) if isinstance(what, RowPut) else what.key

    def state(self) -> MigrationRow | None:
        state = TABLE_STATUS_CODEC.read(self.tables[LEGACY].get("TableMigration3.5"))
        assert not isinstance(state, UnusableState)
        return state

    def carry_out(self, decision: MigrationStep) -> bool:
        """Whether the write took effect; what writes nothing has none."""
        legacy = self.tables[LEGACY]
        match decision:
            case CreateStatusRow():
                return self.create(decision.creation)
            case WithdrawStatusRow():
                allowed = self.allows(LEGACY, decision.key, decision.require)
                if allowed:
                    del legacy[decision.key]
                return allowed
            case AdvanceStatus():
                written = apply_update(decision.update, legacy.get(decision.update.key), key_attribute="key")
                if written.applied and written.row is not None:
                    legacy[decision.update.key] = written.row
                return written.applied
            case RowBatch() | MigrationCompletion():
                return self.transact(decision.parts)
            case NoStep() | SwitchOver() | UnusableState():
                return False

    def create(self, creation: StateRowCreation) -> bool:
        key = str(creation.row["key"])
        allowed = self.allows(LEGACY, key, creation.require)
        if allowed:
            self.tables[LEGACY][key] = creation.row
        return allowed


def ask(
    seen: MigrationReadiness,
    now_s: float = 0,
    *,
    migrate_all: bool = False,
    status: TableStatus = INIT,
    bake_s: int = BAKE_S,
) -> MigrationStep:
    return next_migration_step(
        seen,
        status=status,
        migrate_all=migrate_all,
        bake_s=bake_s,
        deploy_bake_s=3_600,
        me=ME,
        now_ms=int(now_s * 1000),
    )


def advanced(decision: MigrationStep, to: TableStatus) -> MigrationRow:
    """The row after the step, which must be one from the first in the pair to the second."""
    assert isinstance(decision, AdvanceStatus)
    assert decision.to is to
    assert decision.reason
    state = TABLE_STATUS_CODEC.read({"key": decision.update.key, **decision.update.put})
    assert isinstance(state, StateRow)
    assert state.state is to
    return state


def test_the_move_begins_when_every_owner_knows_the_single_table() -> None:
    waiting = ask(MigrationReadiness(None, 0, unsupporting=(OTHER,)))
    assert isinstance(waiting, NoStep)
    assert OTHER in waiting.reason
    begun = ask(MigrationReadiness(None, 1), 7)
    assert isinstance(begun, CreateStatusRow)
    assert begun.creation.row == {
        "key": "TableMigration3.5",
        "entityType": "TABLE_MIGRATION",
        "tm": "TABLE_MIGRATION_STATUS_INIT",
        "mb": ME,
        "mts": 7000,
    }


def test_a_fleet_without_owners_waits() -> None:
    waiting = ask(MigrationReadiness(None, 0))
    assert isinstance(waiting, NoStep)
    assert "no lease has an owner" in waiting.reason


def test_the_beginning_is_withdrawn_when_an_old_worker_appears() -> None:
    decision = ask(MigrationReadiness(at(INIT), 0, unsupporting=(OTHER,)), 9999)
    assert isinstance(decision, WithdrawStatusRow)
    assert decision.key == "TableMigration3.5"
    assert all(
        holds(each, TABLE_STATUS_CODEC.row(at(INIT), key_attribute="key")) for each in decision.require
    )
    assert not all(
        holds(each, TABLE_STATUS_CODEC.row(at(DEPLOYED), key_attribute="key")) for each in decision.require
    )


def test_a_table_move_is_deployed_after_its_bake_time_of_an_hour() -> None:
    assert isinstance(ask(MigrationReadiness(at(INIT, 1000), 1), 3600.9), NoStep)
    state = advanced(ask(MigrationReadiness(at(INIT, 1000), 1), 3601), DEPLOYED)
    assert (state.by, state.at_ms, len(state.history)) == (ME, 3_601_000, 1)


def test_deployed_is_where_it_rests_until_it_is_asked_to_go_on() -> None:
    for code in (0, 1):
        assert isinstance(ask(MigrationReadiness(at(DEPLOYED), code), 10**9), NoStep)


@pytest.mark.parametrize("row", [None, at(INIT)])
def test_going_on_too_early_is_refused(row: MigrationRow | None) -> None:
    for code in (0, 1):
        decision = ask(MigrationReadiness(row, code), 9999, migrate_all=True)
        assert isinstance(decision, UnusableState)
        assert DEPLOYED in decision.advice


@pytest.mark.parametrize(
    "seen",
    [
        MigrationReadiness(at(DEPLOYED), 1, silent=(OTHER,)),
        MigrationReadiness(at(DEPLOYED), 1, in_legacy=(OTHER,)),
    ],
)
def test_rows_move_only_when_every_worker_reports_to_the_lease_table(seen: MigrationReadiness) -> None:
    decision = ask(seen, migrate_all=True)
    assert isinstance(decision, NoStep)
    assert OTHER in decision.reason


STREAM: Row = {"key": "orders", "entityType": "STREAM", "streamId": "s-1"}
VERSION: Row = {"key": "Migration3.0", "cv": "CLIENT_VERSION_3X", "mb": "w", "mts": 1, "h": ({"cv": "x"},)}


def test_rows_move_with_their_kind_while_the_leader_leads() -> None:
    decision = ask(MigrationReadiness(at(DEPLOYED), 1, legacy_rows=(STREAM, VERSION)), migrate_all=True)
    assert isinstance(decision, RowBatch)
    assert decision.keys == ("Migration3.0", "orders")
    world = World({LEGACY: [STREAM, VERSION, {"key": "Leader", "ownerName": ME}]})
    assert world.transact(decision.parts)
    assert world.rows(LEASES) == {
        "orders": {"leaseKey": "orders", "entityType": "STREAM", "streamId": "s-1"},
        "Migration3.0": {
            "leaseKey": "Migration3.0",
            "entityType": "CLIENT_VERSION_MIGRATION",  # a Java worker up to 3.4 left it out
            **{name: value for name, value in VERSION.items() if name != "key"},
        },
    }
    assert set(world.rows(LEGACY)) == {"Leader"}


@pytest.mark.parametrize("leader", [None, OTHER])
def test_no_row_is_moved_once_another_worker_leads(leader: WorkerId | None) -> None:
    decision = ask(MigrationReadiness(at(DEPLOYED), 1, legacy_rows=(STREAM,)), migrate_all=True)
    assert isinstance(decision, RowBatch)
    lock: list[Row] = [] if leader is None else [{"key": "Leader", "ownerName": leader}]
    world = World({LEGACY: [STREAM, *lock]})
    assert not world.transact(decision.parts)
    assert world.rows(LEASES) == {}


def test_a_change_made_while_a_row_moves_is_not_lost() -> None:
    decision = ask(MigrationReadiness(at(DEPLOYED), 1, legacy_rows=(VERSION,)), migrate_all=True)
    assert isinstance(decision, RowBatch)
    world = World({LEGACY: [{**VERSION, "cv": "CLIENT_VERSION_2X"}, {"key": "Leader", "ownerName": ME}]})
    assert not world.transact(decision.parts)
    assert "Migration3.0" in world.rows(LEGACY)


def test_a_row_that_the_lease_table_has_already_is_not_overwritten() -> None:
    decision = ask(MigrationReadiness(at(DEPLOYED), 1, legacy_rows=(STREAM,)), migrate_all=True)
    assert isinstance(decision, RowBatch)
    theirs: Row = {"leaseKey": "orders", "entityType": "STREAM", "streamId": "s-2"}
    world = World({LEGACY: [STREAM, {"key": "Leader", "ownerName": ME}], LEASES: [theirs]})
    assert not world.transact(decision.parts)
    assert world.rows(LEASES) == {"orders": theirs}


def test_a_row_that_would_be_taken_for_a_lease_is_left_for_a_person() -> None:
    decision = ask(
        MigrationReadiness(at(DEPLOYED), 1, legacy_rows=({"key": "mine"}, STREAM)), migrate_all=True
    )
    assert isinstance(decision, UnusableState)
    assert "mine" in decision.problem


def test_a_transaction_moves_no_more_rows_than_it_may() -> None:
    rows = tuple[Row, ...]({"key": f"stream-{n:03d}", "entityType": "STREAM"} for n in range(60))
    decision = ask(MigrationReadiness(at(DEPLOYED), 1, legacy_rows=rows), migrate_all=True)
    assert isinstance(decision, RowBatch)
    assert len(decision.keys) == MAX_BATCH_ROWS
    assert len(decision.parts) <= 100  # DynamoDB's limit


def test_when_all_is_moved_the_lease_table_is_used_alone() -> None:
    advanced(ask(MigrationReadiness(at(DEPLOYED), 0), migrate_all=True), PENDING)


@pytest.mark.parametrize(
    ("seen", "migrate_all", "why"),
    [
        (MigrationReadiness(at(PENDING), 1), False, "migrateAllEntitiesToLeaseTable=false"),
        (MigrationReadiness(at(PENDING), 1, in_legacy=(OTHER,)), True, "w-2"),
        (MigrationReadiness(at(PENDING), 1, legacy_rows=(STREAM,)), True, "orders"),
    ],
)
def test_there_is_a_way_back_until_the_end(seen: MigrationReadiness, migrate_all: bool, why: str) -> None:
    decision = ask(seen, 10**9, migrate_all=migrate_all)
    advanced(decision, DEPLOYED)
    assert isinstance(decision, AdvanceStatus)
    assert why in decision.reason


def test_after_the_bake_time_both_tables_say_that_it_is_complete() -> None:
    seen = MigrationReadiness(at(PENDING, 1000), 1)
    assert isinstance(ask(seen, BAKE_S + 0.9, migrate_all=True), NoStep)
    decision = ask(seen, BAKE_S + 1, migrate_all=True)
    assert isinstance(decision, MigrationCompletion)
    assert [type(part.what) for part in decision.parts] == [RowCheck, RowPut, RowPut]
    world = World(
        {
            LEGACY: [
                TABLE_STATUS_CODEC.row(at(PENDING, 1000), key_attribute="key"),
                {"key": "Leader", "ownerName": ME},
            ]
        }
    )
    assert world.transact(decision.parts)
    for place in TableSide:
        state = TABLE_STATUS_CODEC.read(world.rows(place)["TableMigration3.5"])
        assert state == at(PENDING, 1000).followed_by(COMPLETE, by=ME, at_ms=(BAKE_S + 1) * 1000)
    assert not world.transact(decision.parts)  # once


def test_completion_is_refused_once_somebody_went_back() -> None:
    decision = ask(MigrationReadiness(at(PENDING), 1), BAKE_S, migrate_all=True)
    assert isinstance(decision, MigrationCompletion)
    world = World(
        {
            LEGACY: [
                TABLE_STATUS_CODEC.row(at(DEPLOYED), key_attribute="key"),
                {"key": "Leader", "ownerName": ME},
            ]
        }
    )
    assert not world.transact(decision.parts)
    assert world.rows(LEASES) == {}


def test_a_leader_that_finds_it_complete_switches_over_and_then_rests() -> None:
    for migrate_all in (False, True):
        assert isinstance(ask(MigrationReadiness(at(COMPLETE), 0), migrate_all=migrate_all), SwitchOver)
        for row in (None, at(INIT), at(PENDING)):
            assert isinstance(
                ask(MigrationReadiness(row, 1), status=COMPLETE, migrate_all=migrate_all), NoStep
            )


@pytest.mark.parametrize(("setting", "used"), [(0, 3600), (3600, 3600), (86_400, 86_400), (604_801, 604_800)])
def test_the_bake_time_is_an_hour_to_seven_days(setting: int, used: int) -> None:
    assert complete_bake_s(setting) == used


def old_rows(count: int) -> list[Row]:
    rows: list[Row] = [{"key": "Leader", "ownerName": ME, "recordVersionNumber": "v"}]
    streams: list[dict[str, Value]] = [
        {"key": f"stream-{n:02d}", "entityType": "STREAM"} for n in range(count)
    ]
    return [*rows, *streams]


def poll(world: World, *, support: int, in_legacy: bool) -> MigrationReadiness:
    return MigrationReadiness(
        world.state(),
        support,
        unsupporting=() if support else (OTHER,),
        in_legacy=(OTHER,) if in_legacy else (),
        legacy_rows=tuple(
            row for key, row in world.rows(LEGACY).items() if key not in {"Leader", "TableMigration3.5"}
        ),
    )


def test_an_undisturbed_move_ends_with_all_rows_in_the_lease_table() -> None:
    world = World({LEGACY: old_rows(60)})
    now_s, kinds = 0, list[str]()
    for _ in range(100):
        migrate_all = world.state() is not None and world.state() != at(INIT) and now_s > 7200
        decision = ask(poll(world, support=1, in_legacy=False), now_s, migrate_all=migrate_all)
        if isinstance(decision, SwitchOver):
            break
        kinds.append(f"{type(decision).__name__}")
        world.carry_out(decision)
        now_s += 3600
    assert [kind for kind in kinds if kind != "NoStep"] == [
        "CreateStatusRow",
        "AdvanceStatus",
        "RowBatch",
        "RowBatch",
        "RowBatch",
        "AdvanceStatus",
        "MigrationCompletion",
    ]
    assert len(world.rows(LEASES)) == 61
    assert set(world.rows(LEGACY)) == {"Leader", "TableMigration3.5"}


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.booleans(), st.booleans(), st.integers(0, 100_000)),
        max_size=40,
    ),
    st.integers(0, 30),
)
def test_whatever_happens_no_row_is_lost_each_write_counts_once_and_complete_is_the_end(
    polls: list[tuple[int, bool, bool, int]], streams: int
) -> None:
    world = World({LEGACY: old_rows(streams)})
    now_s, complete = 0, False
    for support, in_legacy, migrate_all, passed_s in polls:
        now_s += passed_s
        decision = ask(poll(world, support=support, in_legacy=in_legacy), now_s, migrate_all=migrate_all)
        if complete:
            assert isinstance(decision, SwitchOver)
        applied = world.carry_out(decision)
        assert not (applied and world.carry_out(decision))
        state = world.state()
        complete = complete or (state is not None and state.state is COMPLETE)
        everywhere = [*world.rows(LEGACY), *world.rows(LEASES)]
        assert sorted(key for key in everywhere if key.startswith("stream")) == [
            f"stream-{n:02d}" for n in range(streams)
        ]
        if state is not None:
            assert len(state.history) <= 10
