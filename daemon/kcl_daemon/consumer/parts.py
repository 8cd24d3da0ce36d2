"""What all consumers of one worker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcl_daemon.config.settings import Settings
from kcl_daemon.coordination.keeper import LeaseKeeper
from kcl_daemon.coordination.nudge import Signal
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.ports import Children, Clock, Kinesis, Log, Randomness, StreamRef, Table


@dataclass(frozen=True, slots=True)
class ConsumerParts:
    """Ports, settings and signals for consumers.

    Args:
        shard_finished: fires when a shard of this worker is finished; its child shards wait for that.
        on_leases_created: told when leases were created that somebody should be given.
    """

    settings: Settings
    timings: Timings
    stream: StreamRef
    keeper: LeaseKeeper
    table: Table
    kinesis: Kinesis
    children: Children
    clock: Clock
    randomness: Randomness
    log: Log
    shard_finished: Signal
    on_leases_created: Callable[[], None]
