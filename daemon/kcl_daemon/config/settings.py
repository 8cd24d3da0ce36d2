"""All properties: loader and reference are made from the fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kcl_daemon.assignment.plan import LeaseLimits
from kcl_daemon.config.balance import BalanceSettings, CapacitySettings, LeaseSettings, ShardSettings
from kcl_daemon.config.changes import ChangesSettings
from kcl_daemon.config.children import ChildSettings, ConcurrencySettings, FailureSettings
from kcl_daemon.config.kinds import (
    Key,
    RunUntil,
    file,
    keys,
    keys_of,
    name,
    ours,
    run_until,
    start_timestamp,
    start_word,
    stream_arn,
    truth,
)
from kcl_daemon.config.landing import LandingSettings
from kcl_daemon.config.metrics_and_page import AdminSettings, MetricsSettings
from kcl_daemon.config.retrieval import DeliverySettings, FanOutSettings, RetrievalSettings, SchemaSettings
from kcl_daemon.config.services import Endpoints
from kcl_daemon.config.spark import SparkSettings
from kcl_daemon.config.streams import NAME_OF_STREAM, StreamsSettings
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.ports import StreamRef
from kcl_daemon.shards.lineage import InitialPosition
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
_STREAM_NAME: Final = Key(
    "streamName",
    NAME_OF_STREAM,
    default="required unless `streamArn`, `streamArns`, `streamNames`, `streamFilter` or `tableName.source` is set",
    required=True,
    blank_is_absent=True,
)
_WORKER_ID_KEY: Final = Key(
    "workerId",
    _WORKER_ID,
    aliases=("workerIdentifier",),
    default="host name and 12 random hexadecimal digits",
)
_START_AT: Final = Key(
    "initialPositionInStreamExtended",
    start_timestamp(),
    meaning="The first position as a time. Overrides `initialPositionInStream`.",
    default="none",
)
_OF_POLLING: Final = ("retryGetRecordsInSeconds", "maxGetRecordsThreadPool")
_NAMES_BY_REASON: Final[dict[str, tuple[str, ...]]] = {
    "only makes retrievalMode=DEFAULT mean POLLING, as in the Java daemon 3.x": (
        *_OF_POLLING,
        *(f"pollingConfig.{each}" for each in _OF_POLLING),
    ),
    "there is no thread pool to limit": ("maxActiveThreads",),
    "there are no renewal threads to bound": ("maxLeaseRenewalThreads",),
    "leases of child shards are created when their parents end; the leader looks for holes every "
    "leasesRecoveryAuditorExecutionFrequencyMillis": ("shardSyncIntervalMillis",),
    "at start, existing leases are never compared with the shards, only checked for holes": (
        "skipShardSyncAtWorkerInitializationIfLeasesExist",
    ),
    "a failed list of shards is retried after a second, then with growing pauses, without limit": (
        "listShardsBackoffTimeInMillis",
        "maxListShardsRetryAttempts",
    ),
    "workers query the index by owner; a scan of the table goes page by page and blocks nothing": (
        "leaseTableScanTotalSegments",
    ),
    "the daemon has its own timeouts and retries": (
        "kinesisClient.defaultsMode",
        "dynamoDbClient.defaultsMode",
        "cloudWatchClient.defaultsMode",
    ),
    "does nothing in the Java daemon 3.x either": (
        "validateSequenceNumberBeforeCheckpointing",
        "processingLanguage",
    ),
    "a property of KCL 1.x; does nothing in the Java daemon 3.x either": (
        "userAgent",
        "shardPrioritizationStrategy",
        "maxCacheByteSize",
        "maxRecordsCount",
        "dataFetchingStrategy",
        "idleMillisBetweenCalls",
        "kinesisClientConfig",
    ),
    "of KCL 1.x; now skipShardSyncAtWorkerInitializationIfLeasesExist": (
        "skipShardSyncAtStartupIfLeasesExist",
    ),
    "of KCL 1.x; now initialPositionInStreamExtended, in epoch seconds": (
        "timestampAtInitialPositionInStream",
    ),
    "removed; subscriptions always use HTTP/1.1": ("fanoutHttpVersion",),
}
INERT: Final = {name: why for why, names in _NAMES_BY_REASON.items() for name in names}
GONE: Final = {("childProtocol", "KCL_1_0"): "children of KCL 1.0 are no longer supported; CURRENT is used"}


def nearest(target: str) -> str:
    return max((each for each in _ORDER if f"{target}.".startswith(f"{each}.")), key=len)


def place_of(target: str) -> int:
    return _ORDER.index(nearest(target))


@dataclass(frozen=True, slots=True)
class Settings:
    application_name: str = field(metadata=keys(Key("applicationName", _APPLICATION_NAME, required=True)))
    """Name of the application. All workers of an application share its tables, which are named after it."""
    stream_name: str = field(metadata=keys(_STREAM_NAME))
    """The stream to read."""
    child: ChildSettings
    worker_id: str = field(metadata=keys(_WORKER_ID_KEY))
    """Name of this worker in the tables. Must be unique among running workers."""
    stream_arn: str | None = field(
        default=None, metadata=keys(Key("streamArn", stream_arn(), blank_is_absent=True))
    )
    """ARN of the stream, of Kinesis or of a DynamoDB table. Replaces `streamName`; API calls use the ARN, and its region
    applies if `regionName` is not set. If the ARN of a Kinesis stream has another region than `regionName`, or account
    000000000000, only the stream name is used."""
    streams: StreamsSettings = field(default_factory=StreamsSettings)
    changes: ChangesSettings = field(default_factory=ChangesSettings)
    initial_position: InitialPosition = field(
        default_factory=InitialPosition,
        metadata=keys(Key("initialPositionInStream", start_word()), _START_AT),  # the later one wins
    )
    """Where reading starts in a shard without a lease."""
    run_until: RunUntil | None = ours("runUntil", run_until(), None)
    """Where a job ends: `tip`, the time at which it begins, or a time. Records that arrived earlier are processed;
    when all are, the daemon ends with exit code 0. See [Jobs that end](flow.md#jobs-that-end). Needs a
    first position other than `LATEST`."""
    sole_worker: bool = False
    """A second process with this worker id refuses to start, where others wait."""
    endpoints: Endpoints = field(default_factory=Endpoints)
    leases: LeaseSettings = field(default_factory=LeaseSettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    capacity: CapacitySettings = field(default_factory=CapacitySettings)
    shards: ShardSettings = field(default_factory=ShardSettings)
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    fan_out: FanOutSettings = field(default_factory=FanOutSettings)
    tables: TablesSettings = field(default_factory=TablesSettings)
    landing: LandingSettings = field(default_factory=LandingSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)
    failures: FailureSettings = field(default_factory=FailureSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    schemas: SchemaSettings = field(default_factory=SchemaSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    expand_environment: bool = ours("expandEnvironment", truth(), default=False)
    """Whether `${NAME}` and `${NAME:-DEFAULT}` in values are replaced by environment variables. If not, they
    are plain text, as in Java."""
    state_folder: str | None = ours(
        "stateFolder",
        file(),
        None,
        shown="the first writable of `$STATE_DIRECTORY` (systemd), `kcl-daemon` in `$XDG_STATE_HOME`, "
        "`~/.local/state`, `/var/lib` or `$XDG_RUNTIME_DIR`, and a folder in `/tmp`",
    )
    """A folder on this host (in a container: on a volume) where a running daemon records its identity. After
    a kill, the next daemon takes over its leases at once. All daemons on a host share it."""

    @property
    def reads_many(self) -> bool:
        return self.streams.are_many

    @property
    def reads_changes(self) -> bool:
        return any(each.source.has_tables for each in self.stream_refs)

    @property
    def stream_refs(self) -> tuple[StreamRef, ...]:
        """With a filter there are others."""
        if not self.reads_many:
            return (self.single_stream,)
        return tuple(StreamRef(each.name, each.arn, table=each.table) for each in self.streams.listed)

    @property
    def single_stream(self) -> StreamRef:
        return StreamRef(self.stream_name, self.stream_arn, table=self.changes.table)

    @property
    def bundled(self) -> str | None:
        if self.landing.uri is not None:
            return "landing"
        return None if self.spark.pipeline is None else "sparkPipeline"

    @property
    def lease_limits(self) -> LeaseLimits:
        return LeaseLimits(self.leases.max_leases_for_worker)

    @property
    def lease_table(self) -> str:
        return self.tables.leases.name or self.application_name

    @property
    def worker_metrics_table(self) -> str:
        return self.tables.worker_metrics.name or f"{self.application_name}-WorkerMetricStats"

    @property
    def coordinator_table(self) -> str:
        return self.tables.coordinator.name or f"{self.application_name}-CoordinatorState"


DEFAULTS: Final = Settings(application_name="", stream_name="", child=ChildSettings(command=()), worker_id="")

KEYS: Final[tuple[Key, ...]] = tuple(sorted(keys_of(DEFAULTS), key=lambda key: place_of(key.target)))
BY_NAME: Final[dict[str, Key]] = {spelling: key for key in KEYS for spelling in (key.name, *key.aliases)}
