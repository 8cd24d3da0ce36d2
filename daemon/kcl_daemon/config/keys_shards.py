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
            raise Refused("not one of the words")
        return int(match[1] or 0)

    return Kind(read, "NONE or PARENTS_FIRST or PARENTS_FIRST:GENERATIONS")


SHARD_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "shardSyncStrategyType",
        choice({strategy.value: strategy for strategy in ShardSyncStrategy}),
        "shards.sync_strategy",
        "SHARD_END: child shards get their leases when their parents end, and the leader looks for holes. PERIODIC: the "
        "leader also compares all shards with all leases at each audit, and creates whole lineages at once.",
        extension=True,
    ),
    Key(
        "leasesRecoveryAuditorExecutionFrequencyMillis",
        MILLISECONDS,
        "shards.audit_ms",
        "How often the leader looks for hashes that nobody reads.",
        extension=True,
    ),
    Key(
        "leasesRecoveryAuditorInconsistencyConfidenceThreshold",
        whole_number(1, INT_MAX, "audits"),
        "shards.audit_confidence",
        "In how many audits in a row the same hole must be there before it is filled.",
        extension=True,
    ),
    Key(
        "ignoreUnexpectedChildShards",
        truth(),
        "shards.ignore_unexpected_children",
        "Whether shards whose parent is still open are passed over. If not, no lease is created while there are any.",
    ),
    Key(
        "cleanupLeasesUponShardCompletion",
        truth(),
        "shards.cleanup_finished",
        "Whether the leases of finished shards are deleted once their child shards are being read. Java takes `false` "
        "for `true`.",
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
        "Least time between two clean-ups of finished leases.",
        aliases=(f"{_CLEANUP_BEAN}.completedLeaseCleanupIntervalMillis",),
        extension=True,
    ),
    Key(
        "garbageLeaseCleanupIntervalMillis",
        MILLISECONDS,
        "shards.cleanup_garbage_ms",
        "Least time between two looks for finished leases whose shards Kinesis has forgotten.",
        aliases=(f"{_CLEANUP_BEAN}.garbageLeaseCleanupIntervalMillis",),
        extension=True,
    ),
    Key(
        "shardPrioritization",
        prioritization(),
        "shards.waiting_generations_most",
        "PARENTS_FIRST: leases are given away parents first, and not at all while they wait for more generations of "
        "unfinished parents than this (0). Java refuses any value.",
        default="NONE",
        extension=True,
    ),
)
