"""What a worker says about its shards."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from kcl_daemon.capacity.figures import Bound, ShardObservation, WorkerLoad, bound_of, load_from
from kcl_daemon.fleet.capacity_watch import LoadReport, observation
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.progress.flow import FlowRates
from kcl_daemon.progress.progress import PAUSED_BY_CHILD, ActiveLeases, LeaseProgress, WaitReason
from kcl_daemon.progress.watchdog import StallLimits, Watchdog
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.unit.fakes import MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.progress.support import Held

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

    def passed_ms(self) -> int:
        return self.wall_ms()

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def move_on_after(self, seconds: float | None) -> anyio.CancelScope:
        return anyio.CancelScope()


def observed(prepare: Callable[[LeaseProgress], None], rates: FlowRates = NOTHING) -> ShardObservation:
    progress = LeaseProgress(lambda: 1000.0)
    prepare(progress)
    return observation(progress, rates, 20.0, 0.5)


def test_the_load_report_has_the_observed_rates() -> None:
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
def test_the_load_report_names_the_reason_that_a_shard_waits_for(
    cause: WaitReason, detail: str, named: str | None
) -> None:
    seen = observed(lambda progress: progress.waits(cause, detail))
    flags = {name: getattr(seen, name) for name in ("paused", "limited", "downstream", "failing", "hot_lane")}
    assert [name for name, is_so in flags.items() if is_so] == ([] if named is None else [named])


@pytest.mark.parametrize(
    ("stalled_by", "bound"),
    [
        (WaitReason.CHILD, Bound.HANGING),
        (WaitReason.STARTING, Bound.HANGING),
        (WaitReason.KINESIS, Bound.REFUSED),
        (WaitReason.STREAM, Bound.REFUSED),
        (WaitReason.PARENT, Bound.HOST_CPU),
        (None, Bound.HOST_CPU),
    ],
)
def test_a_known_cause_is_told_before_the_cpu_of_the_host(
    stalled_by: WaitReason | None, bound: Bound
) -> None:
    progress = LeaseProgress(lambda: 1000.0)
    assert bound_of(observation(progress, NOTHING, 20.0, 0.99, stalled_by)) is bound


def test_stalled_shards_are_told_with_what_stalls_them_also_at_the_tip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    stage.held[0].progress.waits(WaitReason.CHILD, "processRecords")
    stage.clock.now_s += 10_000.0
    stage.watchdog.tick(lag_s=0.0)
    assert {each.key: each.bound for each in stage.says().shards} == {
        FIRST: Bound.HANGING,
        SECOND: Bound.REFUSED,
    }


def test_children_that_fail_in_a_row_are_named() -> None:
    def fails(progress: LeaseProgress) -> None:
        progress.failed("it exited")
        progress.failed("it exited")

    assert observed(fails).failing
    assert not observed(lambda progress: progress.failed("once")).failing


class Stage:
    """A worker with two shards, and what it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = SetClock()
        self.rates = {FIRST: NOTHING, SECOND: NOTHING}
        log = MemoryLog()
        self.held = [self._held(key) for key in (FIRST, SECOND)]
        active = ActiveLeases()
        for each in self.held:
            active.add(each)
        watchdog = Watchdog(
            active_leases=active, limits=StallLimits(), failover_s=10.0, clock=self.clock, log=log
        )
        self.watchdog = watchdog
        monkeypatch.setattr(watchdog, "rates", lambda key: self.rates[key])
        self.report = LoadReport(worker_context(ME, clock=self.clock, log=log), watchdog)

    def _held(self, key: LeaseKey) -> Held:
        progress = LeaseProgress(self.clock.monotonic)
        progress.last_fetch.answer(behind_ms=0, empty=True, now_s=self.clock.now_s)
        progress.waits_for_records()
        return Held(progress, key, lease=Lease(key, 1, TRIM_HORIZON))

    def says(self, cpu: float | None = 0.25) -> WorkerLoad:
        load = load_from(self.report.text(cpu), ME)
        assert load is not None
        return load


def test_shards_at_the_tip_without_traffic_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    assert (stage.says().shards, stage.says().left_out, stage.says().cpu) == ((), 2, 0.25)
    stage.rates[FIRST] = FlowRates(in_bytes=100.0, out_bytes=90.0, speed=1.5, busy=0.5)
    stage.held[1].progress.last_fetch.answer(behind_ms=90_000, empty=False, now_s=stage.clock.now_s)
    behind, busy = stage.says(None).shards
    assert (behind.key, behind.behind_s) == (SECOND, 90.0)
    assert (busy.key, busy.in_bytes, busy.out_bytes, busy.speed, busy.busy) == (FIRST, 100, 90, 1.5, 0.5)
    assert busy.bound is Bound.NOTHING
    assert (stage.says(None).left_out, stage.says(None).cpu) == (0, None)


def test_a_shard_that_waits_for_its_parents_is_told_as_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.held[0].progress = LeaseProgress(stage.clock.monotonic)
    stage.held[0].progress.waits(WaitReason.PARENT, "shardId-000000000000")
    (told,) = stage.says().shards
    assert (told.key, told.behind_s) == (FIRST, None)


def test_a_finished_shard_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.held[0].lease = Lease(FIRST, 2, SHARD_END)
    assert stage.says().left_out == 1


def test_it_is_quiet_since_the_last_record_that_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.clock.now_s += 100.0
    assert stage.says().quiet_s == 100.0
    stage.held[0].progress.done(ExtendedSequenceNumber("7"), 3, 30)
    assert stage.says().quiet_s == 0.0
    stage.clock.now_s += 40.0
    assert stage.says().quiet_s == 40.0
