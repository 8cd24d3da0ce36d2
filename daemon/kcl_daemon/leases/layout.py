"""Which tables hold worker rows and the leader lock, and the state rows of migrations (KCL: MigrationState).

Existing tables win over settings, so that all workers decide alike. Of separate tables the lease table is created last:
a Java worker looks for the coordinator table right after creating it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Generic, TypeAlias, TypeVar, assert_never

from kcl_daemon.leases.row import KEY, Absent, Conditions, Equals, Present, Row, RowUpdate, Value

MAX_HISTORY: Final = 10

ENTITY: Final = "entityType"
_BY: Final = "mb"
_AT: Final = "mts"
_HISTORY: Final = "h"

_State = TypeVar("_State", bound=StrEnum)
_LEASE = "LEASE"
_KEYS_OF_COORDINATOR_ROWS = frozenset({"Leader", "Migration3.0", "TableMigration3.5"})


@dataclass(frozen=True, slots=True)
class UnusableState:
    problem: str
    advice: str


@dataclass(frozen=True, slots=True)
class PastState:
    state: str
    by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class StateRow(Generic[_State]):
    state: _State
    by: str
    at_ms: int
    history: tuple[PastState, ...] = ()

    def followed_by(self, state: _State, *, by: str, at_ms: int) -> StateRow[_State]:
        past = PastState(str(self.state), self.by, self.at_ms)
        return StateRow(state, by, at_ms, (past, *self.history)[:MAX_HISTORY])


@dataclass(frozen=True, slots=True)
class StateRowCreation:
    row: Row
    require: Conditions


@dataclass(frozen=True, slots=True)
class StateCodec(Generic[_State]):
    """Rows up to KCL 3.4 have no `entity`."""

    row_key: str
    entity: str
    attribute: str
    states: tuple[_State, ...]

    def read(self, row: Row | None) -> StateRow[_State] | UnusableState | None:
        """An unreadable row is refused, not treated as absent; unreadable history is left out."""
        if row is None:
            return None
        if row.get(ENTITY, self.entity) != self.entity:
            return self._refused(ENTITY, row)
        known = {str(state): state for state in self.states}
        name = row.get(self.attribute)
        if not isinstance(name, str) or name not in known:
            return self._refused(self.attribute, row)
        by, at_ms = row.get(_BY), row.get(_AT)
        if not isinstance(by, str):
            return self._refused(_BY, row)
        if not isinstance(at_ms, int):
            return self._refused(_AT, row)
        return StateRow(known[name], by, at_ms, self._past(row.get(_HISTORY)))

    def row(self, state: StateRow[_State], *, key_attribute: str) -> Row:
        return {key_attribute: self.row_key, ENTITY: self.entity, **self._attributes(state)}

    def creation(self, state: StateRow[_State], *, key_attribute: str) -> StateRowCreation:
        return StateRowCreation(self.row(state, key_attribute=key_attribute), (Absent(key_attribute),))

    def update(self, before: StateRow[_State], after: StateRow[_State], *, key_attribute: str) -> RowUpdate:
        return RowUpdate(
            self.row_key,
            put=self._attributes(after),
            require=(Present(key_attribute), self.holds(before.state)),
        )

    def holds(self, state: _State) -> Equals:
        return Equals(self.attribute, state.value)

    def _attributes(self, state: StateRow[_State]) -> dict[str, Value]:
        written: dict[str, Value] = {self.attribute: state.state.value, _BY: state.by, _AT: state.at_ms}
        if state.history:
            written[_HISTORY] = tuple(
                {self.attribute: past.state, _BY: past.by, _AT: past.at_ms} for past in state.history
            )
        return written

    def _past(self, entries: Value | None) -> tuple[PastState, ...]:
        if not isinstance(entries, tuple):
            return ()
        history: list[PastState] = []
        for entry in entries:
            if isinstance(entry, Mapping):
                state, by, at_ms = entry.get(self.attribute), entry.get(_BY), entry.get(_AT)
                if isinstance(state, str) and isinstance(by, str) and isinstance(at_ms, int):
                    history.append(PastState(state, by, at_ms))
        return tuple(history)

    def _refused(self, attribute: str, row: Row) -> UnusableState:
        found = repr(row[attribute])[:80] if attribute in row else "nothing"
        return UnusableState(
            f"row {self.row_key}: {attribute} holds {found}",
            f"it was written by a newer version or by hand; {self.attribute} should be one of "
            f"{', '.join(str(state) for state in self.states)}, with {_BY} and {_AT}",
        )


class TableLayout(Enum):
    SEPARATE = "separate"
    """Two more tables (KCL 3.0 - 3.4); SINGLE is KCL 3.5."""
    SINGLE = "single"


class LeaseTableContents(Enum):
    NO_TABLE = "does not exist"
    NOTHING = "is empty"
    PLAIN_LEASES = "holds leases as written by KCL up to 3.4"
    TYPED_LEASES = "holds leases with entityType"
    OTHER_ROWS = "holds rows that are no leases"


@dataclass(frozen=True, slots=True)
class FoundTables:
    coordinator_table: bool
    metrics_table: bool
    lease_table: LeaseTableContents
    migration_row: bool = False


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    layout: TableLayout
    reason: str
    warning: str | None = None


def lease_table_contents(rows: Iterable[Row]) -> LeaseTableContents:
    holds = LeaseTableContents.NOTHING
    for row in rows:
        entity = row.get(ENTITY)
        if row.get(KEY) in _KEYS_OF_COORDINATOR_ROWS or (entity is not None and entity != _LEASE):
            return LeaseTableContents.OTHER_ROWS
        if entity is not None:
            holds = LeaseTableContents.TYPED_LEASES
        elif holds is LeaseTableContents.NOTHING:
            holds = LeaseTableContents.PLAIN_LEASES
    return holds


def decide_layout(found: FoundTables, asked: TableLayout, *, migrate_all: bool) -> LayoutDecision:
    existing = _by_what_exists(found)
    if existing is None:
        return _by_settings(found, asked, migrate_all=migrate_all)
    layout, reason = existing
    return LayoutDecision(layout, reason, _warning(found, layout, asked, migrate_all=migrate_all))


def _by_what_exists(found: FoundTables) -> tuple[TableLayout, str] | None:
    if found.coordinator_table:
        return TableLayout.SEPARATE, "the coordinator table exists"
    if found.lease_table is LeaseTableContents.OTHER_ROWS:
        return TableLayout.SINGLE, f"the lease table {found.lease_table.value}"
    if found.metrics_table:
        return TableLayout.SEPARATE, "the table of worker rows exists"
    if found.lease_table is LeaseTableContents.TYPED_LEASES:
        # Workers of KCL 3.5 in phase 1 of an upgrade from 2.x create no other table.
        return TableLayout.SINGLE, f"the lease table {found.lease_table.value} and there is no other table"
    return None


def _by_settings(found: FoundTables, asked: TableLayout, *, migrate_all: bool) -> LayoutDecision:
    where = f"there is no table of worker rows or of the leader's lock, and the lease table {found.lease_table.value}"
    if asked is TableLayout.SINGLE or migrate_all:
        setting = (
            "metadataTableLayout=single"
            if asked is TableLayout.SINGLE
            else "migrateAllEntitiesToLeaseTable=true"
        )
        old = found.lease_table is LeaseTableContents.PLAIN_LEASES
        warning = (
            "workers up to KCL 3.4 fail on rows that are not leases; start this one only after all of them "
            "have stopped"
        )
        return LayoutDecision(TableLayout.SINGLE, f"{where}; {setting}", warning if old else None)
    return LayoutDecision(TableLayout.SEPARATE, f"{where}; metadataTableLayout=separate")


def _warning(found: FoundTables, layout: TableLayout, asked: TableLayout, *, migrate_all: bool) -> str | None:
    if layout is TableLayout.SEPARATE:
        if found.lease_table is LeaseTableContents.OTHER_ROWS and not found.migration_row:
            return (
                "the lease table has rows of a fleet that uses only this table, but there are separate "
                "tables too: two leaders are possible. Stop all workers, delete the tables that you do "
                "not want, then start the workers again"
            )
        if asked is TableLayout.SINGLE and not migrate_all:
            return (
                "metadataTableLayout=single does not migrate existing tables; "
                "migrateAllEntitiesToLeaseTable=true does, once every worker supports it"
            )
    return None


class TableStatus(StrEnum):
    INIT = "TABLE_MIGRATION_STATUS_INIT"
    """Some workers may not support the single table."""
    DEPLOYED = "TABLE_MIGRATION_STATUS_DEPLOYED"
    """All workers support it; the move may begin."""
    PENDING = "TABLE_MIGRATION_STATUS_PENDING"
    """Rows are written to the lease table; the move can still be reversed."""
    COMPLETE = "TABLE_MIGRATION_STATUS_COMPLETE"
    """Only the lease table counts. Final."""


MigrationRow: TypeAlias = StateRow[TableStatus]
TABLE_STATUS_CODEC: Final[StateCodec[TableStatus]] = StateCodec(
    row_key="TableMigration3.5", entity="TABLE_MIGRATION", attribute="tm", states=tuple(TableStatus)
)


def effective_status(
    row: MigrationRow | UnusableState | None, *, migrate_all: bool
) -> TableStatus | UnusableState:
    if isinstance(row, UnusableState):
        return row
    state = TableStatus.INIT if row is None else row.state
    match state:
        case TableStatus.INIT if migrate_all:
            return too_early(row)
        case TableStatus.DEPLOYED | TableStatus.PENDING:
            return TableStatus.PENDING if migrate_all else TableStatus.DEPLOYED
        case TableStatus.INIT | TableStatus.COMPLETE:
            return state
        case _:
            assert_never(state)


def too_early(row: MigrationRow | None) -> UnusableState:
    found = "does not exist" if row is None else "says that not all workers have been ready for an hour"
    return UnusableState(
        f"migrateAllEntitiesToLeaseTable=true, but row {TABLE_STATUS_CODEC.row_key} {found}",
        "first run all workers with false, on versions that support the single table; set it to true when the "
        f"row says {TableStatus.DEPLOYED}",
    )


def followed(
    status: TableStatus, row: MigrationRow | UnusableState | None, *, migrate_all: bool
) -> TableStatus | UnusableState:
    """COMPLETE is final."""
    if status is TableStatus.COMPLETE:
        return status
    return effective_status(row, migrate_all=migrate_all)
