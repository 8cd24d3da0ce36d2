"""Who leads: the lock row, and when it may be taken (KCL: LeaderLock, AmazonDynamoDBLockClient).

A lock is stale when the observer has seen one version for longer than the owner's lease duration, on its own monotonic
clock. Attributes `daemon...` are ours; KCL drops them when it takes the lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Absent, Condition, Conditions, Equals, Present, Row, RowUpdate

LEADER_KEY: Final = "Leader"
_OWNER: Final = "ownerName"
_DURATION: Final = "leaseDuration"
_VERSION: Final = "recordVersionNumber"
_RELEASED: Final = "isReleased"
_ENTITY: Final = "entityType"
_ASSIGNMENT_EPOCH: Final = "daemonAssigned"
_DEPUTY: Final = "daemonDeputy"
_HOLDS: Final = "daemonHolds"

_DEFAULT_DURATION_MS: Final = 120_000
# About a day: no fleet is without a leader for longer, whoever wrote the row.
_DURATION_DIGITS_MOST: Final = 8


@dataclass(frozen=True, slots=True)
class LeaderLock:
    """An absent owner or version is empty.

    Args:
        duration_ms: how long the owner may be silent.
        assignment_epoch: changes when leases were assigned; None if the leader is KCL.
        deputy: polls the lock often.
        holds: changes with pauses and limits.
    """

    owner: WorkerId
    version: str
    duration_ms: int
    released: bool = False
    assignment_epoch: str | None = None
    deputy: WorkerId | None = None
    holds: str | None = None


@dataclass(frozen=True, slots=True)
class LockObservation:
    version: str
    since_s: float


@dataclass(frozen=True, slots=True)
class ClaimLock:
    require: Conditions
    reason: str


@dataclass(frozen=True, slots=True)
class WatchLock:
    observation: LockObservation
    owner: WorkerId
    silent_s: float
    duration_s: float


def lock_from_row(row: Row | None) -> LeaderLock | None:
    """Unreadable text is empty; `decide_lock_claim` takes no lock with an empty version."""
    if row is None:
        return None
    owner, version, duration = row.get(_OWNER), row.get(_VERSION), row.get(_DURATION)
    readable = isinstance(duration, str) and duration.isdecimal() and len(duration) <= _DURATION_DIGITS_MOST
    assignment_epoch, deputy = row.get(_ASSIGNMENT_EPOCH), row.get(_DEPUTY)
    return LeaderLock(
        WorkerId(owner if isinstance(owner, str) else ""),
        version if isinstance(version, str) else "",
        int(str(duration)) if readable else _DEFAULT_DURATION_MS,
        row.get(_RELEASED) == "1",
        assignment_epoch if isinstance(assignment_epoch, str) else None,
        WorkerId(deputy) if isinstance(deputy, str) else None,
        holds if isinstance(holds := row.get(_HOLDS), str) else None,
    )


def lock_row(key_attribute: str, lock: LeaderLock) -> Row:
    return {
        key_attribute: LEADER_KEY,
        _OWNER: lock.owner,
        _DURATION: str(lock.duration_ms),  # a string, as in KCL's lock client
        _VERSION: lock.version,
        _ENTITY: "LEADER",
        **({} if lock.assignment_epoch is None else {_ASSIGNMENT_EPOCH: lock.assignment_epoch}),
    }


def decide_lock_claim(
    lock: LeaderLock | None,
    seen: LockObservation | None,
    *,
    me: WorkerId,
    now_s: float,
    key_attribute: str,
    dead: LeaderLock | None = None,
) -> ClaimLock | WatchLock:
    """From the row as read now and the earlier observation.

    As in KCL only the version counts, not the owner; without one no condition could prove that the row is still the one
    observed. `dead`: a lock as read before its owner was proven dead.
    """
    if lock is None:
        return ClaimLock((Absent(key_attribute),), "there is no leader")
    there: tuple[Condition, ...] = (Present(key_attribute), Equals(_VERSION, lock.version))
    if lock.released:
        return ClaimLock((Present(key_attribute), Equals(_RELEASED, "1")), f"{lock.owner} released it")
    if lock.owner == me and lock.version:
        return ClaimLock(there, "an earlier process of this worker held it")
    if dead is not None and (lock.owner, lock.version) == (dead.owner, dead.version) and lock.version:
        return ClaimLock(there, f"{lock.owner} has died on this host")
    since = seen.since_s if seen is not None and seen.version == lock.version else now_s
    silent_s, duration_s = now_s - since, lock.duration_ms / 1000
    if silent_s > duration_s and lock.version:
        return ClaimLock(there, f"{lock.owner or 'an owner without a name'} was silent for {silent_s:.1f} s")
    return WatchLock(LockObservation(lock.version, since), lock.owner, silent_s, duration_s)


def heartbeat(lock: LeaderLock, version: str, assignment_epoch: str | None = None) -> RowUpdate:
    """Without an `assignment_epoch` that attribute stays: other workers may have changed it."""
    reported = {} if assignment_epoch is None else {_ASSIGNMENT_EPOCH: assignment_epoch}
    named = {} if lock.deputy is None else {_DEPUTY: lock.deputy}
    return RowUpdate(
        LEADER_KEY,
        put={_VERSION: version, _DURATION: str(lock.duration_ms), **reported, **named},
        remove=frozenset() if named else frozenset({_DEPUTY}),
        require=ours(lock),
    )


def assignment_notice(lock: LeaderLock, assignment_epoch: str) -> RowUpdate:
    """In another worker's lock row; the version stays, so it is no heartbeat."""
    return RowUpdate(
        LEADER_KEY,
        put={_ASSIGNMENT_EPOCH: assignment_epoch},
        require=(Equals(_OWNER, lock.owner), Present(_ASSIGNMENT_EPOCH)),
    )


def holds_notice(token: str, *, key_attribute: str) -> RowUpdate:
    return RowUpdate(LEADER_KEY, put={_HOLDS: token}, require=(Present(key_attribute),))


def ours(lock: LeaderLock) -> Conditions:
    return (Equals(_VERSION, lock.version), Equals(_OWNER, lock.owner))


def held_by(owner: WorkerId) -> Conditions:
    return (Equals(_OWNER, owner),)
