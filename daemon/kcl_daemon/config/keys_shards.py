"""The properties of shards: how their leases come to be, are watched over and are cleared away.

Pure data, part of the table in `keys`. Java knows most of them in code only; the names are those of its fields.
"""

from __future__ import annotations

import re
from typing import Final

from kcl_daemon.config.key import MILLISECONDS, Key
from kcl_daemon.config.kinds import INT_MAX, Kind, Refused, choice, trimmed, truth, whole_number
from kcl_daemon.config.shard_settings import ShardSyncStrategy

_CLEANUP_BEAN: Final = "leaseCleanupConfig"
_PARENTS_FIRST: Final = re.compile(r"PARENTS_FIRST(?::([0-9]{1,9}))?")


def prioritization() -> Kind:
    """`NONE`, or `PARENTS_FIRST` with the greatest number of generations to wait for; gives that number or None."""

    def read(text: str) -> int | None:
        word = trimmed(text).upper()
        if word == "NONE":
            return None
        match = _PARENTS_FIRST.fullmatch(word)
        if match is None:
            raise Refused("not an allowed value")
        return int(match[1] or 0)

    return Kind(read, "NONE or PARENTS_FIRST or PARENTS_FIRST:GENERATIONS")


SHARD_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "shardSyncStrategyType",
        choice({strategy.value: strategy for strategy in ShardSyncStrategy}),
        "shards.sync_strategy",
        "SHARD_END: child shards get their leases when their parents end, and the leader looks for "
        "holes. PERIODIC: at each audit the leader also compares all shards with all leases, and "
        "creates the leases of a whole lineage at once.",
        extension=True,
    ),
    Key(
        "leasesRecoveryAuditorExecutionFrequencyMillis",
        MILLISECONDS,
        "shards.audit_ms",
        "How often the leader audits the leases for holes: parts of the hash range without a lease.",
        extension=True,
    ),
    Key(
        "leasesRecoveryAuditorInconsistencyConfidenceThreshold",
        whole_number(1, INT_MAX, "audits"),
        "shards.audit_confidence",
        "A hole is filled after it was seen in this many audits in a row.",
        extension=True,
    ),
    Key(
        "ignoreUnexpectedChildShards",
        truth(),
        "shards.ignore_unexpected_children",
        "Whether shards whose parent is still open are ignored. If not, no lease is created while such "
        "shards exist.",
    ),
    Key(
        "cleanupLeasesUponShardCompletion",
        truth(),
        "shards.cleanup_finished",
        "Whether the leases of finished shards are deleted once their child shards are being read. Java "
        "ignores `false`.",
    ),
    Key(
        "leaseCleanupIntervalMillis",
        MILLISECONDS,
        "shards.cleanup_ms",
        "How often the leader looks for leases to delete.",
        aliases=(f"{_CLEANUP_BEAN}.leaseCleanupIntervalMillis",),
        extension=True,
    ),
    Key(
        "completedLeaseCleanupIntervalMillis",
        MILLISECONDS,
        "shards.cleanup_completed_ms",
        "Minimum time between two cleanups of finished leases.",
        aliases=(f"{_CLEANUP_BEAN}.completedLeaseCleanupIntervalMillis",),
        extension=True,
    ),
    Key(
        "garbageLeaseCleanupIntervalMillis",
        MILLISECONDS,
        "shards.cleanup_garbage_ms",
        "Minimum time between two checks for finished leases whose shards no longer exist in Kinesis.",
        aliases=(f"{_CLEANUP_BEAN}.garbageLeaseCleanupIntervalMillis",),
        extension=True,
    ),
    Key(
        "shardPrioritization",
        prioritization(),
        "shards.waiting_generations_most",
        "PARENTS_FIRST: leases of parents are assigned first; a lease that waits for more generations "
        "of unfinished parents than GENERATIONS (default 0) is not assigned. Java refuses any value.",
        default="NONE",
        extension=True,
    ),
)
