"""Who goes on with the leases of a worker that stops (no counterpart in KCL, where they are simply given up).

Owns nothing but the question; the answer is that of the rule that places leases which nobody reads.
"""

from __future__ import annotations

from dataclasses import replace

from kcl_daemon.assignment.plan import Fleet, How, Move, Strategy
from kcl_daemon.leases.lease import WorkerId


def parting(fleet: Fleet, leaver: WorkerId, place: Strategy) -> tuple[Move, ...]:
    """One hand-off for each lease that the leaver reads and that finds a worker with room.

    Args:
        fleet: as seen now; the leaver is given nothing, whether or not it is still among the workers.
        leaver: who stops.
        place: gives away what nobody reads.
    """
    mine = {
        lease.lease_key: lease
        for lease in fleet.unfinished
        if lease.lease_owner == leaver and lease.checkpoint_owner is None
    }
    without = replace(
        fleet,
        leases=[
            replace(lease, lease_owner=None) if lease.lease_key in mine else lease for lease in fleet.leases
        ],
        workers=fleet.workers - {leaver},
    )
    return tuple(
        Move(
            mine[move.lease.lease_key],
            move.to,
            f"{move.lease.lease_key}: {leaver} -> {move.to}, {leaver} stops",
            How.HAND_OFF,
        )
        for move in place(without).moves
        if move.lease.lease_key in mine
    )
