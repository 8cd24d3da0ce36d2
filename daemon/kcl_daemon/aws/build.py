from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from kcl_daemon.aws.access import AwsAccess, open_client
from kcl_daemon.aws.dynamodb import (
    DynamoTable,
    DynamoTransactions,
    UpdateItem,
    condition_failed,
    http_update_item,
)
from kcl_daemon.aws.session import Clients
from kcl_daemon.aws.tables import TableSpec
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import TableNotFound
from kcl_daemon.leases.row import KEY
from kcl_daemon.ports import Clock, ScanPort, Schemas, Tables, Transactions
from kcl_daemon.transport.caller import AwsJsonClient, JsonApi
from kcl_daemon.transport.kinesis import KINESIS_API

_WORKER_KEY: Final = "wid"
_COORDINATOR_KEY: Final = "key"
_DYNAMODB_API: Final = JsonApi(
    "DynamoDB_20120810.", TableNotFound, "application/x-amz-json-1.0", error_of=condition_failed
)


def build_tables(
    settings: Settings, clients: Clients, clock: Clock, update_item: UpdateItem | None = None
) -> Tables:
    """Without `update_item` the SDK makes that call too."""
    limiters = clients.limiters
    options = settings.tables
    leases = TableSpec(settings.lease_table, KEY, has_owner_index=True, options=options.leases)
    workers = TableSpec(settings.worker_metrics_table, _WORKER_KEY, options=options.worker_metrics)
    coordinator = TableSpec(settings.coordinator_table, _COORDINATOR_KEY, options=options.coordinator)
    client = clients.dynamodb
    return Tables(
        leases=DynamoTable(leases, client, limiters.leases, clock=clock, update_item=update_item),
        worker_metrics=DynamoTable(workers, client, limiters.others, clock=clock),
        coordinator=DynamoTable(coordinator, client, limiters.others, clock=clock),
    )


async def delete_lease_table(settings: Settings, clients: Clients) -> None:
    call = partial(clients.dynamodb.delete_table, TableName=settings.lease_table)
    await clients.limiters.others.writes.run("DeleteTable", call)


def build_transactions(clients: Clients) -> Transactions:
    return DynamoTransactions(clients.dynamodb, clients.limiters.others.writes)


def build_schemas(clients: Clients) -> Schemas | None:
    if clients.glue is None:
        return None
    from kcl_daemon.aws.lookups import GlueSchemas

    return GlueSchemas(clients.glue, clients.limiters.schemas)


@asynccontextmanager
async def open_kinesis_client(
    clients: Clients, clock: Clock, *, on_date: Callable[[float], None] | None = None
) -> AsyncGenerator[AwsJsonClient, None]:
    """`on_date` now and then receives the service's epoch time."""
    access = AwsAccess(clients.of_kinesis, clients.limiters.kinesis)
    async with open_client(
        access, KINESIS_API, clock, ca_bundle=clients.ca_bundle, on_date=on_date
    ) as client:
        yield client


@asynccontextmanager
async def open_table_scan(clients: Clients, clock: Clock) -> AsyncGenerator[ScanPort | None, None]:
    if clients.of_changes is None:
        yield None
        return
    from kcl_daemon.transport.snapshots import TABLE_API, TableScan

    access = AwsAccess(clients.of_dynamodb, clients.limiters.kinesis)
    async with open_client(access, TABLE_API, clock, ca_bundle=clients.ca_bundle) as client:
        yield TableScan(client)


@asynccontextmanager
async def open_update_item(clients: Clients, clock: Clock) -> AsyncGenerator[UpdateItem | None, None]:
    """None if DynamoDB endpoints must be discovered: only the SDK can do that."""
    if clients.discovers_dynamodb:
        yield None
        return
    access = AwsAccess(clients.of_dynamodb, clients.limiters.leases.writes)
    async with open_client(access, _DYNAMODB_API, clock, ca_bundle=clients.ca_bundle) as client:
        yield http_update_item(client)
