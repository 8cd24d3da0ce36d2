"""Follows pauses and limits (`leases/holds.py`) for the consumers of one worker, and writes them.

Their row is read every three seconds while records flow or something is held; by an idle worker when the leader's lock shows a
change, and before the first record after a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

import anyio
from msgspec.structs import replace

from kcl_daemon import faults
from kcl_daemon.context import Wakeup, WorkerContext
from kcl_daemon.errors import AwsError, KclError, TableNotFound, Throttled, Unavailable
from kcl_daemon.fleet.table_views import write_row
from kcl_daemon.leases.holds import (
    HOLDS_KEY,
    NOT_HELD,
    Hold,
    LeaseHold,
    LimitUnit,
    MalformedHoldsError,
    Pace,
    counted,
    holds_from_row,
    holds_write,
    lease_hold,
)
from kcl_daemon.leases.leader import holds_notice
from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.ports import Table
from kcl_daemon.text import time_text

_MAX_LOST_RACES: Final = 10
_BUSY_S: Final = 3.0
FRESH_S: Final = 4.0
_IDLE_S: Final = 900.0
_RETRY_S: Final = 15.0
_FAILING_S: Final = 8.0
_DAY_MS: Final = 86_400_000
_NOT_READ: Final = "grant dynamodb:GetItem on the coordinator table (`kcl-daemon iam-policy`)"
_MALFORMED: Final = (
    "the row was read, but a later version of the daemon or somebody else wrote it. Use one version of the daemon, or delete "
    "that row, which ends all pauses and limits"
)


class HoldsNotWritten(KclError):
    """The message says why, and what to do."""


async def change_holds(
    table: Table, change: Callable[[tuple[Hold, ...]], Iterable[Hold]]
) -> tuple[tuple[Hold, ...], tuple[Hold, ...]]:
    """Returns the holds before and after.

    Raises:
        HoldsNotWritten: the row is unreadable or kept changing.
        AwsError: after Unavailable it may have been written.
    """
    for _ in range(_MAX_LOST_RACES):
        row = await table.get(HOLDS_KEY)
        try:
            before = holds_from_row(row)
        except MalformedHoldsError as malformed:
            raise HoldsNotWritten(
                f"{malformed}; delete that row, which ends all pauses and limits"
            ) from malformed
        after = tuple(change(before))
        write = holds_write(row, after, key_attribute=table.key_attribute)
        if after == before or write is None:
            return before, after
        if (await write_row(table, write)).applied:
            faults.maybe("after-holds-write")
            return before, after
    raise HoldsNotWritten("the row of pauses and limits kept changing; try again")


async def tell_holds(
    table: Table, change: Callable[[tuple[Hold, ...]], Iterable[Hold]], *, token: str
) -> tuple[Hold, ...]:
    """As `change_holds`, and let idle workers know; returns the holds after. `token` is a new one."""
    _, after = await change_holds(table, change)
    await table.update(holds_notice(token, key_attribute=table.key_attribute))
    return after


def with_holds(before: Iterable[Hold], new: Iterable[Hold]) -> list[Hold]:
    """A new hold replaces the one of its kind and scope."""
    places = {(hold.scope, hold.is_pause): hold for hold in (*before, *new)}
    return list(places.values())


class HoldWatch:
    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        leads: Callable[[], bool],
        leases: Callable[[], Sequence[Lease]],
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._log = context.log
        self._table = table
        self._leads = leads
        self._leases = leases
        self.holds: tuple[Hold, ...] = ()
        self._paces: dict[LeaseKey, Pace] = {}
        self._wakeup = Wakeup(context.clock)
        self._changed = anyio.Event()
        self._read_s = self._used_s = -inf
        self._unreadable, self._failures = "", 0
        self._notice: object = None
        self._told_day: dict[tuple[str | None, str | None], int] = {}

    async def begin(self) -> None:
        """Before the first record. Raises Throttled or Unavailable: try again."""
        try:
            await self._read()
        except (Throttled, Unavailable):
            raise
        except AwsError as error:
            self._failed(error)

    def noticed(self, notice: object) -> None:
        if notice != self._notice:
            self._notice = notice
            self._wakeup.wake()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(_BUSY_S)
            if not self.holds and self._used_s < self._read_s and self._failures != 1:
                await self._wakeup.wait(_RETRY_S if self._failures else _IDLE_S)
            try:
                await self._read()
                if self._leads():
                    await self._keep()
            except AwsError as error:
                self._failed(error)
            except HoldsNotWritten as error:
                self._log.debug("holds_not_counted", error=str(error))

    async def _read(self) -> None:
        try:
            row = await self._context.call(self._table.get(HOLDS_KEY), "GetItem")
            holds = holds_from_row(row)
        except TableNotFound:
            holds = ()
        except MalformedHoldsError as malformed:
            self._failed(malformed, _MALFORMED)
            return
        if self._unreadable:
            self._log.info("holds_readable_again")
        self._unreadable, self._failures = "", 0
        self._take(holds)
        self._done()

    def _failed(self, error: Exception, cure: str = _NOT_READ) -> None:
        self._failures += 1
        once = self._failures == 1 and isinstance(error, Throttled | Unavailable)
        if not once and self._unreadable != str(error):
            self._unreadable = str(error)
            self._log.warning(
                "holds_unreadable",
                error=str(error),
                in_force=len(self.holds),
                advice=f"pauses and limits that were read before stay in force, later ones are not seen: {cure}",
            )
        self._done()

    def _done(self) -> None:
        self._read_s = self._clock.monotonic()
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _take(self, holds: tuple[Hold, ...]) -> None:
        now_ms = self._clock.wall_ms()
        before, self.holds = self.holds, tuple(hold for hold in holds if not hold.is_over(now_ms))
        # The leader recounts shards: that alone is no new limit.
        old, new = ({replace(hold, shards=1): None for hold in each} for each in (before, self.holds))
        places = {(hold.scope, hold.unit) for hold in new}
        for hold in old:
            if (hold.scope, hold.unit) not in places:
                self._log.info("hold_ended", **hold_fields(hold))
        for hold in new:
            if hold not in old:
                self._log.info("hold_begun", **hold_fields(hold))

    async def _keep(self) -> None:
        """The leader counts the shards of each limit, and reminds of pauses without an end."""
        leases = self._leases()
        if leases and counted(self.holds, leases) != self.holds:
            _, after = await change_holds(self._table, lambda holds: counted(holds, leases))
            self._take(after)
            self._notify()
        for hold in self.holds:
            days = (self._clock.wall_ms() - hold.since_ms) // _DAY_MS
            if (
                hold.is_pause
                and hold.until_ms is None
                and days >= 1
                and self._told_day.get(hold.scope) != days
            ):
                self._told_day[hold.scope] = days
                self._log.warning(
                    "pause_without_end",
                    days=days,
                    **hold_fields(hold),
                    advice="nothing of this is read on, and records are lost when they are older than the retention of the "
                    "stream: end the pause with `kcl-daemon resume --properties FILE`",
                )

    def of(self, lease: Lease) -> LeaseHold:
        return lease_hold(self.holds, lease, self._clock.wall_ms()) if self.holds else NOT_HELD

    def may_give(self) -> bool:
        """Whether what is known is fresh enough to give records; marks that records flow.

        Where reads fail it stays fresh for longer, so not every batch waits.
        """
        now_s = self._used_s = self._clock.monotonic()
        if now_s - self._read_s <= (_FAILING_S if self._failures > 1 else FRESH_S):
            return True
        self._wakeup.wake()
        return False

    async def until_changed(self, seconds: float | None = None) -> bool:
        with self._clock.move_on_after(seconds):
            await self._changed.wait()
        return True

    def pace(self, lease: Lease, hold: LeaseHold) -> Pace:
        if not hold.limits:
            self._paces.pop(lease.lease_key, None)
            return Pace()
        amounts = hold.share(LimitUnit.RECORDS), hold.share(LimitUnit.BYTES)
        known = self._paces.get(lease.lease_key, Pace())
        pace = self._paces[lease.lease_key] = known.at(amounts, self._clock.monotonic())
        return pace

    def given(self, lease: Lease, records: int, data_bytes: int) -> None:
        pace = self._paces.get(lease.lease_key)
        if pace is not None:
            self._paces[lease.lease_key] = pace.after(records, data_bytes, self._clock.monotonic())


def hold_fields(hold: Hold) -> dict[str, object]:
    scope = {"stream": hold.stream, "lease_key": hold.lease_key}
    return {
        "what": "pause" if hold.unit is None else f"limit of {hold.amount:g} {hold.unit}/s",
        **{name: value for name, value in scope.items() if value is not None},
        "by": hold.by,
        "reason": hold.reason,
        "since": time_text(hold.since_ms),
        "until": None if hold.until_ms is None else time_text(hold.until_ms),
    }
