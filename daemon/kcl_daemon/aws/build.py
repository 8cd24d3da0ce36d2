"""The ports over AWS, made from settings and clients."""

from __future__ import annotations

from typing import Final

from kcl_daemon.aws.definitions import TableSpec
from kcl_daemon.aws.dynamodb import DynamoTable
from kcl_daemon.aws.kinesis import AwsKinesis
from kcl_daemon.aws.lanes import Lanes
from kcl_daemon.aws.session import Clients
from kcl_daemon.config.settings import Settings
from kcl_daemon.leases.row import KEY
from kcl_daemon.ports import Clock, Kinesis, Tables

_WORKER_KEY: Final = "wid"
_COORDINATOR_KEY: Final = "key"


def build_tables(settings: Settings, clients: Clients, clock: Clock) -> Tables:
    """The three tables of an application, whether they exist or shall exist or not. Touches nothing yet."""
    lanes = Lanes()
    options = settings.tables
    leases = TableSpec(settings.lease_table, KEY, has_owner_index=True, options=options.leases)
    workers = TableSpec(settings.worker_metrics_table, _WORKER_KEY, options=options.worker_metrics)
    coordinator = TableSpec(settings.coordinator_table, _COORDINATOR_KEY, options=options.coordinator)
    client = clients.dynamodb
    return Tables(
        leases=DynamoTable(leases, client, lanes.leases, clock=clock),
        worker_metrics=DynamoTable(workers, client, lanes.others, clock=clock),
        coordinator=DynamoTable(coordinator, client, lanes.others, clock=clock),
    )


def build_kinesis(clients: Clients) -> Kinesis:
    """Kinesis Data Streams. Touches nothing yet."""
    return AwsKinesis(clients.kinesis, Lanes().kinesis)
