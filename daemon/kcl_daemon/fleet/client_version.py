"""Which KCL version a worker acts as, and which of its loops run therefore.

KCL: MigrationClientVersionStateInitializer, MigrationStateMachineImpl, DynamicMigrationComponentsInitializer. A version names
components, not steps, so a failed step is done again. `migrations` has what follows a start that is not in 3.x.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Final, NamedTuple, TypeAlias, assert_never

import anyio

from kcl_daemon import faults
from kcl_daemon.config.balance import ClientVersionConfig
from kcl_daemon.context import Wakeup, WorkerContext
from kcl_daemon.errors import AwsError, ConfigurationError, Unavailable
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.lease_renewer import LeaseRenewer
from kcl_daemon.leases.layout import PastState, StateCodec, StateRow, StateRowCreation, UnusableState
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Row, RowUpdate
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Table

POLL_EVERY_S: Final = 60.0
"""Every worker polls the row this often; the first time up to `POLL_JITTER_S` later."""
POLL_JITTER_S: Final = 30.0
_MAX_LOST_RACES: Final = 5
_PAUSE_FIRST_S: Final = 1.0


class ClientVersion(StrEnum):
    """INIT is never the state of a row, only in its history."""

    INIT = "CLIENT_VERSION_INIT"
    UPGRADE_FROM_2X = "CLIENT_VERSION_UPGRADE_FROM_2X"
    V3X_WITH_ROLLBACK = "CLIENT_VERSION_3X_WITH_ROLLBACK"
    V2X = "CLIENT_VERSION_2X"
    V3X = "CLIENT_VERSION_3X"


VersionRow: TypeAlias = StateRow[ClientVersion]
CLIENT_VERSION_CODEC: Final[StateCodec[ClientVersion]] = StateCodec(
    row_key="Migration3.0",
    entity="CLIENT_VERSION_MIGRATION",
    attribute="cv",
    states=tuple(version for version in ClientVersion if version is not ClientVersion.INIT),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """What runs on a worker (KCL: DynamicMigrationComponentsInitializer).

    Args:
        creates_index: by owner; not while a rollback may remove it.
        leader_assigns: the leader has the lock. Else each worker takes leases, and a shuffle of the owners elects.
    """

    reports_metrics: bool
    creates_index: bool
    leader_assigns: bool


class Component(Enum):
    METRICS = "worker rows and their CPU figures"
    INDEX = "index by owner"
    ASSIGNMENT = "how leases come to this worker"
    LEADER = "how the leader is elected"
    ASSIGNER = "what the leader does"


@dataclass(frozen=True, slots=True)
class StartVersion:
    version: ClientVersion
    write: StateRowCreation | RowUpdate | None
    reason: str


@dataclass(frozen=True, slots=True)
class SwitchVersion:
    version: ClientVersion
    order: tuple[Component, ...]
    last: bool
    reason: str


Follow: TypeAlias = Callable[
    [ClientVersion, VersionRow | UnusableState | None], SwitchVersion | UnusableState | None
]

_2X: Final = Components(reports_metrics=False, creates_index=False, leader_assigns=False)
_COMPONENTS: Final[Mapping[ClientVersion, Components]] = {
    ClientVersion.INIT: _2X,
    ClientVersion.V2X: _2X,
    ClientVersion.UPGRADE_FROM_2X: replace(_2X, reports_metrics=True, creates_index=True),
    ClientVersion.V3X_WITH_ROLLBACK: replace(_2X, reports_metrics=True, leader_assigns=True),
    ClientVersion.V3X: Components(reports_metrics=True, creates_index=True, leader_assigns=True),
}


def components_of_version(version: ClientVersion) -> Components:
    return _COMPONENTS[version]


def decide_start_version(
    config: ClientVersionConfig, stored: VersionRow | None, *, me: WorkerId, now_ms: int, key_attribute: str
) -> StartVersion:
    """The stored row decides. The first worker writes it; one that asks for 3.x ends the rollback period."""
    if stored is None:
        return _first(config, me=me, now_ms=now_ms, key_attribute=key_attribute)
    if config is ClientVersionConfig.V3X and stored.state is ClientVersion.V3X_WITH_ROLLBACK:
        after = stored.followed_by(ClientVersion.V3X, by=me, at_ms=now_ms)
        update = CLIENT_VERSION_CODEC.update(stored, after, key_attribute=key_attribute)
        return StartVersion(after.state, update, f"{config} ends the time in which rollback is possible")
    return StartVersion(stored.state, None, f"{stored.by} set {stored.state}")


def _first(config: ClientVersionConfig, *, me: WorkerId, now_ms: int, key_attribute: str) -> StartVersion:
    if config is ClientVersionConfig.V2X_PHASE_1:
        return StartVersion(ClientVersion.INIT, None, f"{config} writes nothing")
    upgrading = config is ClientVersionConfig.V2X
    version = ClientVersion.UPGRADE_FROM_2X if upgrading else ClientVersion.V3X
    row = StateRow(version, me, now_ms, (PastState(str(ClientVersion.INIT), me, now_ms),))
    return StartVersion(
        version,
        CLIENT_VERSION_CODEC.creation(row, key_attribute=key_attribute),
        f"first worker with {config}",
    )


class PausableTask:
    """Runs a loop while it is open, each time from its beginning."""

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
        while True:
            await self._opened.wait()
            with anyio.CancelScope() as self._scope:
                await self._loop()
                await anyio.sleep_forever()
            self._scope = None


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
        self,
        tasks: SwitchedTasks,
        *,
        renewer: LeaseRenewer,
        elector: Elector,
        forget_shuffle: Callable[[], None],
    ) -> None:
        self._tasks = tasks
        self._renewer = renewer
        self._elector = elector
        self._forget_shuffle = forget_shuffle

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
                    self._forget_shuffle()
                else:
                    await self._elector.resign()
                tasks.migrator.turn(assigns)
            case Component.ASSIGNER:
                tasks.assigner.turn(assigns)
            case _:
                assert_never(part)

    async def _release_finished(self) -> None:
        async with anyio.create_task_group() as releases:
            for held in self._renewer.held.values():
                if held.lease.is_finished:
                    releases.start_soon(self._renewer.release_lease, held)


class ClientVersionMonitor:
    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        config: ClientVersionConfig,
        switcher: ComponentSwitcher,
        follow: Follow,
    ) -> None:
        self._follow = follow
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
        """May be repeated after an error. ConfigurationError if the row is unreadable."""
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
        decided = self._follow(self.version, stored)
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
