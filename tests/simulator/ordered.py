"""Cancellation in one fixed order.

Owns the one repair that anyio needs to be the same in every run: a cancel scope keeps its tasks and inner scopes in
sets, whose order follows memory addresses, so the order in which tasks are cancelled would differ from run to run.
Knows nothing of the simulation.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
from anyio._backends import _asyncio

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """As much of a set as anyio uses, in the order of insertion."""

    __slots__ = ()

    # An item that is there keeps its place; the bare methods, because every scope of a run calls them.
    add = dict.setdefault
    remove = dict.__delitem__

    def discard(self, item: T) -> None:
        """Take an item out if it is there."""
        self.pop(item, None)


def scope_until(deadline_s: float) -> anyio.CancelScope:
    """`anyio.CancelScope(deadline=...)` without the search for the backend, which is always the same here."""
    return _asyncio.CancelScope(deadline=deadline_s)


@contextmanager
def ordered_cancellation() -> Generator[None]:
    """While this is open, every cancel scope that is entered cancels its tasks in the order in which they were started."""
    scope_class: Any = _asyncio.CancelScope
    original = scope_class.__enter__

    def ordered(scope: Any) -> Any:
        scope._child_scopes = OrderedSet()  # both are empty until a scope is entered
        scope._tasks = OrderedSet()
        return original(scope)

    scope_class.__enter__ = ordered
    try:
        yield
    finally:
        scope_class.__enter__ = original
