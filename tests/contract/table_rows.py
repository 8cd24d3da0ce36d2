"""An application of a test's own in one of the layouts, whose raw items can be read and written past our adapter."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Any, cast

from kcl_daemon.aws.build import build_tables
from kcl_daemon.aws.session import Clients
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.fleet.lease_renewer import HeldLease, LeaseRenewer
from kcl_daemon.fleet.tables import ApplicationTables
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.ports import Table, Tables
from kcl_protocol.sequence import TRIM_HORIZON
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import lease_renewer, worker_context

ME, OTHER = WorkerId("w-1"), WorkerId("w-2")
SHARD = ShardId("shardId-000000000007")
NUMBER = "49590338271490256608559692538361571095921575989136588898"
_numbers = count(1)


def all_tables(clients: Clients) -> list[str]:
    """The names of all tables; more than fit on one page."""
    pages = clients.dynamodb.get_paginator("list_tables").paginate()
    return [name for page in pages for name in page["TableNames"]]


@dataclass(frozen=True)
class Stage:
    """An application of its own in one of the layouts, opened."""

    layout: TableLayout
    clients: Clients
    tables: Tables
    log: MemoryLog

    async def opened_again(self) -> Tables:
        """As a worker without settings of its own finds it."""
        name = self.tables.leases.name
        settings = Settings(name, "orders", ChildSettings(("true",)), OTHER)
        found = ApplicationTables(
            build_tables(settings, self.clients, LoopClock()),
            settings=TablesSettings(),
            clock=LoopClock(),
            log=self.log,
        )
        await found.open()
        return found.tables

    def stored(self, table: Table, key: str) -> dict[str, Any]:
        """The raw item."""
        answer = self.clients.dynamodb.get_item(
            TableName=table.name, Key={table.key_attribute: {"S": key}}, ConsistentRead=True
        )
        return cast("dict[str, Any]", _plain(answer.get("Item", {})))

    def store(self, table: Table, item: dict[str, Any]) -> None:
        """Write a raw item, as another program does."""
        self.clients.dynamodb.put_item(TableName=table.name, Item=item)

    def renewer(self) -> LeaseRenewer:
        return lease_renewer(worker_context(ME, log=self.log), self.tables.leases)

    async def lease(self) -> Lease:
        row = await self.tables.leases.get(SHARD)
        assert row is not None
        return lease_row.lease_from_row(row)

    async def created(self, parents: frozenset[ShardId] = frozenset()) -> Lease:
        lease = Lease(
            LeaseKey(SHARD), 0, TRIM_HORIZON, parent_shard_ids=parents, hash_range=HashRange(0, MAX_HASH)
        )
        assert (await self.tables.leases.put(*lease_row.creation(lease))).applied
        return lease

    async def held(self, renewer: LeaseRenewer) -> HeldLease:
        """The lease, assigned to us and claimed."""
        await self.tables.leases.update(lease_row.assignment(await self.created(), ME))
        held = await renewer.claim(await self.lease())
        assert held is not None
        return held


def _plain(value: Any) -> Any:
    """Numbers in one spelling: DynamoDB drops zeros at the end, its stand-in does not."""
    match value:
        case {"N": str(text)}:
            return {"N": format(Decimal(text).normalize(), "f")}
        case {"SS": list(texts)}:
            return {"SS": sorted(texts)}
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value


async def opened(layout: TableLayout, clients: Clients) -> Stage:
    """A fresh application in a layout."""
    settings = Settings(f"rows-{next(_numbers)}", "orders", ChildSettings(("true",)), ME)
    log = MemoryLog()
    application = ApplicationTables(
        build_tables(settings, clients, LoopClock()),
        settings=TablesSettings(layout=layout),
        clock=LoopClock(),
        log=log,
    )
    await application.open()
    return Stage(layout, clients, application.tables, log)
