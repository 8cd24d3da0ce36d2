"""All metrics, for the reference and the tests."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Final

from kcl_daemon.metrics import kcl, own
from kcl_daemon.metrics.metric import Family, Labels, Metric, MetricKind, Operation


def _metrics(module: ModuleType) -> Iterator[Metric]:
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        for each in value.values() if isinstance(value, dict) else (value,):
            if isinstance(each, Metric):
                yield each
            elif isinstance(each, Operation):
                yield from (part for part in (each.success, each.time) if part is not None)


CLOUDWATCH_METRICS: Final[tuple[Metric, ...]] = tuple(_metrics(kcl))

OWN: Final[tuple[Metric, ...]] = tuple(_metrics(own))


def _known_counts() -> Iterator[tuple[Family, Labels]]:
    for each in (*CLOUDWATCH_METRICS, *OWN):
        family = each.family
        if family is None or family.from_snapshot or family.kind is not MetricKind.COUNTER:
            continue
        if {name for name, _ in each.fixed} == set(family.labels):
            yield family, each.fixed


KNOWN_COUNTS: Final[tuple[tuple[Family, Labels], ...]] = tuple(_known_counts())
"""Counts whose labels are known before anything happens."""
