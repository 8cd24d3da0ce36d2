"""Pauses and limits in words, for commands, page and log."""

from __future__ import annotations

from datetime import UTC, datetime

from kcl_daemon.leases.holds import Hold, LimitUnit
from kcl_daemon.text import numbered, on_one_line


def hold_text(hold: Hold) -> str:
    """Such as `shardId-0: paused until it is ended, by ann@host: the sink is down, since 2026-11-20T12:00:00Z`."""
    what = "paused"
    if hold.unit is not None:
        what = f"{_amount(hold.amount, hold.unit)} over {numbered(hold.shards, 'shard')}"
        what += f": {_amount(hold.share, hold.unit)} each," if hold.shards > 1 else ","
    return on_one_line(f"{scope_text(hold)}: {what} {why_text(hold)}, since {time_text(hold.since_ms)}")


def hold_json(hold: Hold) -> dict[str, object]:
    """docs/flow.md describes it."""
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


def time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def share_text(hold: Hold) -> str:
    """What a limit leaves to one shard."""
    assert hold.unit is not None, "it is a limit"
    return f"{_amount(hold.share, hold.unit)} {why_text(hold)}"


def _amount(amount: float, unit: LimitUnit) -> str:
    return f"{amount:.12g} {unit.value}/s"
