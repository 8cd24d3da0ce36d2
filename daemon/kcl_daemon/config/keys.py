"""The one table of all properties that the daemon acts on.

Each key says how its text is read, what is allowed, what it means and which field of `Settings` it fills; loader and
reference are made from this table. Defaults are those of `Settings`. Keys without an effect are in `inert`.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.config.credentials import CREDENTIALS_KEYS
from kcl_daemon.config.key import MILLISECONDS, MILLISECONDS_OR_NONE, Key
from kcl_daemon.config.keys_admin import ADMIN_KEYS, file
from kcl_daemon.config.keys_balance import BALANCE_KEYS, HANDOFF_KEYS
from kcl_daemon.config.keys_children import CHILD_KEYS
from kcl_daemon.config.keys_failures import FAILURE_KEYS
from kcl_daemon.config.keys_fan_out import FAN_OUT_KEYS
from kcl_daemon.config.keys_metrics import METRICS_KEYS
from kcl_daemon.config.keys_schemas import SCHEMA_KEYS
from kcl_daemon.config.keys_services import REGION, SERVICE_KEYS
from kcl_daemon.config.keys_shards import SHARD_KEYS
from kcl_daemon.config.keys_spark import SPARK_KEYS
from kcl_daemon.config.keys_streams import NAME_OF_STREAM, STREAMS_KEYS
from kcl_daemon.config.keys_tables import TABLE_KEYS
from kcl_daemon.config.keys_versions import VERSION_KEYS
from kcl_daemon.config.kinds import (
    INT_MAX,
    LONG_MAX,
    command,
    name,
    start_timestamp,
    start_word,
    stream_arn,
    truth,
    whole_number,
)

# What it must be like for those that are named after it is in `checks_names`.
_APPLICATION_NAME: Final = name(
    r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+",
    "printable characters; where tables are named after it, 3 to 237 letters, digits, dots, dashes and underlines",
)
# It is the key of a row, in the layout of KCL 3.5 beside leases and coordinator rows.
_WORKER_ID: Final = name(
    r"(?!(?:Leader|Migration3\.0|TableMigration3\.5|shardId-[0-9]+)$)[!-~]([ -~]{0,254}[!-~])?",
    "1 to 256 printable ASCII characters; not Leader, Migration3.0, TableMigration3.5 or a shard's id",
)

FASTEST_READS_MS: Final = (
    200  # KCL: PollingConfig; five reads a second is what Kinesis allows all readers of a shard
)


EXECUTABLE_NAME: Final = Key(
    "executableName",
    command(),
    "child.command",
    "Program and arguments that are run for each shard. Split at spaces only.",
    required=True,
)
APPLICATION_NAME: Final = Key(
    "applicationName",
    _APPLICATION_NAME,
    "application_name",
    "Name of the application; its workers share the tables that are named after it.",
    required=True,
)
STREAM_NAME: Final = Key(
    "streamName",
    NAME_OF_STREAM,
    "stream_name",
    "The stream to read.",
    default="required where there is none of `streamArn`, `streamArns`, `streamNames` and `streamFilter`",
    required=True,
    blank_is_absent=True,
)
STREAM_ARN: Final = Key(
    "streamArn",
    stream_arn(),
    "stream_arn",
    "ARN of the stream. Its name replaces `streamName`, calls are made with the ARN, and its region is used where "
    "`regionName` is absent. Of an ARN of another region than `regionName`, or of account 000000000000, only the name "
    "is used.",
    default="none",
    blank_is_absent=True,
)
REGION_NAME: Final = Key(
    "regionName",
    REGION,
    "endpoints.region_name",
    "Region of all services.",
    default="that of `streamArn`, else as the AWS SDK finds it",
)
WORKER_ID: Final = Key(
    "workerId",
    _WORKER_ID,
    "worker_id",
    "Name of this worker in the tables. Must differ between running workers.",
    aliases=("workerIdentifier",),
    default="host name and 12 random hexadecimal digits",
)
STATE_FOLDER: Final = Key(
    "stateFolder",
    file(),
    "state_folder",
    "A folder of this host (in a container: a volume) in which a running daemon leaves word of itself, so that the next one "
    "takes up at once what it held when it was killed. Shared by all daemons of the host.",
    default="`$STATE_DIRECTORY` (systemd), else `kcl-daemon` in `$XDG_STATE_HOME`, `~/.local/state`, `/var/lib` or "
    "`$XDG_RUNTIME_DIR`, else a folder in `/tmp`: the first that can be written",
    extension=True,
)
INITIAL_POSITION: Final = Key(
    "initialPositionInStream",
    start_word(),
    "initial_position",
    "Where reading starts in a shard that has no lease yet.",
)
INITIAL_POSITION_EXTENDED: Final = Key(
    "initialPositionInStreamExtended",
    start_timestamp(),
    "initial_position",
    "The same as a time; wins over `initialPositionInStream`.",
    default="none",
)
IDLE_TIME: Final = Key(
    "idleTimeBetweenReadsInMillis",
    MILLISECONDS_OR_NONE,
    "retrieval.idle_time_between_reads_ms",
    f"Pause between two reads of a shard. Less than {FASTEST_READS_MS} is raised to that, and 0 is the default; both with a "
    "warning.",
    aliases=("pollingConfig.idleTimeBetweenReadsInMillis",),
)
LEADER_LEASE: Final = Key(
    "leaderLeaseMillis",
    MILLISECONDS,
    "leases.leader_lease_ms",
    "How long a silent leader is waited for before another worker takes over; up to two and a half times that, but no "
    "more than 30 s, in a fleet with no more leases than workers. The same on all workers.",
    extension=True,
)
LEADER_HEARTBEAT: Final = Key(
    "leaderHeartbeatMillis",
    MILLISECONDS,
    "leases.leader_heartbeat_ms",
    "How often the leader shows that it lives. Less than a third of `leaderLeaseMillis`.",
    extension=True,
)
EXPAND_ENVIRONMENT: Final = Key(
    "expandEnvironment",
    truth(),
    "expand_environment",
    "Whether `${NAME}` and `${NAME:-DEFAULT}` in values stand for variables of the environment. If not, they are text, as "
    "in Java.",
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
        "A lease that has not been renewed for this long is given to another worker.",
    ),
    Key(
        "maxLeasesForWorker",
        whole_number(1, INT_MAX, "leases"),
        "leases.max_leases_for_worker",
        "Most leases, and so most children, that this worker holds.",
    ),
    Key(
        "parentShardPollIntervalMillis",
        MILLISECONDS,
        "leases.parent_shard_poll_interval_ms",
        "How often a shard looks whether its parents are finished.",
    ),
    Key(
        "workerMetricsReporterFreqInMillis",
        MILLISECONDS,
        "leases.worker_metrics_report_ms",
        "How often a worker writes its row in the table of workers.",
        aliases=("workerUtilizationAwareAssignmentConfigBean.workerMetricsReporterFreqInMillis",),
    ),
    Key(
        "schedulerInitializationBackoffTimeMillis",
        MILLISECONDS_OR_NONE,
        "leases.start_backoff_ms",
        "Pause between two of the 20 attempts to start, where a service is busy or does not answer.",
    ),
    Key(
        "taskBackoffTimeMillis",
        MILLISECONDS_OR_NONE,
        "leases.task_backoff_ms",
        "First pause before a failed step at the end of a shard is tried again; doubles up to 10 s. For failed children "
        "see `childRestartBackoffMillis`.",
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
        "Most records in one read.",
        aliases=("pollingConfig.maxRecords",),
    ),
    IDLE_TIME,
    Key(
        "millisBehindLatestThresholdForReducedTps",
        MILLISECONDS_OR_NONE,
        "retrieval.reduced_tps_within_ms",
        "A shard less than this behind is read no more often than that. 0: no such rule.",
        aliases=("pollingConfig.millisBehindLatestThresholdForReducedTps",),
    ),
    Key(
        "maxPendingProcessRecordsInput",
        whole_number(0, INT_MAX, "answers"),
        "retrieval.prefetch_batches",
        "No further read of a shard while this many answers wait for its child. 0: none before the child waits for it.",
        extension=True,
    ),
    Key(
        "prefetchMaxBytes",
        whole_number(1, LONG_MAX, "bytes"),
        "retrieval.prefetch_bytes",
        "No further read of a shard while this much waits for its child.",
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
