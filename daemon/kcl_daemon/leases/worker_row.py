"""The row in which a worker reports that it lives and how busy it is (KCL: WorkerMetricStats).

The attributes `daemon...` are ours; Java keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Final, NewType

from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Conditions, Equals, Present, Row, RowUpdate, Value

MetricName = NewType("MetricName", str)

CPU: Final = MetricName("C")
MEMORY: Final = MetricName("M")
NETWORK_IN: Final = MetricName("NI")
NETWORK_OUT: Final = MetricName("NO")
THROUGHPUT: Final = MetricName("T")
"""Never in a row: leaders derive it for workers that report no metrics."""
FAILED: Final = -1.0
"""Of a period without a successful capture."""
MAX_AVERAGES: Final = 10
"""KCL: noOfPersistedMetricsPerWorkerMetrics."""
OPERATING_RANGE_DEFAULT: Final = 100
# In report intervals (KCL: MigrationAwareLAMDataManager).
ACTIVE_REPORTS: Final = 2
SUPPORT_REPORTS: Final = 3
_LAST_UPDATE: Final = "lut"
_STATS: Final = "sts"
_RANGES: Final = "opr"
_SUPPORT: Final = "sup"
_SUPPORT_UPDATE: Final = "slu"
_HOST: Final = "daemonHost"
_ENTITY: Final = "entityType"
_ENTITY_VALUE: Final = "WORKER_METRIC_STATS"
_INCARNATION: Final = "daemonIncarnation"
_STARTED: Final = "daemonStarted"
_STANDS_BY: Final = "daemonStandby"
_RUN_UNTIL: Final = "daemonRunUntil"
_LOAD: Final = "daemonLoad"
ROW_EXISTS: Final = (Present(_LAST_UPDATE),)
_NO_METRICS: Final = MetricName("THROUGHPUT")
_SUPPORT_CODE: Final = 1
_SIX_PLACES: Final = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """Times are epoch seconds by the worker's own clock.

    Args:
        metrics: averages in percent, oldest first, `FAILED` where nothing was captured; empty: KCL's default, no figures.
        support_code: 1 if the worker supports the single-table layout; None on rows up to KCL 3.4.
        host: workers with the same one report the CPU of that host.
        stands_by: it starts the child of a lease that is being handed off to it.
        load: of its shards (`capacity/figures.py`).
        is_java: it knows no pauses and limits.
    """

    worker_id: WorkerId
    last_update_s: int
    metrics: Mapping[MetricName, tuple[float, ...]] = field(
        default_factory=dict[MetricName, tuple[float, ...]]
    )
    operating_ranges: Mapping[MetricName, int] = field(default_factory=dict[MetricName, int])
    support_code: int | None = None
    support_update_s: int | None = None
    host: str | None = None
    stands_by: bool = False
    run_until_ms: int | None = None
    load: str | None = None
    is_java: bool = False

    @property
    def is_failing(self) -> bool:
        return any(averages[-1:] == (FAILED,) for averages in self.metrics.values())


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """One process of a worker, with a random nonce; the later of two is larger."""

    started_ms: int
    nonce: str

    @property
    def is_that_of_the_row(self) -> Conditions:
        return (Equals(_INCARNATION, self.nonce),)


def incarnation_of(row: Row) -> Incarnation | None:
    nonce, started_ms = row.get(_INCARNATION), _integer(row.get(_STARTED))
    return Incarnation(started_ms or 0, nonce) if isinstance(nonce, str) and nonce else None


def unchanged(worker: WorkerRow) -> Conditions:
    return (Equals(_LAST_UPDATE, worker.last_update_s),)


def report(
    worker_id: WorkerId,
    *,
    now_s: int,
    metrics: Mapping[MetricName, Sequence[float]] | None = None,
    host: str | None = None,
    incarnation: Incarnation | None = None,
    stands_by: bool = False,
    run_until_ms: int | None = None,
    load: str | None = None,
) -> RowUpdate:
    """Unconditional; replaces all earlier figures.

    Averages are oldest first; empty lists are left out, because Java rejects such rows.
    """
    reported = {name: averages for name, averages in (metrics or {}).items() if averages}
    stats: dict[str, Value] = {
        name: tuple(_decimal(value) for value in averages[-MAX_AVERAGES:])
        for name, averages in reported.items()
    }
    ceilings: dict[str, Value] = dict.fromkeys(reported, (OPERATING_RANGE_DEFAULT,))
    return RowUpdate(
        worker_id,
        put={
            _ENTITY: _ENTITY_VALUE,
            _LAST_UPDATE: now_s,
            _STATS: stats,
            _RANGES: ceilings,
            _SUPPORT: _SUPPORT_CODE,
            _SUPPORT_UPDATE: now_s,
            **({} if host is None else {_HOST: host}),
            **({_STANDS_BY: 1} if stands_by else {}),
            **({} if run_until_ms is None else {_RUN_UNTIL: run_until_ms}),
            **({} if load is None else {_LOAD: load}),
            **(
                {}
                if incarnation is None
                else {_INCARNATION: incarnation.nonce, _STARTED: incarnation.started_ms}
            ),
        },
        remove=frozenset(
            ([_HOST] if host is None else [])
            + ([] if stands_by else [_STANDS_BY])
            + ([_RUN_UNTIL] if run_until_ms is None else [])
            + ([_LOAD] if load is None else [])
        ),
    )


def is_worker_row(row: Row) -> bool:
    return row.get(_ENTITY) == _ENTITY_VALUE


def worker_from_row(row: Row, *, key_attribute: str) -> WorkerRow | None:
    """None if the report is invalid (KCL: WorkerMetricStats.isValidWorkerMetric).

    A range below 1 % is invalid: KCL reads integers other than 0, and loads are divided by them.
    """
    worker_id, updated = row.get(key_attribute), _integer(row.get(_LAST_UPDATE))
    if not isinstance(worker_id, str) or updated is None:
        return None
    if row.get(_ENTITY, _ENTITY_VALUE) != _ENTITY_VALUE:
        return None
    stats, ranges = _lists(row.get(_STATS)), _lists(row.get(_RANGES))
    if stats is None or ranges is None:
        return None
    if _NO_METRICS in stats or _NO_METRICS in ranges:
        stats, ranges = {}, {}
    if not stats.keys() <= ranges.keys() or not all(limits and limits[0] >= 1 for limits in ranges.values()):
        return None
    return WorkerRow(
        WorkerId(worker_id),
        updated,
        stats,
        {name: int(limits[0]) for name, limits in ranges.items()},
        _integer(row.get(_SUPPORT)),
        _integer(row.get(_SUPPORT_UPDATE)),
        _text(row.get(_HOST)),
        row.get(_STANDS_BY) == 1,
        _integer(row.get(_RUN_UNTIL)),
        _text(row.get(_LOAD)),
        incarnation_of(row) is None,
    )


def workers_of(rows: Iterable[Row], key_attribute: str) -> list[WorkerRow]:
    found = (worker_from_row(row, key_attribute=key_attribute) for row in rows)
    return [worker for worker in found if worker is not None]


def _decimal(value: float) -> Decimal:
    return Decimal(str(value)).quantize(_SIX_PLACES, rounding=ROUND_HALF_UP)


def _text(value: Value | None) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: Value | None) -> int | None:
    return int(value) if isinstance(value, int | Decimal) else None


def _lists(value: Value | None) -> dict[MetricName, tuple[float, ...]] | None:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return None
    lists: dict[MetricName, tuple[float, ...]] = {}
    for name, numbers in value.items():
        if not isinstance(numbers, tuple):
            return None
        floats = tuple(float(number) for number in numbers if isinstance(number, int | Decimal))
        if len(floats) != len(numbers):
            return None
        lists[MetricName(name)] = floats
    return lists
