"""The order of all properties, by topic, and which of them most applications look at: for the reference."""

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
"""By field of `Settings`, or by the settings it is in. The longest match counts."""

_ORDER: Final = tuple(target for targets in TOPICS.values() for target in targets)
_TOPIC_OF: Final = {target: topic for topic, targets in TOPICS.items() for target in targets}

MATTER: Final[dict[str, str]] = {
    "executableName": "For one function it is `python -m kcl_client.run consumer:handle`.",
    "applicationName": "Choose it once: with another name everything is read again from the first position.",
    "streamName": "Several streams with one daemon: [many streams](many-streams.md).",
    "streamArn": "Set it for a stream of another account.",
    "regionName": "Set it on a laptop; on AWS the environment often has it.",
    "AwsCredentialsProvider": "Leave it out, unless the daemon must take one certain identity.",
    "initialPositionInStream": "`TRIM_HORIZON` reads all that the stream still has. It counts only the first time.",
    "retrievalMode": "Set `POLLING` unless you need records within 100 ms: fan-out costs money for each shard and hour.",
    "metricsLevel": "Set `SUMMARY` or `NONE` to pay less for CloudWatch; `/metrics` of the status page is free.",
    "maxRecords": "Lower it when a batch takes your program too long.",
    "idleTimeBetweenReadsInMillis": "Raise it when other applications poll the same stream: all share five reads a second of a shard.",
    "batchWindowMillis": "Set it when each call of your program is expensive, such as a bulk insert.",
    "recordFilter": "Set it when your program needs few of the records.",
    "shardConcurrency": "Raise it when the work on one record is slow and a shard falls behind.",
    "childPreload": "Set it when a worker has many shards: less memory, faster starts.",
    "timeoutInSeconds": "Set it, such as to 300, so that a child that hangs is noticed.",
    "poisonRecordPolicy": "Set `DEADLETTER` so that one bad record does not hold up its shard.",
    "deadLetterDestination": "`file:letters.jsonl` to begin with; a bucket or a queue on servers.",
    "failoverTimeMillis": "Lower it to take over sooner from a worker that died; it costs more requests to the lease table.",
    "maxLeasesForWorker": "Lower it where the memory of a host allows fewer children.",
    "shutdownGraceMillis": "Keep it below the time that systemd or Kubernetes waits before it kills.",
    "adminPort": "Set it: `kcl-daemon status`, `top`, probes and Prometheus need it.",
}
"""What one would do with each, in the order of the reference, after what the property means."""


def _nearest(target: str) -> str:
    return max((each for each in _ORDER if f"{target}.".startswith(f"{each}.")), key=len)


def place_of(target: str) -> int:
    return _ORDER.index(_nearest(target))


def topic_of(target: str) -> str:
    return _TOPIC_OF[_nearest(target)]
