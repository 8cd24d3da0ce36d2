"""Properties that are accepted and change nothing, each with the reason.

Pure data. A file that moves over from Java must start; each of these gives one warning, so that nobody believes a
setting is at work that is not. There are three kinds: what Java itself does not act on any more, what sets a part of
Java that has no counterpart here, and what earlier versions of this daemon had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_JAVA_NEITHER: Final = "does nothing in the Java daemon 3.x either"
_OF_KCL_1: Final = "a property of KCL 1.x; does nothing in the Java daemon 3.x either"


@dataclass(frozen=True, slots=True)
class Inert:
    """A known property without effect.

    Args:
        name: as files have it.
        why: why it has no effect, or what is done instead.
    """

    name: str
    why: str


def _because(why: str, *names: str) -> tuple[Inert, ...]:
    return tuple(Inert(name, why) for name in names)


_POLLING: Final = _because(
    "only makes retrievalMode=DEFAULT mean POLLING, as in the Java daemon 3.x",
    "retryGetRecordsInSeconds",
    "maxGetRecordsThreadPool",
)
_IN_JAVA_ONLY: Final = (
    *_because("there is no thread pool to limit", "maxActiveThreads"),
    *_because("there are no renewal threads to bound", "maxLeaseRenewalThreads"),
    *_because(
        "leases of child shards are created when their parents end; the leader looks for holes every "
        "leasesRecoveryAuditorExecutionFrequencyMillis",
        "shardSyncIntervalMillis",
    ),
    *_because(
        "at start, existing leases are never compared with the shards, only checked for holes",
        "skipShardSyncAtWorkerInitializationIfLeasesExist",
    ),
    *_because(
        "a failed list of shards is retried after a second, then with growing pauses, without limit",
        "listShardsBackoffTimeInMillis",
        "maxListShardsRetryAttempts",
    ),
    *_because(
        "workers query the index by owner; a scan of the table goes page by page and blocks nothing",
        "leaseTableScanTotalSegments",
    ),
    *_because(
        "the daemon has its own timeouts and retries",
        *(f"{client}.defaultsMode" for client in ("kinesisClient", "dynamoDbClient", "cloudWatchClient")),
    ),
    *_because(_JAVA_NEITHER, "validateSequenceNumberBeforeCheckpointing", "processingLanguage"),
)
_OLD: Final = (
    *_because(
        _OF_KCL_1,
        "userAgent",
        "shardPrioritizationStrategy",
        "maxCacheByteSize",
        "maxRecordsCount",
        "dataFetchingStrategy",
        "idleMillisBetweenCalls",
        "kinesisClientConfig",
    ),
    *_because(
        "of KCL 1.x; now skipShardSyncAtWorkerInitializationIfLeasesExist",
        "skipShardSyncAtStartupIfLeasesExist",
    ),
    *_because(
        "of KCL 1.x; now initialPositionInStreamExtended, in epoch seconds",
        "timestampAtInitialPositionInStream",
    ),
)
_REMOVED: Final = (*_because("removed; subscriptions always use HTTP/1.1", "fanoutHttpVersion"),)

INERT: Final[dict[str, Inert]] = {
    each.name: each
    for each in (
        *_POLLING,
        *(Inert(f"pollingConfig.{each.name}", each.why) for each in _POLLING),
        *_IN_JAVA_ONLY,
        *_OLD,
        *_REMOVED,
    )
}
