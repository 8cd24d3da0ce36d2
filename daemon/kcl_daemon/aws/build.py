"""The ports over AWS, made from settings and clients."""

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
    FastUpdates,
    TableUpdates,
    condition_failed,
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
    settings: Settings, clients: Clients, clock: Clock, updates: TableUpdates | None = None
) -> Tables:
    """The three tables of an application, whether they exist or shall exist or not. Touches nothing yet.

    Args:
        settings: their names and options.
        clients: for the calls.
        clock: for the time that a new table takes.
        updates: how leases are renewed and checkpoints written; None: by the SDK.
    """
    limiters = CallLimiters()
    options = settings.tables
    leases = TableSpec(settings.lease_table, KEY, has_owner_index=True, options=options.leases)
    workers = TableSpec(settings.worker_metrics_table, _WORKER_KEY, options=options.worker_metrics)
    coordinator = TableSpec(settings.coordinator_table, _COORDINATOR_KEY, options=options.coordinator)
    client = clients.dynamodb
    return Tables(
        leases=DynamoTable(leases, client, limiters.leases, clock=clock, updates=updates),
        worker_metrics=DynamoTable(workers, client, limiters.others, clock=clock),
        coordinator=DynamoTable(coordinator, client, limiters.others, clock=clock),
    )


def build_transactions(clients: Clients) -> Transactions:
    """Transactions over any of the tables. Touches nothing yet."""
    return DynamoTransactions(clients.dynamodb, CallLimiters().other_writes)


def build_kinesis(clients: Clients) -> Kinesis:
    """Kinesis Data Streams, all of it by the SDK. Touches nothing yet."""
    return AwsKinesis(clients.kinesis, CallLimiters().kinesis)


def build_consumers(clients: Clients) -> AwsConsumers:
    """Consumers of enhanced fan-out, without subscriptions. Touches nothing yet."""
    return AwsConsumers(clients.kinesis, CallLimiters().kinesis)


def build_fan_out(clients: Clients, caller: AwsJsonClient) -> FanOut:
    """Enhanced fan-out: consumers by the SDK, subscriptions over the daemon's own transport. Touches nothing yet."""
    return HttpFanOut(caller, AwsConsumers(clients.kinesis, CallLimiters().kinesis))


def build_schemas(clients: Clients) -> Schemas | None:
    """The Glue Schema Registry; None where the clients have none. Touches nothing yet."""
    return None if clients.glue is None else GlueSchemas(clients.glue, CallLimiters().schemas)


@asynccontextmanager
async def open_json_client(
    clients: Clients,
    clock: Clock,
    *,
    on_date: Callable[[float], None] = ignore_date,
) -> AsyncGenerator[AwsJsonClient, None]:
    """Calls of Kinesis over the daemon's own transport, with the SDK's endpoints and credentials.

    Its connections are closed when the context is left.

    Args:
        clients: whose endpoints and credentials.
        clock: for signatures.
        on_date: told now and then what time it is for the service, epoch seconds.
    """
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
async def open_updates(clients: Clients, clock: Clock) -> AsyncGenerator[TableUpdates | None, None]:
    """The quick way to renew leases and write checkpoints, on connections of its own, closed when the context is left.

    None where endpoints of DynamoDB are to be discovered: only the SDK does that.
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
        yield FastUpdates(caller)


@asynccontextmanager
async def _closing(caller: AwsJsonClient) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await caller.aclose()
        await checkpoint()  # closed transports let go of their sockets in the loop's next turn
