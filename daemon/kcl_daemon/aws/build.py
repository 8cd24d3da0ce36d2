"""Makes the ports over AWS. Nothing is called yet."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from anyio.lowlevel import checkpoint

from kcl_daemon import __version__
from kcl_daemon.aws.access import AwsAccess, plain_transports
from kcl_daemon.aws.calls import CallLimiters
from kcl_daemon.aws.dynamodb import (
    DynamoTable,
    DynamoTransactions,
    UpdateItem,
    condition_failed,
    http_update_item,
)
from kcl_daemon.aws.kinesis import AwsConsumers, AwsKinesis
from kcl_daemon.aws.other_services import GlueSchemas
from kcl_daemon.aws.session import Clients
from kcl_daemon.aws.tables import TableSpec
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import StreamNotFound, TableNotFound
from kcl_daemon.leases.row import KEY
from kcl_daemon.ports import Clock, FanOut, Kinesis, Schemas, Tables, Transactions
from kcl_daemon.transport.caller import AwsJsonClient, ignore_date
from kcl_daemon.transport.event_stream import HttpFanOut
from kcl_daemon.transport.kinesis import TARGET_PREFIX

_WORKER_KEY: Final = "wid"
_COORDINATOR_KEY: Final = "key"
_USER_AGENT: Final = f"kcl-daemon/{__version__}"
_DYNAMODB_PREFIX: Final = "DynamoDB_20120810."
_DYNAMODB_CONTENT: Final = "application/x-amz-json-1.0"


def build_tables(
    settings: Settings, clients: Clients, clock: Clock, update_item: UpdateItem | None = None
) -> Tables:
    """Without `update_item` the SDK makes that call too."""
    limiters = CallLimiters()
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


def build_transactions(clients: Clients) -> Transactions:
    return DynamoTransactions(clients.dynamodb, CallLimiters().other_writes)


def build_kinesis(clients: Clients) -> Kinesis:
    return AwsKinesis(clients.kinesis, CallLimiters().kinesis)


def build_consumers(clients: Clients) -> AwsConsumers:
    return AwsConsumers(clients.kinesis, CallLimiters().kinesis)


def build_fan_out(clients: Clients, caller: AwsJsonClient) -> FanOut:
    return HttpFanOut(caller, AwsConsumers(clients.kinesis, CallLimiters().kinesis))


def build_schemas(clients: Clients) -> Schemas | None:
    return None if clients.glue is None else GlueSchemas(clients.glue, CallLimiters().schemas)


@asynccontextmanager
async def open_json_client(
    clients: Clients,
    clock: Clock,
    *,
    on_date: Callable[[float], None] = ignore_date,
) -> AsyncGenerator[AwsJsonClient, None]:
    """Kinesis over the daemon's own transport. `on_date` now and then receives the service's epoch time."""
    access = AwsAccess(clients.of_kinesis, CallLimiters().kinesis)
    caller = AwsJsonClient(
        access,
        clock=clock,
        wire=plain_transports(access, ca_bundle=clients.ca_bundle, clock=clock),
        prefix=TARGET_PREFIX,
        user_agent=_USER_AGENT,
        not_found=StreamNotFound,
        on_date=on_date,
    )
    async with _closing(caller):
        yield caller


@asynccontextmanager
async def open_update_item(clients: Clients, clock: Clock) -> AsyncGenerator[UpdateItem | None, None]:
    """The fast way to renew leases and write checkpoints, on its own connections.

    Yields None if DynamoDB endpoints must be discovered: only the SDK can do that.
    """
    if clients.discovers_dynamodb:
        yield None
        return
    access = AwsAccess(clients.of_dynamodb, CallLimiters().reads)
    caller = AwsJsonClient(
        access,
        clock=clock,
        wire=plain_transports(access, ca_bundle=clients.ca_bundle, clock=clock),
        prefix=_DYNAMODB_PREFIX,
        user_agent=_USER_AGENT,
        not_found=TableNotFound,
        content_type=_DYNAMODB_CONTENT,
        means=condition_failed,
    )
    async with _closing(caller):
        yield http_update_item(caller)


@asynccontextmanager
async def _closing(caller: AwsJsonClient) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await caller.aclose()
        await checkpoint()  # closed transports release their sockets later
