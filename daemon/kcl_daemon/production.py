"""The adapters of a real daemon, and exporters that run beside the worker."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import anyio
from anyio import to_thread

from kcl_daemon.app import Adapters
from kcl_daemon.aws.build import (
    build_schemas,
    build_tables,
    build_transactions,
    open_kinesis_client,
    open_sources,
    open_table_scan,
    open_update_item,
)
from kcl_daemon.aws.cloudwatch import open_cloudwatch
from kcl_daemon.aws.dead_letters import open_remote_dead_letters
from kcl_daemon.aws.session import open_clients, unknown_regions
from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.children.start import options_of
from kcl_daemon.config.children import DeadLetterStore, PoisonRecordPolicy
from kcl_daemon.config.metrics_and_page import MetricsLevel
from kcl_daemon.config.settings import Settings
from kcl_daemon.consumer.dead_letter_file import DeadLetterFile
from kcl_daemon.cpu.sources import choose_cpu, metadata_client
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.metrics.catalog import KNOWN_COUNTS
from kcl_daemon.metrics.metric import MetricLevel
from kcl_daemon.ports import Clock, DeadLetters, Log
from kcl_daemon.retrieval.readers import MeteredFanOut, MeteredKinesis
from kcl_daemon.state_folder import HostFolder, default_folders
from kcl_daemon.system import ServiceClock, SystemClock, SystemRandomness
from kcl_daemon.telemetry.cloudwatch import CloudWatchExporter, CloudWatchOptions, StatisticSets
from kcl_daemon.telemetry.prometheus import PrometheusExposition, Totals
from kcl_daemon.telemetry.recorder import CountedLog, MetricsRecorder
from kcl_daemon.telemetry.snapshot import Snapshot
from kcl_daemon.transport.event_stream import HttpFanOut


@asynccontextmanager
async def real_adapters(settings: Settings, log: Log) -> AsyncGenerator[Adapters, None]:
    """On closing, all children end.

    Raises:
        ConfigurationError: region, endpoint, profile or dead letter file cannot be used; nothing was touched.
        AccessDenied: there are no credentials.
    """
    clock, service_clock = SystemClock(), ServiceClock()
    for name, nearest in await to_thread.run_sync(unknown_regions, settings.endpoints):
        log.warning("region_unknown", region=name, nearest=nearest)
    async with (
        open_clients(
            settings.endpoints, glue=settings.schemas.are_resolved, changes=settings.reads_changes
        ) as clients,
        open_kinesis_client(clients, clock, on_date=service_clock.learn) as client,
        open_table_scan(clients, clock) as scan,
        open_sources(
            settings, clients, client, service_clock, scan=scan, log=log, on_date=service_clock.learn
        ) as kinesis,
        open_update_item(clients, clock) as update_item,
        _dead_letters(settings) as dead_letters,
        open_cloudwatch(settings, clients, clock, log) as cloudwatch,
        _state_folder(settings, log) as folder,
        ProcessChildren(
            settings.child.command,
            log,
            clock,
            options_of(
                settings.child,
                # A rejected record must be of the batch that is open, and so must one that children fail at.
                finish_batches=settings.failures.poison is not PoisonRecordPolicy.RETRY
                or settings.failures.dead_letters is not None,
            ),
            kept_open_by_guard=lambda: folder.lock_file,
        ) as children,
    ):
        choice = choose_cpu(root=Path("/"), environment=os.environ, get=metadata_client(), clock=clock)
        log.info(
            "cpu_figure_chosen", source=None if choice.cpu is None else choice.cpu.name, reason=choice.why
        )
        yield Adapters(
            clock=clock,
            randomness=SystemRandomness(),
            kinesis=kinesis,
            scan=scan,
            tables=build_tables(settings, clients, clock, update_item),
            transactions=build_transactions(clients),
            children=children,
            log=log,
            cpu=choice.cpu,
            kinesis_clock=service_clock,
            cpu_host=choice.host,
            fan_out=HttpFanOut(client),
            schemas=build_schemas(clients),
            dead_letters=dead_letters,
            cloudwatch=cloudwatch,
            state_folder=folder,
            evidence=folder,
        )


@asynccontextmanager
async def _state_folder(settings: Settings, log: Log) -> AsyncGenerator[HostFolder, None]:
    given = settings.state_folder
    endpoints = settings.endpoints
    folder = HostFolder(
        default_folders(os.environ) if given is None else (Path(given),),
        "\n".join(
            (
                settings.application_name,
                settings.lease_table,
                endpoints.of_dynamodb.region_name or endpoints.region_name or "",
                endpoints.dynamodb or "",
            )
        ),
        log,
    )
    try:
        yield folder
    finally:
        folder.close()


@asynccontextmanager
async def _dead_letters(settings: Settings) -> AsyncGenerator[DeadLetters | None, None]:
    destination, overflow = settings.failures.dead_letters, settings.failures.dead_letter_overflow
    if destination is None:
        yield None
    elif destination.box is DeadLetterStore.FILE:
        file = DeadLetterFile(Path(destination.address))
        await file.prepare()
        yield file
    else:
        async with open_remote_dead_letters(destination, settings.endpoints, overflow) as letters:
            yield letters


_LEVELS: Final = {
    MetricsLevel.NONE: None,
    MetricsLevel.SUMMARY: MetricLevel.SUMMARY,
    MetricsLevel.DETAILED: MetricLevel.DETAILED,
}
_ALL: Final = "ALL"
_SWEEP_S: Final = 60.0


class MeteredWorker(Protocol):
    async def run(self) -> None: ...

    def request_stop(self) -> None: ...


class Exporter(Protocol):
    async def run(self) -> None: ...

    async def shutdown(self) -> None:
        """Publish the rest within a few seconds, while `run` still runs."""
        ...


@dataclass(frozen=True, slots=True)
class Telemetry:
    _totals: Totals
    _snapshot: Callable[[], Snapshot | None]
    _adapters: Adapters
    _recorder: MetricsRecorder | None
    _exporters: Sequence[Exporter]

    @property
    def adapters(self) -> Adapters:
        """Every call is counted."""
        recorder, adapters = self._recorder, self._adapters
        if recorder is None:
            return adapters
        fan_out = adapters.fan_out
        return replace(
            adapters,
            meters=recorder,
            log=CountedLog(adapters.log, recorder),
            kinesis=MeteredKinesis(adapters.kinesis, recorder),
            fan_out=None if fan_out is None else MeteredFanOut(fan_out, recorder),
        )

    def exposition(self) -> PrometheusExposition:
        """Needs `serves_metrics` at `telemetry_of`."""
        return PrometheusExposition(self._totals, self._snapshot)

    def background(self, worker: MeteredWorker) -> MeteredWorker:
        recorder = self._recorder
        if recorder is None:
            return worker
        return _WorkerWithExporters(worker, recorder, self._exporters, self._adapters.clock)


def telemetry_of(
    settings: Settings,
    adapters: Adapters,
    *,
    snapshot: Callable[[], Snapshot | None],
    serves_metrics: bool = False,
) -> Telemetry:
    """Counts nothing if nothing is exported.

    `snapshot` is first called when figures are exported. `serves_metrics`: `exposition` is served. Raises
    ConfigurationError if OTLP packages are missing.
    """
    metrics = settings.metrics
    level = _LEVELS[metrics.level] if adapters.cloudwatch is not None else None
    totals = Totals()
    if level is None and metrics.otlp_endpoint is None and not serves_metrics:
        return Telemetry(totals, snapshot, adapters, None, ())
    shown = None if _ALL in metrics.dimensions else frozenset(metrics.dimensions)
    statistics = StatisticSets(CloudWatchOptions(level, shown, settings.worker_id, metrics.queue_most))
    totals.begin(KNOWN_COUNTS)
    recorder = MetricsRecorder(adapters.clock.monotonic, statistics, totals)
    exporters: list[Exporter] = []
    if level is not None and adapters.cloudwatch is not None:
        publisher = CloudWatchExporter(
            statistics,
            cloudwatch=adapters.cloudwatch,
            namespace=metrics.namespace or settings.application_name,
            buffer_s=metrics.buffer_ms / 1000,
            meters=recorder,
            clock=adapters.clock,
            log=adapters.log,
        )
        exporters.append(publisher)
    if metrics.otlp_endpoint is not None:
        exporters.append(
            _otlp(
                settings,
                metrics.otlp_endpoint,
                totals=totals,
                snapshot=snapshot,
                recorder=recorder,
                adapters=adapters,
            )
        )
    return Telemetry(totals, snapshot, adapters, recorder, exporters)


def _otlp(
    settings: Settings,
    endpoint: str,
    *,
    totals: Totals,
    snapshot: Callable[[], Snapshot | None],
    recorder: MetricsRecorder,
    adapters: Adapters,
) -> Exporter:
    try:
        from kcl_daemon.telemetry.otlp import OtlpExporter  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise ConfigurationError(
            f"metricsOtlpEndpoint is set but {error.name} is not installed: pip install "
            "'kcl-daemon[otlp]', or remove the property"
        ) from error
    return OtlpExporter(
        endpoint,
        who={"kcl.application": settings.application_name, "service.instance.id": settings.worker_id},
        totals=totals,
        snapshot=snapshot,
        period_s=settings.metrics.otlp_period_ms / 1000,
        meters=recorder,
        clock=adapters.clock,
        log=adapters.log,
    )


class _WorkerWithExporters:
    def __init__(
        self, worker: MeteredWorker, recorder: MetricsRecorder, exporters: Sequence[Exporter], clock: Clock
    ) -> None:
        self._worker = worker
        self._recorder = recorder
        self._exporters = exporters
        self._clock = clock

    def request_stop(self) -> None:
        self._worker.request_stop()

    async def run(self) -> None:
        failure: Exception | None = None
        async with anyio.create_task_group() as background:
            for exporter in self._exporters:
                background.start_soon(exporter.run)
            background.start_soon(self._sweep)
            try:
                await self._worker.run()
            except Exception as error:  # noqa: BLE001 - raised again below, when its figures have been told
                failure = error
            # To cancel `run` would cut off a call: nobody would know whether it arrived.
            async with anyio.create_task_group() as shutdowns:
                for exporter in self._exporters:
                    shutdowns.start_soon(exporter.shutdown)
            background.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_S)
            self._recorder.sweep()
