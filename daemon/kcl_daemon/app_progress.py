"""The part of the object graph that watches progress: settings in, the watchdog out."""

from __future__ import annotations

from kcl_daemon.config.settings import Settings
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.ports import Clock, Log
from kcl_daemon.progress.board import Board
from kcl_daemon.progress.rules import Limits
from kcl_daemon.progress.watchdog import Watchdog


def limits_of(settings: Settings, periods: Timings) -> Limits:
    """The limits of progress, wider where the settings make something slower."""
    house = Limits()
    child, retrieval = settings.child, settings.retrieval
    read_s = max(retrieval.idle_time_between_reads_ms, retrieval.reduced_tps_within_ms) / 1000
    ending_s = (child.shutdown_grace_ms + 3 * child.exit_grace_ms) / 1000
    return Limits(
        restart_s=house.restart_s + child.backoff_most_ms / 1000,
        kinesis_s=house.kinesis_s + 3 * read_s,
        answer_s=house.answer_s + 3 * read_s,
        lease_s=max(house.lease_s, ending_s + periods.handoff_s + periods.failover_s),
        child_stuck_s=None if child.stuck_timeout_ms is None else child.stuck_timeout_ms / 1000,
    )


def watchdog_of(settings: Settings, periods: Timings, clock: Clock, log: Log) -> Watchdog:
    """The watchdog of a worker, with its board."""
    return Watchdog(
        board=Board(),
        limits=limits_of(settings, periods),
        failover_s=periods.failover_s,
        clock=clock,
        log=log,
    )
