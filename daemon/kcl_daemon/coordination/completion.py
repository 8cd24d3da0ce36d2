"""Has leases made complete beside the other work of a leader, which does not wait for Kinesis.

Owns the look that is under way, one at a time. What a look does is the syncer's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
from anyio.abc import TaskGroup

from kcl_daemon.coordination.many_syncer import ManySyncer
from kcl_daemon.coordination.syncer import Syncer
from kcl_daemon.errors import AccessDenied, AwsError
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Clock, Log


class _Look:
    """One call of the syncer."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.created = False
        self.is_late = False


class Completion:
    """One for a leader.

    Args:
        syncer: creates what is missing.
        patience_s: so long a leader waits for it: leases that were just created had better be given away at once.
        clock: for that.
        log: of what could not be done.
        on_late: called, from the loop, when leases were created after that time.
    """

    def __init__(
        self,
        syncer: Syncer | ManySyncer,
        *,
        patience_s: float,
        clock: Clock,
        log: Log,
        on_late: Callable[[], None],
    ) -> None:
        self._syncer = syncer
        self._patience_s = patience_s
        self._clock = clock
        self._log = log
        self._on_late = on_late
        self._look: _Look | None = None

    def begin(self) -> None:
        """Leadership begins: look at once, trust nothing remembered."""
        self.stop()
        self._syncer.begin()

    def stop(self) -> None:
        """Leadership is over: what is under way ends at its next wait. What was written stays."""
        if self._look is not None:
            self._look.scope.cancel()
            self._look = None

    async def ensure(self, leases: Sequence[Lease], beside: TaskGroup) -> bool:
        """Have leases made complete, unless that is under way. That failing is no reason to raise, it is told.

        Args:
            leases: all there are, as just read.
            beside: where it goes on when it takes too long.

        Returns:
            whether leases had better be read again: some were created, or time has passed.
        """
        if self._look is not None:
            return False
        look = self._look = _Look()
        beside.start_soon(self._carry_out, look, leases)
        with self._clock.move_on_after(self._patience_s):
            await look.ended.wait()
            return look.created
        look.is_late = True
        return True

    async def _carry_out(self, look: _Look, leases: Sequence[Lease]) -> None:
        try:
            with look.scope:
                look.created = await self._ensure(leases)
        finally:
            if self._look is look:
                self._look = None
            look.ended.set()
        if look.is_late and look.created:
            self._on_late()

    async def _ensure(self, leases: Sequence[Lease]) -> bool:
        try:
            return await self._syncer.ensure(leases)
        except AwsError as error:
            tell = self._log.error if isinstance(error, AccessDenied) else self._log.warning
            tell("lease_sync_failed", error=str(error))
            return False
