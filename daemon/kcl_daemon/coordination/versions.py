"""Follows the application's client version: decides at the start, writes the row, changes when others change it.

(KCL: MigrationStateMachineImpl, ClientVersionChangeMonitor.) Owns the version this worker is in and the pace of its
looks; `leases.client_version` decides, `switchboard` acts. An application that is at 3.x, as a new one is, costs one
read at the start and nothing afterwards.
"""

from __future__ import annotations

from typing import Final, assert_never

from kcl_daemon.coordination.nudge import Nudge
from kcl_daemon.coordination.switchboard import Switchboard
from kcl_daemon.errors import AwsError, ConfigurationError, Unavailable
from kcl_daemon.leases.client_version import (
    CODEC,
    POLL_EVERY_S,
    POLL_JITTER_S,
    ClientVersion,
    ClientVersionConfig,
    Stay,
    Switch,
    follow,
    start,
)
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.state_row import Creation, Refusal
from kcl_daemon.leases.table import Row, RowUpdate
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, Log, Randomness, Table
from kcl_daemon.ports_metrics import NO_METERS, Meters

# Several workers of a new application write the row at the same moment; the second read finds what won.
_RACES_MOST: Final = 5
_PAUSE_FIRST_S: Final = 1.0


class Versions:
    """One worker's part in the change from 2.x to 3.x."""

    def __init__(
        self,
        *,
        table: Table,
        config: ClientVersionConfig,
        worker_id: WorkerId,
        switchboard: Switchboard,
        clock: Clock,
        randomness: Randomness,
        call_s: float,
        log: Log,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._table = table
        self._config = config
        self._me = worker_id
        self._switchboard = switchboard
        self._clock = clock
        self._randomness = randomness
        self._call_s = call_s
        self._log = log
        self._nudge = Nudge(clock)
        self._ended = False
        self._told: Refusal | None = None
        self._failures = 0
        self.version = ClientVersion.INIT

    def nudge(self) -> None:
        """Look at the row now: it was just written."""
        self._nudge.nudge()

    async def begin(self) -> None:
        """Decide in which version to start, write it down if need be, and turn on what it asks for.

        May be called again after an error.

        Raises:
            ConfigurationError: the row cannot be read.
            AwsError: the row could not be read or written.
        """
        for _ in range(_RACES_MOST):
            stored = CODEC.read(await self._get())
            if isinstance(stored, Refusal):
                raise ConfigurationError(f"table {self._table.name}, {stored.problem}; {stored.advice}")
            decided = start(
                self._config,
                stored,
                me=self._me,
                now_ms=self._clock.wall_ms(),
                key_attribute=self._table.key_attribute,
            )
            if decided.write is None or await self._write(decided.write):
                self.version = decided.version
                self._ended = decided.version in {ClientVersion.V3X, ClientVersion.INIT}
                self._log.info("client_version_chosen", version=str(self.version), reason=decided.reason)
                await self._switchboard.change(self.version)
                self._tell()
                return
        raise Unavailable(f"row {CODEC.row_key} kept changing", operation="PutItem")

    async def run(self) -> None:
        """Follow the row until nothing can follow any more."""
        pause_s = POLL_EVERY_S + self._randomness.uniform(0.0, POLL_JITTER_S)
        while not self._ended:
            await self._nudge.wait(pause_s)
            pause_s = await self._look()

    async def _look(self) -> float:
        """One look; how long to wait for the next."""
        try:
            stored = CODEC.read(await self._get())
        except AwsError as error:
            self._failures += 1
            self._meters.add(kcl.MIGRATION_FAULT)
            self._log.warning("client_version_unreadable", error=str(error), failures=self._failures)
            return min(_PAUSE_FIRST_S * 2.0 ** min(self._failures - 1, 10), POLL_EVERY_S)
        self._failures = 0
        decided = follow(self.version, stored)
        match decided:
            case Stay():
                self._told = None
            case Refusal(problem, advice):
                if decided != self._told:
                    self._log.error("client_version_not_followed", error=problem, advice=advice)
                self._told = decided
            case Switch(version, order, last, reason):
                self._log.info(
                    "client_version_changes", version=str(version), before=str(self.version), reason=reason
                )
                self.version, self._ended, self._told = version, last, None
                await self._switchboard.change(version, order)
                self._tell()
                self._log.info("client_version_changed", version=str(version))
            case _:
                assert_never(decided)
        return POLL_EVERY_S

    def _tell(self) -> None:
        compatible = self.version in {ClientVersion.UPGRADE_FROM_2X, ClientVersion.V2X}
        if self.version is not ClientVersion.INIT:
            self._meters.add(kcl.MIGRATION_2X if compatible else kcl.MIGRATION_3X)

    async def _get(self) -> Row | None:
        with self._clock.move_on_after(self._call_s):
            return await self._table.get(CODEC.row_key)
        raise Unavailable(f"no answer within {self._call_s:g} s", operation="GetItem")

    async def _write(self, write: Creation | RowUpdate) -> bool:
        """Whether it took effect; not where another worker was quicker."""
        with self._clock.move_on_after(self._call_s):
            match write:
                case Creation(row, require):
                    return (await self._table.put(row, require)).applied
                case RowUpdate():
                    return (await self._table.update(write)).applied
                case _:
                    assert_never(write)
        raise Unavailable(f"no answer within {self._call_s:g} s", operation="PutItem")
