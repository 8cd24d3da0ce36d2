"""What a shard's retrieval hands to its consumer: lines ready for the child, or the end of the shard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kcl_daemon.ports import Clock
from kcl_daemon.retrieval.payload import Payload
from kcl_daemon.shards.shard import ChildShard
from kcl_protocol.sequence import ExtendedSequenceNumber

NOT_AN_END: Final = "the answer has neither a way on nor child shards, or both"
"""The answer must have a next iterator or child shards, never both or neither (KCL: DataRetrievalUtil). The read is retried."""


class Batch:
    """Records to deliver as the line that the child reads, none at or before the checkpoint; may hold no record.

    The line is given once and forgotten then, so that it takes no memory while the child works on it.

    Args:
        payload: the records.
        millis_behind_latest: what Kinesis told with them.
        arrived_s: when the oldest of them came to the stream, in monotonic seconds; None: not told.
        on_release: called once, when the line is written or given up.
    """

    __slots__ = ("_line", "_on_release", "arrived_s", "count", "data_bytes", "last", "size_bytes")

    def __init__(
        self,
        payload: Payload,
        millis_behind_latest: int | None,
        on_release: Callable[[], None] | None = None,
        *,
        arrived_s: float | None = None,
    ) -> None:
        self.arrived_s = arrived_s
        self.count = len(payload)
        self.last: ExtendedSequenceNumber | None = payload.last if payload else None
        self.data_bytes = payload.data_bytes
        self._line: bytes | None = payload.line(millis_behind_latest)
        self.size_bytes = len(self._line)
        self._on_release = on_release

    def take_line(self) -> bytes:
        """The line `processRecords`, for the one who writes it; AssertionError the second time."""
        line, self._line = self._line, None
        assert line is not None, "a line is written once"
        return line

    def release(self) -> None:
        """The line has been written, or nobody wants it any more. Again: no effect."""
        self._line = None
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()


def arrived_s(payload: Payload, behind_ms: int | None, clock: Clock) -> float | None:
    """When the oldest of these records came to the stream, in monotonic seconds, never later than now; None: no record.

    By its arrival time. Where Kinesis says that the last record is further behind the tip than the first one is old, our
    wall clock is slow, and what Kinesis says counts.
    """
    if not payload:
        return None
    told_ms = payload.records[0].approximate_arrival_timestamp
    age_ms = 0 if told_ms is None else clock.wall_ms() - told_ms
    return clock.monotonic() - max(age_ms, behind_ms or 0, 0) / 1000


@dataclass(frozen=True, slots=True)
class EndOfShard:
    """Nothing more will come. `children` is empty where the shard or stream was deleted under us."""

    children: tuple[ChildShard, ...]
