"""What reads one shard for one child, whichever way its records come."""

from __future__ import annotations

from typing import Protocol

from kcl_daemon.retrieval.batch import Batch, EndOfShard


class Reader(Protocol):
    """Reads a shard ahead of its child; used once, and by one taker."""

    @property
    def trouble(self) -> str | None:
        """Why nothing comes, None where all is well."""
        ...

    @property
    def oldest_s(self) -> float | None:
        """When the oldest record that was read and not taken came to the stream, in monotonic seconds; None: there is none."""
        ...

    async def run(self) -> None:
        """Read until the end of the shard; returns then. Beside `next`; may be cancelled."""
        ...

    async def next(self) -> Batch | EndOfShard:
        """The next batch, waiting for it; a cancelled call takes nothing. Whoever takes a batch releases it."""
        ...

    def close(self) -> None:
        """Give up what has not been taken."""
        ...
