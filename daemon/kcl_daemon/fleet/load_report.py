"""What a worker says about its shards, for the leader's estimate (`capacity/estimate.py`)."""

from __future__ import annotations

from typing import Final

from kcl_daemon.capacity.bounds import bound_of
from kcl_daemon.capacity.figures import Bound, ShardLoad, ShardObservation, WorkerLoad
from kcl_daemon.capacity.report import load_text
from kcl_daemon.context import WorkerContext
from kcl_daemon.leases.lease import LeaseKey
from kcl_daemon.progress.flow import FlowRates
from kcl_daemon.progress.progress import PAUSED_BY_CHILD, ActiveLease, LeaseProgress, WaitReason
from kcl_daemon.progress.watchdog import FAILING_FROM, Watchdog, lag_s

_AT_TIP_S: Final = 2.0
_TROUBLES: Final = (Bound.FAILING, Bound.HANGING, Bound.REFUSED)
_HANGS: Final = frozenset({WaitReason.CHILD, WaitReason.STARTING})
_REFUSALS: Final = frozenset({WaitReason.KINESIS, WaitReason.STREAM, WaitReason.TRIMMED, WaitReason.DYNAMODB})


class LoadReport:
    def __init__(self, context: WorkerContext, watchdog: Watchdog) -> None:
        self._context = context
        self._watchdog = watchdog
        self._records: dict[LeaseKey, int] = {}
        self._finished_s = context.clock.monotonic()

    def text(self, cpu: float | None) -> str:
        return load_text(self._load(cpu))

    def _load(self, cpu: float | None) -> WorkerLoad:
        clock, leases = self._context.clock, self._watchdog.active_leases.shards
        now_s = clock.monotonic()
        self._note_finished(leases, now_s)
        loads = [self._shard(each, cpu, now_s) for each in leases if not each.lease.is_finished]
        busy = [each for each in loads if not _is_idle(each)]
        return WorkerLoad(
            worker_id=self._context.worker_id,
            at_ms=clock.wall_ms(),
            cpu=cpu,
            shards=tuple(busy),
            left_out=len(loads) - len(busy),
            quiet_s=now_s - self._finished_s,
        )

    def _note_finished(self, leases: tuple[ActiveLease, ...], now_s: float) -> None:
        records = {each.key: _finished(each.progress) for each in leases}
        if any(count > self._records.get(key, 0) for key, count in records.items()):
            self._finished_s = now_s
        self._records = records

    def _shard(self, watched: ActiveLease, cpu: float | None, now_s: float) -> ShardLoad:
        rates = self._watchdog.rates(watched.key)
        behind_s = lag_s(watched.progress, self._watchdog.limits, now_s)
        return ShardLoad(
            key=watched.key,
            behind_s=behind_s,
            speed=rates.speed,
            in_bytes=rates.in_bytes,
            out_bytes=rates.out_bytes,
            busy=rates.busy,
            bound=bound_of(
                observation(watched.progress, rates, behind_s, cpu, self._watchdog.stalled_by(watched, now_s))
            ),
        )


def observation(
    progress: LeaseProgress,
    rates: FlowRates,
    behind_s: float | None,
    cpu: float | None,
    stalled_by: WaitReason | None = None,
) -> ShardObservation:
    slow = progress.lanes.get(progress.slow_lane) if progress.cause is WaitReason.LANE else None
    known = (progress,) if slow is None else (progress, slow.progress)
    causes = {each.cause for each in known}
    asked = any(each.cause is WaitReason.PAUSED and each.detail == PAUSED_BY_CHILD for each in known)
    return ShardObservation(
        behind_s=behind_s,
        busy=rates.busy,
        refused=rates.refused,
        memory=rates.memory,
        host_cpu=cpu,
        hot_lane=slow is not None,
        paused=WaitReason.PAUSED in causes and not asked,
        limited=WaitReason.LIMITED in causes,
        downstream=asked or WaitReason.LETTERS in causes,
        failing=any(each.failures >= FAILING_FROM for each in known),
        hanging=stalled_by in _HANGS,
        not_read=stalled_by in _REFUSALS,
    )


def _finished(progress: LeaseProgress) -> int:
    return progress.records + sum(lane.progress.records for lane in progress.lanes.values())


def _is_idle(shard: ShardLoad) -> bool:
    is_at_tip = shard.behind_s is not None and shard.behind_s <= _AT_TIP_S
    return is_at_tip and not (shard.in_bytes or shard.out_bytes or shard.bound in _TROUBLES)
