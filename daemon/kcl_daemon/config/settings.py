"""The typed settings of one daemon: what a properties file means once it has been read.

Durations are milliseconds as in the file (`_ms`). Defaults are the Java daemon's unless the comment says why not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf

from kcl_daemon.config.access_settings import CredentialsSettings, ServiceSettings
from kcl_daemon.config.admin_settings import AdminSettings
from kcl_daemon.config.failure_settings import FailureSettings
from kcl_daemon.config.fan_out_settings import FanOutSettings, RetrievalMode
from kcl_daemon.config.log_settings import LogLevel
from kcl_daemon.config.metrics_settings import MetricsSettings
from kcl_daemon.config.schema_settings import SchemaSettings
from kcl_daemon.config.shard_settings import ShardSettings
from kcl_daemon.config.spark_settings import SparkSettings
from kcl_daemon.config.stream_settings import StreamsSettings
from kcl_daemon.config.table_settings import TablesSettings
from kcl_daemon.leases.client_version import ClientVersionConfig
from kcl_daemon.shards.shard import InitialPosition


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the services are, and who asks them; None: as the AWS SDK finds it (`AWS_ENDPOINT_URL*` included).

    Args:
        region_name: of all services that have none of their own.
        kinesis: address of Kinesis.
        dynamodb: address of DynamoDB.
        cloudwatch: address of CloudWatch.
        glue: address of Glue.
        credentials: as whom.
        of_kinesis: what else is particular to Kinesis.
        of_dynamodb: to DynamoDB.
        of_cloudwatch: to CloudWatch.
        of_glue: to Glue.
    """

    region_name: str | None = None
    kinesis: str | None = None
    dynamodb: str | None = None
    cloudwatch: str | None = None
    glue: str | None = None
    credentials: CredentialsSettings = field(default_factory=CredentialsSettings)
    of_kinesis: ServiceSettings = field(default_factory=ServiceSettings)
    of_dynamodb: ServiceSettings = field(default_factory=ServiceSettings)
    of_cloudwatch: ServiceSettings = field(default_factory=ServiceSettings)
    of_glue: ServiceSettings = field(default_factory=ServiceSettings)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Leases and the fleet.

    Args:
        failover_time_ms: a lease whose counter stands still for this long is free to take.
        max_leases_for_worker: a worker is given no more than these.
        parent_shard_poll_interval_ms: how often a shard looks whether its parents are finished.
        leader_lease_ms: how long a silent leader is waited for; written into the lock row, Java workers honour it. In a
            fleet at rest it is longer (`Timings.pledge`).
        leader_heartbeat_ms: how often the leader of a fleet at work shows that it lives.
        worker_metrics_report_ms: how often a worker shows that it lives.
        handoff_timeout_ms: how long a graceful hand-off may take before the lease is moved all the same.
        graceful_handoff: whether a lease that moves is handed over; else it is taken from its owner at once.
        client_version_config: whether the application comes from KCL 2.x, and how far the change has come.
        max_leases_to_steal: beside 2.x workers: of living workers in one run.
        priority_assignment: beside 2.x workers: whether leases that stood still for long are taken without regard to
            a fair share.
        start_backoff_ms: pause between two attempts to start, where a service does not answer or is busy.
        task_backoff_ms: first pause before a step at the end of a shard is tried again.
    """

    failover_time_ms: int = 10_000
    max_leases_for_worker: int = 2**31 - 1
    parent_shard_poll_interval_ms: int = 10_000
    leader_lease_ms: int = 12_000
    leader_heartbeat_ms: int = 3_000
    worker_metrics_report_ms: int = 30_000
    handoff_timeout_ms: int = 30_000
    graceful_handoff: bool = True
    client_version_config: ClientVersionConfig = ClientVersionConfig.V3X
    max_leases_to_steal: int = 1
    priority_assignment: bool = True
    start_backoff_ms: int = 1_000
    task_backoff_ms: int = 500


class AssignmentStrategy(Enum):
    """What leases are shared out by; the values are KCL's."""

    WORKER_UTILIZATION_AWARE = "WORKER_UTILIZATION_AWARE"
    LEASE_COUNT_BASED = "LEASE_COUNT_BASED"


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """How the leader shares out leases; the leader's settings count for all workers.

    Args:
        strategy: by how busy the workers are, or by number of leases.
        disable_worker_metrics: report no CPU figures; this worker is judged by its throughput.
        capture_ms: how often CPU is measured.
        max_throughput_per_host_kbps: a worker above it is given nothing more, in KiB per second.
        dampening_percentage: how much of what a worker has too much leaves it in one balancing run.
        rebalance_threshold_percentage: leases move when a worker is further than this from its fair share.
        allow_throughput_overshoot: whether the smallest lease may move where each is more than the excess.
        variance_balancing_frequency: balance in every so-many-th assignment interval.
        worker_metrics_ema_alpha: weight of the newer value in the moving average of a worker's figures.
        assignment_interval_ms: how long KCL's leader waits between two runs; with the frequency it sets how often
            load is balanced here. None: twice the fail-over time.
        stale_worker_s: rows of workers that have been silent for longer are deleted.
        persisted_averages: how many averages of CPU a worker's row holds.
    """

    strategy: AssignmentStrategy = AssignmentStrategy.WORKER_UTILIZATION_AWARE
    disable_worker_metrics: bool = False
    capture_ms: int = 1_000
    max_throughput_per_host_kbps: float = inf
    dampening_percentage: int = 60
    rebalance_threshold_percentage: int = 10
    allow_throughput_overshoot: bool = True
    variance_balancing_frequency: int = 3
    worker_metrics_ema_alpha: float = 0.5
    assignment_interval_ms: int | None = None
    stale_worker_s: float = 86_400.0
    persisted_averages: int = 10


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    """How shards are read.

    Args:
        max_records: Limit of GetRecords, 1 to 10,000.
        idle_time_between_reads_ms: pause between two reads of a shard that has nothing more to give.
        prefetch_bytes: no further read of a shard while this much waits for its child.
        prefetch_batches: no further read of a shard while this many answers wait for its child; 0: none before the
            child waits for it.
        prefetch_records: no further read of a shard while this many records wait for its child.
        reduced_tps_within_ms: a shard less than this behind is read no more often than that; 0: no such rule.
        mode: by fan-out or by polling; all else here is about polling.
    """

    max_records: int = 10_000
    idle_time_between_reads_ms: int = 1_500
    prefetch_bytes: int = 8 * 1024 * 1024
    prefetch_batches: int = 4
    prefetch_records: int = 30_000
    reduced_tps_within_ms: int = 0
    mode: RetrievalMode = RetrievalMode.POLLING


