"""What the virtual loop has to run, now or at some time.

Owns the two kinds of handles: asyncio's own without its provisions for debugging, because there are hundreds for each
virtual second of a fleet. Knows nothing of what is called.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - these are asyncio's handles
from contextvars import Context, copy_context
from typing import Any


class Callback(asyncio.Handle):
    """A callback that is ready to run: asyncio.Handle."""

    __slots__ = ()
    _callback: Any
    _context: Context
    _loop: Any
    _source_traceback: None
    _repr: None

    def __init__(self, callback: Any, args: Any, loop: Any, context: Context | None) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._source_traceback = self._repr = None


class Alarm(asyncio.TimerHandle):
    """A callback that runs at some time: asyncio.TimerHandle."""

    __slots__ = ()
    _callback: Any
    _context: Context
    _loop: Any
    _scheduled: bool
    _source_traceback: None
    _repr: None

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: Context | None) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = self._scheduled = False
        self._source_traceback = self._repr = None

    def cancel(self) -> None:
        """As asyncio's."""
        if not self._cancelled:
            self._cancelled = True
            self._callback, self._args = None, ()
            self._loop._timer_handle_cancelled(self)
