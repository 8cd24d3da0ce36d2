"""The transactions that carry rows from the coordinator table into the lease table, as values.

Each is refused as a whole unless its leader still holds the old lock (KCL: TableMigrationStateMachineImpl). When to carry
is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_daemon.leases.leader import LEADER_KEY, held_by
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import KEY
from kcl_daemon.leases.state_row import ENTITY, Refusal
from kcl_daemon.leases.table import Absent, Equals, Row, RowCheck, RowDelete, RowPart, RowPut, Value
from kcl_daemon.leases.table_migration import CODEC, LEGACY_KEY, MigrationRow, Place, TableStatus

BATCH_MOST: Final = 25
"""So many rows are carried in one transaction."""

# Rows up to KCL 3.4 lack an entityType; in the lease table they would be taken for leases.
_KNOWN_ENTITIES: Final[Mapping[str, str]] = {"Migration3.0": "CLIENT_VERSION_MIGRATION"}


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a transaction, and in which table."""

    place: Place
    what: RowPart


@dataclass(frozen=True, slots=True)
class Move:
    """Carry coordinator rows over, all or none; ask again afterwards for those that are left."""

    parts: tuple[Part, ...]
    keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Complete:
    """End the move, all or nothing; ask again afterwards."""

    parts: tuple[Part, ...]
    reason: str


def move(rows: Sequence[Row], me: WorkerId) -> Move | Refusal:
    """The transaction that carries the first of these rows over; refused where one would be taken for a lease.

    It cannot succeed where the lease table has a row of the same key; such a pair is left for a person to look at.
    """
    parts: list[Part] = [_still_leading(me)]
    batch = sorted(rows, key=row_key)[:BATCH_MOST]
    for row in batch:
        moved = _for_lease_table(row)
        if moved is None:
            return Refusal(
                f"row {row_key(row)} of the coordinator table has no entityType and would be taken for a lease",
                "no version of KCL writes such a row; delete it, or move it yourself",
            )
        # As it was read: a change made meanwhile must not be lost with the old row.
        unchanged = tuple(Equals(name, value) for name, value in sorted(row.items()))
        parts += [
            Part(Place.LEASES, RowPut(moved, (Absent(KEY),))),
            Part(Place.LEGACY, RowDelete(row_key(row), unchanged)),
        ]
    keys = tuple(row_key(row) for row in batch)
    return Move(tuple(parts), keys, f"{len(keys)} of {len(rows)} rows are carried over")


def _for_lease_table(row: Row) -> Row | None:
    key = row_key(row)
    entity = row.get(ENTITY, _KNOWN_ENTITIES.get(key))
    if entity is None:
        return None
    rest: dict[str, Value] = {name: value for name, value in row.items() if name != LEGACY_KEY}
    return {KEY: key, **rest, ENTITY: entity}


def complete(row: MigrationRow, me: WorkerId, now_ms: int, reason: str) -> Complete:
    """The transaction that ends the move: the last state in both tables, so that every worker finds it."""
    after = row.followed_by(TableStatus.COMPLETE, by=me, at_ms=now_ms)
    return Complete(
        (
            _still_leading(me),
            Part(Place.LEASES, RowPut(CODEC.row(after, key_attribute=KEY), (Absent(KEY),))),
            Part(
                Place.LEGACY,
                RowPut(CODEC.row(after, key_attribute=LEGACY_KEY), (CODEC.holds(TableStatus.PENDING),)),
            ),
        ),
        reason,
    )


def _still_leading(me: WorkerId) -> Part:
    return Part(Place.LEGACY, RowCheck(LEADER_KEY, held_by(me)))


def row_key(row: Row) -> str:
    """The key of a row of the coordinator table."""
    return str(row[LEGACY_KEY])
