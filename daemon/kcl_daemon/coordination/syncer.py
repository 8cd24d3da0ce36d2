"""Creates the leases that the stream's shards need (leader only; KCL: ShardSyncTask, PeriodicShardSyncManager).

An empty table is filled once; afterwards a sync is made only where the hash range has a hole: at once when leadership
begins (the last leader may have died between two writes), else when the same hole was seen three audits in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import HashRange, Lease
from kcl_daemon.leases.row import creation
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, Table
from kcl_daemon.shards.shard import InitialPosition, Shard
from kcl_daemon.shards.sync import first_hole, lease_hole, leases_for_empty_table, missing_leases

_CONFIDENCE: Final = 3
_LIST_ATTEMPTS: Final = 3
_LIST_PAUSE_S: Final = 1.0


class Syncer:
    """Keeps the lease table complete while this worker leads."""

    def __init__(
        self,
        *,
        table: Table,
        kinesis: Kinesis,
        stream: StreamRef,
        position: InitialPosition,
        clock: Clock,
        timings: Timings,
        log: Log,
    ) -> None:
        self._table = table
        self._kinesis = kinesis
        self._stream = stream
        self._position = position
        self._clock = clock
        self._timings = timings
        self._log = log
        self._begun = False
        self._audited_s = 0.0
        self._hole: tuple[HashRange, int] | None = None

    def begin(self) -> None:
        """Leadership begins: look at once, trust nothing remembered."""
        self._begun = False
        self._hole = None

    async def ensure(self, leases: Sequence[Lease]) -> bool:
        """Make the table complete if it is time to look; whether leases were created.

        Raises:
            AwsError: Kinesis or the table did not do what was asked; what was created stays, the next call goes on.
        """
        now_s = self._clock.monotonic()
        if self._begun and now_s - self._audited_s < self._timings.audit_s:
            return False
        hole = lease_hole(leases)
        confident = not self._begun or self._seen_often(hole)
        created = False
        if hole is not None and confident:
            created = await self._fill(leases)
            self._hole = None
        self._begun, self._audited_s = True, now_s
        return created

    def _seen_often(self, hole: HashRange | None) -> bool:
        times = 1 if self._hole is None or self._hole[0] != hole else self._hole[1] + 1
        self._hole = None if hole is None else (hole, times)
        return times >= _CONFIDENCE

    async def _fill(self, leases: Sequence[Lease]) -> bool:
        if leases:
            shards = await self._kinesis.list_shards(self._stream)
            wanted = missing_leases(shards, [lease.lease_key for lease in leases], self._position)
        else:
            wanted = leases_for_empty_table(await self._complete_list(), self._position)
        created = 0
        for lease in wanted:
            written = await self._table.put(*creation(lease))
            created += written.applied
        if created:
            self._log.info("leases_created", count=created, position=self._position.at.value)
        return created > 0

    async def _complete_list(self) -> Sequence[Shard]:
        """The shards at the initial position, covering every hash (M1)."""
        hole: HashRange | None = None
        for _ in range(_LIST_ATTEMPTS):
            shards = await self._kinesis.list_shards(self._stream, self._position)
            hole = first_hole(shard.hash_range for shard in shards)
            if hole is None:
                return shards
            await self._clock.sleep(_LIST_PAUSE_S)
        raise AwsError(
            f"the shards of {self._stream.name} leave hashes {hole.start if hole else 0} to {hole.end if hole else 0} "
            "uncovered; is it being resharded?",
            operation="ListShards",
        )
