"""Several streams of one DynamoDB table as one.

A stream that is switched off and on again is another stream, after everything in the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId
from kcl_daemon.shards.lineage import InitialPosition, Shard, StartAt, children_by_parent, segment_of


def leaves(shards: Sequence[Shard]) -> tuple[Shard, ...]:
    parents = children_by_parent(shards)
    return tuple(shard for shard in shards if shard.shard_id not in parents)


def roots(shards: Sequence[Shard]) -> tuple[Shard, ...]:
    ids = {shard.shard_id for shard in shards}
    return tuple(shard for shard in shards if shard.parent_shard_ids.isdisjoint(ids))


def joined(streams: Iterable[Sequence[Shard]]) -> tuple[Shard, ...]:
    """Oldest first; the shards that begin one follow all that end the one before.

    A shard that something follows is closed, also where the service does not say so.
    """
    found: list[Shard] = []
    ends = frozenset[ShardId]()
    for shards in streams:
        if not shards:
            continue
        found = [_closed(shard) if shard.shard_id in ends else shard for shard in found]
        begins = {each.shard_id for each in roots(shards)}
        found += [
            replace(shard, parent_shard_ids=ends or shard.parent_shard_ids)
            if shard.shard_id in begins
            else shard
            for shard in shards
        ]
        ends = frozenset(each.shard_id for each in leaves(shards))
    return tuple(found)


def _closed(shard: Shard) -> Shard:
    return replace(shard, ending_sequence_number=shard.starting_sequence_number) if shard.is_open else shard


def unread(shards: Sequence[Shard], leases: Iterable[Lease]) -> tuple[Shard, ...]:
    """The last ones without a lease count as open: in a stream that was switched off they are closed."""
    last, known = {each.shard_id for each in leaves(shards)}, {lease.shard_id for lease in leases}
    return tuple(
        replace(shard, ending_sequence_number=None) if shard.shard_id in last - known else shard
        for shard in shards
    )


def position_of_others(
    shards: Iterable[Shard], leases: Sequence[Lease], position: InitialPosition
) -> InitialPosition:
    """Where shards without a lease begin if no shard before them has one.

    Once reading has begun, whatever came since is read from its oldest change: it may be of a later stream, or its
    parents are forgotten. `position` only completes a beginning that was interrupted.
    """
    listed = {shard.shard_id for shard in shards}
    begins = all(lease.checkpoint == position.checkpoint and lease.shard_id in listed for lease in leases)
    return position if begins else InitialPosition(StartAt.TRIM_HORIZON)


def only_memory(leases: Iterable[Lease]) -> LeaseKey | None:
    """The lease to keep if all are finished: it shows that reading has begun, when a later stream comes."""
    leases = list(leases)
    if any(not lease.is_finished for lease in leases):
        return None
    last = [lease for lease in leases if segment_of(lease.shard_id) is None] or leases
    return max((lease.lease_key for lease in last), default=None)


def following(last: ShardId, streams: Sequence[Sequence[Shard]]) -> tuple[Shard, ...]:
    return tuple(shard for shard in joined(streams) if last in shard.parent_shard_ids)


def no_stream_of(table: str) -> str:
    return (
        f"the table {table} has no stream, or is not there. Switch the stream on: aws dynamodb update-table "
        f"--table-name {table} --stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES"
    )
