"""Fixtures of every tier, and how property tests look for examples."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings

from kcl_daemon.errors import Invariant, InvariantViolated
from kcl_daemon.progress.invariants import Invariants
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

# Begun first: with one of these left at the end, one worker would work and the others wait.
LONG_FILES: Final = (
    "tests/spark/test_session.py",
    "tests/spark/test_daemon.py",
    "tests/process/test_table_migration_process.py",
    "tests/process/test_lag_process.py",
    "tests/process/test_reshard_process.py",
    "tests/process/test_fleet.py",
    "tests/process/test_leases_process.py",
    "tests/page/test_live.py",
    "tests/dropin/test_libraries.py",
    "tests/simulator/test_scenarios.py",
    "tests/contract/test_kinesis_contract.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Programs started here can be interrupted and hung up on, even where the tests run in a background that ignores that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """What is imported by now stays; to look through it for garbage again and again is a tenth of what tests compute."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    """Where tests marked `anyio` run; the daemon runs there, too."""
    return "asyncio"


@pytest.fixture(autouse=True)
def violations(monkeypatch: pytest.MonkeyPatch) -> Generator[list[InvariantViolated]]:
    """The violated invariants of a test; one that wants them clears the list. Fails the test if there are any at its end."""
    violated, found = Invariants.violated, list[InvariantViolated]()

    def noted(self: Invariants, invariant: Invariant, expected: object, seen: object) -> InvariantViolated:
        found.append(violated(self, invariant, expected, seen))
        return found[-1]

    monkeypatch.setattr(Invariants, "violated", noted)
    yield found
    assert found == []


@pytest.fixture(scope="session")
def local() -> Generator[Local]:
    """The endpoints as one process for all tests of this process; streams and tables need names of their own."""
    from tests.process.local import local_process  # takes half a second, which few tests need

    with local_process() as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def _models_of_services_are_read_once() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    with read_once():
        yield
