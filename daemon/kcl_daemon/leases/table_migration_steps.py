"""What the leader does next to move an application into one table (KCL: TableMigrationStateMachineImpl).

One function from what was read to the next write. It is asked again after each write and in each period, remembers
nothing, and whatever was lost half way is found and finished by the next leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.state_row import Creation, Refusal, StateRow
from kcl_daemon.leases.table import Conditions, RowUpdate
from kcl_daemon.leases.table_migration import CODEC, LEGACY_KEY, MigrationRow, TableStatus
from kcl_daemon.leases.table_migration_moves import Complete, Move, complete, move, row_key
from kcl_daemon.leases.table_migration_survey import Survey

DEPLOY_BAKE_S: Final = 3_600
"""All workers must have known the single table for so long."""

_COMPLETE_BAKE_LEAST_S: Final = 3_600
_COMPLETE_BAKE_MOST_S: Final = 604_800


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to write now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Create:
    """Put the row `TableMigration3.5` into the coordinator table."""

    creation: Creation
    reason: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Delete the row `TableMigration3.5` from the coordinator table."""

    key: str
    require: Conditions
    reason: str


@dataclass(frozen=True, slots=True)
class Advance:
    """Change the row `TableMigration3.5` of the coordinator table, also back."""

    update: RowUpdate
    to: TableStatus
    reason: str


@dataclass(frozen=True, slots=True)
class SwitchOver:
    """The move is over: give up the old lock, be COMPLETE from now on. For leaders and for all others."""

    reason: str


Step: TypeAlias = Nothing | Create | Withdraw | Advance | Move | Complete | SwitchOver | Refusal


def complete_bake_s(setting_s: int) -> int:
    """How long PENDING must last, from `tableMigrationCompleteBakeTimeSeconds`: an hour to seven days."""
    return min(max(setting_s, _COMPLETE_BAKE_LEAST_S), _COMPLETE_BAKE_MOST_S)


def step(
    seen: Survey,
    *,
    status: TableStatus,
    migrate_all: bool,
    bake_s: int,
    me: WorkerId,
    now_ms: int,
    deploy_bake_s: int = DEPLOY_BAKE_S,
) -> Step:
    """The next write of the leader.

    Args:
        seen: what it has read.
        status: its own status; COMPLETE is final.
        migrate_all: its setting `migrateAllEntitiesToLeaseTable`.
        bake_s: from `complete_bake_s`.
        me: its worker id; the transactions are refused unless it holds the old lock.
        now_ms: epoch milliseconds.
        deploy_bake_s: all must have known the single table for so long before the move may begin.
    """
    if status is TableStatus.COMPLETE:
        return Nothing("all rows are in the lease table")
    row = seen.row
    if row is None:
        return _begin(seen, migrate_all=migrate_all, me=me, now_ms=now_ms)
    match row.state:
        case TableStatus.INIT:
            return _while_init(seen, row, migrate_all=migrate_all, bake_s=deploy_bake_s, me=me, now_ms=now_ms)
        case TableStatus.DEPLOYED:
            return _while_deployed(seen, row, migrate_all=migrate_all, me=me, now_ms=now_ms)
        case TableStatus.PENDING:
            return _while_pending(seen, row, migrate_all=migrate_all, bake_s=bake_s, me=me, now_ms=now_ms)
        case TableStatus.COMPLETE:
            return SwitchOver(f"{row.by} completed the migration to the lease table")
        case _:
            assert_never(row.state)


def _begin(seen: Survey, *, migrate_all: bool, me: WorkerId, now_ms: int) -> Step:
    if migrate_all:
        return _set_too_early(f"row {CODEC.row_key} is gone")
    if seen.support_code < 1:
        return Nothing(_unsupported(seen))
    row = StateRow(TableStatus.INIT, me, now_ms)
    return Create(
        CODEC.creation(row, key_attribute=LEGACY_KEY), "every lease owner supports the single table"
    )


def _while_init(
    seen: Survey, row: MigrationRow, *, migrate_all: bool, bake_s: int, me: WorkerId, now_ms: int
) -> Step:
    if migrate_all:
        return _set_too_early(f"row {CODEC.row_key} says {row.state}")
    if seen.support_code < 1:
        return Withdraw(CODEC.row_key, (CODEC.holds(TableStatus.INIT),), _unsupported(seen))
    baked_s = (now_ms - row.at_ms) / 1000
    if baked_s < bake_s:
        return Nothing(f"every lease owner has known the single table for {baked_s:.0f} s of {bake_s} s")
    return _advance(row, TableStatus.DEPLOYED, me, now_ms, f"all have known it for {bake_s} s")


def _while_deployed(seen: Survey, row: MigrationRow, *, migrate_all: bool, me: WorkerId, now_ms: int) -> Step:
    if not migrate_all:
        return Nothing(
            "all workers support the single table; migrateAllEntitiesToLeaseTable=true starts the migration"
        )
    if seen.silent:
        return Nothing(f"{len(seen.silent)} lease owners do not report, such as {seen.silent[0]}")
    if seen.in_legacy:
        return Nothing(_in_legacy(seen))
    if seen.legacy_rows:
        return move(seen.legacy_rows, me)
    return _advance(row, TableStatus.PENDING, me, now_ms, "workers and rows are all in the lease table")


def _while_pending(
    seen: Survey, row: MigrationRow, *, migrate_all: bool, bake_s: int, me: WorkerId, now_ms: int
) -> Step:
    if not migrate_all:
        return _advance(
            row,
            TableStatus.DEPLOYED,
            me,
            now_ms,
            "this leader runs with migrateAllEntitiesToLeaseTable=false",
        )
    if seen.in_legacy:
        return _advance(row, TableStatus.DEPLOYED, me, now_ms, _in_legacy(seen))
    if seen.legacy_rows:
        return _advance(
            row,
            TableStatus.DEPLOYED,
            me,
            now_ms,
            f"row {row_key(seen.legacy_rows[0])} is in the old table again",
        )
    baked_s = (now_ms - row.at_ms) / 1000
    if baked_s < bake_s:
        return Nothing(f"only the lease table was used for {baked_s:.0f} s of {bake_s} s")
    return complete(row, me, now_ms, f"the lease table has been used alone for {bake_s} s")


def _advance(row: MigrationRow, to: TableStatus, me: WorkerId, now_ms: int, reason: str) -> Advance:
    after = row.followed_by(to, by=me, at_ms=now_ms)
    return Advance(CODEC.update(row, after, key_attribute=LEGACY_KEY), to, reason)


def _set_too_early(problem: str) -> Refusal:
    return Refusal(
        f"migrateAllEntitiesToLeaseTable=true, but {problem}",
        f"set it to false until the row says {TableStatus.DEPLOYED}",
    )


def _unsupported(seen: Survey) -> str:
    if not seen.unsupporting:
        return "no lease has an owner yet"
    return (
        f"{len(seen.unsupporting)} lease owners do not know the single table, such as {seen.unsupporting[0]}"
    )


def _in_legacy(seen: Survey) -> str:
    return f"{len(seen.in_legacy)} workers report to the old table, such as {seen.in_legacy[0]}"
