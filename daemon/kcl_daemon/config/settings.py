"""The typed settings of one daemon. Defaults are the Java daemon's unless a comment says why not."""

from __future__ import annotations

from dataclasses import dataclass, field

from kcl_daemon.config.balance import BalanceSettings, LeaseSettings, ShardSettings
from kcl_daemon.config.children import ChildSettings, FailureSettings
from kcl_daemon.config.metrics_and_page import AdminSettings, MetricsSettings
from kcl_daemon.config.retrieval import FanOutSettings, RetrievalSettings, SchemaSettings
from kcl_daemon.config.services import Endpoints
from kcl_daemon.config.spark import SparkSettings
from kcl_daemon.config.streams import StreamsSettings
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.shards.lineage import InitialPosition


@dataclass(frozen=True, slots=True)
class Settings:
    """`stream_name` is empty if it reads many `streams`; `state_folder` None: the default."""

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
        """Then lease rows name their streams."""
        return self.streams.are_many

    @property
    def lease_table(self) -> str:
        return self.tables.leases.name or self.application_name

    @property
    def worker_metrics_table(self) -> str:
        """KCL: DdbTableConfig; always from the application's name."""
        return self.tables.worker_metrics.name or f"{self.application_name}-WorkerMetricStats"

    @property
    def coordinator_table(self) -> str:
        return self.tables.coordinator.name or f"{self.application_name}-CoordinatorState"
