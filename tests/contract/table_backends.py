"""The adapters of the port `Table` that must keep its contract. Add a factory to `BACKENDS` to put one more to it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from kcl_daemon.aws.access import CallLimiters, Item
from kcl_daemon.aws.build import open_update_item
from kcl_daemon.aws.dynamodb import DynamoTable, DynamoTransactions, UpdateItem
from kcl_daemon.aws.session import Clients
from kcl_daemon.aws.tables import TableSpec, creation_request
from kcl_daemon.ports import Table, Transactions
from kcl_local.dynamodb import DynamoDbServer
from tests.contract.aws_access import QuickClock, local_clients
from tests.simulator.memory.table import MemoryTable
from tests.simulator.memory.transactions import MemoryTransactions
from tests.unit.fakes import LoopClock

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import UpdateItemInputTypeDef

_numbers = count(1)


@dataclass(frozen=True)
class Store:
    """Where tables are.

    Args:
        new_table: a table of a fresh name that does not exist yet, with or without the index by owner.
        old_table: a table that exists, made by somebody who did not make the index.
        transactions: over all of these.
    """

    new_table: Callable[[bool], Table]
    old_table: Callable[[], Table]
    transactions: Transactions


@dataclass(frozen=True)
class TableBackend:
    """One adapter.

    Args:
        name: shown in the test's id.
        open: a store, for as long as the context lasts.
    """

    name: str
    open: Callable[[], AbstractContextManager[Store]]


@contextmanager
def _in_memory() -> Generator[Store, None, None]:
    transactions = MemoryTransactions()

    def new_table(with_index: bool) -> MemoryTable:
        table = MemoryTable(_name(), "leaseKey", with_index)
        transactions.add(table)
        return table

    def old_table() -> Table:
        table = new_table(True)
        table.exist_without_index()
        return table

    yield Store(new_table, old_table, transactions)


def _each_on_its_own(clients: Clients) -> UpdateItem:
    """Updates over the daemon's own transport; the tests have an event loop each, so that no connection outlives a call."""

    async def update(request: UpdateItemInputTypeDef) -> Item:
        async with open_update_item(clients, LoopClock()) as update_item:
            assert update_item is not None
            return await update_item(request)

    return update


def _over_http() -> AbstractContextManager[Store]:
    return _dynamodb(lambda _: None)


def _over_own_transport() -> AbstractContextManager[Store]:
    return _dynamodb(_each_on_its_own)


@contextmanager
def _dynamodb(way: Callable[[Clients], UpdateItem | None]) -> Generator[Store, None, None]:
    with DynamoDbServer() as server, local_clients(dynamodb=server.url) as clients:
        limiters, update_item = CallLimiters(), way(clients)

        def new_table(with_index: bool) -> Table:
            spec = TableSpec(_name(), "leaseKey", with_index)
            return DynamoTable(
                spec, clients.dynamodb, limiters.leases, clock=QuickClock(), update_item=update_item
            )

        def old_table() -> Table:
            table = new_table(True)
            clients.dynamodb.create_table(**creation_request(TableSpec(table.name, "leaseKey")))
            return table

        yield Store(new_table, old_table, DynamoTransactions(clients.dynamodb, limiters.others.writes))


def _name() -> str:
    return f"table-{next(_numbers)}"


BACKENDS: list[TableBackend] = [
    TableBackend("memory", _in_memory),
    TableBackend("dynamodb", _over_http),
    TableBackend("dynamodb, own transport", _over_own_transport),
]
