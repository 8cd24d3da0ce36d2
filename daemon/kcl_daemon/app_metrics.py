"""The part of `app` that is about figures: who gathers them, who is told, and what runs beside the worker for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import anyio

from kcl_daemon.app_common import Adapters
from kcl_daemon.config.metrics_settings import MetricsLevel
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.metrics.catalog import KNOWN_COUNTS
from kcl_daemon.metrics.events import CountedLog
from kcl_daemon.metrics.exposition import Exposition
from kcl_daemon.metrics.metric import Level
from kcl_daemon.metrics.publisher import Publisher
from kcl_daemon.metrics.recorder import Recorder
from kcl_daemon.metrics.statistics import StatisticSets, Telling
from kcl_daemon.metrics.totals import Totals
from kcl_daemon.observe.snapshot import Snapshot
from kcl_daemon.ports import Clock
from kcl_daemon.retrieval.metered import MeteredFanOut, MeteredKinesis

_LEVELS: Final = {
    MetricsLevel.NONE: None,
    MetricsLevel.SUMMARY: Level.SUMMARY,
    MetricsLevel.DETAILED: Level.DETAILED,
}
_ALL: Final = "ALL"
_SWEEP_S: Final = 60.0


class Runnable(Protocol):
    """What is run: a worker."""

    async def run(self) -> None:
        """Work until the graceful stop that was asked for is done."""
        ...

    def request_stop(self) -> None:
        """Ask for the graceful stop."""
        ...


class Teller(Protocol):
    """What tells figures to somebody, beside the worker."""

    async def run(self) -> None:
        """Until the farewell."""
        ...

    async def farewell(self) -> None:
        """The rest, at the end, while `run` is still under way; a few seconds at most."""
        ...


@dataclass(slots=True)
class Telemetry:
    """The figures of one worker.

    Args:
        totals: what is counted for Prometheus and OTLP.
        snapshot: how the worker is now; to be set by whoever knows, before the first text is asked for.
    """

    totals: Totals
    snapshot: Callable[[], Snapshot | None]
    _adapters: Adapters
    _recorder: Recorder | None
    _tellers: Sequence[Teller]

    @property
    def adapters(self) -> Adapters:
        """The adapters, with everything that is asked of them counted."""
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

    def current(self) -> Snapshot | None:
        """The worker now, as far as anybody can tell."""
        return self.snapshot()

    def exposition(self) -> Exposition:
        """What writes `/metrics`; `telemetry_of` must have been told that it will be asked for."""
        return Exposition(self.totals, self.current)

    def beside(self, worker: Runnable) -> Runnable:
        """The worker to run: the same, with those beside it that tell its figures."""
        recorder = self._recorder
        if recorder is None:
            return worker
        return _Told(worker, recorder, self._tellers, self._adapters.clock)


def telemetry_of(settings: Settings, adapters: Adapters, *, serves_text: bool = False) -> Telemetry:
    """What the settings ask for; nothing is counted where nobody is told.

    Args:
        settings: of the daemon.
        adapters: as the world has them.
        serves_text: whether somebody serves `Telemetry.exposition`.

    Raises:
        ConfigurationError: OTLP is asked for, and its packages are not there.
    """
    metrics = settings.metrics
    level = _LEVELS[metrics.level] if adapters.cloudwatch is not None else None
    totals = Totals()
    if level is None and metrics.otlp_endpoint is None and not serves_text:
        return Telemetry(totals, _nothing, adapters, None, ())
    shown = None if _ALL in metrics.dimensions else frozenset(metrics.dimensions)
    statistics = StatisticSets(Telling(level, shown, settings.worker_id, metrics.queue_most))
    totals.begin(KNOWN_COUNTS)
    recorder = Recorder(adapters.clock.monotonic, statistics, totals)
    tellers: list[Teller] = []
    telemetry = Telemetry(totals, _nothing, adapters, recorder, tellers)
    if level is not None and adapters.cloudwatch is not None:
        publisher = Publisher(
            statistics,
            cloudwatch=adapters.cloudwatch,
            namespace=metrics.namespace or settings.application_name,
            buffer_s=metrics.buffer_ms / 1000,
            meters=recorder,
            clock=adapters.clock,
            log=adapters.log,
        )
        tellers.append(publisher)
    if metrics.otlp_endpoint is not None:
        tellers.append(_otlp(settings, metrics.otlp_endpoint, telemetry, recorder, adapters))
    return telemetry


def _otlp(
    settings: Settings, endpoint: str, telemetry: Telemetry, recorder: Recorder, adapters: Adapters
) -> Teller:
    try:
        from kcl_daemon.metrics.otlp import OtlpExport  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise ConfigurationError(
            f"metricsOtlpEndpoint is set but {error.name} is not installed: pip install "
            "'kcl-daemon[otlp]', or remove the property"
        ) from error
    return OtlpExport(
        endpoint,
        who={"kcl.application": settings.application_name, "service.instance.id": settings.worker_id},
        totals=telemetry.totals,
        snapshot=telemetry.current,
        period_s=settings.metrics.otlp_period_ms / 1000,
        meters=recorder,
        clock=adapters.clock,
        log=adapters.log,
    )


class _Told:
    """A worker with tellers beside it."""

    def __init__(self, worker: Runnable, recorder: Recorder, tellers: Sequence[Teller], clock: Clock) -> None:
        self._worker = worker
        self._recorder = recorder
        self._tellers = tellers
        self._clock = clock

    def request_stop(self) -> None:
        self._worker.request_stop()

    async def run(self) -> None:
        failure: Exception | None = None
        async with anyio.create_task_group() as beside:
            for teller in self._tellers:
                beside.start_soon(teller.run)
            beside.start_soon(self._sweep)
            try:
                await self._worker.run()
            except Exception as error:  # noqa: BLE001 - raised again below, when its figures have been told
                failure = error
            # Before the end of `run`, which would cut off a call under way: nobody would know whether it arrived.
            async with anyio.create_task_group() as farewells:
                for teller in self._tellers:
                    farewells.start_soon(teller.farewell)
            beside.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_S)
            self._recorder.sweep()


def _nothing() -> Snapshot | None:
    """Nobody can tell yet."""
    return None
