"""When a fleet that comes from KCL 2.x may go on to 3.x, and how a person steers it.

Ready means: the index is active and every lease has an owner that reported recently, without a break for `READY_FOR_S`.

Values in, decisions out: the index state, the leases and the worker rows are read by a loop on the leader, or by the
command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kcl_daemon.leases.client_version import CODEC, ClientVersion, VersionRow
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.state_row import Refusal
from kcl_daemon.leases.stats import ACTIVE_REPORTS, WorkerRow
from kcl_daemon.leases.table import RowUpdate

CHECK_EVERY_S: Final = 60.0
"""The leader looks so often whether all is ready."""
READY_FOR_S: Final = 600.0
"""All must have been ready for so long without a break."""
INDEX_REMOVAL_AFTER_S: Final = 120.0
"""After a roll-back all workers have noticed within this time; then nobody uses the index."""

ROLLBACK_BY: Final = "KclMigrationTool-rollback"
ROLLFORWARD_BY: Final = "KclMigrationTool-rollforward"


@dataclass(frozen=True, slots=True)
class Readiness:
    """What an upgrade still waits for.

    Args:
        index_active: whether the index by owner can be queried.
        silent: owners of leases that do not report.
        unowned: leases without an owner.
    """

    index_active: bool
    silent: tuple[WorkerId, ...] = ()
    unowned: tuple[LeaseKey, ...] = ()

    @property
    def is_met(self) -> bool:
        """Nothing."""
        return self.index_active and not self.silent and not self.unowned

    @property
    def missing(self) -> str:
        """What is missing, for people."""
        parts: list[str] = []
        if not self.index_active:
            parts.append("the index by owner is not active")
        if self.silent:
            parts.append(f"{len(self.silent)} lease owners do not report, such as {self.silent[0]}")
        if self.unowned:
            parts.append(f"{len(self.unowned)} leases have no owner, such as {self.unowned[0]}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class NotYet:
    """Do nothing, remember since when (monotonic seconds) all has been ready, None: it is not."""

    ready_since_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Write this. Where it is refused somebody has changed the state: read it again."""

    update: RowUpdate
    reason: str


@dataclass(frozen=True, slots=True)
class Steering:
    """What a person's command does.

    Args:
        update: the write; where it is refused somebody changed the state meanwhile: read it again, decide anew.
        remove_index_after_s: wait so long after the write, then delete the index by owner. None: leave it.
        reason: for people.
    """

    update: RowUpdate
    remove_index_after_s: float | None
    reason: str


def readiness(
    leases: Iterable[Lease],
    workers: Iterable[WorkerRow],
    *,
    index_active: bool,
    wall_s: float,
    report_s: float,
) -> Readiness:
    """Whether all is ready: the index, and a fresh report of every lease owner (KCL: MigrationReadyMonitor).

    Args:
        leases: all of the table.
        workers: all rows, of both tables where there are two.
        index_active: of the index by owner.
        wall_s: epoch seconds, compared with what the workers' own clocks wrote.
        report_s: how often workers report.
    """
    active_s = ACTIVE_REPORTS * report_s
    active = {worker.worker_id for worker in workers if worker.last_update_s + active_s > wall_s}
    owners: set[WorkerId] = set()
    unowned: list[LeaseKey] = []
    for lease in leases:
        if lease.lease_owner is None:
            unowned.append(lease.lease_key)
        else:
            owners.add(lease.lease_owner)
    return Readiness(index_active, tuple(sorted(owners - active)), tuple(sorted(unowned)))


def consider(
    stored: VersionRow,
    ready: Readiness,
    ready_since_s: float | None,
    *,
    leads: bool,
    me: WorkerId,
    now_s: float,
    now_ms: int,
    key_attribute: str,
) -> NotYet | Upgrade:
    """Whether the leader takes the fleet to 3.x now.

    Args:
        stored: the row as it is.
        ready: as read now.
        ready_since_s: what the last `NotYet` said; None at first.
        leads: whether this worker leads; losing the lead starts the time anew.
        me: our worker id.
        now_s: monotonic seconds.
        now_ms: epoch milliseconds, for the row.
        key_attribute: of the table that holds the row.
    """
    if stored.state is not ClientVersion.UPGRADE_FROM_2X:
        return NotYet(None, f"{stored.by} set {stored.state}")
    if not leads:
        return NotYet(None, "another worker leads")
    if not ready.is_met:
        return NotYet(None, ready.missing)
    since_s = now_s if ready_since_s is None else ready_since_s
    if now_s - since_s < READY_FOR_S:
        return NotYet(since_s, f"everything was ready for {now_s - since_s:.0f} s of {READY_FOR_S:.0f} s")
    after = stored.followed_by(ClientVersion.V3X_WITH_ROLLBACK, by=me, at_ms=now_ms)
    update = CODEC.update(stored, after, key_attribute=key_attribute)
    return Upgrade(update, f"everything was ready for {now_s - since_s:.0f} s")


def rollback(stored: VersionRow | Refusal | None, *, now_ms: int, key_attribute: str) -> Steering | Refusal:
    """Send the whole fleet back to the ways of KCL 2.x (KCL: KclMigrationTool)."""
    if isinstance(stored, Refusal):
        return stored
    if stored is None:
        return _no_row()
    if stored.state is ClientVersion.V2X:
        return Refusal(
            f"{stored.by} has already rolled back",
            "nothing to do; if the index by owner still exists, it can be deleted after two minutes",
        )
    if stored.state is ClientVersion.V3X:
        return Refusal(
            "the upgrade is complete: a worker was started with clientVersionConfig=CLIENT_VERSION_CONFIG_3X",
            "rollback to 2.x is not possible; it is possible only until the first worker starts with "
            "that setting",
        )
    after = stored.followed_by(ClientVersion.V2X, by=ROLLBACK_BY, at_ms=now_ms)
    update = CODEC.update(stored, after, key_attribute=key_attribute)
    return Steering(update, INDEX_REMOVAL_AFTER_S, f"from {stored.state}, set by {stored.by}")


def rollforward(
    stored: VersionRow | Refusal | None, *, now_ms: int, key_attribute: str
) -> Steering | Refusal:
    """Take up an upgrade again that was rolled back."""
    if isinstance(stored, Refusal):
        return stored
    if stored is None:
        return _no_row()
    if stored.state is not ClientVersion.V2X:
        return Refusal(
            f"the state is {stored.state}, set by {stored.by}: it was not rolled back",
            "nothing to do",
        )
    after = stored.followed_by(ClientVersion.UPGRADE_FROM_2X, by=ROLLFORWARD_BY, at_ms=now_ms)
    update = CODEC.update(stored, after, key_attribute=key_attribute)
    return Steering(update, None, f"{stored.by} had rolled back")


def _no_row() -> Refusal:
    return Refusal(
        f"there is no row {CODEC.row_key}: no worker has begun an upgrade",
        "check the application's name and region, or start a worker with "
        "clientVersionConfig=CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X",
    )
