"""Loops of an upgrade from KCL 2.x: follow the client version, switch components, upgrade when ready.

KCL: MigrationStateMachineImpl, DynamicMigrationComponentsInitializer, MigrationReadyMonitor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, assert_never

import anyio

from kcl_daemon import faults
from kcl_daemon.config.balance import ClientVersionConfig
from kcl_daemon.context import Wakeup, WorkerContext
from kcl_daemon.errors import AwsError, ConfigurationError, Unavailable
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.lease_renewer import LeaseRenewer
from kcl_daemon.leases.layout import StateRowCreation, UnusableState
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import Row, RowUpdate
from kcl_daemon.metrics import kcl
from kcl_daemon.migrations.kcl2_rules import (
    CLIENT_VERSION_CODEC,
    POLL_EVERY_S,
    POLL_JITTER_S,
    ClientVersion,
    Component,
    Components,
    ShuffleElection,
    SwitchVersion,
    components_of_version,
    decide_start_version,
    elect_by_shuffle,
    follow_stored_version,
    next_poll_after_s,
)
from kcl_daemon.ports import Table


class PausableTask:
    """Runs a loop while it is open, each time from its beginning. It starts closed."""

    def __init__(self, loop: Callable[[], Awaitable[None]]) -> None:
        self._loop = loop
        self._opened = anyio.Event()
        self._scope: anyio.CancelScope | None = None

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def turn(self, on: bool) -> None:
        """Closing cancels the running loop. Idempotent."""
        if on:
            self._opened.set()
        elif self._opened.is_set():
            self._opened = anyio.Event()
            if self._scope is not None:
                self._scope.cancel()

    async def run(self) -> None:
        """A loop that returns runs again only after closing and opening."""
        while True:
            await self._opened.wait()
            with anyio.CancelScope() as self._scope:
                await self._loop()
                await anyio.sleep_forever()
            self._scope = None


class ShuffleLeader:
    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._verdict: ShuffleElection | None = None
        self._polls = 0
        self._polled_s = 0.0

    @property
    def leads(self) -> bool:
        return self._verdict is not None and self._verdict.leads

    def poll(self, leases: Iterable[Lease]) -> bool:
        """Elect a leader if the poll is due. True if this worker begins to lead."""
        now_s = self._context.clock.monotonic()
        if self._polls and now_s - self._polled_s < next_poll_after_s(self._polls):
            return False
        before, self._verdict = self._verdict, elect_by_shuffle(self._context.worker_id, leases)
        self._polls, self._polled_s = self._polls + 1, now_s
        if before is None or before.leads != self._verdict.leads:
            self._context.log.info(
                "leader_by_shuffle", leads=self._verdict.leads, reason=self._verdict.reason
            )
        return self._verdict.leads and not (before is not None and before.leads)

    def forget(self) -> None:
        """No one leads until the next poll."""
        self._verdict, self._polls = None, 0


class SwitchedTasks(NamedTuple):
    reporter: PausableTask
    sampler: PausableTask | None
    owner_index: PausableTask
    discovery: PausableTask
    taker: PausableTask
    elector: PausableTask
    assigner: PausableTask
    upgrader: PausableTask
    migrator: PausableTask


class ComponentSwitcher:
    def __init__(
        self, tasks: SwitchedTasks, *, renewer: LeaseRenewer, elector: Elector, shuffle: ShuffleLeader
    ) -> None:
        self._tasks = tasks
        self._renewer = renewer
        self._elector = elector
        self._shuffle = shuffle

    @property
    def reports(self) -> bool:
        return self._tasks.reporter.is_open

    @property
    def assigns(self) -> bool:
        return self._tasks.discovery.is_open

    async def run(self) -> None:
        async with anyio.create_task_group() as loops:
            for task in self._tasks:
                if task is not None:
                    loops.start_soon(task.run)

    async def change(self, version: ClientVersion, order: Iterable[Component] = ()) -> None:
        """Switch all components, those of `order` first. Never raises for AWS."""
        wanted = components_of_version(version)
        for part in dict.fromkeys((*order, *Component)):
            await self._switch_part(part, wanted)
        self._tasks.upgrader.turn(version is ClientVersion.UPGRADE_FROM_2X)
        if not self._renewer.keeps_finished:
            await self._release_finished()

    async def _switch_part(self, part: Component, wanted: Components) -> None:
        tasks, assigns = self._tasks, wanted.leader_assigns
        match part:
            case Component.METRICS:
                tasks.reporter.turn(wanted.reports_metrics)
                if tasks.sampler is not None:
                    tasks.sampler.turn(wanted.reports_metrics)
            case Component.INDEX:
                tasks.owner_index.turn(wanted.creates_index)
            case Component.ASSIGNMENT:
                self._renewer.keeps_finished = not assigns
                tasks.taker.turn(not assigns)
                tasks.discovery.turn(assigns)
            case Component.LEADER:
                tasks.elector.turn(assigns)
                if assigns:
                    self._shuffle.forget()
                else:
                    await self._elector.resign()
                tasks.migrator.turn(assigns)
            case Component.ASSIGNER:
                tasks.assigner.turn(assigns)
            case _:
                assert_never(part)

    async def _release_finished(self) -> None:
        """A leader that assigns needs no owner for finished leases."""
        async with anyio.create_task_group() as releases:
            for held in self._renewer.held.values():
                if held.lease.is_finished:
                    releases.start_soon(self._renewer.release_lease, held)


# Workers of a new application may all write the row at once.
_MAX_LOST_RACES: Final = 5
_PAUSE_FIRST_S: Final = 1.0


class ClientVersionMonitor:
    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        config: ClientVersionConfig,
        switcher: ComponentSwitcher,
    ) -> None:
        self._meters = context.meters
        self._table = table
        self._config = config
        self._context = context
        self._switcher = switcher
        self._log = context.log
        self._wakeup = Wakeup(context.clock)
        self._ended = False
        self._reported: UnusableState | None = None
        self._failures = 0
        self.version = ClientVersion.INIT

    def wake(self) -> None:
        self._wakeup.wake()

    async def begin(self) -> None:
        """Decide the start version, write it if needed, and start its components.

        Can be repeated after an error. ConfigurationError if the row is unreadable.
        """
        for _ in range(_MAX_LOST_RACES):
            stored = CLIENT_VERSION_CODEC.read(await self._get())
            if isinstance(stored, UnusableState):
                raise ConfigurationError(f"table {self._table.name}, {stored.problem}; {stored.advice}")
            decided = decide_start_version(
                self._config,
                stored,
                me=self._context.worker_id,
                now_ms=self._context.clock.wall_ms(),
                key_attribute=self._table.key_attribute,
            )
            if decided.write is None or await self._write(decided.write):
                self.version = decided.version
                self._ended = decided.version in {ClientVersion.V3X, ClientVersion.INIT}
                self._log.info("client_version_chosen", version=str(self.version), reason=decided.reason)
                await self._switcher.change(self.version)
                self._report()
                return
        raise Unavailable(f"row {CLIENT_VERSION_CODEC.row_key} kept changing", operation="PutItem")

    async def run(self) -> None:
        pause_s = POLL_EVERY_S + self._context.randomness.uniform(0.0, POLL_JITTER_S)
        while not self._ended:
            await self._wakeup.wait(pause_s)
            pause_s = await self._poll()

    async def _poll(self) -> float:
        try:
            stored = CLIENT_VERSION_CODEC.read(await self._get())
        except AwsError as error:
            self._failures += 1
            self._meters.add(kcl.MIGRATION_FAULT)
            self._log.warning("client_version_unreadable", error=str(error), failures=self._failures)
            return min(_PAUSE_FIRST_S * 2.0 ** min(self._failures - 1, 10), POLL_EVERY_S)
        self._failures = 0
        decided = follow_stored_version(self.version, stored)
        match decided:
            case None:
                self._reported = None
            case UnusableState(problem, advice):
                if decided != self._reported:
                    self._log.error("client_version_not_followed", error=problem, advice=advice)
                self._reported = decided
            case SwitchVersion(version, order, last, reason):
                self._log.info(
                    "client_version_changes", version=str(version), before=str(self.version), reason=reason
                )
                self.version, self._ended, self._reported = version, last, None
                await self._switcher.change(version, order)
                self._report()
                self._log.info("client_version_changed", version=str(version))
            case _:
                assert_never(decided)
        return POLL_EVERY_S

    def _report(self) -> None:
        compatible = self.version in {ClientVersion.UPGRADE_FROM_2X, ClientVersion.V2X}
        if self.version is not ClientVersion.INIT:
            self._meters.add(kcl.MIGRATION_2X if compatible else kcl.MIGRATION_3X)

    async def _get(self) -> Row | None:
        return await self._context.call(self._table.get(CLIENT_VERSION_CODEC.row_key), "GetItem")

    async def _write(self, write: StateRowCreation | RowUpdate) -> bool:
        match write:
            case StateRowCreation(row, require):
                written = self._table.put(row, require)
            case RowUpdate():
                written = self._table.update(write)
            case _:
                assert_never(write)
        applied = (await self._context.call(written, "PutItem")).applied
        faults.maybe("after-client-version-written")
        return applied
