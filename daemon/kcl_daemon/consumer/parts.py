"""What all consumers of one worker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kcl_daemon.config.settings import Settings
from kcl_daemon.consumer.degraded import Beginnings, Degraded
from kcl_daemon.coordination.keeper import LeaseKeeper
from kcl_daemon.coordination.nudge import Signal
from kcl_daemon.coordination.streams import Streams
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import ChildError
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Children, Clock, Kinesis, Log, Randomness, Table
from kcl_daemon.ports_failures import DeadLetters
from kcl_daemon.ports_metrics import NO_METERS, Meters
from kcl_daemon.retrieval.readers import Readers


@dataclass(frozen=True, slots=True)
class ConsumerParts:
    """Ports, settings and signals for consumers.

    Args:
        streams: tell of which stream a lease is.
        readers: read the shards, the way that the settings say.
        shard_finished: fires when a shard of this worker is finished; its child shards wait for that.
        on_leases_created: told when leases were created that somebody should be given.
        on_lease_written: given a lease that this worker has just written as its own, and when that write began.
        degraded: shards that are to rest on this worker.
        beginnings: tells whether any child has ever come past its start.
        dead_letters: where records that no child can process go; None where the settings name no place.
        on_fatal: told of a child's failure that the daemon is to end for.
    """

    settings: Settings
    timings: Timings
    streams: Streams
    keeper: LeaseKeeper
    table: Table
    kinesis: Kinesis
    children: Children
    clock: Clock
    randomness: Randomness
    log: Log
    readers: Readers
    shard_finished: Signal
    on_leases_created: Callable[[], None]
    on_lease_written: Callable[[Lease, float], None]
    degraded: Degraded
    dead_letters: DeadLetters | None
    on_fatal: Callable[[ChildError], None]
    meters: Meters = NO_METERS
    beginnings: Beginnings = field(default_factory=Beginnings)
