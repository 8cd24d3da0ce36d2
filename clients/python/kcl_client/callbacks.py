"""The two forms of a processor behind one face, so that `session` need not know which one it drives.

Owns the guard against a method of the wrong kind: an `async def` in a plain processor would return at once without
having run, and its records would be lost without a sound.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, Protocol

from kcl_client.checkpointer import AsyncCheckpointer, Checkpointer
from kcl_client.processor import AsyncRecordProcessor, RecordProcessor
from kcl_client.records import Batch, ShardStart

P = ParamSpec("P")


class Callbacks(Protocol):
    """A processor's methods, each to be awaited; every exception is the user's."""

    @property
    def checkpoint_at_shard_end(self) -> bool:
        """As in `RecordProcessor`."""
        ...

    async def initialize(self, start: ShardStart) -> None:
        """Begin."""
        ...

    async def process_records(self, batch: Batch) -> None:
        """Take a batch."""
        ...

    async def lease_lost(self) -> None:
        """Stop, nothing more can be stored."""
        ...

    async def shard_ended(self) -> None:
        """Finish, nothing more will come."""
        ...

    async def shutdown_requested(self) -> None:
        """Store what is done."""
        ...


class PlainCallbacks:
    """The face of a `RecordProcessor`."""

    def __init__(self, processor: RecordProcessor, checkpointer: Checkpointer) -> None:
        self._processor = processor
        self._checkpointer = checkpointer

    @property
    def checkpoint_at_shard_end(self) -> bool:
        """What the class says."""
        return self._processor.checkpoint_at_shard_end

    async def initialize(self, start: ShardStart) -> None:
        """Call the method of that name."""
        _call(self._processor.initialize, start)

    async def process_records(self, batch: Batch) -> None:
        """Call the method of that name."""
        _call(self._processor.process_records, batch, self._checkpointer)

    async def lease_lost(self) -> None:
        """Call the method of that name."""
        _call(self._processor.lease_lost)

    async def shard_ended(self) -> None:
        """Call the method of that name."""
        _call(self._processor.shard_ended, self._checkpointer)

    async def shutdown_requested(self) -> None:
        """Call the method of that name."""
        _call(self._processor.shutdown_requested, self._checkpointer)


class AsyncCallbacks:
    """The face of an `AsyncRecordProcessor`."""

    def __init__(self, processor: AsyncRecordProcessor, checkpointer: AsyncCheckpointer) -> None:
        self._processor = processor
        self._checkpointer = checkpointer

    @property
    def checkpoint_at_shard_end(self) -> bool:
        """What the class says."""
        return self._processor.checkpoint_at_shard_end

    async def initialize(self, start: ShardStart) -> None:
        """Await the method of that name."""
        await _await(self._processor.initialize, start)

    async def process_records(self, batch: Batch) -> None:
        """Await the method of that name."""
        await _await(self._processor.process_records, batch, self._checkpointer)

    async def lease_lost(self) -> None:
        """Await the method of that name."""
        await _await(self._processor.lease_lost)

    async def shard_ended(self) -> None:
        """Await the method of that name."""
        await _await(self._processor.shard_ended, self._checkpointer)

    async def shutdown_requested(self) -> None:
        """Await the method of that name."""
        await _await(self._processor.shutdown_requested, self._checkpointer)


def _call(method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    result = method(*args, **kwargs)
    if isinstance(result, Awaitable):
        close = getattr(result, "close", None)
        if callable(close):
            close()  # else Python would add its own warning to the error
        raise TypeError(f"{_name(method)} must not be `async def`; for that derive from AsyncRecordProcessor")


async def _await(method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    result = method(*args, **kwargs)
    if isinstance(result, Awaitable):
        await result
        return
    raise TypeError(f"{_name(method)} must be `async def`; for a plain method derive from RecordProcessor")


def _name(method: object) -> str:
    return str(getattr(method, "__qualname__", method))