class ChildProtocol(Enum):
    """Which generation of the line protocol children speak."""

    CURRENT = "CURRENT"
    KCL_1_8 = "KCL_1_8"
    KCL_1_0 = "KCL_1_0"


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """The child processes.

    Args:
        command: program and arguments, as `executableName` splits on spaces.
        timeout_s: how long a child may take for one answer; None: for ever.
        stuck_timeout_ms: how long a child may work on one action without a new checkpoint; None: for ever.
        shutdown_grace_ms: how long a child may take in all to finish when the daemon stops, before it is ended.
        call_for_empty: whether empty batches are delivered.
        backoff_first_ms: wait before the first restart of a failed child; doubles with each failure in a row.
        backoff_most_ms: longest wait before a restart.
        exit_grace_ms: how long a child may take to end after its stdin was closed, and again after SIGTERM.
        protocol: which generation of the protocol children speak.
        warn_after_ms: an action that takes a child longer is told in the log; None: none is.
        user: `USER` or `USER:GROUP` that children run as; None: as the daemon.
        memory_limit_bytes: address space of each process of a child; None: as the daemon's.
        open_files_limit: open files of each process of a child; None: as the daemon's.
        processes_limit: processes of the user that a child may see before it can start no more; None: as the daemon's.
        inherit_credentials: whether children find the daemon's AWS credentials in their environment.
        stderr_level: of the log events that a child's stderr becomes.
        log_messages: whether the `log` messages of children go to the log.
    """

    command: tuple[str, ...]
    timeout_s: float | None = None
    shutdown_grace_ms: int = 20_000
    call_for_empty: bool = False
    backoff_first_ms: int = 500
    backoff_most_ms: int = 60_000
    exit_grace_ms: int = 5_000
    protocol: ChildProtocol = ChildProtocol.CURRENT
    warn_after_ms: int | None = None
    user: str | None = None
    memory_limit_bytes: int | None = None
    open_files_limit: int | None = None
    processes_limit: int | None = None
    inherit_credentials: bool = True
    stuck_timeout_ms: int | None = None
    stderr_level: LogLevel = "info"
    log_messages: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a daemon needs to know; `stream_name` is empty where it reads many `streams`.

    `state_folder` is None where the daemon chooses one (`state_folder.default_folders`).
    """

    application_name: str
    stream_name: str
    child: ChildSettings
    worker_id: str
    stream_arn: str | None = None
    streams: StreamsSettings = field(default_factory=StreamsSettings)
    initial_position: InitialPosition = field(default_factory=InitialPosition)
    endpoints: Endpoints = field(default_factory=Endpoints)
    leases: LeaseSettings = field(default_factory=LeaseSettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    shards: ShardSettings = field(default_factory=ShardSettings)
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    fan_out: FanOutSettings = field(default_factory=FanOutSettings)
    tables: TablesSettings = field(default_factory=TablesSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    failures: FailureSettings = field(default_factory=FailureSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    schemas: SchemaSettings = field(default_factory=SchemaSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    expand_environment: bool = False
    state_folder: str | None = None

    @property
    def reads_many(self) -> bool:
        """Whether there may be many streams, which the rows of leases tell then."""
        return self.streams.are_many

    @property
    def lease_table(self) -> str:
        """Name of the lease table."""
        return self.tables.leases.name or self.application_name

    @property
    def worker_metrics_table(self) -> str:
        """Name of the table of worker metric rows (KCL: DdbTableConfig; from the application's name, not the table's)."""
        return self.tables.worker_metrics.name or f"{self.application_name}-WorkerMetricStats"

    @property
    def coordinator_table(self) -> str:
        """Name of the table of coordinator rows (KCL: DdbTableConfig)."""
        return self.tables.coordinator.name or f"{self.application_name}-CoordinatorState"
