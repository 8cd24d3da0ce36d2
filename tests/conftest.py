"""Fixtures of every tier."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Where tests marked `anyio` run; the daemon runs there, too."""
    return "asyncio"
