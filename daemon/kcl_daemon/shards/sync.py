"""Which leases a stream's shards need (KCL: HierarchicalShardSyncer).

Pure: shards, leases and position of one stream in, leases to create out. A lease that exists is never changed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from kcl_daemon.leases.lease import Lease, ShardId, lease_key_of
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.shards.lineage import in_order, unexpected_children
from kcl_daemon.shards.shard import InitialPosition, Shard, StartAt
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber


class Layers(Enum):
    """How much of a lineage gets its leases at once."""

    ONE = auto()
    """Only where reading begins; what follows gets its leases when a shard ends (KCL 2.1 and later)."""
    ALL = auto()
    """Every shard from there to the open ones (KCL 1.x and 2.0); the later ones wait for their parents."""


def new_lease(
    shard: Shard, checkpoint: ExtendedSequenceNumber, stream: StreamIdentity | None = None
) -> Lease:
    """A lease for a shard that nobody owns yet; `stream` only where there are many."""
    return Lease(
        lease_key=lease_key_of(stream, shard.shard_id),
        stream=stream,
        lease_counter=0,
        checkpoint=checkpoint,
        parent_shard_ids=shard.parent_shard_ids,
        hash_range=shard.hash_range,
    )


def leases_for_empty_table(
    shards: Iterable[Shard], position: InitialPosition, stream: StreamIdentity | None = None
) -> list[Lease]:
    """One lease for each shard that is open at the initial position; the rest follow as child shards."""
    return [new_lease(shard, position.checkpoint, stream) for shard in in_order(shards)]


def missing_leases(
    shards: Iterable[Shard],
    leases: Iterable[Lease],
    position: InitialPosition,
    *,
    layers: Layers = Layers.ONE,
    stream: StreamIdentity | None = None,
) -> list[Lease]:
    """The leases to add to a table that has some already, in the order in which to create them.

    Every open shard ends up reachable: it has a lease, or an ancestor with an unfinished one leads to it. Two things
    are not KCL's, where they would leave a hole for ever or jump over records:

    - A lease that is finished leads nowhere. Where all that comes before a shard is finished, the shard gets its
      lease now, from its beginning, as it would have at its parent's end.
    - A parent that Kinesis has forgotten still counts as long as it has a lease.

    Args:
        shards: all that Kinesis lists, open and closed. Open ones whose parent is open too are ignored.
        leases: all of the stream in the table, finished ones included.
        position: where a shard without known ancestors begins.
        layers: how much at once.
        stream: which of many; None: there is one only.
    """
    by_id = {shard.shard_id: shard for shard in shards}
    known = {lease.shard_id: lease for lease in leases}
    unexpected = unexpected_children(by_id.values())
    targets = [
        shard
        for shard in by_id.values()
        if shard.is_open and shard.shard_id not in known and shard.shard_id not in unexpected
    ]
    path = _with_ancestors(targets, by_id, known)
    walk = _Walk(by_id, known, position, layers)
    for shard in path:
        walk.visit(shard)
    for shard in path:
        walk.follow_finished(shard)
    return [
        new_lease(shard, walk.wanted[shard.shard_id], stream)
        for shard in path
        if shard.shard_id in walk.wanted
    ]


def _with_ancestors(
    targets: Iterable[Shard], by_id: Mapping[ShardId, Shard], known: Mapping[ShardId, Lease]
) -> list[Shard]:
    """Shards without a lease and all before them, up to the first with a lease; parents before children."""
    pending = list(targets)
    path = {shard.shard_id: shard for shard in pending}
    while pending:
        for parent in pending.pop().parent_shard_ids:
            if parent in by_id and parent not in known and parent not in path:
                path[parent] = by_id[parent]
                pending.append(by_id[parent])
    return in_order(path.values())


class _Walk:
    """One pass over a lineage from its oldest shard to its youngest."""

    def __init__(
        self,
        by_id: Mapping[ShardId, Shard],
        known: Mapping[ShardId, Lease],
        position: InitialPosition,
        layers: Layers,
    ) -> None:
        self._by_id = by_id
        self._known = known
        self._position = position
        self._layers = layers
        self._descends: set[ShardId] = set()
        self._leads: set[ShardId] = {shard_id for shard_id, lease in known.items() if not lease.is_finished}
        self.wanted: dict[ShardId, ExtendedSequenceNumber] = {}

    def visit(self, shard: Shard) -> None:
        """Judge a shard without a lease whose parents have been judged; notes what to create."""
        parents = [
            parent
            for parent in sorted(shard.parent_shard_ids)
            if parent in self._by_id or parent in self._known
        ]
        if any(self._is_followed(parent) for parent in parents):
            self._descends.add(shard.shard_id)
            for parent in parents:
                self._want_parent(parent)
            if shard.is_open and self._layers is Layers.ALL:
                self.wanted[shard.shard_id] = self._later
        elif shard.is_open or self._position.at is not StartAt.LATEST:
            self.wanted[shard.shard_id] = self._position.checkpoint

    def _is_followed(self, parent: ShardId) -> bool:
        return parent in self._known or parent in self._descends or parent in self.wanted

    def _want_parent(self, parent: ShardId) -> None:
        if parent in self._known or parent in self.wanted:
            return
        if parent not in self._descends:
            self.wanted[parent] = self._position.checkpoint
        elif self._layers is Layers.ALL:
            self.wanted[parent] = self._later

    @property
    def _later(self) -> ExtendedSequenceNumber:
        """Where a shard begins that comes after another; a timestamp holds for the whole lineage."""
        return self._position.checkpoint if self._position.at is StartAt.TIMESTAMP else TRIM_HORIZON

    def follow_finished(self, shard: Shard) -> None:
        """Want a shard to which nothing leads any more, because all that comes before it is finished."""
        shard_id = shard.shard_id
        leads = shard_id in self.wanted or any(parent in self._leads for parent in shard.parent_shard_ids)
        if not leads and shard_id in self._descends:
            self.wanted[shard_id] = TRIM_HORIZON
            leads = True
        if leads:
            self._leads.add(shard_id)
