"""The producer: PutRecords at a steady rate, and the truth about what the stream took.

Owns batching, pacing and the retry of refused entries. Tells the checker each record with the shard and sequence number
that the service answered. Knows nothing of who reads the stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
from anyio import lowlevel
from botocore.exceptions import BotoCoreError, ClientError

from kcl_local.demo.check import Checker
from kcl_local.demo.clock import monotonic_s
from kcl_local.demo.errors import DemoError
from kcl_local.demo.feed import Feed
from kcl_local.demo.stream import Stream, in_thread
from kcl_local.demo.text import Line, words

if TYPE_CHECKING:
    from mypy_boto3_kinesis.type_defs import PutRecordsOutputTypeDef

BATCH_RECORDS_MAX: Final = 500  # PutRecords
BATCH_BYTES_MAX: Final = (
    4 * 1024 * 1024
)  # PutRecords takes 5 MiB; some of it is for the request around the records
TICK_S: Final = 0.05
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MOST_S: Final = 1.0
REFUSED_FOR_S_MAX: Final = 20.0
_RETRYABLE: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "KMSThrottlingException",
        "LimitExceededException",
        "InternalFailure",
    }
)


@dataclass(frozen=True, slots=True)
class Pace:
    """How much to write.

    Args:
        rate: records per second, over all shards.
        records: no more than these; None: as many as there are.
        seconds: stop after this long.
    """

    rate: float
    seconds: float
    records: int | None = None

    def due(self, elapsed_s: float, sent: int) -> int:
        """How many records may be sent now."""
        allowed = int(elapsed_s * self.rate) + 1
        return max(0, (allowed if self.records is None else min(allowed, self.records)) - sent)

    def is_done(self, sent: int) -> bool:
        """Whether the cap on records has been reached."""
        return self.records is not None and sent >= self.records


def batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines in order, in groups that one PutRecords may carry."""
    batch: list[Line] = []
    size_bytes = 0
    for line in lines:
        line_bytes = len(line.data) + len(line.key.encode())
        if batch and (len(batch) == BATCH_RECORDS_MAX or size_bytes + line_bytes > BATCH_BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(line)
        size_bytes += line_bytes
    if batch:
        yield batch


class Producer:
    """Writes to one stream and keeps the account of it in a checker."""

    def __init__(self, stream: Stream, checker: Checker) -> None:
        self._stream = stream
        self._checker = checker
        self.written = 0

    async def run(self, feed: Feed, pace: Pace) -> None:
        """Write what the feed gives until its end or the pace's. Cancelled, it first finishes the call under way.

        Raises:
            DemoError: the stream refuses records for long, or a call fails so that nobody knows what was written.
        """
        started_s = monotonic_s()
        with anyio.move_on_after(pace.seconds):
            while not pace.is_done(self.written):
                due = pace.due(monotonic_s() - started_s, self.written)
                if due == 0:
                    await anyio.sleep(TICK_S)
                    continue
                await (
                    lowlevel.checkpoint()
                )  # a feed and a shielded call alone would never notice a cancellation
                lines = await feed.take(min(due, BATCH_RECORDS_MAX))
                if not lines:
                    return
                with anyio.CancelScope(shield=True):
                    await self.put(lines)

    async def put(self, lines: Sequence[Line]) -> None:
        """Write these lines, each exactly once; returns when the stream has taken all of them."""
        for batch in batches(lines):
            waiting: list[Line] = batch
            backoff_s = BACKOFF_FIRST_S
            give_up_s = monotonic_s() + REFUSED_FOR_S_MAX
            while waiting := await self._attempt(waiting):
                if monotonic_s() > give_up_s:
                    raise DemoError(f"the stream refused records for {REFUSED_FOR_S_MAX:g} s")
                await anyio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MOST_S)

    async def _attempt(self, lines: list[Line]) -> list[Line]:
        """One PutRecords; the lines that the stream did not take this time."""
        try:
            answer = await in_thread(
                self._stream.client.put_records,
                StreamName=self._stream.name,
                Records=[{"Data": line.data, "PartitionKey": line.key} for line in lines],
            )
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in _RETRYABLE:
                return lines
            raise DemoError(f"PutRecords failed: {error}") from error
        except BotoCoreError as error:
            raise DemoError(f"PutRecords failed, so it is unknown what was written: {error}") from error
        return self._account(lines, answer)

    def _account(self, lines: list[Line], answer: PutRecordsOutputTypeDef) -> list[Line]:
        refused: list[Line] = []
        for line, result in zip(lines, answer["Records"], strict=True):
            number, shard_id = result.get("SequenceNumber"), result.get("ShardId")
            if number and shard_id and not result.get("ErrorCode"):
                self._checker.wrote(shard_id, number, Counter(words(line.data)))
                self.written += 1
            else:
                refused.append(line)
        return refused
