"""What it takes to have a stream, or some of its shards, read anew from another position, as a person asked.

Pure: values in, the changes to the lease table out, each with its reason. Owns the rule; knows nothing of tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.shards.shard import Shard
from kcl_daemon.shards.sync import new_lease
from kcl_protocol.sequence import ExtendedSequenceNumber


class Kind(Enum):
    """What becomes of a lease."""

    DELETE = "delete"
    RESET = "reset"
    CREATE = "create"


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Args:
        kind: what.
        lease: as it is now; for CREATE as it will be.
        position: where it begins afterwards; None for DELETE.
        reason: for people.
    """

    kind: Kind
    lease: Lease
    position: ExtendedSequenceNumber | None
    reason: str


def reset_stream(
    starting: Iterable[Shard],
    leases: Iterable[Lease],
    positions: Mapping[ShardId, ExtendedSequenceNumber],
    stream: StreamIdentity | None = None,
) -> tuple[Change, ...]:
    """The changes that make a whole stream begin anew, as if its leases had never been.

    Leases of later shards are deleted, not moved: they are made again when the shards before them end, and so nothing is read
    before its parents. They go first. If a parent should end between two of these writes its child shards get their
    leases anew, which is right; if they went last, what the parent had just made would be deleted.

    Args:
        starting: the shards that are open at the position.
        leases: all of the stream, finished ones too.
        positions: for each of `starting`.
        stream: which of many; None: there is one only.
    """
    wanted = {shard.shard_id: shard for shard in starting}
    held = {lease.shard_id: lease for lease in leases}
    deleted = [
        Change(Kind.DELETE, lease, None, "comes later, or is over, at that position")
        for shard_id, lease in sorted(held.items())
        if shard_id not in wanted
    ]
    return (
        *deleted,
        *(
            _begin(shard, held.get(shard_id), positions[shard_id], stream)
            for shard_id, shard in sorted(wanted.items())
        ),
    )


def reset_shards(
    chosen: Iterable[Shard],
    leases: Iterable[Lease],
    positions: Mapping[ShardId, ExtendedSequenceNumber],
    stream: StreamIdentity | None = None,
) -> tuple[Change, ...]:
    """The changes that make these shards begin anew and leave all others as they are.

    A child shard that is being read already goes on meanwhile.
    """
    held = {lease.shard_id: lease for lease in leases}
    return tuple(
        _begin(shard, held.get(shard.shard_id), positions[shard.shard_id], stream)
        for shard in sorted(chosen, key=lambda shard: shard.shard_id)
    )


def _begin(
    shard: Shard, lease: Lease | None, position: ExtendedSequenceNumber, stream: StreamIdentity | None
) -> Change:
    if lease is None:
        return Change(Kind.CREATE, new_lease(shard, position, stream), position, "has no lease yet")
    was = "finished" if lease.is_finished else f"at {lease.checkpoint}"
    return Change(Kind.RESET, lease, position, f"{was}, owner {lease.actual_owner or 'nobody'}{_kept(lease)}")


def _kept(lease: Lease) -> str:
    """A warning of KCL's LeaseCleanupManager, which deletes what it has queued whatever has become of the row since."""
    if not lease.is_finished or lease.actual_owner is None:
        return ""
    return f"; if {lease.actual_owner} is a Java worker, stop it first: it may delete this lease in a few minutes"
