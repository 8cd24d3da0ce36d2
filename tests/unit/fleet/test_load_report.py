"""What a worker says about its shards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcl_daemon.capacity.figures import Bound, ShardObservation, WorkerLoad
from kcl_daemon.capacity.report import load_from
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.fleet.load_report import LoadReport, observation
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.progress.flow import FlowRates
from kcl_daemon.progress.progress import PAUSED_BY_CHILD, ActiveLeases, LeaseProgress, WaitReason
from kcl_daemon.progress.watchdog import StallLimits, Watchdog
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.unit.fakes import MemoryLog
from tests.unit.fleet.contexts import worker_context

ME = WorkerId("me")
FIRST, SECOND = LeaseKey("shardId-000000000001"), LeaseKey("shardId-000000000002")
NOTHING = FlowRates()


class SetClock:
    """Stands until it is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


def observed(prepare: Callable[[LeaseProgress], None], rates: FlowRates = NOTHING) -> ShardObservation:
    progress = LeaseProgress(lambda: 1000.0)
    prepare(progress)
    return observation(progress, rates, 20.0, 0.5)


def test_rates_are_said_as_they_are() -> None:
    rates = FlowRates(busy=0.9, refused=0.2, memory=0.1)
    seen = observed(lambda _: None, rates)
    assert (seen.behind_s, seen.busy, seen.refused, seen.memory, seen.host_cpu) == (20.0, 0.9, 0.2, 0.1, 0.5)


@pytest.mark.parametrize(
    ("cause", "detail", "named"),
    [
        (WaitReason.PAUSED, "until it is ended, by ann@host", "paused"),
        (WaitReason.PAUSED, PAUSED_BY_CHILD, "downstream"),
        (WaitReason.LETTERS, "no room", "downstream"),
        (WaitReason.LIMITED, "3 records/s", "limited"),
        (WaitReason.CHILD, "processRecords", None),
        (WaitReason.KINESIS, "", None),
    ],
)
def test_what_holds_a_shard_back_on_purpose_is_named(
    cause: WaitReason, detail: str, named: str | None
) -> None:
    seen = observed(lambda progress: progress.waits(cause, detail))
    flags = {name: getattr(seen, name) for name in ("paused", "limited", "downstream", "failing", "hot_lane")}
    assert [name for name, is_so in flags.items() if is_so] == ([] if named is None else [named])


def test_children_that_fail_in_a_row_are_named() -> None:
    def fails(progress: LeaseProgress) -> None:
        progress.failed("it exited")
        progress.failed("it exited")

    assert observed(fails).failing
    assert not observed(lambda progress: progress.failed("once")).failing


class Reported:
    """A worker with two shards, and what it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = SetClock()
        self.rates = {FIRST: NOTHING, SECOND: NOTHING}
        log, active = MemoryLog(), ActiveLeases()
        context = worker_context(ME, log=log)
        monkeypatch.setattr(type(context), "clock", self.clock, raising=False)
        self.watchdog = Watchdog(
            active_leases=active, limits=StallLimits(), failover_s=10.0, clock=self.clock, log=log
        )
        monkeypatch.setattr(self.watchdog, "rates", lambda key: self.rates[key])
        self.report = LoadReport(context, self.watchdog)


