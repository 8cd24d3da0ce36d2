"""Whether a process that left a record in the state folder is proven dead, so that its leases may be taken at once.

A proof holds for one boot of one kernel only. The boot id is drawn anew at each boot, so a record with ours was written
on this host since it was started: another host with a copy of the folder never has it. Where that holds, the kernel
tells the rest: a file lock that was held for life is free, or no process with that number and start time is there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final, cast

from kcl_daemon.leases.lease import WorkerId

_TEXTS: Final = ("worker_id", "incarnation", "boot_id")
_NUMBERS: Final = ("pid", "started", "pid_namespace", "device", "inode")


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """What a daemon writes about itself in the state folder.

    Args:
        worker_id: its name in the tables.
        incarnation: drawn at its start; the worker's row has it, too.
        boot_id: of the kernel it runs on.
        pid: its number, in its namespace.
        started: clock ticks from boot to its start; tells it from a later process with the same number.
        pid_namespace: which namespace that is.
        device: of the file system that the record was written to.
        inode: of the record; a copy has another.
    """

    worker_id: WorkerId
    incarnation: str
    boot_id: str
    pid: int
    started: int
    pid_namespace: int
    device: int
    inode: int

    def to_text(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> ProcessRecord | None:
        """The record in a file; None where there is none in it, whatever it holds."""
        try:
            found: object = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        fields = cast("dict[str, object]", found)
        texts = [value for name in _TEXTS if isinstance(value := fields.get(name), str) and value]
        numbers = [value for name in _NUMBERS if type(value := fields.get(name)) is int]
        if len(texts) != len(_TEXTS) or len(numbers) != len(_NUMBERS):
            return None
        return cls(WorkerId(texts[0]), texts[1], texts[2], *numbers)


class Lock(Enum):
    """What came of the try for the lock that the process held for life."""

    FREE = "free"  # and ours now
    HELD = "held"
    UNKNOWN = "unknown"  # there are no locks here


@dataclass(frozen=True, slots=True)
class Seen:
    """What this host shows of the process of a record, now.

    Args:
        boot_id: of this kernel; None: it does not tell.
        device: of the file system in which the record is.
        inode: of the record.
        lock: its lock.
        is_local: whether the file system is this host's own. Locks of a network file system can be lost by one that
            lives.
        running: whether a process with that number and start time is there; None: this cannot be told, as from
            inside another container.
    """

    boot_id: str | None
    device: int
    inode: int
    lock: Lock
    is_local: bool
    running: bool | None


@dataclass(frozen=True, slots=True)
class Dead:
    """It is proven dead; `reason` says by what."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unproven:
    """It may live.

    Args:
        reason: why that is not known.
        may_change: it has ended, but what it started has not: look again in a moment.
    """

    reason: str
    may_change: bool = False


def judge(record: ProcessRecord, seen: Seen) -> Dead | Unproven:
    """Whether the process of a record is proven dead. What is not certain is no proof."""
    if not seen.boot_id or seen.boot_id != record.boot_id:
        return Unproven(
            "it ran on another host, or before this host was started; a copied disk looks the same"
        )
    if (seen.device, seen.inode) != (record.device, record.inode):
        return Unproven("its record was copied or moved to another disk")
    if seen.running:
        return Unproven(f"process {record.pid} runs")
    return _by_lock(record, seen)


def _by_lock(record: ProcessRecord, seen: Seen) -> Dead | Unproven:
    if seen.lock is Lock.HELD:
        return Unproven("its lock is held, by itself or by the guard of its children", may_change=True)
    if seen.lock is Lock.FREE and seen.is_local:
        return Dead(f"process {record.pid} released its lock, which happens only when it ends")
    if seen.running is False:
        return Dead(f"process {record.pid} no longer exists")
    return Unproven("neither its lock nor its process can be seen from here")
