"""Writes numbered records at a pace. A put without an answer is written again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Final

import anyio
from anyio import lowlevel
from botocore.exceptions import BotoCoreError, ClientError

from kcl_local.demo.check import monotonic_s
from kcl_local.demo.stage import (
    BACKOFF_FIRST_S,
    BACKOFF_MOST_S,
    BATCH_RECORDS_MAX,
    RETRYABLE,
    TICK_S,
    WriteRate,
    batches,
)
from kcl_local.demo.stream import in_thread
from kcl_local.demo.text import Line
from kcl_prove.account import Account
from kcl_prove.numbered import numbered_data, word_of
from kcl_prove.parts import ProveError

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient
    from mypy_boto3_kinesis.type_defs import PutRecordsOutputTypeDef

KEYS: Final = 97
REFUSED_FOR_S_MAX: Final = 180.0
_THROTTLED: Final = RETRYABLE | {"ThrottlingException", "RequestLimitExceeded", "ServiceUnavailable"}
_SERVER_ERROR: Final = 500


@dataclass(frozen=True, slots=True)
class Numbered(Line):
    word: str


Form = Callable[[bytes], bytes]


def numbered(
    run_id: str, size_bytes: int = 0, *, form: Form = bytes, schema: str = "", keys: int = KEYS
) -> Iterator[Numbered]:
    """Without end. `form` puts a header before each; children should hear of `schema`."""
    for number in count():
        key = f"key-{number % keys}"
        data = numbered_data(run_id, number, key, size_bytes)
        yield Numbered(key, form(data), word_of(data, schema))


class Producer:
    def __init__(self, client: KinesisClient, stream: str, account: Account) -> None:
        """`client` must not retry: a hidden retry can write a record twice."""
        self._client = client
        self._stream = stream
        self._account = account
        self.written = 0

    async def run(self, records: Iterator[Numbered], pace: WriteRate) -> None:
        """ProveError: the stream refuses records for long."""
        started_s = monotonic_s()
        while not pace.is_done(self.written):
            await lowlevel.checkpoint()
            due = pace.due(monotonic_s() - started_s, self.written)
            if due == 0:
                await anyio.sleep(TICK_S)
            for batch in batches(islice(records, min(due, BATCH_RECORDS_MAX))):
                await self.put(batch)

    async def put(self, records: Sequence[Numbered]) -> None:
        waiting, backoff_s = list(records), BACKOFF_FIRST_S
        give_up_s = monotonic_s() + REFUSED_FOR_S_MAX
        while waiting := await self._attempt(waiting):
            if monotonic_s() > give_up_s:
                raise ProveError(f"stream {self._stream} refused records for {REFUSED_FOR_S_MAX:g} s")
            await anyio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MOST_S)

    async def _attempt(self, records: list[Numbered]) -> list[Numbered]:
        put_s = monotonic_s()
        try:
            answer = await in_thread(
                self._client.put_records,
                StreamName=self._stream,
                Records=[{"Data": record.data, "PartitionKey": record.key} for record in records],
            )
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= _SERVER_ERROR:
                self._account.without_answer(record.word for record in records)
            elif error.response.get("Error", {}).get("Code") not in _THROTTLED:
                raise ProveError(f"PutRecords on {self._stream} failed: {error}") from error
            return records
        except BotoCoreError:
            self._account.without_answer(record.word for record in records)
            return records
        return self._taken(records, answer, put_s)

    def _taken(
        self, records: list[Numbered], answer: PutRecordsOutputTypeDef, put_s: float
    ) -> list[Numbered]:
        refused: list[Numbered] = []
        for record, result in zip(records, answer["Records"], strict=True):
            number, shard_id = result.get("SequenceNumber"), result.get("ShardId")
            if number and shard_id and not result.get("ErrorCode"):
                self._account.wrote(shard_id, number, record.word, put_s)
                self.written += 1
                continue
            if result.get("ErrorCode") == "InternalFailure":
                self._account.without_answer([record.word])
            refused.append(record)
        return refused
