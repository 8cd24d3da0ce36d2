"""The part of `app` that is about this worker's own row: what writes it, and what measures the CPU."""

from __future__ import annotations

from collections.abc import Callable

from kcl_daemon.app_common import Common
from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.reporter import Reporter
from kcl_daemon.cpu.sampler import CpuSampler
from kcl_daemon.leases.stats import Incarnation


def reporter_of(
    common: Common, elector: Elector, on_other: Callable[[Incarnation], bool]
) -> tuple[Reporter, CpuSampler | None]:
    """The reporter, and the sampler where there are CPU figures to report."""
    sampler = sampler_of(common)
    reporter = Reporter(
        table=common.tables.routes.reports,
        worker_id=common.me,
        clock=common.adapters.clock,
        timings=common.periods,
        log=common.log,
        cpu_averages=None if sampler is None else sampler.averages,
        cpu_host=None if sampler is None else common.adapters.cpu_host,
        java_leader=lambda: elector.java_leader,
        meters=common.adapters.meters,
        incarnation=common.incarnation,
        on_other=on_other,
    )
    elector.on_java_leader(reporter.nudge)
    return reporter, sampler


def sampler_of(common: Common) -> CpuSampler | None:
    """What measures the CPU; None where there is no figure, or none is wanted."""
    adapters, balance = common.adapters, common.settings.balance
    if adapters.cpu is None or balance.disable_worker_metrics:
        return None
    return CpuSampler(
        cpu=adapters.cpu,
        clock=adapters.clock,
        randomness=adapters.randomness,
        log=common.log,
        capture_s=common.periods.capture_s,
        averages_most=balance.persisted_averages,
        meters=adapters.meters,
    )
