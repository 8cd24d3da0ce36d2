"""Records of progress on a clock that the test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.progress.progress import LeaseProgress
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber

KEY: Final = LeaseKey("shardId-0")


@dataclass
class Time:
    """Seconds that pass when the test says so."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> float:
        self.now_s += seconds
        return self.now_s


@dataclass
class FakeChild:
    """A child to be shown."""

    pid: int = 4711
    stderr_tail: tuple[str, ...] = ()


@dataclass
class FakeReader:
    """A reader to be shown."""

    oldest_s: float | None = None
    waiting: tuple[int, int] = (0, 0)


@dataclass
class Held:
    """A held lease, as far as it is watched."""

    progress: LeaseProgress
    key: LeaseKey = KEY
    moved_s: float = 0.0
    lost: str | None = None
    lease: Lease = field(
        default_factory=lambda: Lease(lease_key=KEY, lease_counter=1, checkpoint=TRIM_HORIZON)
    )


def position(number: int) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number))


def started(time: Time) -> LeaseProgress:
    """A lease whose child has answered `initialize` and is free."""
    progress = LeaseProgress(time)
    progress.starts()
    progress.child_started(FakeChild(), lambda: None)
    progress.waits_for_records()
    return progress
