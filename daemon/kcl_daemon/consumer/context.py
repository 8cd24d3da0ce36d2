"""What all consumers of one worker share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import anyio

from kcl_daemon.config.settings import Settings
from kcl_daemon.consumer.standby import StandbyChildren
from kcl_daemon.context import Broadcast, WorkerContext
from kcl_daemon.errors import ChildError
from kcl_daemon.fleet.hold_watch import HoldWatch
from kcl_daemon.fleet.lease_renewer import LeaseRenewer
from kcl_daemon.fleet.streams import StreamTracker
from kcl_daemon.leases.lease import HashRange, Lease, LeaseKey
from kcl_daemon.ports import Children, Clock, DeadLetters, Kinesis, Log, Table
from kcl_daemon.progress.invariants import Invariants, LiveChildren
from kcl_daemon.progress.progress import FailureHistory
from kcl_daemon.retrieval.byte_budget import Reservation
from kcl_daemon.retrieval.source import ShardReader, ShardSource
from kcl_protocol.sequence import ExtendedSequenceNumber

if TYPE_CHECKING:
    from kcl_daemon.fleet.run_end import RunEnd

T = TypeVar("T")


class StopReason(IntEnum):
    """The higher one wins (KCL: ShutdownReason)."""

    NONE = 0
    STOP = 1
    """Worker shutdown or handoff: finish, checkpoint, release."""
    LEASE_LOST = 2
    """No checkpoint is possible any more."""


class StopSignal:
    """Used only on the event loop, so requests and checks cannot race."""

    def __init__(self) -> None:
        self._reason = StopReason.NONE
        self._waiting: anyio.CancelScope | None = None
        self._requested = anyio.Event()
        self._woken = False
        self.on_request: Callable[[], None] | None = None
        """Called after each request that has an effect."""

    @property
    def reason(self) -> StopReason:
        return self._reason

    def request(self, reason: StopReason) -> None:
        """A lower reason has no effect."""
        if reason > self._reason:
            self._reason = reason
            self._requested.set()
            self.wake()
            if self.on_request is not None:
                self.on_request()

    def wake(self) -> None:
        self._woken = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def until_stop_requested(self) -> StopReason:
        await self._requested.wait()
        return self._reason

    async def interruptible(self, wait: Callable[[], Awaitable[T]]) -> T | None:
        """None after a stop request or a wakeup, which ends one wait; `wait` must be cancellable without loss."""
        if self._reason is not StopReason.NONE or self._woken:
            self._woken = False
            return None
        result: T | None = None
        with anyio.CancelScope() as scope:
            self._waiting = scope
            try:
                result = await wait()
            finally:
                self._waiting = None
        if result is None:
            self._woken = False
        return result


_FAILURES_OF_EACH: Final = 2


@dataclass(frozen=True, slots=True)
class _Cooldown:
    until_s: float
    checkpoint: ExtendedSequenceNumber
    failures: FailureHistory


class ShardCooldowns:
    def __init__(self, clock: Clock, cooldown_s: float) -> None:
        self._clock = clock
        self._cooldown_s = cooldown_s
        self._cooldowns: dict[LeaseKey, _Cooldown] = {}

    def released(self, lease: Lease, failures: FailureHistory) -> None:
        now_s = self._clock.monotonic()
        self._cooldowns = {
            key: cooldown for key, cooldown in self._cooldowns.items() if cooldown.until_s > now_s
        }
        self._cooldowns[lease.lease_key] = _Cooldown(now_s + self._cooldown_s, lease.checkpoint, failures)

    def rest(self, lease: Lease) -> tuple[FailureHistory, float] | None:
        """Failures, and the cooldown left in seconds; None if the lease has advanced."""
        cooldown = self._cooldowns.get(lease.lease_key)
        if cooldown is None or cooldown.checkpoint != lease.checkpoint:
            return None
        return cooldown.failures, max(0.0, cooldown.until_s - self._clock.monotonic())


class StartupFailures:
    """Detects that every child of a worker fails at start."""

    def __init__(self) -> None:
        self._failures: dict[LeaseKey, int] = {}
        self._is_settled = False

    def started(self, key: LeaseKey) -> None:
        if not self._is_settled:
            self._failures.setdefault(key, 0)

    def started_once(self) -> None:
        self._is_settled = True

    def failed(self, key: LeaseKey) -> int:
        """Two for each shard, if none ever started; else 0."""
        if self._is_settled or key not in self._failures:
            return 0
        self._failures[key] += 1
        if min(self._failures.values()) < _FAILURES_OF_EACH:
            return 0
        self._is_settled = True
        return sum(self._failures.values())


class Readers(Protocol):
    def reader(self, source: ShardSource, *, hash_range: HashRange | None, log: Log) -> ShardReader: ...

    def reserve(self, shrink: Callable[[], None], invariants: Invariants) -> Reservation:
        """For records that a consumer keeps; `shrink` as in `ByteBudget.take`."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """Of one worker.

    Args:
    on_leases_created: called when new leases need an owner.
    on_lease_written: gets a lease written as our own, and the start time of that write.
    on_fatal: gets the failure that ends the daemon.
    run_end: of a bounded run.
    """

    context: WorkerContext
    settings: Settings
    streams: StreamTracker
    renewer: LeaseRenewer
    table: Table
    kinesis: Kinesis
    children: Children
    standby: StandbyChildren
    readers: Readers
    shard_finished: Broadcast
    on_leases_created: Callable[[], None]
    on_lease_written: Callable[[Lease, float], None]
    degraded: ShardCooldowns
    dead_letters: DeadLetters | None
    on_fatal: Callable[[ChildError], None]
    holds: HoldWatch
    startup_failures: StartupFailures = field(default_factory=StartupFailures)
    live_children: LiveChildren = field(default_factory=LiveChildren)
    run_end: RunEnd | None = None

    @property
    def until_ms(self) -> int | None:
        return None if self.run_end is None else self.run_end.until_ms
