"""A kill at a fault point (`kcl_daemon.faults`), for tests of what no simulated fleet does."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from kcl_daemon import faults


class KilledAtPoint(BaseException):
    """A BaseException, so that nobody handles it as an error."""


@contextmanager
def killed_at(point: str, nth: int = 1) -> Generator[None]:
    """The code within is killed when it comes to the point for the nth time; it must come there."""
    visits = 0

    def at(name: str) -> None:
        nonlocal visits
        visits += name == point
        if name == point and visits == nth:
            raise KilledAtPoint(point)

    faults.inject(at)
    try:
        with pytest.raises(BaseException) as caught:
            yield
    finally:
        faults.inject(None)
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, KilledAtPoint), error
