"""Who leads: the lock row, and when it may be taken (KCL: LeaderLock, AmazonDynamoDBLockClient).

The row holds no time of day. A lock is stale only when the observer has seen the same version for longer than the
owner's own lease duration, on the observer's monotonic clock.

Two attributes are ours. `daemonAssigned` changes whenever leases were given away, so that those who read the lock need not
also ask which leases are theirs. `daemonDeputy` names the worker that watches the lock closely, so that not all need to.
KCL keeps them when it writes a heartbeat and drops them when it takes the lock; a row without them promises nothing.
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

# A row whose duration cannot be read is treated as KCL's default would be.
_DEFAULT_DURATION_MS: Final = 120_000


@dataclass(frozen=True, slots=True)
class LeaderLock:
    """The lock row.

    Args:
        owner: who leads; empty where the row does not say so.
        version: new with each heartbeat; empty where the row has none.
        duration_ms: for how long the owner may be silent.
        released: the owner gave it up but left the row.
        news: another text than before whenever leases were given away; None where the leader does not tell, as KCL's.
        deputy: who watches closely whether the leader lives; None: nobody in particular.
    """

    owner: WorkerId
    version: str
    duration_ms: int
    released: bool = False
    assignment_epoch: str | None = None
    deputy: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class LockObservation:
    """Since when (monotonic seconds) a version of the lock has been seen unchanged."""

    version: str
    since_s: float


@dataclass(frozen=True, slots=True)
class ClaimLock:
    """Try to take the lock: the conditions for the write, and why, for people."""

    require: Conditions
    reason: str


@dataclass(frozen=True, slots=True)
class WatchLock:
    """Do not; remember this sighting. `silent_s`: for how long the leader has not been heard of."""

    observation: LockObservation
    owner: WorkerId
    silent_s: float
    duration_s: float


def lock_from_row(row: Row | None) -> LeaderLock | None:
    """The lock in a row; None where there is no row. What cannot be read of it is empty: `decide` takes no such lock."""
    if row is None:
        return None
    owner, version, duration = row.get(_OWNER), row.get(_VERSION), row.get(_DURATION)
    readable = isinstance(duration, str) and duration.isdecimal()
    assignment_epoch, deputy = row.get(_ASSIGNMENT_EPOCH), row.get(_DEPUTY)
    return LeaderLock(
        WorkerId(owner if isinstance(owner, str) else ""),
        version if isinstance(version, str) else "",
        int(str(duration)) if readable else _DEFAULT_DURATION_MS,
        row.get(_RELEASED) == "1",
        assignment_epoch if isinstance(assignment_epoch, str) else None,
        WorkerId(deputy) if isinstance(deputy, str) else None,
    )


def lock_row(key_attribute: str, lock: LeaderLock) -> Row:
    """The whole row of a lock that is being taken."""
    return {
        key_attribute: LEADER_KEY,
        _OWNER: lock.owner,
        _DURATION: str(lock.duration_ms),  # a string, as the lock client writes it
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
    """Whether to try for the lock, from the row as read now and the sighting remembered from earlier looks.

    As in KCL's lock client the owner does not matter for that, only the version. A row without one is left alone: there
    is nothing in it by which a write could tell that it is still the row that was seen.

    Args:
        lock: as read now.
        seen: from earlier looks.
        me: our worker id.
        now_s: monotonic seconds.
        key_attribute: of the table.
        dead: a lock whose owner is proven dead, as it was read before the proof.
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
    """Show that the leader lives: a new version, if the row is still ours; `assignment_epoch` where leases were given away.

    Duration and deputy are those of `lock`.

    Without news the attribute is left alone: others may have changed it meanwhile (`options`).
    """
    reported = {} if assignment_epoch is None else {_ASSIGNMENT_EPOCH: assignment_epoch}
    named = {} if lock.deputy is None else {_DEPUTY: lock.deputy}
    return RowUpdate(
        LEADER_KEY,
        put={_VERSION: version, _DURATION: str(lock.duration_ms), **reported, **named},
        remove=frozenset() if named else frozenset({_DEPUTY}),
        require=ours(lock),
    )


def assignment_notice(lock: LeaderLock, assignment_epoch: str) -> RowUpdate:
    """Tell, in another's row, that leases were given away; the version stays, so it is no sign of life of the leader."""
    return RowUpdate(
        LEADER_KEY,
        put={_ASSIGNMENT_EPOCH: assignment_epoch},
        require=(Equals(_OWNER, lock.owner), Present(_ASSIGNMENT_EPOCH)),
    )


def ours(lock: LeaderLock) -> Conditions:
    """The conditions under which the row is still this lock."""
    return (Equals(_VERSION, lock.version), Equals(_OWNER, lock.owner))


def held_by(owner: WorkerId) -> Conditions:
    """The conditions under which a worker still holds the lock, whatever its heartbeats have done since."""
    return (Equals(_OWNER, owner),)
