"""Fixtures of every tier, and how property tests look for examples."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.models import read_once

if TYPE_CHECKING:
    from tests.process.local import Local

# The machine may stand still for seconds in the middle of an example, or while one is drawn: neither says anything about
# the rule. Every day the same examples, so that a run judges the change and not its luck; `make prove` draws new ones.
settings.register_profile(
    "every-day",
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "prove", deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("every-day")


@pytest.fixture
def anyio_backend() -> str:
    """Where tests marked `anyio` run; the daemon runs there, too."""
    return "asyncio"


@pytest.fixture(scope="session")
def local() -> Generator[Local]:
    """The endpoints as one process for all tests of this process; streams and tables need names of their own."""
    from tests.process.local import local_process  # noqa: PLC0415 - takes half a second, which few tests need

    with local_process() as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def _models_of_services_are_read_once() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    with read_once():
        yield
