"""What nearly every loop of a worker needs: its context, timeouts, many calls at once, periods, waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio

from kcl_daemon.config.balance import BalanceSettings, LeaseSettings
from kcl_daemon.errors import AwsError, Throttled, Unavailable
from kcl_daemon.leases.expiry import unclaimed_patience_s
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.worker_row import ACTIVE_REPORTS
from kcl_daemon.metrics.own import CALLS
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters, Randomness

_T = TypeVar("_T")
_SUCCESS: Final = "success"
_THROTTLED: Final = "throttled"
_FAILURE: Final = "failure"
OUTCOMES: Final = (_SUCCESS, _THROTTLED, _FAILURE)

# An idle fleet's lock duration, and its maximum as a multiple of a busy fleet's.
_IDLE_LEASE_S: Final = 30.0
_MAX_IDLE_STRETCH: Final = 2.5


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    lease_s: float
    heartbeat_s: float


@dataclass(frozen=True, slots=True)
class Timings:
    """In seconds.

    Args:
        failover_s: a lease expires this long after its last renewal.
        renew_s: from one renewal to the next. KCL renews every third of the failover time; this allows as
            many tries, as a failed one is repeated after a quarter of it.
        call_s: timeout of a lease call, well below the failover time.
        poll_s: how often a busy fleet's leader reads the leases.
        active_s: a worker with an older row gets no leases.
        leader_lease_s: a busy fleet's lock duration.
        handoff_s: a slower handoff is ended by force.
        standby_s: before that, how long the old owner reads on while the next owner's child starts.
        unclaimed_s: how long a new owner has to write its lease.
    """

    failover_s: float
    renew_s: float
    call_s: float
    poll_s: float
    report_s: float
    active_s: float
    heartbeat_s: float
    leader_lease_s: float
    handoff_s: float
    standby_s: float
    parents_s: float
    balance_s: float
    capture_s: float
    unclaimed_s: float

    # A worker with many leases looks often, as a gap costs most there.

    def discovery_s(self, held: int, *, leading: bool, young: bool = False) -> float:
        """A new lease must be renewed within the failover time. A young worker is about to get many."""
        if leading:
            return self.fallback_poll_s
        if young:
            return min(self.poll_s, self.failover_s) / 2
        return min(self.poll_s * (max(1.25, 6 / held) if held else 10), self.failover_s / 2)

    def epoch_poll_s(self, held: int) -> float:
        """Without leases this exceeds the failover time; leaders allow for it (`leases/expiry.py`)."""
        if not held:
            return min(6.5 * self.poll_s, 1.3 * self.failover_s)
        return min(self.poll_s * (4.0 if held == 1 else max(1.25, 7.5 / (held + 1))), 0.8 * self.failover_s)

    @property
    def fallback_poll_s(self) -> float:
        return 30 * self.poll_s

    @property
    def max_handoff_wait_s(self) -> float:
        return self.failover_s / 2

    def lock_s(self, held: int) -> float:
        return 5 / 3 * self.heartbeat_s * (max(1.0, 2 / held) if held else 3)

    def term(self, *, calm: bool, alone: bool) -> LeaderTerm:
        """`calm`: no more leases than workers. `alone`: no other workers."""
        if not (calm or alone):
            return LeaderTerm(self.leader_lease_s, self.heartbeat_s)
        stretch = min(_MAX_IDLE_STRETCH, max(1.0, _IDLE_LEASE_S / self.leader_lease_s))
        lease_s = stretch * self.leader_lease_s
        return LeaderTerm(
            lease_s, lease_s / 3 if alone else min(max(1.0, 2 / 3 * stretch) * self.heartbeat_s, lease_s / 3)
        )

    def leader_poll_s(self, *, alone: bool, leases: int, workers: int) -> float:
        if alone:
            return 7.5 * self.poll_s
        return self.poll_s * (2.5 if leases <= workers else 1)

    def workers_poll_s(self, leader_poll_s: float) -> float:
        return max(2.5 * self.poll_s, min(2 * leader_poll_s, 5 * self.poll_s))


def timings(settings: LeaseSettings, balance: BalanceSettings | None = None) -> Timings:
    balance = balance or BalanceSettings()
    interval_ms = balance.assignment_interval_ms or 2 * settings.failover_time_ms
    failover_s = settings.failover_time_ms / 1000
    report_s = settings.worker_metrics_report_ms / 1000
    return Timings(
        failover_s=failover_s,
        renew_s=0.4 * failover_s,
        call_s=max(failover_s / 3, 0.5),
        poll_s=min(max(failover_s / 5, 0.2), 2.0),
        report_s=report_s,
        active_s=ACTIVE_REPORTS * report_s,
        heartbeat_s=settings.leader_heartbeat_ms / 1000,
        leader_lease_s=settings.leader_lease_ms / 1000,
        handoff_s=settings.handoff_timeout_ms / 1000,
        standby_s=settings.standby_ms / 1000,
        parents_s=min(settings.parent_shard_poll_interval_ms / 1000, 2.0),
        balance_s=interval_ms / 1000 * balance.variance_balancing_frequency,
        capture_s=balance.capture_ms / 1000,
        unclaimed_s=unclaimed_patience_s(failover_s, interval_ms / 1000),
    )


class Wakeup:
    """A wakeup ends a loop's wait; it is kept while nobody waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = anyio.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> None:
        with self._clock.move_on_after(seconds):
            await self._event.wait()
        self._event = anyio.Event()


