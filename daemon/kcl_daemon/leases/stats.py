"""The row by which a worker shows that it lives (KCL: WorkerMetricStats).

The only place that knows the names of its attributes. CPU figures are not written yet: empty maps mean "no metric".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.table import Row, RowUpdate

_LAST_UPDATE: Final = "lut"
_STATS: Final = "sts"
_RANGES: Final = "opr"
_SUPPORT: Final = "sup"
_SUPPORT_UPDATE: Final = "slu"
_ENTITY: Final = "entityType"
_ENTITY_VALUE: Final = "WORKER_METRIC_STATS"

# Tells Java workers that this one understands the single-table layout.
_SUPPORT_CODE: Final = 1


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as its row shows it: when it last reported, in epoch seconds of its own clock."""

    worker_id: WorkerId
    last_update_s: int


def report(worker_id: WorkerId, *, now_s: int) -> RowUpdate:
    """The unconditional write by which a worker reports, in epoch seconds."""
    return RowUpdate(
        worker_id,
        put={
            _ENTITY: _ENTITY_VALUE,
            _LAST_UPDATE: now_s,
            _STATS: {},
            _RANGES: {},
            _SUPPORT: _SUPPORT_CODE,
            _SUPPORT_UPDATE: now_s,
        },
    )


def worker_from_row(row: Row, *, key_attribute: str) -> WorkerRow | None:
    """The worker in a row, None where the row is no valid report (T8.6)."""
    worker_id, updated = row.get(key_attribute), row.get(_LAST_UPDATE)
    if not isinstance(worker_id, str) or not isinstance(updated, int | Decimal):
        return None
    if row.get(_ENTITY, _ENTITY_VALUE) != _ENTITY_VALUE:
        return None
    stats, ranges = row.get(_STATS) or {}, row.get(_RANGES) or {}
    if not isinstance(stats, Mapping) or not isinstance(ranges, Mapping) or not set(stats) <= set(ranges):
        return None
    return WorkerRow(WorkerId(worker_id), int(updated))
