"""The port for what a daemon leaves behind on its host for the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.predecessor import ProcessRecord, Seen


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A record of another process in the state folder.

    Args:
        name: of the record, in the folder.
        record: what it says.
        seen: what this host shows of that process, now.
    """

    name: str
    record: ProcessRecord
    seen: Seen


class StateFolder(Protocol):
    """The records of the daemons of one application that share a folder. No method raises: what fails is logged.

    A method that is cancelled may have taken effect.
    """

    async def enter(self, worker_id: WorkerId, incarnation: str) -> None:
        """Write the record of this process and hold its lock from now on."""
        ...

    async def look(self) -> tuple[LeftBehind, ...]:
        """The records of all others. A lock that is free is ours until `forget`, `leave_alone` or the end."""
        ...

    async def forget(self, name: str) -> None:
        """Remove a record: nothing is left to be done for it."""
        ...

    async def leave_alone(self, name: str) -> None:
        """Keep a record and let go of its lock."""
        ...

    async def leave(self) -> None:
        """Remove the record of this process: it has given everything up."""
        ...
