"""The port StateFolder on simulated hosts: boot ids, process tables, locks, and volumes that can be cloned.

Owns what the kernels would tell. Knows nothing of what it proves (`kcl_daemon.leases.expiry`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio

from kcl_daemon.host_ports import LeftoverRecord
from kcl_daemon.leases.expiry import FileLockState, ProcessObservation, ProcessRecord
from kcl_daemon.leases.lease import WorkerId
from tests.simulator.chance import Chance
from tests.simulator.faults.life import Life
from tests.simulator.loop import current_loop, now
from tests.simulator.violation import report

_DEVICE: Final = 1
_NAMESPACE: Final = 1
# Few, so that they come again.
_PIDS: Final = 3
_GUARD_S: Final = (0.0, 1.1)


@dataclass
class Machine:
    """One host and its volume.

    Args:
        boot_id: of its kernel.
        volume: records by name.
        processes: which run, with the tick of their start.
        locked: the records whose lock is held, and by whom.
    """

    boot_id: str
    volume: dict[str, ProcessRecord] = field(default_factory=dict[str, ProcessRecord])
    processes: dict[int, int] = field(default_factory=dict[int, int])
    locked: dict[str, str] = field(default_factory=dict[str, str])
    pids: int = 0
    inodes: int = 0

    def reboot(self) -> None:
        """Power was lost: what ran is gone, the volume is there."""
        self.boot_id += "'"
        self.processes.clear()
        self.locked.clear()

    def clone(self, boot_id: str) -> Machine:
        """Another host with a copy of the volume, block by block."""
        return Machine(boot_id, dict(self.volume), inodes=self.inodes)

    def new_pid(self) -> int:
        """The number of a new process: one that no living process has, and that of a dead one soon comes again."""
        numbers = max(_PIDS, len(self.processes) + 1)
        while True:
            self.pids = self.pids % numbers + 1
            if self.pids not in self.processes:
                return self.pids


class SimEvidence:
    """Port Evidence: nothing may ever be kept there."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def keep(self, name: str, lines: Sequence[Mapping[str, object]]) -> str:
        """End the run."""
        report("invariant_violated", f"{self._life.worker_id}: {lines[0]}, last {lines[-3:]}")
        return name


class SimStateFolder:
    """Port StateFolder of one simulated process."""

    def __init__(self, machine: Machine, life: Life, chance: Chance) -> None:
        self._machine = machine
        self._life = life
        self._chance = chance
        self._own: str | None = None

    async def enter(self, worker_id: WorkerId, incarnation: str) -> None:
        """Write the record and lock it; when the process is killed its guard holds the lock for a moment."""
        await self._pause()
        machine = self._machine
        machine.inodes += 1
        pid, started = machine.new_pid(), int(now() * 100)
        record = ProcessRecord(
            worker_id, incarnation, machine.boot_id, pid, started, _NAMESPACE, _DEVICE, machine.inodes
        )
        self._own = f"{incarnation}.json"
        machine.volume[self._own] = record
        machine.processes[pid] = started
        machine.locked[self._own] = incarnation
        self._life.on_death(self._died)

    def _died(self) -> None:
        assert self._own is not None
        machine, own = self._machine, self._own
        record = machine.volume.get(own)
        if record is not None and machine.processes.get(record.pid) == record.started:
            del machine.processes[record.pid]
        me = own.removesuffix(".json")
        for name in [name for name, holder in machine.locked.items() if holder == me and name != own]:
            del machine.locked[name]
        current_loop().after(self._chance.uniform(*_GUARD_S), self._guard_ended, own)

    def _guard_ended(self, own: str) -> None:
        if self._machine.locked.get(own) == own.removesuffix(".json"):
            del self._machine.locked[own]

    async def poll(self) -> tuple[LeftoverRecord, ...]:
        """All other records."""
        await self._pause()
        return tuple(
            self._see(name, record)
            for name, record in sorted(self._machine.volume.items())
            if name != self._own
        )

    def _see(self, name: str, record: ProcessRecord) -> LeftoverRecord:
        assert self._own is not None
        machine, me = self._machine, self._own.removesuffix(".json")
        is_free = machine.locked.setdefault(name, me) == me
        running = machine.processes.get(record.pid) == record.started
        lock = FileLockState.FREE if is_free else FileLockState.HELD
        return LeftoverRecord(
            name,
            record,
            ProcessObservation(machine.boot_id, _DEVICE, record.inode, lock, is_local=True, running=running),
        )

    async def forget(self, name: str) -> None:
        """Remove it."""
        await self._pause()
        self._machine.volume.pop(name, None)
        self._machine.locked.pop(name, None)

    async def leave_alone(self, name: str) -> None:
        """Let go of its lock."""
        await self._pause()
        if self._own is not None and self._machine.locked.get(name) == self._own.removesuffix(".json"):
            del self._machine.locked[name]

    async def leave(self) -> None:
        """The process ends by itself."""
        await self._pause()
        if self._own is not None:
            record = self._machine.volume.pop(self._own, None)
            self._machine.locked.pop(self._own, None)
            if record is not None:
                self._machine.processes.pop(record.pid, None)

    async def _pause(self) -> None:
        self._life.ensure_alive()
        await anyio.sleep(self._chance.uniform(0.0005, 0.005))
        self._life.ensure_alive()
