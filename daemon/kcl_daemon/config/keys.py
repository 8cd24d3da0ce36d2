"""The one table of all properties: loader and reference are made from it.

Defaults are those of `Settings`. `INERT` properties have no effect but a warning, so that a file from Java
starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.balance import BALANCE_KEYS, HANDOFF_KEYS, SHARD_KEYS, VERSION_KEYS
from kcl_daemon.config.children import CHILD_KEYS, FAILURE_KEYS
from kcl_daemon.config.kinds import (
    INT_MAX,
    LONG_MAX,
    MILLISECONDS,
    MILLISECONDS_OR_NONE,
    Key,
    command,
    name,
    start_timestamp,
    start_word,
    stream_arn,
    truth,
    whole_number,
)
from kcl_daemon.config.metrics_and_page import ADMIN_KEYS, METRICS_KEYS, file
from kcl_daemon.config.retrieval import FAN_OUT_KEYS, SCHEMA_KEYS
from kcl_daemon.config.services import CREDENTIALS_KEYS, REGION, SERVICE_KEYS
from kcl_daemon.config.spark import SPARK_KEYS
from kcl_daemon.config.streams import NAME_OF_STREAM, STREAMS_KEYS
from kcl_daemon.config.tables import TABLE_KEYS

# Names derived from it: see `checks.check_names`.
_APPLICATION_NAME: Final = name(
    r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+",
    "printable characters; 3 to 237 letters, digits, dots, dashes and underscores if tables are named "
    "after it",
)
# The key of a row, in KCL 3.5's layout beside lease and coordinator rows.
_WORKER_ID: Final = name(
    r"(?!(?:Leader|Migration3\.0|TableMigration3\.5|shardId-[0-9]+)$)[!-~]([ -~]{0,254}[!-~])?",
    "1 to 256 printable ASCII characters; not Leader, Migration3.0, TableMigration3.5 or a shard id",
)

FASTEST_READS_MS: Final = 200  # KCL: PollingConfig; Kinesis' limit for all readers of a shard


EXECUTABLE_NAME: Final = Key(
    "executableName",
    command(),
    "child.command",
    "The program and its arguments; one process runs per shard. Split at spaces only.",
    required=True,
)
APPLICATION_NAME: Final = Key(
    "applicationName",
    _APPLICATION_NAME,
    "application_name",
    "Name of the application. All workers of an application share its tables, which are named after it.",
    required=True,
)
STREAM_NAME: Final = Key(
    "streamName",
    NAME_OF_STREAM,
    "stream_name",
    "The stream to read.",
    default="required unless `streamArn`, `streamArns`, `streamNames` or `streamFilter` is set",
    required=True,
    blank_is_absent=True,
)
STREAM_ARN: Final = Key(
    "streamArn",
    stream_arn(),
    "stream_arn",
    "ARN of the stream. Replaces `streamName`; API calls use the ARN, and its region applies if "
    "`regionName` is not set. If the ARN has another region than `regionName`, or account 000000000000, "
    "only the stream name is used.",
    default="none",
    blank_is_absent=True,
)
REGION_NAME: Final = Key(
    "regionName",
    REGION,
    "endpoints.region_name",
    "Region of all AWS services.",
    default="region of `streamArn`, else from the AWS SDK",
)
WORKER_ID: Final = Key(
    "workerId",
    _WORKER_ID,
    "worker_id",
    "Name of this worker in the tables. Must be unique among running workers.",
    aliases=("workerIdentifier",),
    default="host name and 12 random hexadecimal digits",
)
STATE_FOLDER: Final = Key(
    "stateFolder",
    file(),
    "state_folder",
    "A folder on this host (in a container: on a volume) where a running daemon records its identity. "
    "After a kill, the next daemon takes over its leases at once. All daemons on a host share it.",
    default="the first writable of `$STATE_DIRECTORY` (systemd), `kcl-daemon` in `$XDG_STATE_HOME`, "
    "`~/.local/state`, `/var/lib` or `$XDG_RUNTIME_DIR`, and a folder in `/tmp`",
    extension=True,
)
INITIAL_POSITION: Final = Key(
    "initialPositionInStream",
    start_word(),
    "initial_position",
    "Where reading starts in a shard without a lease.",
)
INITIAL_POSITION_EXTENDED: Final = Key(
    "initialPositionInStreamExtended",
    start_timestamp(),
    "initial_position",
    "The same, as a time. Overrides `initialPositionInStream`.",
    default="none",
)
IDLE_TIME: Final = Key(
    "idleTimeBetweenReadsInMillis",
    MILLISECONDS_OR_NONE,
    "retrieval.idle_time_between_reads_ms",
    f"Pause between two reads of a shard. Values below {FASTEST_READS_MS} are raised to "
    f"{FASTEST_READS_MS}, and 0 means the default; both log a warning.",
    aliases=("pollingConfig.idleTimeBetweenReadsInMillis",),
)
LEADER_LEASE: Final = Key(
    "leaderLeaseMillis",
    MILLISECONDS,
    "leases.leader_lease_ms",
    "How long a leader may be silent before another worker takes over. In a fleet with no more leases "
    "than workers, up to two and a half times that, but at most 30 s. Must be the same on all workers.",
    extension=True,
)
LEADER_HEARTBEAT: Final = Key(
    "leaderHeartbeatMillis",
    MILLISECONDS,
    "leases.leader_heartbeat_ms",
    "How often the leader renews its lock. Must be less than a third of `leaderLeaseMillis`.",
    extension=True,
)
EXPAND_ENVIRONMENT: Final = Key(
    "expandEnvironment",
    truth(),
    "expand_environment",
    "Whether `${NAME}` and `${NAME:-DEFAULT}` in values are replaced by environment variables. If not, "
    "they are plain text, as in Java.",
    extension=True,
)

KEYS: Final[tuple[Key, ...]] = (
    EXECUTABLE_NAME,
    APPLICATION_NAME,
    STREAM_NAME,
    STREAM_ARN,
    *STREAMS_KEYS,
    WORKER_ID,
    STATE_FOLDER,
    REGION_NAME,
    *SERVICE_KEYS,
    *CREDENTIALS_KEYS,
    INITIAL_POSITION,
    INITIAL_POSITION_EXTENDED,  # after the other: it wins
    Key(
        "failoverTimeMillis",
        MILLISECONDS,
        "leases.failover_time_ms",
        "A lease that is not renewed for this long goes to another worker.",
    ),
    Key(
        "maxLeasesForWorker",
        whole_number(1, INT_MAX, "leases"),
        "leases.max_leases_for_worker",
        "Maximum number of leases, and so of children, of this worker.",
    ),
    Key(
        "parentShardPollIntervalMillis",
        MILLISECONDS,
        "leases.parent_shard_poll_interval_ms",
        "How often a shard checks whether its parents are finished.",
    ),
    Key(
        "workerMetricsReporterFreqInMillis",
        MILLISECONDS,
        "leases.worker_metrics_report_ms",
        "How often a worker writes its row in the worker metrics table.",
        aliases=("workerUtilizationAwareAssignmentConfigBean.workerMetricsReporterFreqInMillis",),
    ),
    Key(
        "schedulerInitializationBackoffTimeMillis",
        MILLISECONDS_OR_NONE,
        "leases.start_backoff_ms",
        "Pause between the 20 attempts to start while a service is busy or does not answer.",
    ),
    Key(
        "taskBackoffTimeMillis",
        MILLISECONDS_OR_NONE,
        "leases.task_backoff_ms",
        "First pause before a failed step at the end of a shard is retried; doubles up to 10 s. For "
        "failed children see `childRestartBackoffMillis`.",
    ),
    LEADER_LEASE,
    LEADER_HEARTBEAT,
    *TABLE_KEYS,
    *HANDOFF_KEYS,
    *BALANCE_KEYS,
    *SHARD_KEYS,
    *VERSION_KEYS,
    *SPARK_KEYS,
    *FAN_OUT_KEYS,
    Key(
        "maxRecords",
        whole_number(1, 10_000, "records"),
        "retrieval.max_records",
        "Maximum number of records in one read.",
        aliases=("pollingConfig.maxRecords",),
    ),
    IDLE_TIME,
    Key(
        "millisBehindLatestThresholdForReducedTps",
        MILLISECONDS_OR_NONE,
        "retrieval.reduced_tps_within_ms",
        "Minimum time between two reads of a shard that is less than this behind. 0: no limit.",
        aliases=("pollingConfig.millisBehindLatestThresholdForReducedTps",),
    ),
    Key(
        "maxPendingProcessRecordsInput",
        whole_number(0, INT_MAX, "answers"),
        "retrieval.prefetch_batches",
        "Reading of a shard pauses while this many answers wait for its child. 0: the next read starts "
        "only when the child is ready for it.",
        extension=True,
    ),
    Key(
        "prefetchMaxBytes",
        whole_number(1, LONG_MAX, "bytes"),
        "retrieval.prefetch_bytes",
        "Reading of a shard pauses while this much data waits for its child.",
        extension=True,
    ),
    *CHILD_KEYS,
    *FAILURE_KEYS,
    *METRICS_KEYS,
    *SCHEMA_KEYS,
    *ADMIN_KEYS,
    EXPAND_ENVIRONMENT,
)

BY_NAME: Final[dict[str, Key]] = {spelling: key for key in KEYS for spelling in (key.name, *key.aliases)}


_JAVA_NEITHER: Final = "does nothing in the Java daemon 3.x either"
_OF_KCL_1: Final = "a property of KCL 1.x; does nothing in the Java daemon 3.x either"


@dataclass(frozen=True, slots=True)
class InertProperty:
    name: str
    why: str


def _because(why: str, *names: str) -> tuple[InertProperty, ...]:
    return tuple(InertProperty(name, why) for name in names)


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

INERT: Final[dict[str, InertProperty]] = {
    each.name: each
    for each in (
        *_POLLING,
        *(InertProperty(f"pollingConfig.{each.name}", each.why) for each in _POLLING),
        *_IN_JAVA_ONLY,
        *_OLD,
        *_REMOVED,
    )
}
