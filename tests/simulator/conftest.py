"""Fixtures of the simulator's tests."""

from __future__ import annotations

import pytest

from kcl_daemon.progress.invariants import Invariants


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that do not check themselves, so that the rules of the simulator have to notice."""
    for check in ("gives", "answers", "stores", "moved", "ends"):
        monkeypatch.setattr(Invariants, check, lambda *_: None)


@pytest.fixture
def violations() -> None:
    """A run ends with the first violation of its workers, and its outcome says which: nothing else is to be looked at."""
