"""The rules of the move from three tables to one, KCL 3.4 to 3.5 (KCL: TableMigrationStateMachineImpl).

The next leader finishes a step that was interrupted. Transactions fail as a whole unless this worker still holds the old lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, TypeAlias, assert_never

from kcl_daemon.leases.layout import (
    ENTITY,
    TABLE_STATUS_CODEC,
    MigrationRow,
    StateRow,
    StateRowCreation,
    TableStatus,
    UnusableState,
    too_early,
)
from kcl_daemon.leases.leader import LEADER_KEY, held_by
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.row import (
    KEY,
    Absent,
    Conditions,
    Equals,
    Row,
    RowCheck,
    RowDelete,
    RowPart,
    RowPut,
    RowUpdate,
    Value,
)
from kcl_daemon.leases.worker_row import ACTIVE_REPORTS, SUPPORT_REPORTS, WorkerRow

LEGACY_KEY: Final = "key"

REFRESH_EVERY_S: Final = 30.0
"""For workers that are not COMPLETE; Java leaders read the row every second."""


class TableSide(Enum):
    LEGACY = "the table of its own"
    LEASES = "the lease table"


MAX_BATCH_ROWS: Final = 25

# Rows up to KCL 3.4 lack an entityType; in the lease table they would be taken for leases.
_KNOWN_ENTITIES: Final[Mapping[str, str]] = {"Migration3.0": "CLIENT_VERSION_MIGRATION"}


@dataclass(frozen=True, slots=True)
class RowWrite:
    place: TableSide
    what: RowPart


@dataclass(frozen=True, slots=True)
class RowBatch:
    parts: tuple[RowWrite, ...]
    keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class MigrationCompletion:
    parts: tuple[RowWrite, ...]
    reason: str


def next_row_batch(rows: Sequence[Row], me: WorkerId) -> RowBatch | UnusableState:
    """Refused if a row would be taken for a lease. Cannot succeed while the lease table has the same key."""
    parts: list[RowWrite] = [_still_leading(me)]
    batch = sorted(rows, key=row_key)[:MAX_BATCH_ROWS]
    for row in batch:
        moved = _for_lease_table(row)
        if moved is None:
            return UnusableState(
                f"row {row_key(row)} of the coordinator table has no entityType and would be taken for a lease",
                "no version of KCL writes such a row; delete it, or move it yourself",
            )
        # As read: a later change must not be lost with the old row.
        unchanged = tuple(Equals(name, value) for name, value in sorted(row.items()))
        parts += [
            RowWrite(TableSide.LEASES, RowPut(moved, (Absent(KEY),))),
            RowWrite(TableSide.LEGACY, RowDelete(row_key(row), unchanged)),
        ]
    keys = tuple(row_key(row) for row in batch)
    return RowBatch(tuple(parts), keys, f"{len(keys)} of {len(rows)} rows are carried over")


def _for_lease_table(row: Row) -> Row | None:
    key = row_key(row)
    entity = row.get(ENTITY, _KNOWN_ENTITIES.get(key))
    if entity is None:
        return None
    rest: dict[str, Value] = {name: value for name, value in row.items() if name != LEGACY_KEY}
    return {KEY: key, **rest, ENTITY: entity}


def migration_completion(row: MigrationRow, me: WorkerId, now_ms: int, reason: str) -> MigrationCompletion:
    after = row.followed_by(TableStatus.COMPLETE, by=me, at_ms=now_ms)
    return MigrationCompletion(
        (
            _still_leading(me),
            RowWrite(
                TableSide.LEASES, RowPut(TABLE_STATUS_CODEC.row(after, key_attribute=KEY), (Absent(KEY),))
            ),
            RowWrite(
                TableSide.LEGACY,
                RowPut(
                    TABLE_STATUS_CODEC.row(after, key_attribute=LEGACY_KEY),
                    (TABLE_STATUS_CODEC.holds(TableStatus.PENDING),),
                ),
            ),
        ),
        reason,
    )


def _still_leading(me: WorkerId) -> RowWrite:
    return RowWrite(TableSide.LEGACY, RowCheck(LEADER_KEY, held_by(me)))


def row_key(row: Row) -> str:
    return str(row[LEGACY_KEY])


@dataclass(frozen=True, slots=True)
class MigrationReadiness:
    row: MigrationRow | None
    support_code: int
    unsupporting: tuple[WorkerId, ...] = ()
    silent: tuple[WorkerId, ...] = ()
    in_legacy: tuple[WorkerId, ...] = ()
    legacy_rows: tuple[Row, ...] = ()


def fleet_support(
    leases: Iterable[Lease], workers: Iterable[WorkerRow], *, wall_s: float, report_s: float
) -> tuple[int, tuple[WorkerId, ...]]:
    """The lowest support code of all owners (0 without owners), and the owners without support."""
    codes = dict.fromkeys(_owners(leases), 0)
    for worker in workers:
        if worker.worker_id in codes and _supports(worker, wall_s, report_s):
            codes[worker.worker_id] = max(codes[worker.worker_id], worker.support_code or 0)
    lacking = tuple(sorted(owner for owner, code in codes.items() if code < 1))
    return min(codes.values(), default=0), lacking


def migration_readiness(
    *,
    row: MigrationRow | None,
    leases: Sequence[Lease],
    legacy_workers: Sequence[WorkerRow],
    workers: Sequence[WorkerRow],
    legacy_rows: Iterable[Row],
    wall_s: float,
    report_s: float,
) -> MigrationReadiness:
    code, unsupporting = fleet_support(leases, (*legacy_workers, *workers), wall_s=wall_s, report_s=report_s)
    in_legacy = _active(legacy_workers, wall_s, report_s)
    return MigrationReadiness(
        row=row,
        support_code=code,
        unsupporting=unsupporting,
        silent=tuple(sorted(_owners(leases) - in_legacy - _active(workers, wall_s, report_s))),
        in_legacy=tuple(sorted(in_legacy)),
        legacy_rows=tuple(
            each
            for each in legacy_rows
            if each.get(LEGACY_KEY) not in {LEADER_KEY, TABLE_STATUS_CODEC.row_key}
        ),
    )


def _owners(leases: Iterable[Lease]) -> set[WorkerId]:
    """A Java worker that left may own finished leases for long."""
    return {lease.lease_owner for lease in leases if lease.lease_owner is not None and not lease.is_finished}


def _active(workers: Iterable[WorkerRow], wall_s: float, report_s: float) -> set[WorkerId]:
    return {
        worker.worker_id for worker in workers if wall_s - worker.last_update_s <= ACTIVE_REPORTS * report_s
    }


def _supports(worker: WorkerRow, wall_s: float, report_s: float) -> bool:
    return (
        worker.support_update_s is not None and wall_s - worker.support_update_s <= SUPPORT_REPORTS * report_s
    )


@dataclass(frozen=True, slots=True)
class NoStep:
    reason: str


@dataclass(frozen=True, slots=True)
class CreateStatusRow:
    creation: StateRowCreation
    reason: str


@dataclass(frozen=True, slots=True)
class WithdrawStatusRow:
    key: str
    require: Conditions
    reason: str


@dataclass(frozen=True, slots=True)
class AdvanceStatus:
    update: RowUpdate
    to: TableStatus
    reason: str


@dataclass(frozen=True, slots=True)
class SwitchOver:
    reason: str


MigrationStep: TypeAlias = (
    NoStep
    | CreateStatusRow
    | WithdrawStatusRow
    | AdvanceStatus
    | RowBatch
    | MigrationCompletion
    | SwitchOver
    | UnusableState
)


_Advance: TypeAlias = Callable[[TableStatus, str], AdvanceStatus]


def next_migration_step(
    seen: MigrationReadiness,
    *,
    status: TableStatus,
    migrate_all: bool,
    bake_s: int,
    me: WorkerId,
    now_ms: int,
    deploy_bake_s: int,
) -> MigrationStep:
    if status is TableStatus.COMPLETE:
        return NoStep("all rows are in the lease table")
    row = seen.row
    if row is None:
        return _begin(seen, migrate_all=migrate_all, me=me, now_ms=now_ms)
    baked_s = (now_ms - row.at_ms) / 1000
    advance = partial(_advance, row, me, now_ms)
    match row.state:
        case TableStatus.INIT:
            return _while_init(seen, advance, migrate_all=migrate_all, baked_s=baked_s, bake_s=deploy_bake_s)
        case TableStatus.DEPLOYED:
            return _while_deployed(seen, advance, migrate_all=migrate_all, me=me)
        case TableStatus.PENDING:
            complete = partial(migration_completion, row, me, now_ms)
            return _while_pending(
                seen, advance, complete, migrate_all=migrate_all, baked_s=baked_s, bake_s=bake_s
            )
        case TableStatus.COMPLETE:
            return SwitchOver(f"{row.by} completed the migration to the lease table")
        case _:
            assert_never(row.state)


def _begin(seen: MigrationReadiness, *, migrate_all: bool, me: WorkerId, now_ms: int) -> MigrationStep:
    if migrate_all:
        return too_early(None)
    if seen.support_code < 1:
        return NoStep(_unsupported(seen))
    row = StateRow(TableStatus.INIT, me, now_ms)
    return CreateStatusRow(
        TABLE_STATUS_CODEC.creation(row, key_attribute=LEGACY_KEY),
        "every lease owner supports the single table",
    )


def _while_init(
    seen: MigrationReadiness, advance: _Advance, *, migrate_all: bool, baked_s: float, bake_s: int
) -> MigrationStep:
    if migrate_all:
        return too_early(seen.row)
    if seen.support_code < 1:
        return WithdrawStatusRow(
            TABLE_STATUS_CODEC.row_key, (TABLE_STATUS_CODEC.holds(TableStatus.INIT),), _unsupported(seen)
        )
    if baked_s < bake_s:
        return NoStep(f"every lease owner has known the single table for {baked_s:.0f} s of {bake_s} s")
    return advance(TableStatus.DEPLOYED, f"all have known it for {bake_s} s")


def _while_deployed(
    seen: MigrationReadiness, advance: _Advance, *, migrate_all: bool, me: WorkerId
) -> MigrationStep:
    if not migrate_all:
        return NoStep(
            "all workers support the single table; migrateAllEntitiesToLeaseTable=true starts the migration"
        )
    if seen.silent:
        return NoStep(f"{len(seen.silent)} lease owners do not report, such as {seen.silent[0]}")
    if seen.in_legacy:
        return NoStep(_in_legacy(seen))
    if seen.legacy_rows:
        return next_row_batch(seen.legacy_rows, me)
    return advance(TableStatus.PENDING, "workers and rows are all in the lease table")


def _while_pending(
    seen: MigrationReadiness,
    advance: _Advance,
    complete: Callable[[str], MigrationCompletion],
    *,
    migrate_all: bool,
    baked_s: float,
    bake_s: int,
) -> MigrationStep:
    back = TableStatus.DEPLOYED
    if not migrate_all:
        return advance(back, "this leader runs with migrateAllEntitiesToLeaseTable=false")
    if seen.in_legacy:
        return advance(back, _in_legacy(seen))
    if seen.legacy_rows:
        return advance(back, f"row {row_key(seen.legacy_rows[0])} is in the old table again")
    if baked_s < bake_s:
        return NoStep(f"only the lease table was used for {baked_s:.0f} s of {bake_s} s")
    return complete(f"the lease table has been used alone for {bake_s} s")


def _advance(row: MigrationRow, me: WorkerId, now_ms: int, to: TableStatus, reason: str) -> AdvanceStatus:
    after = row.followed_by(to, by=me, at_ms=now_ms)
    return AdvanceStatus(TABLE_STATUS_CODEC.update(row, after, key_attribute=LEGACY_KEY), to, reason)


def _unsupported(seen: MigrationReadiness) -> str:
    if not seen.unsupporting:
        return "no lease has an owner yet"
    return (
        f"{len(seen.unsupporting)} lease owners do not know the single table, such as {seen.unsupporting[0]}"
    )


def _in_legacy(seen: MigrationReadiness) -> str:
    return f"{len(seen.in_legacy)} workers report to the old table, such as {seen.in_legacy[0]}"
