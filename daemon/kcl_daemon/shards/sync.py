"""Which leases a stream's shards need (KCL: HierarchicalShardSyncer).

Pure: shards, leases and position of one stream in, leases to create out. A lease that exists is never changed here.

Which finished leases may be forgotten (KCL: LeaseCleanupManager).

Pure. A finished lease is what keeps a lineage together: while it is there, nobody takes its child shards for shards
that come from nowhere. So it stays until they have begun.

What it takes to have a stream, or some of its shards, read anew from another position, as a person asked.

Pure: values in, the changes to the lease table out, each with its reason. Owns the rule; knows nothing of tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from kcl_daemon.leases.lease import Lease, ShardId, StreamIdentity, lease_key_of
from kcl_daemon.shards.lineage import (
    InitialPosition,
    Shard,
    StartAt,
    children_by_parent,
    in_order,
    unexpected_children,
)
from kcl_protocol.sequence import AT_TIMESTAMP, TRIM_HORIZON, ExtendedSequenceNumber


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
    walk = _AncestorWalk(by_id, known, position, layers)
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


class _AncestorWalk:
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


class CleanupVerdict(Enum):
    """What becomes of a finished lease."""

    COMPLETED = "its child shards are being read"
    GARBAGE = "Kinesis no longer has the shard"
    WAITS = "it is still needed"


@dataclass(frozen=True, slots=True)
class JudgedLease:
    """One finished lease.

    Args:
        lease: as it was read.
        verdict: whether it may go.
        reason: for people; names what it waits for.
    """

    lease: Lease
    verdict: CleanupVerdict
    reason: str


def judge_finished(leases: Iterable[Lease], shards: Iterable[Shard] | None = None) -> list[JudgedLease]:
    """Judge every finished lease of one stream; parents come before their children.

    Args:
        leases: all of the stream.
        shards: all that Kinesis lists; None: nobody asked. Then a lease whose row does not name its child shards
            stays, and so does one whose child shard has no lease.
    """
    known = {lease.shard_id: lease for lease in leases}
    listed = None if shards is None else list(shards)
    children = children_by_parent(listed or ())
    ids = None if listed is None else frozenset(shard.shard_id for shard in listed)
    finished = sorted(
        (lease for lease in known.values() if lease.is_finished), key=lambda each: each.lease_key
    )
    return [_judge(lease, known, children.get(lease.shard_id, frozenset()), ids) for lease in finished]


def _judge(
    lease: Lease,
    known: Mapping[ShardId, Lease],
    listed_children: frozenset[ShardId],
    listed: frozenset[ShardId] | None,
) -> JudgedLease:
    def waits(reason: str, shards: Iterable[ShardId] = ()) -> JudgedLease:
        return JudgedLease(lease, CleanupVerdict.WAITS, " ".join((reason, *sorted(shards))))

    older = [parent for parent in lease.parent_shard_ids if parent in known]
    if older:
        return waits("its parents come first:", older)
    children = lease.child_shard_ids | listed_children
    gone = listed is not None and lease.shard_id not in listed
    if not children and not gone:
        return waits("its child shards are unknown")
    without_lease = [
        child for child in children if child not in known and (listed is None or child in listed)
    ]
    if without_lease:
        return waits("no lease yet for", without_lease)
    not_begun = [child for child in children if child in known and not has_started(known[child])]
    if not_begun:
        return waits("not begun yet:", not_begun)
    verdict = CleanupVerdict.GARBAGE if gone else CleanupVerdict.COMPLETED
    return JudgedLease(lease, verdict, verdict.value)


def has_started(lease: Lease) -> bool:
    """Whether a shard's reading does not depend on its parents any more (M11b).

    A lease at LATEST never did.
    """
    return lease.checkpoint not in {TRIM_HORIZON, AT_TIMESTAMP}


class ResetKind(Enum):
    """What becomes of a lease."""

    DELETE = "delete"
    RESET = "reset"
    CREATE = "create"


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """One change.

    Args:
        kind: what.
        lease: as it is now; for CREATE as it will be.
        position: where it begins afterwards; None for DELETE.
        reason: for people.
    """

    kind: ResetKind
    lease: Lease
    position: ExtendedSequenceNumber | None
    reason: str


def reset_stream(
    starting: Iterable[Shard],
    leases: Iterable[Lease],
    positions: Mapping[ShardId, ExtendedSequenceNumber],
    stream: StreamIdentity | None = None,
) -> tuple[LeaseChange, ...]:
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
        LeaseChange(ResetKind.DELETE, lease, None, "comes later, or is over, at that position")
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
) -> tuple[LeaseChange, ...]:
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
) -> LeaseChange:
    if lease is None:
        return LeaseChange(ResetKind.CREATE, new_lease(shard, position, stream), position, "has no lease yet")
    was = "finished" if lease.is_finished else f"at {lease.checkpoint}"
    return LeaseChange(
        ResetKind.RESET, lease, position, f"{was}, owner {lease.actual_owner or 'nobody'}{_kept(lease)}"
    )


def _kept(lease: Lease) -> str:
    """A warning of KCL's LeaseCleanupManager, which deletes what it has queued whatever has become of the row since."""
    if not lease.is_finished or lease.actual_owner is None:
        return ""
    return f"; if {lease.actual_owner} is a Java worker, stop it first: it may delete this lease in a few minutes"
