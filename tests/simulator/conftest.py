"""Fixtures of the simulator's tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def violations() -> None:
    """A run ends with the first violation of its workers, and its outcome says which: nothing else is to be looked at."""
