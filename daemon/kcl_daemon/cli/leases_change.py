"""What `kcl-daemon leases reset`, `release` and `delete` do to the lease table.

Owns the order of reads and writes, each write under the condition that the row is still as it was read; `shards.reset`
decides. Knows nothing of command lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from kcl_daemon.errors import KclError
from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.leases.row import (
    MalformedRowError,
    as_it_was_read,
    creation,
    is_lease_row,
    lease_from_row,
    release,
    reposition,
)
from kcl_daemon.ports import Table
from kcl_daemon.shards.reset import Change, Kind
from kcl_protocol.sequence import ExtendedSequenceNumber

# An owner writes its lease every few seconds; each try reads the row anew, so one of the first meets a moment between.
_RACES_MOST: Final = 10


class NotChanged(KclError):
    """Raised when something stands against what was asked; names it."""


class Done(Enum):
    """What came of one change."""

    WRITTEN = "done"
    GONE = "nothing to do, the lease no longer exists"
    THERE = "nothing to do, the lease already exists"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A change and what came of it."""

    change: Change
    done: Done


async def all_leases(table: Table) -> tuple[Lease, ...]:
    """Every lease, by key; rows that cannot be read are left out, as every worker leaves them alone."""
    found: list[Lease] = []
    for row in await table.scan():
        try:
            if is_lease_row(row):
                found.append(lease_from_row(row))
        except MalformedRowError:
            continue  # `kcl-daemon leases list` shows them
    return tuple(sorted(found, key=lambda lease: lease.lease_key))


def chosen_leases(leases: Sequence[Lease], names: Iterable[str]) -> tuple[Lease, ...]:
    """Those that are named, by shard id or lease key.

    Raises:
        NotChanged: one of the names is none of them, or of several streams.
    """
    wanted = list(dict.fromkeys(names))
    missing = [
        name for name in wanted if not any(name in (lease.lease_key, lease.shard_id) for lease in leases)
    ]
    if missing:
        raise NotChanged(
            f"there is no lease {', '.join(missing)}; `kcl-daemon leases list --all` shows all leases"
        )
    for name in wanted:
        if len([lease for lease in leases if lease.shard_id == name]) > 1:
            raise NotChanged(f"several streams have a shard {name}; add --stream, or use the lease key")
    return tuple(lease for lease in leases if lease.lease_key in wanted or lease.shard_id in wanted)


async def carry_out(table: Table, change: Change) -> Outcome:
    """Write one change, on the row as it is by then.

    Raises:
        NotChanged: the row cannot be read, or kept changing.
        AwsError: it could not be read or written; after Unavailable it may have been written.
    """
    if change.kind is Kind.CREATE:
        written = await table.put(*creation(change.lease))
        return Outcome(change, Done.WRITTEN if written.applied else Done.THERE)
    for _ in range(_RACES_MOST):
        lease = await _now(table, change.lease.lease_key)
        if lease is None:
            return Outcome(change, Done.GONE)
        if await _write(table, replace(change, lease=lease)):
            return Outcome(change, Done.WRITTEN)
    raise NotChanged(f"the lease {change.lease.lease_key} kept changing; try again")


async def carry_out_all(table: Table, changes: Iterable[Change], tell: Callable[[str], object]) -> int:
    """Write changes one after the other; how many of them were written.

    Args:
        table: the lease table.
        changes: what to write.
        tell: is given a line for each where there was nothing to do.

    Raises:
        NotChanged: as for `carry_out`; the changes before that one have been written.
        AwsError: likewise.
    """
    written = 0
    for change in changes:
        outcome = await carry_out(table, change)
        if outcome.done is Done.WRITTEN:
            written += 1
        else:
            tell(f"{change.lease.lease_key}: {outcome.done.value}")
    return written


async def move_past(table: Table, lease: Lease, position: ExtendedSequenceNumber) -> Outcome:
    """Move a lease's checkpoint ahead, unless it has moved since it was looked at.

    Raises:
        NotChanged: its checkpoint is another by now, or the row cannot be read or kept changing.
        AwsError: as for `carry_out`.
    """
    change = Change(Kind.RESET, lease, position, "")
    for _ in range(_RACES_MOST):
        now = await _now(table, lease.lease_key)
        if now is None:
            return Outcome(change, Done.GONE)
        if now.checkpoint != lease.checkpoint:
            raise NotChanged(
                f"the checkpoint of {lease.lease_key} has just moved to {now.checkpoint}; nothing was "
                "skipped, check again"
            )
        if await _write(table, replace(change, lease=now)):
            return Outcome(change, Done.WRITTEN)
    raise NotChanged(f"the lease {lease.lease_key} kept changing; try again")


async def let_go_all(table: Table, keys: Iterable[LeaseKey], tell: Callable[[str], object]) -> int:
    """Take leases from their owners one after the other; how many had one. Else as `carry_out_all`."""
    written = 0
    for key in keys:
        if await let_go(table, key):
            written += 1
        else:
            tell(f"{key}: it no longer has an owner")
    return written


async def let_go(table: Table, key: LeaseKey) -> bool:
    """Take a lease from its owner, so that the leader gives it away anew; False where nobody owns it.

    Raises:
        NotChanged: it cannot be read, is not there, or kept changing.
        AwsError: as for `carry_out`.
    """
    for _ in range(_RACES_MOST):
        lease = await _now(table, key)
        if lease is None:
            raise NotChanged(f"the lease {key} no longer exists")
        if lease.lease_owner is None:
            return False
        if (await table.update(release(lease))).applied:
            return True
    raise NotChanged(f"the lease {key} kept changing; try again")


async def _now(table: Table, key: LeaseKey) -> Lease | None:
    row = await table.get(key)
    if row is None:
        return None
    try:
        return lease_from_row(row)
    except MalformedRowError as malformed:
        raise NotChanged(f"{malformed}; repair or delete that row") from malformed


async def _write(table: Table, change: Change) -> bool:
    if change.position is None:
        written = await table.delete(change.lease.lease_key, as_it_was_read(change.lease))
    else:
        written = await table.update(reposition(change.lease, change.position))
    return written.applied
