"""Fixtures of the process tier."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest

from tests.process.local import Local, local_process


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Programs started here can be interrupted and hung up on, even where the tests run in a background that ignores that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def local() -> Generator[Local, None, None]:
    """The endpoints as one process for the whole session; streams and tables need names of their own."""
    with local_process() as running:
        yield running