class Broadcast:
    """Wakes current waiters only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = anyio.Event()

    def fire(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait(self, seconds: float) -> None:
        event = self._event
        with self._clock.move_on_after(seconds):
            await event.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    worker_id: WorkerId
    clock: Clock
    randomness: Randomness
    timings: Timings
    log: Log
    meters: Meters = NO_METERS
    service_clock: Clock | None = None
    """Has the time of day of Kinesis; None: `clock`."""

    @property
    def service_ms(self) -> int:
        return (self.service_clock or self.clock).wall_ms()

    async def call(self, answer: Awaitable[_T], operation: str = "", *, timeout_s: float | None = None) -> _T:
        """Unavailable if there is no answer within `timeout_s`, by default `timings.call_s`."""
        limit_s = self.timings.call_s if timeout_s is None else timeout_s
        with self.clock.move_on_after(limit_s):
            return await answer
        raise Unavailable(f"no answer within {limit_s:g} s", operation=operation)


async def for_each(
    items: Iterable[_T], job: Callable[[_T], Awaitable[object]], *, at_once: int, to_the_end: bool = True
) -> list[AwsError]:
    """Do the job for every item, `at_once` at a time. Returns the errors; unless `to_the_end`, the first one ends all."""
    limiter, errors = anyio.CapacityLimiter(at_once), list[AwsError]()

    async def attempt(item: _T) -> None:
        async with limiter:
            try:
                await job(item)
            except AwsError as error:
                errors.append(error)
                if not to_the_end:
                    jobs.cancel_scope.cancel()

    async with anyio.create_task_group() as jobs:
        for item in items:
            jobs.start_soon(attempt, item)
    return errors


def raise_first(errors: Sequence[AwsError]) -> None:
    if errors:
        raise errors[0]


class CallMetrics:
    def __init__(self, meters: Meters, service: str) -> None:
        self._meters = meters
        self._service = service
        self._known: set[str] = set()

    async def counted(self, operation: str, call: Awaitable[_T]) -> _T:
        """Await and count the call; a cancelled one is not counted."""
        self.begins(operation)
        try:
            answer = await call
        except AwsError as error:
            self.failed(operation, error)
            raise
        self.succeeded(operation)
        return answer

    def begins(self, operation: str) -> None:
        """Before a call: create its series at 0.

        Otherwise the first failure would not show as an increase.
        """
        if operation not in self._known:
            self._known.add(operation)
            for outcome in OUTCOMES:
                self._add(operation, outcome, 0.0)

    def succeeded(self, operation: str) -> None:
        self._add(operation, _SUCCESS)

    def failed(self, operation: str, error: AwsError) -> None:
        self._add(operation, _THROTTLED if isinstance(error, Throttled) else _FAILURE)

    def _add(self, operation: str, outcome: str, count: float = 1.0) -> None:
        self._meters.add(CALLS, count, service=self._service, operation=operation, outcome=outcome)
