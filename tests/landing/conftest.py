"""The stores that the contract suite runs over, and a shard in memory."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from kcl_landing.log import Layout, LogInfo
from kcl_landing.store import LogStore
from tests.landing.backends import BACKENDS, Backend, NewStore
from tests.landing.footers import Shard
from tests.landing.memory_store import MemoryStore


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.name)
def new_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[NewStore]:
    backend = request.param
    assert isinstance(backend, Backend)
    with backend.open(tmp_path_factory.mktemp("stores")) as opened:
        yield opened


@pytest.fixture
def log_store(new_store: NewStore) -> LogStore:
    return new_store()


@pytest.fixture(params=["log", "dated"])
def info(request: pytest.FixtureRequest) -> LogInfo:
    layout: Layout = request.param
    return LogInfo("app", layout, "parquet", "id-1")


@pytest.fixture
def shard(info: LogInfo) -> Shard:
    return Shard(MemoryStore(), info)
