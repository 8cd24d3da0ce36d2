"""A lease row for tests that change one attribute of it."""

from __future__ import annotations

from kcl_daemon.leases.row import Value


def held_row(**changes: Value | None) -> dict[str, Value]:
    """Of worker w-a; None leaves an attribute out."""
    row: dict[str, Value | None] = {
        "leaseKey": "shardId-7",
        "leaseCounter": 42,
        "leaseOwner": "w-a",
        "ownerSwitchesSinceCheckpoint": 1,
        "checkpoint": "49640",
        "checkpointSubSequenceNumber": 3,
        **changes,
    }
    return {name: value for name, value in row.items() if value is not None}
