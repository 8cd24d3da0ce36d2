"""Fixtures that the suites of one port share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest

from kcl_daemon.aws.session import Clients
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.ports import Table
from kcl_local.dynamodb import DynamoDbServer
from tests.contract.aws_access import local_clients
from tests.contract.table_backends import BACKENDS, Store, TableBackend
from tests.contract.table_rows import Stage, opened


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name, scope="module")
def store(request: pytest.FixtureRequest) -> Generator[Store, None, None]:
    backend = request.param
    assert isinstance(backend, TableBackend)
    with backend.open() as opened:
        yield opened


@pytest.fixture
async def table(store: Store) -> Table:
    made = store.new_table(True)
    await made.ensure()
    return made


@pytest.fixture(scope="module")
def dynamodb_clients() -> Generator[Clients, None, None]:
    with DynamoDbServer() as server, local_clients(dynamodb=server.url) as clients:
        yield clients


@pytest.fixture(params=TableLayout, ids=lambda layout: layout.value)
async def stage(request: pytest.FixtureRequest, dynamodb_clients: Clients) -> AsyncGenerator[Stage, None]:
    layout = request.param
    assert isinstance(layout, TableLayout)
    made = await opened(layout, dynamodb_clients)
    yield made
    assert made.log.events("error") == []
