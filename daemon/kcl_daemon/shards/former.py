"""Leases that are of another stream than the one that now has the name: it was deleted and created again.

Pure. Nothing in a row of one stream says which stream it was, but positions tell: sequence numbers grow from one
stream to the next of the same name, and a shard that is finished is not open.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcl_daemon.leases.lease import Lease
from kcl_daemon.shards.shard import Shard


def of_former_stream(leases: Iterable[Lease], shards: Iterable[Shard]) -> list[Lease]:
    """The leases that cannot be of these shards, by name.

    Such a lease has the name of a listed shard, but is finished while that shard is open, or its checkpoint lies before
    the shard's first number.

    Args:
        leases: all of one stream.
        shards: all that Kinesis lists, asked for after the leases were read.
    """
    by_id = {shard.shard_id: shard for shard in shards}
    return sorted(
        (
            lease
            for lease in leases
            if (shard := by_id.get(lease.shard_id)) is not None and _is_of_another(lease, shard)
        ),
        key=lambda lease: lease.lease_key,
    )


def _is_of_another(lease: Lease, shard: Shard) -> bool:
    if lease.is_finished:
        return shard.is_open
    if lease.checkpoint.is_sentinel:
        return False
    return int(lease.checkpoint.sequence_number) < shard.starting_sequence_number
