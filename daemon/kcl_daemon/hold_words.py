from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kcl_daemon.leases.holds import Hold, LimitUnit
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.worker_row import WorkerRow
from kcl_daemon.text import numbered, on_one_line, time_text

_NAMED_MOST: Final = 5


def hold_text(hold: Hold, unheld: str = "") -> str:
    """Such as `shardId-0: paused until it is ended, by ann@host: the sink is down, since 2026-11-20T12:00:00Z`."""
    what = "paused"
    if hold.unit is not None:
        what = f"{_amount(hold.amount, hold.unit)} over {numbered(hold.shards, 'shard')}"
        what += f": {_amount(hold.share, hold.unit)} each," if hold.shards > 1 else ","
    since = f"since {time_text(hold.since_ms)}{unheld and '; '}{unheld}"
    return on_one_line(f"{scope_text(hold)}: {what} {why_text(hold)}, {since}")


def follows_holds(lease: Lease, rows: Mapping[WorkerId, WorkerRow]) -> bool | None:
    """None: its owner has no readable row, so nobody knows. A lease without an owner is not read."""
    if lease.actual_owner is None:
        return True
    row = rows.get(lease.actual_owner)
    return None if row is None else not row.is_java


def not_held(hold: Hold, leases: Iterable[Lease], rows: Mapping[WorkerId, WorkerRow]) -> str:
    """Such as `in force for 2 of 7 leases: java-1 and java-3 are Java workers and go on`; empty: for all."""
    covered = [lease for lease in leases if not lease.is_finished and hold.covers(lease)]
    owners: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for lease in covered:
        owners[follows_holds(lease, rows)].append(lease.actual_owner or "")
    java, unknown = sorted(set(owners[False])), sorted(set(owners[None]))
    said: list[str] = []
    if java:
        said.append(
            f"{_names(java)} {'is a Java worker and goes' if len(java) == 1 else 'are Java workers and go'} on"
        )
    if unknown:
        said.append(
            f"{_names(unknown)} {'has' if len(unknown) == 1 else 'have'} no row, so it is not known for them"
        )
    for_how_many = f"in force for {len(owners[True])} of {numbered(len(covered), 'lease')}"
    return f"{for_how_many}: {', '.join(said)}" if said else ""


def _names(workers: Sequence[str]) -> str:
    named = [
        *workers[:_NAMED_MOST],
        *([f"{len(workers) - _NAMED_MOST} more"] if len(workers) > _NAMED_MOST else []),
    ]
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))


def hold_json(hold: Hold, unheld: str = "") -> dict[str, object]:
    limit = {"unit": hold.unit, "perSecond": hold.amount, "shards": hold.shards, "perShard": hold.share}
    return {
        "kind": "pause" if hold.is_pause else "limit",
        "stream": hold.stream,
        "leaseKey": hold.lease_key,
        "by": hold.by,
        "reason": hold.reason,
        "since": time_text(hold.since_ms),
        "until": None if hold.until_ms is None else time_text(hold.until_ms),
        **({} if hold.is_pause else limit),
        "notHeld": unheld or None,
    }


def why_text(hold: Hold) -> str:
    return f"{until_text(hold)}, {who_text(hold)}"


def scope_text(hold: Hold) -> str:
    if hold.lease_key is not None:
        return hold.lease_key
    return "all shards" if hold.stream is None else f"stream {hold.stream}"


def who_text(hold: Hold) -> str:
    return f"by {hold.by}: {hold.reason}" if hold.reason else f"by {hold.by}"


def until_text(hold: Hold) -> str:
    return "until it is ended" if hold.until_ms is None else f"until {time_text(hold.until_ms)}"


def share_text(hold: Hold) -> str:
    assert hold.unit is not None, "it is a limit"
    return f"{_amount(hold.share, hold.unit)} {why_text(hold)}"


def _amount(amount: float, unit: LimitUnit) -> str:
    return f"{amount:.12g} {unit.value}/s"
