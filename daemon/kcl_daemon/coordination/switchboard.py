"""Which loops of a worker run: those that the application's client version asks for (KCL: DynamicMigrationComponentsInitializer).

Owns the gates and the order in which they are turned. Knows nothing of how a version is decided (`versions`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

import anyio

from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.gate import Gate
from kcl_daemon.coordination.keeper import LeaseKeeper
from kcl_daemon.coordination.shuffle import ShuffleLeader
from kcl_daemon.leases.client_version import (
    AssignmentMode,
    ClientVersion,
    Components,
    IndexNeed,
    LeaderKind,
    Part,
    components,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The loops that do not run in every version; `sampler` is None where there are no CPU figures."""

    reporter: Gate
    sampler: Gate | None
    index: Gate
    discovery: Gate
    taker: Gate
    elector: Gate
    assigner: Gate
    upgrader: Gate
    migrator: Gate

    @property
    def all(self) -> tuple[Gate, ...]:
        """All that there are."""
        gates = (
            self.reporter,
            self.sampler,
            self.index,
            self.discovery,
            self.taker,
            self.elector,
            self.assigner,
            self.upgrader,
            self.migrator,
        )
        return tuple(gate for gate in gates if gate is not None)


class Switchboard:
    """Runs what a version asks for."""

    def __init__(
        self, gates: Gates, *, keeper: LeaseKeeper, elector: Elector, shuffle: ShuffleLeader
    ) -> None:
        self._gates = gates
        self._keeper = keeper
        self._elector = elector
        self._shuffle = shuffle

    @property
    def reports(self) -> bool:
        """Whether this worker keeps its worker row up to date."""
        return self._gates.reporter.is_open

    @property
    def assigns(self) -> bool:
        """Whether leaders assign leases, so that workers know hand-offs."""
        return self._gates.discovery.is_open

    async def run(self) -> None:
        """Run whatever is turned on; for ever."""
        async with anyio.create_task_group() as loops:
            for gate in self._gates.all:
                loops.start_soon(gate.run)

    async def change(self, version: ClientVersion, order: Iterable[Part] = ()) -> None:
        """Bring all parts to what a version wants, those of `order` first. Never raises for AWS.

        Args:
            version: the new one.
            order: the parts for which the order matters.
        """
        wanted = components(version)
        for part in dict.fromkeys((*order, *Part)):
            await self._bring(part, wanted)
        self._gates.upgrader.turn(version is ClientVersion.UPGRADE_FROM_2X)
        if not self._keeper.keeps_finished:
            await self._give_finished_up()

    async def _bring(self, part: Part, wanted: Components) -> None:
        gates = self._gates
        match part:
            case Part.METRICS:
                gates.reporter.turn(wanted.reports_metrics)
                if gates.sampler is not None:
                    gates.sampler.turn(wanted.reports_metrics)
            case Part.INDEX:
                gates.index.turn(wanted.index is IndexNeed.CREATE)
            case Part.ASSIGNMENT:
                taking = wanted.assignment is AssignmentMode.TAKING
                self._keeper.keeps_finished = taking
                gates.taker.turn(taking)
                gates.discovery.turn(not taking)
            case Part.LEADER:
                await self._lead_by(wanted.leader)
            case Part.ASSIGNER:
                gates.assigner.turn(wanted.assigner_runs)
            case _:
                assert_never(part)

    async def _lead_by(self, kind: LeaderKind) -> None:
        self._gates.elector.turn(kind is LeaderKind.LOCK)
        match kind:
            case LeaderKind.LOCK:
                self._shuffle.forget()
            case LeaderKind.SHUFFLE:
                await self._elector.resign()
            case _:
                assert_never(kind)
        self._gates.migrator.turn(kind is LeaderKind.LOCK)

    async def _give_finished_up(self) -> None:
        """Where a leader assigns nobody needs to hold what is finished."""
        async with anyio.create_task_group() as releases:
            for held in self._keeper.held.values():
                if held.lease.is_finished:
                    releases.start_soon(self._keeper.give_up, held)
