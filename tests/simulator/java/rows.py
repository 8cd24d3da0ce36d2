"""What a Java KCL 3.x worker writes, row by row: its attributes, its conditions, its handling of the counter.

Owns Java's writes of the lease table, the worker metrics table and the coordinator table, with wire names of its own, so
that a mistake in the daemon's rules cannot repeat itself here. Rows are read with the daemon's codec. Knows no timing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from kcl_daemon.leases.lease import HashRange, Lease, ShardId, WorkerId
from kcl_daemon.leases.row import Absent, Condition, Conditions, Equals, Present, Row, RowUpdate, Value
from kcl_protocol.sequence import ExtendedSequenceNumber

LEADER_KEY: Final = "Leader"
VERSION_KEY: Final = "Migration3.0"
_VERSION: Final = "CLIENT_VERSION_3X"
# KCL's lock lease, which nobody changes from a properties file.
LOCK_MS: Final = 120_000


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between releases in separate tables.

    Args:
        names_entities: 3.5 writes `entityType` and the support code; 3.4 does neither.
    """

    names_entities: bool

    def entity(self, name: str) -> dict[str, Value]:
        """The attribute, where this release writes it."""
        return {"entityType": name} if self.names_entities else {}


def new_lease(
    dialect: Dialect,
    shard_id: ShardId,
    *,
    parents: Iterable[ShardId],
    hash_range: HashRange,
    position: ExtendedSequenceNumber,
) -> tuple[Row, Conditions]:
    """Create: whole row, counter 0, no owner, only where there is none."""
    row: dict[str, Value] = {
        "leaseKey": shard_id,
        **dialect.entity("LEASE"),
        "leaseCounter": 0,
        "ownerSwitchesSinceCheckpoint": 0,
        "checkpoint": position.sequence_number,
        "checkpointSubSequenceNumber": position.sub_sequence_number,
        "startingHashKey": str(hash_range.start),
        "endingHashKey": str(hash_range.end),
    }
    if bare_ids := frozenset[str](parents):
        row["parentShardId"] = bare_ids
    return row, (Absent("leaseKey"),)


def renewal(lease: Lease, throughput_kbps: float | None) -> RowUpdate:
    """Renew: by the counter, and only outside a hand-off unless it is known already."""
    put: dict[str, Value] = {"leaseCounter": lease.lease_counter + 1}
    if throughput_kbps is not None:
        put["throughputKBps"] = Decimal(str(round(throughput_kbps, 6)))
    unaware: Conditions = () if lease.checkpoint_owner is not None else (Absent("checkpointOwner"),)
    return RowUpdate(
        lease.lease_key, put=put, require=(Equals("leaseCounter", lease.lease_counter), *unaware)
    )


def checkpoint(lease: Lease, position: ExtendedSequenceNumber) -> RowUpdate:
    """Checkpoint: by the counter alone, whoever the row names as owner."""
    put: dict[str, Value] = {
        "leaseCounter": lease.lease_counter + 1,
        "checkpoint": position.sequence_number,
        "checkpointSubSequenceNumber": position.sub_sequence_number,
        "ownerSwitchesSinceCheckpoint": 0,
    }
    if lease.child_shard_ids:
        put["childShardIds"] = frozenset[str](lease.child_shard_ids)
    if lease.hash_range is not None:
        put["startingHashKey"] = str(lease.hash_range.start)
        put["endingHashKey"] = str(lease.hash_range.end)
    return RowUpdate(
        lease.lease_key,
        put=put,
        remove=frozenset({
            "pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "pendingCheckpointState"
        }),
        require=(Equals("leaseCounter", lease.lease_counter),),
    )  # fmt: skip


def assignment(lease: Lease, to: WorkerId) -> RowUpdate:
    """Assign: by the owners as they were read, whatever the counter is; also the end of a hand-off."""
    switched = (lease.lease_owner is not None and lease.lease_owner != to) or lease.checkpoint_owner == to
    return RowUpdate(
        lease.lease_key,
        put={"leaseOwner": to},
        add={"leaseCounter": 1, **({"ownerSwitchesSinceCheckpoint": 1} if switched else {})},
        remove=frozenset({"checkpointOwner"}),
        require=(
            Equals("leaseKey", lease.lease_key),
            _is("leaseOwner", lease.lease_owner),
            _is("checkpointOwner", lease.checkpoint_owner),
        ),
    )


