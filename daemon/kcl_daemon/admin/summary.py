"""What a snapshot means: whether the worker is ready and why not, and how many leases are where.

Pure. The same judgement for the probes, the page and the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kcl_daemon.admin.lineage import Entry, State
from kcl_daemon.observe.snapshot import ShardView, Snapshot
from kcl_daemon.observe.words import NONE, about, duration, rate, short_shard

_NAMED_MOST = 5
WAIT_SHOWN_S: Final = 5.0
"""Shorter waits are those of a healthy shard, between one batch and the next."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many leases are where; all but `held`, `stalled` and `failing` are of the whole application, as far as it is known."""

    leases: int
    held: int
    stalled: int
    failing: int
    nobody: int
    handing_over: int
    finished: int


def counts(known: Sequence[Entry]) -> Counts:
    """Count."""
    states = [entry.state for entry in known]
    return Counts(
        leases=len(known),
        held=sum(entry.held is not None for entry in known),
        stalled=states.count(State.STALLED),
        failing=states.count(State.FAILING),
        nobody=states.count(State.NOBODY),
        handing_over=states.count(State.HANDING_OVER),
        finished=states.count(State.FINISHED),
    )


def not_ready(snapshot: Snapshot) -> tuple[str, ...]:
    """Why this worker is not ready, in words; empty: it is."""
    return tuple(_reasons(snapshot))


def _reasons(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.stopping:
        yield "it is stopping"
    elif not snapshot.started:
        yield "it has not started yet: tables or streams do not exist"
    failing = [shard for shard in snapshot.shards if shard.is_failing]
    for shard in failing[:_NAMED_MOST]:
        yield f"{shard.key} is failing: {failure_of(shard)}"
    if len(failing) > _NAMED_MOST:
        yield f"{len(failing) - _NAMED_MOST} more shards are failing"
    stalled = [shard for shard in snapshot.shards if shard.stalled and not shard.is_failing]
    for shard in stalled[:_NAMED_MOST]:
        yield f"{shard.key} makes no progress: {waits_for(shard)}"
    if len(stalled) > _NAMED_MOST:
        yield f"{len(stalled) - _NAMED_MOST} more shards make no progress"


def failure_of(shard: ShardView) -> str:
    """How its children fail: `8 in a row, next try in 12 s: child ended with exit code 70 (ValueError: not an order)`."""
    next_try = "" if shard.next_try_s is None else f", next try in {about(shard.next_try_s)}"
    said = f" ({shard.stderr_tail[-1]})" if shard.stderr_tail else ""
    return f"{shard.failures} in a row{next_try}: {shard.last_error}{said}"


def waits_for(shard: ShardView) -> str:
    """What a shard waits for, and for how long: `kinesis for 12 s (throttled)`; empty while that is as short as usual."""
    what = shard.cause.value
    if shard.waits_s < WAIT_SHOWN_S and not (shard.stalled or shard.is_failing):
        return ""
    if shard.waits_s >= 1:
        what = f"{what} for {about(shard.waits_s)}"
    return f"{what} ({shard.detail})" if shard.detail else what


def in_words(snapshot: Snapshot, counted: Counts) -> str:
    """The state of the worker in one sentence without figures that change all the while: for those who listen to it."""
    state = "stopping" if snapshot.stopping else "running" if snapshot.started else "starting"
    shards = "1 shard" if counted.held == 1 else f"{counted.held} shards"
    failing = f", {counted.failing} failing" if counted.failing else ""
    stalled = f", {counted.stalled} stalled" if counted.stalled else ""
    leader = "is the leader" if snapshot.leads else "is a follower"
    return f"This worker is {state}, {leader} and holds {shards}{failing}{stalled}."


def headline(snapshot: Snapshot, known: Sequence[Entry]) -> tuple[tuple[str, str], ...]:
    """The figures that tell how it goes, as names and values, the most important first."""
    states = [entry.state for entry in known]
    late = max((shard for shard in snapshot.shards if shard.lag_s is not None), key=_lag_s, default=None)
    lag = NONE
    if late is not None:
        lag = (
            duration(_lag_s(late)) if _lag_s(late) == 0 else f"{duration(_lag_s(late))} (shard {_name(late)})"
        )
    return (
        ("State", _state(snapshot)),
        ("Worst lag", lag),
        ("Throughput", rate(sum(shard.bytes_per_s for shard in snapshot.shards))),
        ("Failing", str(states.count(State.FAILING))),
        ("Stalled", str(states.count(State.STALLED))),
    )


def _state(snapshot: Snapshot) -> str:
    word = "stopping" if snapshot.stopping else "running" if snapshot.started else "starting"
    return "not ready" if word == "running" and not_ready(snapshot) else word


def _lag_s(shard: ShardView) -> float:
    return shard.lag_s or 0.0


def _name(shard: ShardView) -> str:
    number = short_shard(shard.shard_id)
    return number if shard.stream is None else f"{number} of {shard.stream}"


def time_text(snapshot: Snapshot) -> str:
    """When this was, so that a picture of it can be dated: `2026-11-22 12:03:51 UTC`; empty where it is not known."""
    if not snapshot.at_ms:
        return ""
    return f"{datetime.fromtimestamp(snapshot.at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
