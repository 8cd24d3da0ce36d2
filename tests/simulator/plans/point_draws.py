"""The scenario of the points between two writes: where they are come to, and what is drawn for the workers there.

Owns the list of points, which a test compares with the daemon's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kcl_daemon.config.tables import TableOptions
from tests.simulator.chance import Chance
from tests.simulator.plans.draws import Draw
from tests.simulator.plans.plan import AtPoint, HoldBack, Plan, Planned, Split, Stop

_FLEET: Final = ("worker_stopped", "two_workers", "handoff_killed", "farewell_killed", "everything")
_RESHARD: Final = ("reshard", "reshard_storm", "reshard_unseen", "cleaned_up", "lanes_reshard")
_VERSIONS: Final = ("upgrade_2x", "rolled_back")
_RECORDS: Final = ("children_trouble", "lanes", "bank", "filtered", "fan_out", "kinesis_trouble")
# Each point, and scenarios in which workers come to it.
BASES: Final[Mapping[str, tuple[str, ...]]] = {
    "after-assignments-announced": ("farewell_killed", "worker_stopped", "standing_by"),
    "after-batch-processed": (*_RECORDS, "rejects", "poison_records"),
    "after-bound-stored": ("until",),
    "after-checkpoint-write": (*_RECORDS, *_FLEET, *_RESHARD, "lanes_poison", "poison_records"),
    "after-child-initialized": (*_RECORDS, "from_latest", "many_streams"),
    "after-child-lease-created": _RESHARD,
    "after-children-named": _RESHARD,
    "after-client-version-written": (*_FLEET, *_VERSIONS, "table_migration"),
    "after-consumer-registered": ("fan_out",),
    "after-dead-row-deleted": ("restart_in_place",),
    "after-finished-lease-deleted": ("cleaned_up", "reshard_unseen", "reshard_storm"),
    "after-former-lease-deleted": ("many_streams",),
    "after-handoff-begun": ("farewell_killed", "worker_stopped", "table_migration"),
    "after-handoff-ended": ("worker_stopped", "farewell_killed", "filtered"),
    "after-heartbeat": (*_FLEET, "leader_paused"),
    "after-holds-write": ("holds",),
    "after-lease-assigned": (*_FLEET, "leases_deleted", "all_down"),
    "after-lease-claimed": (*_FLEET, "many_streams", "index_missing"),
    "after-lease-created": ("many_streams", "table_trouble", "leases_deleted", "two_workers"),
    "after-lease-given-back": ("fan_out", "table_migration", "farewell_killed", "worker_stopped"),
    "after-lease-released": (*_FLEET, *_RESHARD),
    "after-lease-renewed": (*_FLEET, "lanes"),
    "after-lease-taken": _VERSIONS,
    "after-lease-taken-from-dead": ("restart_in_place",),
    "after-letter-stored": ("rejects", "lanes_poison", "poison_records"),
    "after-lock-released": ("worker_stopped", "farewell_killed", "table_migration"),
    "after-lock-taken": (*_FLEET, "leader_paused"),
    "after-old-row-deleted": ("restart_in_place", "table_migration"),
    "after-own-row-deleted": ("worker_stopped", "farewell_killed", "table_migration"),
    "after-owner-index-added": _VERSIONS,
    "after-recovery-enabled": _FLEET,
    "after-rows-moved": ("table_migration",),
    "after-shard-ended": _RESHARD,
    "after-shutdown-requested": (*_FLEET, "many_streams"),
    "after-snapshot-begun": ("dynamodb_snapshot",),
    "after-standby-told": ("standing_by", "farewell_killed", "two_workers"),
    "after-stream-creation-noted": ("foreign_epochs",),
    "after-table-created": (*_FLEET, "bootstrap_killed"),
    "after-table-move-step": ("table_migration", "clock_skew"),
    "after-unclear-lease-write": ("ambiguous_writes", "everything", "table_trouble"),
    "after-upgrade-made": _VERSIONS,
    "after-worker-reported": (*_FLEET, "clock_skew"),
    "after-worker-row-deleted": ("worker_killed", "all_down"),
}
# No fleet comes to these: they are of commands, or of rows that nobody writes any more. Unit tests stop there.
ELSEWHERE: Final = frozenset(
    {"after-hash-range-written", "after-lease-changed", "after-receipt-write", "before-receipt-write"}
)
_OFTEN: Final = frozenset(
    {
        "after-batch-processed",
        "after-checkpoint-write",
        "after-child-initialized",
        "after-heartbeat",
        "after-lease-renewed",
        "after-worker-reported",
    }
)
_AT_STOPS: Final = frozenset({"after-assignments-announced", "after-handoff-ended", "after-lease-given-back"})
# A process that finds the handoff of an earlier one with its name.
_SAME_NAME: Final = {
    "after-handoff-ended": tuple(
        AtPoint("after-handoff-begun", nth, None, replaced_after_s=0.5, keeps_name=True) for nth in (1, 4, 7)
    )
}
_BOUND_S: Final = 120.0
_STALE_S: Final = 70.0


def struck(draw: Draw, scenarios: Mapping[str, Callable[[Draw], Plan]]) -> Plan:
    """Some other scenario in which workers also die, or stop for longer than a lease, at points that it comes to."""
    chance = draw.chance.fork("points")
    point = chance.pick(tuple(BASES))
    base = chance.pick(BASES[point])
    plan = scenarios[base](draw)
    near = [name for name, bases in BASES.items() if base in bases]
    names = [*[point] * 2, *(chance.pick(near) for _ in range(chance.between(1, 4)))]
    kept = TableOptions(point_in_time_recovery=True)
    tables = replace(plan.tables, leases=kept, coordinator=kept)
    stale_s = _STALE_S if point == "after-worker-row-deleted" else plan.balance.stale_worker_s
    return replace(
        plan,
        events=(*plan.events, *_on_the_way_to(point, chance)),
        points=(
            replace(_at(chance, point), nth=1),
            *(_at(chance, name) for name in names),
            *_SAME_NAME.get(point, ()),
        ),
        tables=tables if point == "after-recovery-enabled" else plan.tables,
        balance=replace(plan.balance, stale_worker_s=stale_s),
        bound_s=max(plan.bound_s, _BOUND_S),
        # What a fleet without such faults promises.
        is_quiet=False,
        repeats_most=None,
        latency_most_s=None,
        read_again_s=None,
        led_again_s=None,
        handoff_gap_most_s=None,
    )


def _on_the_way_to(point: str, chance: Chance) -> list[Planned]:
    """What makes workers come to a point that they come to rarely."""
    if point == "after-holds-write":  # the leader counts the shards of a limit anew
        splits = [Planned(chance.uniform(20.0, 120.0), Split(chance.between(0, 9))) for _ in range(4)]
        return [Planned(15.0, HoldBack(None, 20.0, None)), *splits]
    if point in _AT_STOPS:
        return [Planned(moment, Stop(chance.between(0, 9), 3.0)) for moment in (45.0, 70.0, 95.0, 120.0)]
    return []


def _at(chance: Chance, point: str) -> AtPoint:
    often = point in _OFTEN and chance.happens(0.7)
    pause_s = chance.pick((0.3, 3.0, 12.0, 25.0, 45.0))
    return AtPoint(
        point,
        nth=chance.between(1, 60) if often else chance.pick((1, 1, 1, 2, 2, 3, 4)),
        pause_s=None if chance.happens(0.6) else pause_s,
        with_children=chance.happens(0.5),
        replaced_after_s=chance.pick((0.5, 3.0, 15.0)),
        keeps_name=chance.happens(0.3),
    )
