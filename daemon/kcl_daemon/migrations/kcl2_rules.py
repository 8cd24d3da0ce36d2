"""The rules of an upgrade from KCL 2.x to 3.x: versions, readiness, rollback, and the leader by shuffle.

KCL: MigrationStateMachineImpl, MigrationReadyMonitor, DeterministicShuffleShardSyncLeaderDecider. In the shuffle every worker computes the
leader from the lease owners, with Java's random numbers and string order. Until the next poll two workers may lead, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from kcl_daemon.fleet.client_version import (
    CLIENT_VERSION_CODEC,
    ClientVersion,
    Component,
    SwitchVersion,
    VersionRow,
)
from kcl_daemon.leases.layout import UnusableState
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import RowUpdate
from kcl_daemon.leases.worker_row import ACTIVE_REPORTS, WorkerRow

_CHANGES: Final[Mapping[tuple[ClientVersion, ClientVersion], tuple[Component, ...]]] = {
    (ClientVersion.UPGRADE_FROM_2X, ClientVersion.V3X_WITH_ROLLBACK): (
        Component.ASSIGNMENT,
        Component.LEADER,
        Component.ASSIGNER,
    ),
    (ClientVersion.UPGRADE_FROM_2X, ClientVersion.V2X): (Component.METRICS,),
    (ClientVersion.V3X_WITH_ROLLBACK, ClientVersion.V2X): (
        Component.METRICS,
        Component.ASSIGNMENT,
        Component.ASSIGNER,
        Component.LEADER,
    ),
    (ClientVersion.V3X_WITH_ROLLBACK, ClientVersion.V3X): (Component.INDEX,),
    (ClientVersion.V2X, ClientVersion.UPGRADE_FROM_2X): (Component.INDEX, Component.METRICS),
}


def follow_stored_version(
    current: ClientVersion, stored: VersionRow | UnusableState | None
) -> SwitchVersion | UnusableState | None:
    """None: keep the version. After a UnusableState a worker changes nothing. 3.x is final."""
    if current is ClientVersion.V3X or current is ClientVersion.INIT:
        return None  # only by a restart
    if isinstance(stored, UnusableState):
        return stored
    if stored is None:
        return UnusableState(
            f"row {CLIENT_VERSION_CODEC.row_key} is gone while this worker runs in {current}",
            "it was deleted; restart a worker to write it again",
        )
    if stored.state is current:
        return None
    order = _CHANGES.get((current, stored.state))
    if order is None:
        return UnusableState(
            f"{stored.by} set {stored.state}, which cannot follow {current} on a running worker",
            "restart this worker",
        )
    last = stored.state is ClientVersion.V3X
    return SwitchVersion(stored.state, order, last=last, reason=f"{stored.by} set {stored.state}")


CHECK_EVERY_S: Final = 60.0
READY_FOR_S: Final = 600.0
INDEX_REMOVAL_AFTER_S: Final = 120.0
"""After a rollback all workers have noticed within this time."""

ROLLBACK_BY: Final = "KclMigrationTool-rollback"
ROLLFORWARD_BY: Final = "KclMigrationTool-rollforward"


@dataclass(frozen=True, slots=True)
class UpgradeReadiness:
    index_active: bool
    silent: tuple[WorkerId, ...] = ()
    unowned: tuple[LeaseKey, ...] = ()

    @property
    def is_met(self) -> bool:
        return self.index_active and not self.silent and not self.unowned

    @property
    def missing(self) -> str:
        parts: list[str] = []
        if not self.index_active:
            parts.append("the index by owner is not active")
        if self.silent:
            parts.append(f"{len(self.silent)} lease owners do not report, such as {self.silent[0]}")
        if self.unowned:
            parts.append(f"{len(self.unowned)} leases have no owner, such as {self.unowned[0]}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class NotReady:
    """`ready_since_s` in monotonic seconds; None: not ready."""

    ready_since_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Upgrade:
    """If the write is refused, the state has changed: read it again."""

    update: RowUpdate
    reason: str


@dataclass(frozen=True, slots=True)
class VersionChange:
    """As `Upgrade`. `remove_index_after_s` None: keep the index by owner."""

    update: RowUpdate
    remove_index_after_s: float | None
    reason: str


def upgrade_readiness(
    leases: Iterable[Lease],
    workers: Iterable[WorkerRow],
    *,
    index_active: bool,
    wall_s: float,
    report_s: float,
) -> UpgradeReadiness:
    """KCL: MigrationReadyMonitor."""
    active_s = ACTIVE_REPORTS * report_s
    active = {worker.worker_id for worker in workers if worker.last_update_s + active_s > wall_s}
    owners: set[WorkerId] = set()
    unowned: list[LeaseKey] = []
    for lease in leases:
        if lease.lease_owner is None:
            unowned.append(lease.lease_key)
        else:
            owners.add(lease.lease_owner)
    return UpgradeReadiness(index_active, tuple(sorted(owners - active)), tuple(sorted(unowned)))


def consider_upgrade(
    stored: VersionRow,
    ready: UpgradeReadiness,
    ready_since_s: float | None,
    *,
    leads: bool,
    me: WorkerId,
    now_s: float,
    now_ms: int,
    key_attribute: str,
) -> NotReady | Upgrade:
    """Losing the lead restarts the ready time."""
    if stored.state is not ClientVersion.UPGRADE_FROM_2X:
        return NotReady(None, f"{stored.by} set {stored.state}")
    if not leads:
        return NotReady(None, "another worker leads")
    if not ready.is_met:
        return NotReady(None, ready.missing)
    since_s = now_s if ready_since_s is None else ready_since_s
    if now_s - since_s < READY_FOR_S:
        return NotReady(since_s, f"everything was ready for {now_s - since_s:.0f} s of {READY_FOR_S:.0f} s")
    after = stored.followed_by(ClientVersion.V3X_WITH_ROLLBACK, by=me, at_ms=now_ms)
    update = CLIENT_VERSION_CODEC.update(stored, after, key_attribute=key_attribute)
    return Upgrade(update, f"everything was ready for {now_s - since_s:.0f} s")


def rollback(
    stored: VersionRow | UnusableState | None, *, now_ms: int, key_attribute: str
) -> VersionChange | UnusableState:
    """KCL: KclMigrationTool."""
    if isinstance(stored, UnusableState):
        return stored
    if stored is None:
        return _no_row()
    if stored.state is ClientVersion.V2X:
        return UnusableState(
            f"{stored.by} has already rolled back",
            "nothing to do; if the index by owner still exists, it can be deleted after two minutes",
        )
    if stored.state is ClientVersion.V3X:
        return UnusableState(
            "the upgrade is complete: a worker was started with clientVersionConfig=CLIENT_VERSION_CONFIG_3X",
            "rollback to 2.x is not possible; it is possible only until the first worker starts with "
            "that setting",
        )
    after = stored.followed_by(ClientVersion.V2X, by=ROLLBACK_BY, at_ms=now_ms)
    update = CLIENT_VERSION_CODEC.update(stored, after, key_attribute=key_attribute)
    return VersionChange(update, INDEX_REMOVAL_AFTER_S, f"from {stored.state}, set by {stored.by}")


def rollforward(
    stored: VersionRow | UnusableState | None, *, now_ms: int, key_attribute: str
) -> VersionChange | UnusableState:
    if isinstance(stored, UnusableState):
        return stored
    if stored is None:
        return _no_row()
    if stored.state is not ClientVersion.V2X:
        return UnusableState(
            f"the state is {stored.state}, set by {stored.by}: it was not rolled back", "nothing to do"
        )
    after = stored.followed_by(ClientVersion.UPGRADE_FROM_2X, by=ROLLFORWARD_BY, at_ms=now_ms)
    update = CLIENT_VERSION_CODEC.update(stored, after, key_attribute=key_attribute)
    return VersionChange(update, None, f"{stored.by} had rolled back")


def _no_row() -> UnusableState:
    return UnusableState(
        f"there is no row {CLIENT_VERSION_CODEC.row_key}: no worker has begun an upgrade",
        "check the application's name and region, or start a worker with "
        "clientVersionConfig=CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X",
    )


_Item = TypeVar("_Item")
_Text = TypeVar("_Text", bound=str)

_MULTIPLIER: Final = 0x5DEECE66D
_INCREMENT: Final = 0xB
_MASK_48_BITS: Final = (1 << 48) - 1
_MAX_INT: Final = (1 << 31) - 1


def java_random(seed: int) -> Callable[[int], int]:
    """`nextInt(bound)` of a `java.util.Random`: from 0 to below `bound`.

    ValueError unless `bound` is a positive Java int.
    """
    state = (seed ^ _MULTIPLIER) & _MASK_48_BITS

    def next_31_bits() -> int:
        nonlocal state
        state = (state * _MULTIPLIER + _INCREMENT) & _MASK_48_BITS
        return state >> 17

    def next_int(bound: int) -> int:
        if not 0 < bound <= _MAX_INT:
            raise ValueError(f"bound is {bound}, it must be from 1 to {_MAX_INT}")
        if bound & (bound - 1) == 0:
            return (bound * next_31_bits()) >> 31
        while True:
            bits = next_31_bits()
            value = bits % bound
            # In Java an int overflow shows that these bits belong to the last, incomplete range.
            if bits - value + bound - 1 <= _MAX_INT:
                return value

    return next_int


def shuffled(items: Sequence[_Item], seed: int) -> list[_Item]:
    order = list(items)
    next_int = java_random(seed)
    for size in range(len(order), 1, -1):
        other = next_int(size)
        order[size - 1], order[other] = order[other], order[size - 1]
    return order


def java_order(texts: Iterable[_Text]) -> list[_Text]:
    """The order of `String.compareTo`: by UTF-16 code units."""
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))


_SEED: Final = 1947
_SECOND_POLL_AFTER_S: Final = 60.0
_POLL_EVERY_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class ShuffleElection:
    """`leader` None: no lease has an owner, and every worker leads."""

    leads: bool
    leader: WorkerId | None
    reason: str


def shuffle_leader(leases: Iterable[Lease]) -> WorkerId | None:
    owners = {lease.lease_owner for lease in leases if lease.lease_owner is not None}
    return shuffled(java_order(owners), _SEED)[0] if owners else None


def elect_by_shuffle(me: WorkerId, leases: Iterable[Lease]) -> ShuffleElection:
    leader = shuffle_leader(leases)
    if leader is None:
        return ShuffleElection(leads=True, leader=None, reason="no lease has an owner, so every worker leads")
    if leader == me:
        return ShuffleElection(
            leads=True, leader=leader, reason="the shuffle of the lease owners names this worker"
        )
    return ShuffleElection(
        leads=False, leader=leader, reason=f"the shuffle of the lease owners names {leader}"
    )


def next_poll_after_s(polls: int) -> float:
    return _SECOND_POLL_AFTER_S if polls <= 1 else _POLL_EVERY_S
