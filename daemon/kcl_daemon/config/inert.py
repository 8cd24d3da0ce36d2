"""Properties of the Java daemon that are accepted but change nothing here: not yet, or never.

Pure data. A file that moves over from Java must start; each of these gives one warning, so that nobody believes a
setting is at work that is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_NOT_YET: Final = "not supported yet"
_JAVA_NEITHER: Final = "does nothing in the Java daemon 3.x either"


@dataclass(frozen=True, slots=True)
class Inert:
    """A known property without effect.

    Args:
        name: as Java has it.
        never: whether it does not wait for an implementation: there is nothing here that it could set.
        why: why it has no effect, or what is done instead.
        already_so: values, in lower case, that ask for just what the daemon does; they need no warning.
    """

    name: str
    never: bool
    why: str
    already_so: frozenset[str] = frozenset()


def _not_yet(*names: str, why: str = _NOT_YET, already_so: tuple[str, ...] = ()) -> tuple[Inert, ...]:
    return tuple(Inert(name, never=False, why=why, already_so=frozenset(already_so)) for name in names)


def _never(*names: str, why: str = _JAVA_NEITHER) -> tuple[Inert, ...]:
    return tuple(Inert(name, never=True, why=why) for name in names)


def _under(prefix: str, properties: tuple[Inert, ...]) -> tuple[Inert, ...]:
    return tuple(
        Inert(f"{prefix}.{each.name}", never=each.never, why=each.why, already_so=each.already_so)
        for each in properties
    )


_RETRIEVAL: Final = (
    *_not_yet("retrievalMode", why="shards are read by polling", already_so=("polling",)),
    *_not_yet(
        *(
            f"fanoutConfig.{name}"
            for name in (
                "consumerArn",
                "consumerName",
                "maxDescribeStreamSummaryRetries",
                "maxDescribeStreamConsumerRetries",
                "registerStreamConsumerRetries",
                "retryBackoffMillis",
            )
        ),
        why="shards are read by polling",
    ),
)
_POLLING: Final = (
    *_not_yet("millisBehindLatestThresholdForReducedTps", already_so=("0",)),
    *_never("retryGetRecordsInSeconds", "maxGetRecordsThreadPool"),
)
_LEASES: Final = (
    *_not_yet(
        "shardSyncIntervalMillis",
        "listShardsBackoffTimeInMillis",
        "maxListShardsRetryAttempts",
        "ignoreUnexpectedChildShards",
        "cleanupLeasesUponShardCompletion",
        "leaseTableScanTotalSegments",
    ),
    *_never("maxLeaseRenewalThreads", why="there are no renewal threads to bound"),
)
_UTILIZATION: Final = _not_yet("noOfPersistedMetricsPerWorkerMetrics")
_COORDINATION: Final = (
    *_not_yet(
        "skipShardSyncAtWorkerInitializationIfLeasesExist",
        "schedulerInitializationBackoffTimeMillis",
        "migrateAllEntitiesToLeaseTable",
        "tableMigrationCompleteBakeTimeSeconds",
    ),
    *_never("shardPrioritization", why="has no text form; the Java daemon refuses any value"),
)
_PROCESSING: Final = (
    *_not_yet("taskBackoffTimeMillis", "logWarningForTaskAfterMillis"),
    *_not_yet("metricsLevel", why="no CloudWatch metrics are sent yet", already_so=("none",)),
    *_not_yet(
        "metricsBufferTimeMillis",
        "metricsMaxQueueSize",
        "metricsEnabledDimensions",
        why="no CloudWatch metrics are sent yet",
    ),
    *_never("validateSequenceNumberBeforeCheckpointing", "processingLanguage"),
    *_never("maxActiveThreads", why="there is no thread pool to bound: no number can starve a shard"),
)
_BUILDER: Final = ("region", "fipsEnabled", "dualstackEnabled", "defaultsMode")
_CLIENTS: Final = _not_yet(
    *(f"kinesisClient.{name}" for name in _BUILDER),
    *(f"dynamoDbClient.{name}" for name in (*_BUILDER, "endpointDiscoveryEnabled", "accountIdEndpointMode")),
    *(f"cloudWatchClient.{name}" for name in (*_BUILDER, "endpointOverride")),
    "kinesisCredentialsProvider.class",
    "dynamoDBCredentialsProvider.class",
    "cloudWatchCredentialsProvider.class",
)
_OF_KCL_1: Final = (
    *_never(
        "userAgent",
        "shardPrioritizationStrategy",
        "maxCacheByteSize",
        "maxRecordsCount",
        "dataFetchingStrategy",
        "idleMillisBetweenCalls",
        "kinesisClientConfig",
        why="a property of KCL 1.x; does nothing in the Java daemon 3.x either",
    ),
    *_never(
        "skipShardSyncAtStartupIfLeasesExist",
        why="of KCL 1.x; is now skipShardSyncAtWorkerInitializationIfLeasesExist",
    ),
    *_never(
        "timestampAtInitialPositionInStream",
        why="of KCL 1.x; is now initialPositionInStreamExtended, in epoch seconds",
    ),
)

INERT: Final[dict[str, Inert]] = {
    each.name: each
    for each in (
        *_RETRIEVAL,
        *_POLLING,
        *_under("pollingConfig", _POLLING),
        *_LEASES,
        *_UTILIZATION,
        *_under("workerUtilizationAwareAssignmentConfigBean", _UTILIZATION),
        *_COORDINATION,
        *_PROCESSING,
        *_CLIENTS,
        *_OF_KCL_1,
    )
}
