"""KCL's metrics that cannot occur here, each with the reason. Pure data; told to nobody."""

from __future__ import annotations

from typing import Final

from kcl_daemon.metrics.metric import Level, Metric, Unit

_NO_SEQUENCE: Final = "a new lease never starts at a sequence number"
_TRIM_ONLY: Final = "leases of child shards always start at their oldest record"
_NO_IDS: Final = "stream ids are a reserved feature that KCL has turned off"

JAVA_ONLY: Final = (
    Metric(
        "LeaseRenewerInitialize",
        "Fault",
        level=Level.DETAILED,
        java_only="the worker does not scan for its own leases at the start: LeaseDiscovery finds them as all others",
    ),
    Metric(
        "ShardSyncTask", "CreateLease_SEQUENCE_NUMBER.Success", level=Level.DETAILED, java_only=_NO_SEQUENCE
    ),
    *(
        Metric("ShutdownTask", f"CreateLease_{at}.Success", level=Level.DETAILED, java_only=_TRIM_ONLY)
        for at in ("LATEST", "AT_TIMESTAMP", "SEQUENCE_NUMBER")
    ),
    Metric("StreamIdFetch", "Success", java_only=_NO_IDS),
    Metric("StreamIdFetch", "QueueSize", Unit.COUNT, java_only=_NO_IDS),
)
