"""The way from KCL 2.x to 3.x: row, start, live changes, readiness, the tool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.config.balance import ClientVersionConfig
from kcl_daemon.fleet.client_version import (
    CLIENT_VERSION_CODEC,
    ClientVersion,
    Component,
    Components,
    StartVersion,
    SwitchVersion,
    VersionRow,
    components_of_version,
    decide_start_version,
)
from kcl_daemon.leases.layout import MAX_HISTORY, PastState, StateRow, StateRowCreation, UnusableState
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Absent, Equals, Present, Row, RowUpdate, Value
from kcl_daemon.migrations.kcl2_rules import follow_stored_version
from tests.simulator.memory.updates import apply_update, holds

INIT, UPGRADE, WITH_ROLLBACK, V2X, V3X = ClientVersion
PHASE_1, CONFIG_2X, CONFIG_3X = ClientVersionConfig
ME, OTHER = WorkerId("w-1"), WorkerId("w-2")
KEYS = ("key", "leaseKey")
JAVA: Row = {
    "leaseKey": "Migration3.0",
    "entityType": "CLIENT_VERSION_MIGRATION",
    "cv": "CLIENT_VERSION_3X",
    "mb": "w-1",
    "mts": 1770000000000,
    "h": ({"cv": "CLIENT_VERSION_INIT", "mb": "w-1", "mts": 1770000000000},),
}


def at(version: ClientVersion, by: str = "w-0") -> VersionRow:
    return StateRow(version, by, 1000)


def begin(
    config: ClientVersionConfig, stored: VersionRow | None, *, key: str = "leaseKey", me: WorkerId = ME
) -> StartVersion:
    return decide_start_version(config, stored, me=me, now_ms=1770000000000, key_attribute=key)


def read(row: Row | None) -> VersionRow:
    state = CLIENT_VERSION_CODEC.read(row)
    assert isinstance(state, StateRow)
    return state


class OneRow:
    """A table of one row, as far as these writes go."""

    def __init__(self, key: str = "leaseKey", row: Row | None = None) -> None:
        self.key, self.row = key, row

    def write(self, write: StateRowCreation | RowUpdate) -> bool:
        if isinstance(write, StateRowCreation):
            applied = all(holds(condition, self.row) for condition in write.require)
            self.row = write.row if applied else self.row
            return applied
        written = apply_update(write, self.row, key_attribute=self.key)
        self.row = written.row
        return written.applied


# The row


def test_the_first_row_is_javas() -> None:
    write = begin(CONFIG_3X, None).write
    assert isinstance(write, StateRowCreation)
    assert write.row == JAVA
    assert write.require == (Absent("leaseKey"),)
    assert type(write.row["cv"]) is str  # adapters look at exact types


def test_in_a_table_of_its_own_only_the_key_differs() -> None:
    write = begin(CONFIG_3X, None, key="key").write
    assert isinstance(write, StateRowCreation)
    assert write.row == {"key": "Migration3.0", **{n: v for n, v in JAVA.items() if n != "leaseKey"}}
    assert write.require == (Absent("key"),)


def test_a_client_version_row_of_java_is_read_and_written_unchanged() -> None:
    state = read(JAVA)
    assert state == StateRow(V3X, "w-1", 1770000000000, (PastState(INIT.value, "w-1", 1770000000000),))
    assert CLIENT_VERSION_CODEC.row(state, key_attribute="leaseKey") == JAVA


def test_a_row_without_history_has_no_such_attribute_and_an_older_java_wrote_no_entity_type() -> None:
    row: Row = {n: v for n, v in JAVA.items() if n not in {"h", "entityType"}}
    state = read(row)
    assert state.history == ()
    assert CLIENT_VERSION_CODEC.row(state, key_attribute="leaseKey") == {
        **row,
        "entityType": "CLIENT_VERSION_MIGRATION",
    }


def test_a_missing_client_version_row_is_read_as_none() -> None:
    assert CLIENT_VERSION_CODEC.read(None) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"cv": "CLIENT_VERSION_4X"}, "cv"),
        ({"cv": "CLIENT_VERSION_INIT"}, "cv"),  # only ever in the history
        ({"cv": 3}, "cv"),
        ({"mb": 1}, "mb"),
        ({"mts": "soon"}, "mts"),
        ({"entityType": "LEASE"}, "entityType"),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_with_advice(changes: dict[str, Value], named: str) -> None:
    refusal = CLIENT_VERSION_CODEC.read({**JAVA, **changes})
    assert isinstance(refusal, UnusableState)
    assert f"{named} holds" in refusal.problem
    assert "CLIENT_VERSION_3X" in refusal.advice


def test_a_row_that_lacks_its_state_is_refused() -> None:
    refusal = CLIENT_VERSION_CODEC.read({"leaseKey": "Migration3.0"})
    assert isinstance(refusal, UnusableState)
    assert "cv holds nothing" in refusal.problem


@pytest.mark.parametrize("entry", ["text", {"cv": 1}, {"cv": "x", "mb": "y"}])
def test_a_history_that_cannot_be_read_stops_nobody(entry: Value) -> None:
    good: Value = {"cv": "CLIENT_VERSION_2X", "mb": "w", "mts": 1}
    assert read({**JAVA, "h": (entry, good)}).history == (PastState("CLIENT_VERSION_2X", "w", 1),)
    assert read({**JAVA, "h": "lost"}).history == ()


@given(st.lists(st.sampled_from(CLIENT_VERSION_CODEC.states), max_size=30))
def test_the_history_is_newest_first_and_never_longer_than_ten(versions: list[ClientVersion]) -> None:
    state = at(V3X)
    for number, version in enumerate(versions):
        state = state.followed_by(version, by=f"w-{number}", at_ms=2000 + number)
    assert len(state.history) == min(len(versions), MAX_HISTORY)
    assert list(state.history) == sorted(state.history, key=lambda past: past.at_ms, reverse=True)
    row = CLIENT_VERSION_CODEC.row(state, key_attribute="key")
    assert read(row) == state


# Start


@pytest.mark.parametrize(
    ("config", "absent", "upgrade", "with_rollback", "v2x", "v3x"),
    [
        (PHASE_1, INIT, UPGRADE, WITH_ROLLBACK, V2X, V3X),
        (CONFIG_2X, UPGRADE, UPGRADE, WITH_ROLLBACK, V2X, V3X),
        (CONFIG_3X, V3X, UPGRADE, V3X, V2X, V3X),
    ],
)
def test_the_version_to_start_in(
    config: ClientVersionConfig,
    *,
    absent: ClientVersion,
    upgrade: ClientVersion,
    with_rollback: ClientVersion,
    v2x: ClientVersion,
    v3x: ClientVersion,
) -> None:
    assert begin(config, None).version is absent
    stored = (UPGRADE, WITH_ROLLBACK, V2X, V3X)
    assert [begin(config, at(version)).version for version in stored] == [upgrade, with_rollback, v2x, v3x]


@pytest.mark.parametrize("config", ClientVersionConfig)
@pytest.mark.parametrize("version", [None, UPGRADE, WITH_ROLLBACK, V2X, V3X])
@pytest.mark.parametrize("key", KEYS)
def test_a_start_writes_exactly_where_its_version_differs_from_the_row(
    config: ClientVersionConfig, version: ClientVersion | None, key: str
) -> None:
    row = None if version is None else CLIENT_VERSION_CODEC.row(at(version), key_attribute=key)
    table = OneRow(key, row)
    decision = begin(config, None if version is None else at(version), key=key)
    if decision.version in {version, INIT}:
        assert decision.write is None
        return
    assert decision.write is not None
    assert table.write(decision.write)
    state = read(table.row)
    assert (state.state, state.by, len(state.history)) == (decision.version, ME, 1)
    assert begin(config, state, key=key).write is None  # asked again it has nothing left to do


def test_ending_the_time_of_rollback_is_refused_once_somebody_rolled_back() -> None:
    write = begin(CONFIG_3X, at(WITH_ROLLBACK)).write
    assert isinstance(write, RowUpdate)
    assert write.require == (Present("leaseKey"), Equals("cv", "CLIENT_VERSION_3X_WITH_ROLLBACK"))
    assert not OneRow(row=CLIENT_VERSION_CODEC.row(at(V2X), key_attribute="leaseKey")).write(write)


@pytest.mark.parametrize("config", [CONFIG_2X, CONFIG_3X])
def test_losing_the_race_to_create_the_row_is_answered_by_reading_it_again(
    config: ClientVersionConfig,
) -> None:
    # A Java worker never starts after that: its second try finds the version noted and skips everything.
    table = OneRow()
    mine, theirs = begin(config, None), begin(CONFIG_2X, None, me=OTHER)
    assert mine.write is not None
    assert theirs.write is not None
    assert table.write(theirs.write)
    assert not table.write(mine.write)
    again = begin(config, read(table.row))
    assert (again.version, again.write) == (UPGRADE, None)
    assert OTHER in again.reason


# What runs


def test_the_parts_of_each_version() -> None:
    def parts(metrics: bool, index: bool, assigns: bool) -> Components:
        return Components(reports_metrics=metrics, creates_index=index, leader_assigns=assigns)

    assert {version: components_of_version(version) for version in ClientVersion} == {
        INIT: parts(False, False, False),
        UPGRADE: parts(True, True, False),
        WITH_ROLLBACK: parts(True, False, True),
        V2X: parts(False, False, False),
        V3X: parts(True, True, True),
    }


def switch(before: ClientVersion, after: ClientVersion) -> SwitchVersion:
    decision = follow_stored_version(before, at(after))
    assert isinstance(decision, SwitchVersion)
    assert decision.version is after
    return decision


def test_assignment_changes_before_the_leader_and_the_leader_before_it_assigns() -> None:
    assert switch(UPGRADE, WITH_ROLLBACK).order == (
        Component.ASSIGNMENT,
        Component.LEADER,
        Component.ASSIGNER,
    )


def test_on_the_way_back_metrics_stop_first_and_the_leader_changes_last() -> None:
    assert switch(WITH_ROLLBACK, V2X).order == (
        Component.METRICS,
        Component.ASSIGNMENT,
        Component.ASSIGNER,
        Component.LEADER,
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (UPGRADE, WITH_ROLLBACK),
        (UPGRADE, V2X),
        (WITH_ROLLBACK, V2X),
        (WITH_ROLLBACK, V3X),
        (V2X, UPGRADE),
    ],
)
def test_a_switch_names_every_part_that_differs(before: ClientVersion, after: ClientVersion) -> None:
    old, new = components_of_version(before), components_of_version(after)
    differing = set[Component]()
    if old.reports_metrics != new.reports_metrics:
        differing.add(Component.METRICS)
    if new.creates_index and not old.creates_index:  # a worker never removes it
        differing.add(Component.INDEX)
    if old.leader_assigns != new.leader_assigns:
        differing |= {Component.ASSIGNMENT, Component.LEADER, Component.ASSIGNER}
    assert set(switch(before, after).order) == differing


def test_only_3x_ends_the_reading_of_the_row() -> None:
    assert switch(WITH_ROLLBACK, V3X).last
    assert not switch(UPGRADE, WITH_ROLLBACK).last
    assert not switch(V2X, UPGRADE).last


@pytest.mark.parametrize(
    ("before", "after"), [(UPGRADE, V3X), (WITH_ROLLBACK, UPGRADE), (V2X, V3X), (V2X, WITH_ROLLBACK)]
)
def test_other_changes_are_refused_and_the_worker_goes_on(
    before: ClientVersion, after: ClientVersion
) -> None:
    decision = follow_stored_version(before, at(after))
    assert isinstance(decision, UnusableState)
    assert after in decision.problem


@pytest.mark.parametrize("version", [UPGRADE, WITH_ROLLBACK, V2X])
def test_a_worker_stays_where_the_row_has_not_changed_and_where_it_cannot_be_read(
    version: ClientVersion,
) -> None:
    assert follow_stored_version(version, at(version)) is None
    unreadable = UnusableState("what", "do")
    assert follow_stored_version(version, unreadable) is unreadable
    assert isinstance(follow_stored_version(version, None), UnusableState)


@pytest.mark.parametrize("version", [INIT, V3X])
@pytest.mark.parametrize("seen", [None, UnusableState("what", "do"), at(V2X), at(UPGRADE)])
def test_a_worker_in_phase_1_or_3x_changes_only_by_a_restart(
    version: ClientVersion, seen: VersionRow | UnusableState | None
) -> None:
    assert follow_stored_version(version, seen) is None
