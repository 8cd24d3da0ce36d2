"""How many DynamoDB requests a Java worker fleet makes when idle, from its timers (KCL 3.x, default settings).

Owns the arithmetic. Where KCL's behaviour leaves room the smaller figure is taken, so that a comparison never flatters.
"""

from __future__ import annotations

from typing import Final

# KCL: failoverTimeMillis / 3 - epsilonMillis, at a fixed rate, whether or not a checkpoint has just moved the counter.
RENEWAL_S: Final = 3.308
# KCL: half of the assignment interval - epsilonMillis.
DISCOVERY_S: Final = 9.975
# KCL: twice failoverTimeMillis; the leader only. Until the migration to one table is complete it reads two tables.
ASSIGNMENT_S: Final = 20.0
# KCL: the leader's heartbeat; the others look at the lock no more often than that.
LOCK_S: Final = 30.0
REPORT_S: Final = 30.0
# KCL: PeriodicShardSyncManager, a listing of the lease table; the leader only.
AUDIT_S: Final = 120.0


def requests_per_minute(shards: int, workers: int) -> dict[str, float]:
    """By operation, for leases that are all held and do not move; a Scan of up to 1 MB of rows is one request."""
    scans = 60 / ASSIGNMENT_S * 2 + 60 / AUDIT_S
    return {
        "UpdateItem": shards * 60 / RENEWAL_S + workers * 60 / REPORT_S + 60 / LOCK_S,
        "Query": workers * 60 / DISCOVERY_S,
        "Scan": scans,
        "GetItem": (workers - 1) * 60 / LOCK_S,
    }
