"""What `app` and its parts make the object graph from: the adapters, and what most parts are made with."""

from __future__ import annotations

from dataclasses import dataclass

from kcl_daemon.config.settings import Settings
from kcl_daemon.coordination.malformed import MalformedRows
from kcl_daemon.coordination.many_streams import ManyStreams
from kcl_daemon.coordination.streams import OneStream
from kcl_daemon.coordination.tables import ApplicationTables
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.stats import Incarnation
from kcl_daemon.ports import Children, Clock, Cpu, Kinesis, Log, Randomness, Tables, Transactions
from kcl_daemon.ports_failures import DeadLetters
from kcl_daemon.ports_fan_out import FanOut
from kcl_daemon.ports_metrics import NO_METERS, CloudWatch, Meters
from kcl_daemon.ports_schemas import Schemas
from kcl_daemon.ports_state import StateFolder
from kcl_daemon.retrieval.readers import Readers
from kcl_daemon.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Adapters:
    """The world: real, or simulated.

    Args:
        cpu: None where this system has no figure to go by.
        kinesis_clock: the clock with the time of day as Kinesis has it; None: that of the machine is as good.
        cpu_host: the host whose CPU that is, where other workers on it report the same; None: nobody does.
        fan_out: None where shards can only be polled.
        schemas: None where no schema registry is asked.
        dead_letters: None where the settings name no place for them.
        meters: told of all that is counted and timed.
        cloudwatch: None where nothing is to be told to it.
        state_folder: None where nothing is left for the next daemon of this host.
    """

    clock: Clock
    randomness: Randomness
    kinesis: Kinesis
    tables: Tables
    transactions: Transactions
    children: Children
    log: Log
    cpu: Cpu | None = None
    cpu_host: str | None = None
    kinesis_clock: Clock | None = None
    fan_out: FanOut | None = None
    schemas: Schemas | None = None
    dead_letters: DeadLetters | None = None
    meters: Meters = NO_METERS
    cloudwatch: CloudWatch | None = None
    state_folder: StateFolder | None = None


@dataclass(frozen=True, slots=True)
class Common:
    """What most parts are made from."""

    me: WorkerId
    incarnation: Incarnation
    settings: Settings
    adapters: Adapters
    tables: ApplicationTables
    periods: Timings
    log: Log
    malformed: MalformedRows
    worker: Worker
    streams: OneStream | ManyStreams
    readers: Readers
