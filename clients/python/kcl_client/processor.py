"""The two classes a user derives from: `RecordProcessor` and, with `async def`, `AsyncRecordProcessor`.

Owns the interface and its defaults. Each process has one processor for one shard, and one method runs at a time. An
exception that leaves a method ends the process without reporting the action as done, so that no record is skipped: the
daemon starts a new process at the last checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from kcl_client.checkpointer import AsyncCheckpointer, Checkpointer
from kcl_client.records import Batch, ShardStart


class RecordProcessor(ABC):
    """Derive from it, give it `process_records`, and hand an instance to `kcl_client.run`.

    A processor that keeps records beyond `process_records` (buffers, background threads) must override
    `shutdown_requested` and `shard_ended`: their defaults take everything delivered as done.

    Attributes:
        checkpoint_at_shard_end: whether the end of the shard is checkpointed after `shard_ended` where that did not do
            it. Switched off, a `shard_ended` that does not checkpoint keeps the shard's child shards from starting.
    """

    checkpoint_at_shard_end: ClassVar[bool] = True

    def initialize(self, start: ShardStart) -> None:  # noqa: B027 - optional to override
        """Called once, before anything else. No checkpoint is possible here."""

    @abstractmethod
    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        """Called with each batch; the next one comes only after this returns."""

    def lease_lost(self) -> None:  # noqa: B027 - optional to override
        """Called last when another worker has the shard now: drop what is in hand, no checkpoint is possible."""

    def shard_ended(self, checkpointer: Checkpointer) -> None:  # noqa: B027 - optional to override
        """Called last when every record of the shard was delivered: finish what is in hand.

        The end of the shard is checkpointed after it (`checkpoint_at_shard_end`).
        """

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        """Called when the worker stops or gives the lease away: the last chance to checkpoint.

        By default everything delivered is checkpointed, which is right where `process_records` returns with its records
        done.
        """
        checkpointer.checkpoint()


class AsyncRecordProcessor(ABC):
    """As `RecordProcessor`, with coroutines on one asyncio event loop.

    The loop keeps running between messages, so tasks started in `initialize` live until the process ends; they are
    cancelled then. Whatever blocks the loop in one place blocks it everywhere, as in every asyncio program.

    Attributes:
        checkpoint_at_shard_end: as in `RecordProcessor`.
    """

    checkpoint_at_shard_end: ClassVar[bool] = True

    async def initialize(self, start: ShardStart) -> None:  # noqa: B027 - optional to override
        """As `RecordProcessor.initialize`."""

    @abstractmethod
    async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
        """As `RecordProcessor.process_records`."""

    async def lease_lost(self) -> None:  # noqa: B027 - optional to override
        """As `RecordProcessor.lease_lost`."""

    async def shard_ended(self, checkpointer: AsyncCheckpointer) -> None:  # noqa: B027 - optional to override
        """As `RecordProcessor.shard_ended`."""

    async def shutdown_requested(self, checkpointer: AsyncCheckpointer) -> None:
        """As `RecordProcessor.shutdown_requested`."""
        await checkpointer.checkpoint()
