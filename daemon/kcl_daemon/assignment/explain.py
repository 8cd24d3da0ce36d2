"""A plan and the fleet it was made for, as lines for people. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from kcl_daemon.assignment.load import Load, title
from kcl_daemon.assignment.plan import Fleet, Plan
from kcl_daemon.assignment.survey import Survey, survey
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.stats import CPU, WorkerRow

_LISTED_MOST = 4
_HEADINGS = ("worker", "leases", "cpu", "throughput", "headroom", "")


def explain(fleet: Fleet, plan: Plan, *, ema_alpha: float = 0.5) -> tuple[str, ...]:
    """What the leader sees and what it would do now.

    A line for each worker (leases once the hand-offs under way are done, cpu, throughput, headroom: how far its most
    loaded metric is below its fair share), a line for each move with its reason, and the leases without a place.

    Args:
        fleet: as the plan's strategy was given it.
        plan: its answer.
        ema_alpha: as in the strategy's options.
    """
    state = survey(fleet, alpha=ema_alpha)
    rows = [_HEADINGS, *(_row(worker, state, fleet) for worker in sorted(_workers(fleet)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return (*(_line(row, widths) for row in rows), "", *_measures(state), *_moves(plan))


def _measures(state: Survey) -> Iterator[str]:
    """By what workers are told apart, with the figures that it goes by."""
    if len(state.loads) < 2:
        return
    by: dict[str, list[str]] = {}
    for _, load in sorted(state.loads.items()):
        by.setdefault(title(load.leading), []).append(load.describe(load.leading))
    told = "; ".join(f"{name} ({_listed(values)})" for name, values in sorted(by.items()))
    yield f"balanced by {told}, then by number of leases"
    for sharing in state.hosts:
        yield f"{_listed(list(sharing))} report the CPU of one host, so they share by number of leases"
    yield ""


def _listed(values: list[str]) -> str:
    if len(values) > _LISTED_MOST:
        return f"{', '.join(values[:_LISTED_MOST])} and {len(values) - _LISTED_MOST} more"
    return " and ".join(filter(None, (", ".join(values[:-1]), values[-1])))


def _workers(fleet: Fleet) -> frozenset[WorkerId]:
    owners = (lease.actual_owner for lease in fleet.unfinished)
    return fleet.workers | {owner for owner in owners if owner is not None}


def _row(worker: WorkerId, state: Survey, fleet: Fleet) -> tuple[str, ...]:
    row = fleet.stats.get(worker)
    cpu = _cpu(row)
    load = state.loads.get(worker)
    if load is None:
        leases = sum(fleet.future_owner(lease) == worker for lease in fleet.unfinished)
        return worker, str(leases), cpu, "", "", _why_not(worker, fleet)
    return worker, str(load.leases), cpu, f"{load.throughput_kbps:.0f} KiB/s", _headroom(load), ""


def _cpu(row: WorkerRow | None) -> str:
    averages = () if row is None else row.metrics.get(CPU, ())
    if not averages:
        return "-"
    return f"{averages[-1]:.0f} %" if averages[-1] >= 0 else "failed"


def _headroom(load: Load) -> str:
    return f"{(1 - load.relative) * 100:+.0f} % of its share of {title(load.leading)}"


def _why_not(worker: WorkerId, fleet: Fleet) -> str:
    if worker not in fleet.workers:
        silent = {lease.actual_owner for lease in fleet.unfinished if lease.lease_key in fleet.abandoned}
        return "is silent" if worker in silent and worker in fleet.stats else "does not report"
    return "could not measure itself"


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    texts, numbers = cells[:1] + cells[4:], cells[1:4]
    padded = chain(
        (texts[0].ljust(widths[0]),),
        (cell.rjust(width) for cell, width in zip(numbers, widths[1:4], strict=True)),
        (cell.ljust(width) for cell, width in zip(texts[1:], widths[4:], strict=True)),
    )
    return "  ".join(padded).rstrip()


def _moves(plan: Plan) -> Iterator[str]:
    if not plan.moves:
        yield "nothing to move"
    for move in plan.moves:
        yield f"{move.how.value}: {move.reason}"
    for key in plan.unplaced:
        yield f"{key}: no worker has room for it"
