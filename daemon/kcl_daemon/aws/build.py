"""The ports over AWS, made from settings and clients."""

from __future__ import annotations

from typing import Final

from kcl_daemon.aws.dynamodb import DynamoTable
from kcl_daemon.aws.kinesis import AwsKinesis
from kcl_daemon.aws.lanes import Lanes
from kcl_daemon.aws.session import Clients
from kcl_daemon.aws.tables import TableSpec
from kcl_daemon.config.settings import Settings
from kcl_daemon.leases.row import KEY
from kcl_daemon.ports import Clock, Kinesis, Tables

_WORKER_KEY: Final = "wid"
_COORDINATOR_KEY: Final = "key"


def build_tables(settings: Settings, clients: Clients, clock: Clock) -> Tables:
    """The three tables of an application (KCL 3.0 - 3.4 layout). Touches nothing yet; call `ensure` on each."""
    lanes = Lanes()
    leases = TableSpec(settings.lease_table, KEY, has_owner_index=True)
    workers = TableSpec(settings.worker_metrics_table, _WORKER_KEY)
    coordinator = TableSpec(settings.coordinator_table, _COORDINATOR_KEY)
    client = clients.dynamodb
    return Tables(
        leases=DynamoTable(leases, client, lanes.leases, clock=clock),
        worker_metrics=DynamoTable(workers, client, lanes.others, clock=clock),
        coordinator=DynamoTable(coordinator, client, lanes.others, clock=clock),
    )


def build_kinesis(clients: Clients) -> Kinesis:
    """Kinesis Data Streams. Touches nothing yet."""
    return AwsKinesis(clients.kinesis, Lanes().kinesis)
