"""Leases that are of another stream than the one that now has the name: it was deleted and created again.

Pure. Nothing in a row that KCL writes says which stream it was, but positions tell: sequence numbers grow from one stream
to the next of the same name, and a shard that has child shards is not open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kcl_daemon.leases.lease import Lease
from kcl_daemon.shards.shard import Shard


def of_former_stream(leases: Iterable[Lease], shards: Iterable[Shard]) -> list[Lease]:
    """The leases that cannot be of these shards, by name.

    Such a lease has the name of a listed shard, but names its child shards while that shard is open, or its checkpoint
    lies before the shard's first number.

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


def finished_but_open(leases: Iterable[Lease], shards: Iterable[Shard]) -> list[Lease]:
    """The leases that are finished, without child shards, although their shards are open: nobody reads these.

    A Java worker finishes a shard like that when its fan-out consumer is taken away, or the stream is not found
    (KCL: FanOutRecordsPublisher, KinesisDataFetcher).

    Args:
        leases: all of one stream.
        shards: all that Kinesis lists, asked for after the leases were read.
    """
    is_open = {shard.shard_id for shard in shards if shard.is_open}
    return [
        lease
        for lease in leases
        if lease.is_finished and not lease.child_shard_ids and lease.shard_id in is_open
    ]


def are_of_these_shards(leases: Iterable[Lease], shards: Sequence[Shard]) -> bool | None:
    """Whether leases are of these shards, by their positions; None: those do not tell.

    Args:
        leases: all that have one identity.
        shards: all that Kinesis lists, asked for after the leases were read.
    """
    leases = list(leases)
    if of_former_stream(leases, shards):
        return False
    listed = {shard.shard_id for shard in shards}
    return (
        True if any(each.shard_id in listed and not each.checkpoint.is_sentinel for each in leases) else None
    )


def _is_of_another(lease: Lease, shard: Shard) -> bool:
    if lease.is_finished:
        return shard.is_open and bool(lease.child_shard_ids)
    if lease.checkpoint.is_sentinel:
        return False
    return int(lease.checkpoint.sequence_number) < shard.starting_sequence_number
