"""What the consumers of one worker know of each other's failures: shards that rest, and whether any child has ever begun.

Owns for how long shards rest. Whom the leader gives such a lease to next is the matter of `assignment`.

What may call a consumer away from its work, and how it waits without missing the call.

What all consumers of one worker share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeVar

import anyio

from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ChildError
from kcl_daemon.fleet.lease_renewer import LeaseRenewer
from kcl_daemon.fleet.streams import StreamTracker
from kcl_daemon.fleet.timings import Broadcast, Timings
from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.ports import NO_METERS, Children, Clock, DeadLetters, Kinesis, Log, Meters, Randomness, Table
from kcl_daemon.progress.progress import FailureHistory
from kcl_daemon.retrieval.readers import ReaderFactory
from kcl_protocol.sequence import ExtendedSequenceNumber

T = TypeVar("T")


class StopReason(IntEnum):
    """Why a consumer should stop; a higher one outranks a lower (KCL: ShutdownReason)."""

    NONE = 0
    STOP = 1
    """The worker stops, or the lease is to be handed over: finish, checkpoint, pass it on."""
    LEASE_LOST = 2
    """The lease is gone: no checkpoint is possible any more."""


class StopSignal:
    """The calls for one consumer. Everything happens on the loop, so that setting and looking cannot race."""

    def __init__(self) -> None:
        self._reason = StopReason.NONE
        self._waiting: anyio.CancelScope | None = None
        self._requested = anyio.Event()
        self._woken = False

    @property
    def reason(self) -> StopReason:
        """The highest call so far."""
        return self._reason

    def request(self, reason: StopReason) -> None:
        """Make a call; a lower one than before changes nothing."""
        if reason > self._reason:
            self._reason = reason
            self._requested.set()
            self.wake()

    def wake(self) -> None:
        """End the wait under way, or the next one, without a call: something is worth a look."""
        self._woken = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def until_stop_requested(self) -> StopReason:
        """Wait for the first call."""
        await self._requested.wait()
        return self._reason

    async def interruptible(self, wait: Callable[[], Awaitable[T]]) -> T | None:
        """Wait for something that can be cancelled without loss; None where a call or a stir came first.

        A stir is used up by this; a call is not: once there is one, nothing is waited for any more.
        """
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


# The first one may have failed for a passing reason.
_FAILURES_OF_EACH: Final = 2


@dataclass(frozen=True, slots=True)
class _Cooldown:
    until_s: float
    checkpoint: ExtendedSequenceNumber
    failures: FailureHistory


class ShardCooldowns:
    """One for all consumers of a worker.

    Args:
        clock: for the time.
        cooldown_s: how long a shard rests.
    """

    def __init__(self, clock: Clock, cooldown_s: float) -> None:
        self._clock = clock
        self._cooldown_s = cooldown_s
        self._cooldowns: dict[LeaseKey, _Cooldown] = {}

    def released(self, lease: Lease, failures: FailureHistory) -> None:
        """This lease is released now for these failures."""
        now_s = self._clock.monotonic()
        self._cooldowns = {
            key: cooldown for key, cooldown in self._cooldowns.items() if cooldown.until_s > now_s
        }
        self._cooldowns[lease.lease_key] = _Cooldown(now_s + self._cooldown_s, lease.checkpoint, failures)

    def failures(self, lease: Lease) -> FailureHistory | None:
        """What this lease was last released for; None where it was not, or somebody has got on with it."""
        cooldown = self._cooldowns.get(lease.lease_key)
        return None if cooldown is None or cooldown.checkpoint != lease.checkpoint else cooldown.failures

    def cooldown_s(self, lease: Lease) -> float:
        """How long this lease should rest yet, should it be ours again; 0 where somebody has got on with it."""
        cooldown = self._cooldowns.get(lease.lease_key)
        if cooldown is None or cooldown.checkpoint != lease.checkpoint:
            return 0.0
        return max(0.0, cooldown.until_s - self._clock.monotonic())


class StartupFailures:
    """Whether the children of a worker fail at their start, all of them and always: then it is no matter of one shard."""

    def __init__(self) -> None:
        self._failures: dict[LeaseKey, int] = {}
        self._is_settled = False

    def started(self, key: LeaseKey) -> None:
        """A child of this lease runs."""
        if not self._is_settled:
            self._failures.setdefault(key, 0)

    def started_once(self) -> None:
        """A child has answered `initialize`: from now on failures are told shard by shard."""
        self._is_settled = True

    def failed(self, key: LeaseKey) -> int:
        """A child of this lease failed: how many have by now, once two of each shard have and none has ever begun; else 0."""
        if self._is_settled or key not in self._failures:
            return 0
        self._failures[key] += 1
        if min(self._failures.values()) < _FAILURES_OF_EACH:
            return 0
        self._is_settled = True
        return sum(self._failures.values())


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """Ports, settings and signals for consumers.

    Args:
        streams: tell of which stream a lease is.
        readers: read the shards, the way that the settings say.
        shard_finished: fires when a shard of this worker is finished; its child shards wait for that.
        on_leases_created: told when leases were created that somebody should be given.
        on_lease_written: given a lease that this worker has just written as its own, and when that write began.
        degraded: shards that are to rest on this worker.
        startup_failures: tells whether any child has ever come past its start.
        dead_letters: where records that no child can process go; None where the settings name no place.
        on_fatal: told of a child's failure that the daemon is to end for.
    """

    settings: Settings
    timings: Timings
    streams: StreamTracker
    renewer: LeaseRenewer
    table: Table
    kinesis: Kinesis
    children: Children
    clock: Clock
    randomness: Randomness
    log: Log
    readers: ReaderFactory
    shard_finished: Broadcast
    on_leases_created: Callable[[], None]
    on_lease_written: Callable[[Lease, float], None]
    degraded: ShardCooldowns
    dead_letters: DeadLetters | None
    on_fatal: Callable[[ChildError], None]
    meters: Meters = NO_METERS
    startup_failures: StartupFailures = field(default_factory=StartupFailures)
