from __future__ import annotations

from typing import Final

from kcl_daemon.wings import WINGS

_OF_WINGS: Final = {wing.topic: wing.properties for wing in WINGS}
TOPICS: Final[dict[str, tuple[str, ...]]] = {
    "Application and stream": (
        "child.command",
        "application_name",
        "stream_name",
        "stream_arn",
        "worker_id",
        "state_folder",
        "expand_environment",
    ),
    "Many streams": ("streams",),
    "Streams of DynamoDB tables": _OF_WINGS["Streams of DynamoDB tables"],
    "Regions, endpoints, identities": (
        "endpoints",
        "endpoints.of_dynamodb.endpoint_discovery",
        "endpoints.of_dynamodb.account_id_endpoint_mode",
        "endpoints.credentials",
    ),
    "First position, end": ("initial_position", "run_until"),
    "Reading": ("retrieval.mode", "fan_out", "retrieval"),
    "Filters and batches": ("delivery",),
    "Children": ("child",),
    "Several children for a shard": _OF_WINGS["Several children for a shard"],
    "Failures and dead letters": _OF_WINGS["Failures and dead letters"],
    "Leases": ("leases", "leases.graceful_handoff", "leases.handoff_timeout_ms"),
    "Balancing": ("balance",),
    "Lag and workers wanted": _OF_WINGS["Lag and workers wanted"],
    "Shards": ("shards",),
    "Tables": ("tables",),
    "Migration from KCL 2.x": _OF_WINGS["Migration from KCL 2.x"],
    "Landing log": _OF_WINGS["Landing log"],
    "Spark": _OF_WINGS["Spark"],
    "Metrics": ("metrics",),
    "Schemas": _OF_WINGS["Schemas"],
    "Status page": ("admin",),
}
"""The longest match counts."""

_ORDER: Final = tuple(target for targets in TOPICS.values() for target in targets)


def nearest(target: str) -> str:
    return max((each for each in _ORDER if f"{target}.".startswith(f"{each}.")), key=len)


def place_of(target: str) -> int:
    return _ORDER.index(nearest(target))
