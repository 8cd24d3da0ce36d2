from __future__ import annotations

from typing import Final

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
    "Streams of DynamoDB tables": ("changes",),
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
    "Several children for a shard": ("concurrency",),
    "Failures and dead letters": ("failures",),
    "Leases": ("leases", "leases.graceful_handoff", "leases.handoff_timeout_ms"),
    "Balancing": ("balance",),
    "Lag and workers wanted": ("capacity",),
    "Shards": ("shards",),
    "Tables": ("tables",),
    "Migration from KCL 2.x": (
        "leases.client_version_config",
        "leases.max_leases_to_steal",
        "leases.priority_assignment",
    ),
    "Landing log": ("landing",),
    "Spark": ("spark",),
    "Metrics": ("metrics",),
    "Schemas": ("schemas",),
    "Status page": ("admin",),
}
"""The longest match counts."""

_ORDER: Final = tuple(target for targets in TOPICS.values() for target in targets)


def nearest(target: str) -> str:
    return max((each for each in _ORDER if f"{target}.".startswith(f"{each}.")), key=len)


def place_of(target: str) -> int:
    return _ORDER.index(nearest(target))
