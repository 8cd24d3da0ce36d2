"""Counts what the log is told: warnings and errors by event, and the few events that have a metric of their own.

One place for all that is rare enough to be an event. Owns which event is which metric; the log itself is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcl_daemon.metrics import ours
from kcl_daemon.metrics.metric import Metric
from kcl_daemon.ports import Log
from kcl_daemon.ports_metrics import Meters

OF_EVENTS: Final[Mapping[str, Metric]] = {
    "shard_stalled": ours.STALLS,
    "child_started": ours.CHILDREN_STARTED,
    "child_failed": ours.CHILDREN_FAILED,
    "consumer_crashed": ours.CRASHES,
    "checkpoint_refused": ours.REFUSED,
    "lease_row_malformed": ours.MALFORMED_ROWS,
    "aggregate_malformed": ours.MALFORMED_AGGREGATES,
    "position_trimmed": ours.TRIMMED,
    "child_stray_output": ours.STRAY_LINES,
    "record_skipped": ours.SKIPPED,
    "record_set_aside": ours.DEAD_LETTERS,
}
"""The metric of an event, whatever its level."""


class CountedLog:
    """A log that is counted."""

    def __init__(self, log: Log, meters: Meters) -> None:
        self._log = log
        self._meters = meters

    def bind(self, **fields: object) -> CountedLog:
        """As the port says."""
        return CountedLog(self._log.bind(**fields), self._meters)

    def debug(self, event: str, /, **fields: object) -> object:
        """As the port says."""
        self._count(event)
        return self._log.debug(event, **fields)

    def info(self, event: str, /, **fields: object) -> object:
        """As the port says."""
        self._count(event)
        return self._log.info(event, **fields)

    def warning(self, event: str, /, **fields: object) -> object:
        """As the port says."""
        self._count(event)
        self._meters.add(ours.EVENTS, level="warning", event=event)
        return self._log.warning(event, **fields)

    def error(self, event: str, /, **fields: object) -> object:
        """As the port says."""
        self._count(event)
        self._meters.add(ours.EVENTS, level="error", event=event)
        return self._log.error(event, **fields)

    def _count(self, event: str) -> None:
        metric = OF_EVENTS.get(event)
        if metric is not None:
            self._meters.add(metric)
