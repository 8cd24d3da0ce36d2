"""What all parts of one simulated Java worker have in hand, and its timers.

Owns the periods of a Java worker on default settings. Knows nothing of what is done in them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import Kinesis, StreamRef, Tables
from kcl_daemon.shards.lineage import InitialPosition
from tests.simulator.chance import Chance
from tests.simulator.clock import SimClock
from tests.simulator.java.rows import Dialect
from tests.simulator.rules.deliveries import Deliveries
from tests.simulator.trace import TraceLog

Run = Callable[[], Coroutine[Any, Any, None]]

FAILOVER_S: Final = 10.0
RENEW_S: Final = 3.308
DISCOVER_S: Final = 9.975
ASSIGN_S: Final = 20.0
BALANCE_EVERY: Final = 3
REPORT_FIRST_S: Final = 2.0
REPORT_S: Final = 30.0
ACTIVE_S: Final = 60.0
LOCK_S: Final = 120.0
HEARTBEAT_S: Final = 30.0
LOOK_AGAIN_S: Final = 30.0
HANDOFF_S: Final = 30.0
HANDOFF_LOOK_S: Final = 2.0
DISPATCH_S: Final = 1.0
PARENTS_S: Final = 10.0
BACKOFF_S: Final = 0.5
IDLE_S: Final = 1.5
INDEX_LOOK_S: Final = 10.0
CLEANUP_FIRST_S: Final = 300.0
CLEANUP_S: Final = 60.0
AFTER_SYNC_S: Final = 60.0
AUDIT_FIRST_S: Final = 60.0
AUDIT_S: Final = 120.0
TABLE_EMPTY_LOOK_S: Final = 3.0
START_WAIT_S: Final = (1.0, 30.0)
START_TRIES: Final = 20
START_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Host:
    """One worker's name, its ways into the world and its settings.

    Args:
        me: its name.
        tables: behind the network.
        kinesis: behind the network.
        stream: which it reads.
        clock: its own.
        chance: its own.
        log: goes into the trace.
        deliveries: the record of what its record processors are given.
        position: where reading begins.
        dialect: which release it is.
        cpu: what it reports; None: no figures.
    """

    me: WorkerId
    tables: Tables
    kinesis: Kinesis
    stream: StreamRef
    clock: SimClock
    chance: Chance
    log: TraceLog
    deliveries: Deliveries
    position: InitialPosition
    dialect: Dialect
    cpu: Callable[[], float] | None

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self.clock.monotonic()

    async def at_fixed_rate(self, period_s: float, run: Run, *, first_s: float = 0.0) -> None:
        """Run for ever, in each period once; an error of AWS costs that run and is logged. Missed ones are not made up."""
        due_s = self.now_s() + first_s
        while True:
            await self.clock.sleep(due_s - self.now_s())
            try:
                await run()
            except AwsError as error:
                self.log.info("java_run_failed", what=run.__name__, error=str(error))
            due_s = max(due_s + period_s, self.now_s())