def handoff(lease: Lease, to: WorkerId) -> RowUpdate:
    """Start a graceful hand-off: the counter is left alone."""
    assert lease.lease_owner is not None
    return RowUpdate(
        lease.lease_key,
        put={"leaseOwner": to, "checkpointOwner": lease.lease_owner},
        require=(
            Equals("leaseOwner", lease.lease_owner),
            Absent("checkpointOwner"),
            Equals("leaseKey", lease.lease_key),
        ),
    )


def children(lease: Lease, shard_ids: frozenset[ShardId]) -> RowUpdate:
    """Set the children: the counter is left alone."""
    return RowUpdate(
        lease.lease_key,
        put={"childShardIds": frozenset[str](shard_ids)},
        require=(Equals("leaseKey", lease.lease_key),),
    )


def report(dialect: Dialect, me: WorkerId, *, now_s: int, cpu: tuple[float, ...]) -> RowUpdate:
    """The worker's row: an upsert that replaces both maps; without figures they are empty."""
    averages = tuple(Decimal(str(round(value, 6))) for value in cpu)
    stats: Mapping[str, Value] = {"C": averages} if averages else {}
    ranges: Mapping[str, Value] = {"C": (100,)} if averages else {}
    support: dict[str, Value] = {"sup": 1, "slu": now_s} if dialect.names_entities else {}
    return RowUpdate(
        me,
        put={
            **dialect.entity("WORKER_METRIC_STATS"), "lut": now_s, "sts": stats, "opr": ranges, **support
        },
    )  # fmt: skip


def version_row(dialect: Dialect, key_attribute: str, me: WorkerId, *, now_ms: int) -> Row:
    """`Migration3.0` of a fresh application: its history begins with INIT."""
    return {
        key_attribute: VERSION_KEY,
        **dialect.entity("CLIENT_VERSION_MIGRATION"),
        "cv": _VERSION,
        "mb": me,
        "mts": now_ms,
        "h": ({"cv": "CLIENT_VERSION_INIT", "mb": me, "mts": now_ms},),
    }


def lock_row(dialect: Dialect, key_attribute: str, me: WorkerId, version: str) -> Row:
    """The lock as it is taken: the whole row, so that what others put there is gone."""
    return {
        key_attribute: LEADER_KEY,
        **dialect.entity("LEADER"),
        "ownerName": me,
        "leaseDuration": str(LOCK_MS),
        "recordVersionNumber": version,
    }


def lock_heartbeat(me: WorkerId, version: str, new_version: str) -> RowUpdate:
    """The leader lives: duration and version are set, other attributes stay."""
    return RowUpdate(
        LEADER_KEY,
        put={"leaseDuration": str(LOCK_MS), "recordVersionNumber": new_version},
        require=lock_is(me, version),
    )


def lock_is(me: WorkerId, version: str) -> Conditions:
    """The condition of heartbeat and release; of a take-over it is the version alone."""
    return (Equals("recordVersionNumber", version), Equals("ownerName", me))


def lock_condition(row: Row | None, key_attribute: str, *, stale: bool) -> Conditions | None:
    """Under which condition the lock may be taken, from the row as it was read; None: it may not."""
    if row is None:
        return (Absent(key_attribute),)
    if row.get("isReleased") == "1":
        return (Present(key_attribute), Equals("isReleased", "1"))
    version = row.get("recordVersionNumber")
    if not stale or version is None:
        return None
    return (Present(key_attribute), Equals("recordVersionNumber", version))


def absent(key_attribute: str) -> Conditions:
    """That there is no such row."""
    return (Absent(key_attribute),)


def _is(attribute: str, worker_id: WorkerId | None) -> Condition:
    return Absent(attribute) if worker_id is None else Equals(attribute, worker_id)
