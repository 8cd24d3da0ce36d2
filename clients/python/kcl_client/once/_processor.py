from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Generic, TypeVar

from kcl_client._processor import Batch, Checkpointer, Record, RecordProcessor, ShardStart
from kcl_client.once._core import Once, Reader, Stopped, Store, T
from kcl_protocol.sequence import ExtendedSequenceNumber

R = TypeVar("R")

_LANES: Final = (
    "a shard with several children (shardConcurrency) cannot be stored like this; set shardConcurrency = 1"
)
_UNFENCED: Final = (
    "the daemon gives no fencingToken: use kcl-daemon 0.2 or later; or allow_unfenced = True, then only the position "
    "guards the store, and a reader that is late may still write"
)


class OnceProcessor(RecordProcessor, Generic[T]):
    """Derive from it, implement `process`, and pass an instance to `kcl_client.run`.

    Attributes:
        checkpoint_every_s: how often the lease's checkpoint follows the stored position while there is more to read.
        allow_unfenced: go on with a daemon that gives no fencing token.
    """

    checkpoint_every_s: ClassVar[float] = 10.0
    allow_unfenced: ClassVar[bool] = False

    def __init__(self, store: Store[T]) -> None:
        self._store = store
        self._once: Once[T]
        self._next_s = 0.0

    @abstractmethod
    def process(self, batch: Batch, transaction: T) -> None:
        """Write the output of these records through `transaction`, and nowhere else.

        Once this returns, it is stored together with the position of the last of them. Where nothing was stored, this
        may be called again with the same records, or fewer. Records that it rejects (`batch.reject`) are letters before
        the transaction is stored.
        """

    def initialize(self, start: ShardStart) -> ExtendedSequenceNumber | None:
        """Fences earlier readers. Who overrides it returns what this returns."""
        token = start.extra.get("fencingToken")
        if "lanes" in start.extra:
            raise RuntimeError(_LANES)
        if not isinstance(token, int) and not self.allow_unfenced:
            raise RuntimeError(_UNFENCED)
        stream = str(start.extra.get("streamName") or self._store.stream)
        fence = token if isinstance(token, int) else 0
        reader = Reader(self._store.application, stream, start.shard_id, fence)
        self._once = Once(self._store, reader, threading.Event().wait)
        position = _or_exit(self._once.begin)
        if isinstance(token, int):
            return position
        if position is not None and start.sequence_number is not None and start.sequence_number > position:
            raise RuntimeError(
                f"the checkpoint {start.sequence_number} is beyond the stored position {position}, and this daemon cannot "
                "begin there; move the checkpoint back with `kcl-daemon leases reset`"
            )
        return None

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        """Not for you: implement `process`."""
        behind_ms = batch.millis_behind_latest

        def work(records: Sequence[Record], transaction: T) -> None:
            self.process(batch.only(records), transaction)
            checkpointer.wait_for_letters()  # what it rejected is done with this transaction

        _or_exit(lambda: self._once.process(batch.records, work))
        now_s = time.monotonic()  # noqa: TID251 - a child has no Clock port
        if batch.records and (not behind_ms or now_s >= self._next_s):
            checkpointer.checkpoint(batch.records[-1])
            self._next_s = now_s + self.checkpoint_every_s


def _or_exit(steps: Callable[[], R]) -> R:
    try:
        return steps()
    except Stopped as stopped:
        raise SystemExit(f"kcl_client.once: {stopped}") from stopped
