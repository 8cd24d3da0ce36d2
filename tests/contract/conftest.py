"""Fixtures that the suites of one port share."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from kcl_daemon.ports import Table
from tests.contract.table_backends import BACKENDS, Store, TableBackend


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
