"""Ports to what the daemon keeps on its host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kcl_daemon.leases.expiry import ProcessObservation, ProcessRecord
from kcl_daemon.leases.lease import WorkerId


@dataclass(frozen=True, slots=True)
class LeftoverRecord:
    name: str
    record: ProcessRecord
    seen: ProcessObservation


class StateFolder(Protocol):
    """The records of the application's daemons on this host.

    Methods log errors and never raise. A cancelled one may have taken effect.
    """

    async def enter(self, worker_id: WorkerId, incarnation: str) -> None:
        """Write our record and hold its lock."""
        ...

    async def poll(self) -> tuple[LeftoverRecord, ...]:
        """All other records; a free lock becomes ours until `forget`, `leave_alone` or the end."""
        ...

    async def forget(self, name: str) -> None: ...

    async def leave_alone(self, name: str) -> None:
        """Keep a record, release its lock."""
        ...

    async def leave(self) -> None:
        """Remove our record: all leases are released."""
        ...


class Evidence(Protocol):
    async def keep(self, name: str, lines: Sequence[Mapping[str, object]]) -> str | None:
        """Where it is, None: it could not be kept. Logs errors and never raises."""
        ...
