"""Which leases to create (KCL: HierarchicalShardSyncer), to delete (LeaseCleanupManager), or to reset."""

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


class Generations(Enum):
    ONE = auto()
    """Only where reading begins; children follow when a shard ends (KCL 2.1 and later)."""
    ALL = auto()
    """All shards from there to the open ones, which wait for parents (KCL 1.x and 2.0)."""


def new_lease(
    shard: Shard, checkpoint: ExtendedSequenceNumber, stream: StreamIdentity | None = None
) -> Lease:
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
    return [new_lease(shard, position.checkpoint, stream) for shard in in_order(shards)]


def missing_leases(
    shards: Iterable[Shard],
    leases: Iterable[Lease],
    position: InitialPosition,
    *,
    generations: Generations = Generations.ONE,
    stream: StreamIdentity | None = None,
) -> list[Lease]:
    """In order of creation; `leases` include finished ones.

    Afterwards every open shard has a lease or an ancestor with an unfinished one; an open child of an open parent is
    ignored. Unlike KCL, which would leave a hole or skip records, a shard gets its lease now, at TRIM_HORIZON, if
    everything before it is finished, and a parent that Kinesis has forgotten counts while it has a lease.
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
    walk = _AncestorSearch(by_id, known, position, generations)
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
    pending = list(targets)
    path = {shard.shard_id: shard for shard in pending}
    while pending:
        for parent in pending.pop().parent_shard_ids:
            if parent in by_id and parent not in known and parent not in path:
                path[parent] = by_id[parent]
                pending.append(by_id[parent])
    return in_order(path.values())


class _AncestorSearch:
    def __init__(
        self,
        by_id: Mapping[ShardId, Shard],
        known: Mapping[ShardId, Lease],
        position: InitialPosition,
        generations: Generations,
    ) -> None:
        self._by_id = by_id
        self._known = known
        self._position = position
        self._generations = generations
        self._descends: set[ShardId] = set()
        self._leads: set[ShardId] = {shard_id for shard_id, lease in known.items() if not lease.is_finished}
        self.wanted: dict[ShardId, ExtendedSequenceNumber] = {}

    def visit(self, shard: Shard) -> None:
        parents = [
            parent
            for parent in sorted(shard.parent_shard_ids)
            if parent in self._by_id or parent in self._known
        ]
        if any(each in self._known or each in self._descends or each in self.wanted for each in parents):
            self._descends.add(shard.shard_id)
            for parent in parents:
                self._want_parent(parent)
            if shard.is_open and self._generations is Generations.ALL:
                self.wanted[shard.shard_id] = self._later
        elif shard.is_open or self._position.at is not StartAt.LATEST:
            self.wanted[shard.shard_id] = self._position.checkpoint

    def _want_parent(self, parent: ShardId) -> None:
        if parent in self._known or parent in self.wanted:
            return
        if parent not in self._descends:
            self.wanted[parent] = self._position.checkpoint
        elif self._generations is Generations.ALL:
            self.wanted[parent] = self._later

    @property
    def _later(self) -> ExtendedSequenceNumber:
        return self._position.checkpoint if self._position.at is StartAt.TIMESTAMP else TRIM_HORIZON

    def follow_finished(self, shard: Shard) -> None:
        shard_id = shard.shard_id
        leads = shard_id in self.wanted or any(parent in self._leads for parent in shard.parent_shard_ids)
        if not leads and shard_id in self._descends:
            self.wanted[shard_id] = TRIM_HORIZON
            leads = True
        if leads:
            self._leads.add(shard_id)


class CleanupVerdict(Enum):
    COMPLETED = "its child shards are being read"
    GARBAGE = "Kinesis no longer has the shard"
    WAITS = "it is still needed"


@dataclass(frozen=True, slots=True)
class JudgedLease:
    lease: Lease
    verdict: CleanupVerdict
    reason: str


def judge_finished(leases: Iterable[Lease], shards: Iterable[Shard] | None = None) -> list[JudgedLease]:
    """For one stream; parents go before children.

    Without `shards` (Kinesis was not asked) a lease stays if its children are unknown or have no lease.
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
    """Whether reading no longer depends on the parents; it never did at LATEST."""
    return lease.checkpoint not in {TRIM_HORIZON, AT_TIMESTAMP}


class ResetKind(Enum):
    DELETE = "delete"
    RESET = "reset"
    CREATE = "create"


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """`lease` is as it will be for CREATE; `position` is None for DELETE."""

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
    """Restart a whole stream as if it had no leases; `starting` are open at the position.

    Deletes come first: if a parent ends between the writes, its new child leases must survive.
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
    """A child that is being read continues."""
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
    """KCL's LeaseCleanupManager deletes a queued lease even if its row has changed."""
    if not lease.is_finished or lease.actual_owner is None:
        return ""
    return f"; if {lease.actual_owner} is a Java worker, stop it first: it may delete this lease in a few minutes"
