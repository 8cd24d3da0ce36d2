"""The stores that the contract suite runs over."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from kcl_landing.store import LogStore
from tests.landing.backends import BACKENDS, Backend, NewStore


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
