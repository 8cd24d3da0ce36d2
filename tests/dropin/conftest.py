"""Fixtures of the drop-in tier."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.process.local import Local, local_process


@pytest.fixture(scope="session")
def local() -> Generator[Local, None, None]:
    """The endpoints as one process for the whole session; streams and tables need names of their own."""
    with local_process() as running:
        yield running
