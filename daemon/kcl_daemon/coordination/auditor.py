"""Decides when the leases of a stream are compared with its shards (leader only; KCL: PeriodicShardSyncManager).

Owns what earlier audits saw. Judges leases that somebody else has read; asks Kinesis only for what rows do not tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcl_daemon.config.shard_settings import ShardSettings, ShardSyncStrategy
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Clock, Log, Table
from kcl_daemon.shards.holes import HoleWatch, found_ranges, lease_hole
from kcl_daemon.shards.shard import Shard


class Auditor:
    """One for a stream.

    A new leader looks at once and believes its eyes: the last one may have died between two writes. A sync too many
    costs a request and creates nothing.
    """

    def __init__(self, *, table: Table, settings: ShardSettings, clock: Clock, log: Log) -> None:
        self._table = table
        self._settings = settings
        self._clock = clock
        self._log = log
        self._audited_s: float | None = None
        self._sees_hole = False
        self._watch = HoleWatch()

    def begin(self) -> None:
        """Leadership begins: look at once, trust nothing remembered."""
        self._audited_s = None
        self._watch = HoleWatch()

    @property
    def has_audited(self) -> bool:
        """Whether this leadership has come through an audit."""
        return self._audited_s is not None

    @property
    def sees_hole(self) -> bool:
        """Whether the last look of `wants_sync` found leases that do not cover all hashes."""
        return self._sees_hole

    @property
    def is_due(self) -> bool:
        """Whether it is time to look."""
        period_s = self._settings.audit_ms / 1000
        return self._audited_s is None or self._clock.monotonic() - self._audited_s >= period_s

    def wants_sync(self, leases: Sequence[Lease]) -> bool:
        """Whether what is missing should be created now; call it when an audit is due."""
        hole = lease_hole(leases)
        self._sees_hole = hole is not None
        self._watch = self._watch.seen(hole)
        if not leases:
            return True  # no reshard looks like that: the table was emptied
        if self._audited_s is None:
            return hole is not None or self._settings.sync_strategy is ShardSyncStrategy.PERIODIC
        if hole is not None:
            self._log.debug(
                "lease_hole_seen", start_hash=hole.start, end_hash=hole.end, times=self._watch.times
            )
        if self._settings.sync_strategy is ShardSyncStrategy.PERIODIC:
            return True
        return self._watch.is_believed(self._settings.audit_confidence)

    def done(self, *, synced: bool) -> None:
        """An audit has come to its end; the next one is due a period later."""
        self._audited_s = self._clock.monotonic()
        if synced:
            self._watch = HoleWatch()

    async def fill_in_ranges(self, leases: Sequence[Lease], shards: Sequence[Shard]) -> None:
        """Write down the hashes of leases whose rows lack them.

        Raises:
            AwsError: a row could not be written; what was written stays.
        """
        for lease, hash_range in found_ranges(leases, shards):
            written = await self._table.update(lease_row.hashes_of(lease, hash_range))
            if written.applied:
                self._log.info("lease_hashes_filled_in", lease_key=lease.lease_key)
