"""A user's function as a processor. It checkpoints on a timer and at every end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn, cast

from kcl_client._decoding import UNDECODABLE, Read, is_awaitable, reader_of, type_name
from kcl_client._function import Shape, Takes, UserFunction, shape_of
from kcl_client._processor import (
    AsyncCheckpointer,
    AsyncRecordProcessor,
    Batch,
    Checkpointer,
    Record,
    RecordProcessor,
    RejectRecord,
    failed_records,
)
from kcl_client._timed import CHECKPOINT_EVERY_S, TimedProcessor, Timer
from kcl_protocol.errors import CheckpointError, RejectError

_Result = Mapping[str, object] | None


def processor_of(
    function: UserFunction, *, checkpoint_every_s: float = CHECKPOINT_EVERY_S
) -> RecordProcessor | AsyncRecordProcessor:
    shape = shape_of(function)
    read = reader_of(shape)
    if shape.takes is Takes.BATCH:
        return _AsyncBatches(function) if shape.is_async else _Batches(function, shape)
    if shape.is_async:
        return _AsyncRecords(function, shape, read)
    return _Records(function, shape, read, Timer(checkpoint_every_s))


class _Records(TimedProcessor):
    def __init__(self, function: UserFunction, shape: Shape, read: Read, timer: Timer) -> None:
        super().__init__(timer)
        self._function = function
        self._shape = shape
        self._read = read
        self._takes_letters = False

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        read, function, with_record = self._read, self._function, self._shape.with_record
        timer, last = self.timer, None
        for record in batch.records:
            if timer.clock() >= timer.due_s and last is not None:
                self._checkpoint(last, checkpointer)
            last = record  # done when the next one begins
            try:
                value = read(record)
            except UNDECODABLE as error:
                self._reject(batch, record, undecodable(self._shape, error), error, checkpointer)
                continue
            try:
                result = function(value, record) if with_record else function(value)
            except RejectRecord as wish:
                self._reject(batch, record, wish, wish, checkpointer)
                continue
            except Exception as error:
                tell(error, record)
                raise
            if result is not None and is_awaitable(result):
                refuse_awaitable(self._shape)
        if last is not None:
            timer.position = last.position
            if timer.left_s() == 0:
                self._checkpoint(last, checkpointer)

    def _checkpoint(self, record: Record, checkpointer: Checkpointer) -> None:
        try:
            checkpointer.checkpoint(record, attempts=1)
        except CheckpointError as error:
            if not error.retryable:
                raise
            self.timer.later()
        else:
            self.timer.stored()

    def _reject(
        self, batch: Batch, record: Record, reason: object, error: Exception, checkpointer: Checkpointer
    ) -> None:
        """Waits for the first answer: where letters have no place, the record itself is what failed."""
        try:
            batch.reject(record, reason)
            if not self._takes_letters:
                checkpointer.wait_for_letters()
                self._takes_letters = True
        except RejectError as refusal:
            tell(refusal, record)
            raise refusal from error


class _Batches(RecordProcessor):
    def __init__(self, function: UserFunction, shape: Shape) -> None:
        self._function = function
        self._shape = shape

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> _Result:
        if not batch:
            return None
        result = self._function(batch)
        if result is not None and is_awaitable(result):
            refuse_awaitable(self._shape)
        if failed_records(result, batch) is not None:
            return cast("_Result", result)
        checkpointer.checkpoint()
        return None


class _AsyncRecords(AsyncRecordProcessor):
    def __init__(self, function: UserFunction, shape: Shape, read: Read) -> None:
        self._function = cast("Callable[..., Awaitable[object]]", function)
        self._shape = shape
        self._read = read

    async def process_record(self, record: Record) -> None:
        try:
            value = self._read(record)
        except UNDECODABLE as error:
            wish = RejectRecord(undecodable(self._shape, error))
            tell(wish, record)
            raise wish from error
        try:
            await (self._function(value, record) if self._shape.with_record else self._function(value))
        except Exception as error:
            tell(error, record)
            raise


class _AsyncBatches(AsyncRecordProcessor):
    def __init__(self, function: UserFunction) -> None:
        self._function = cast("Callable[..., Awaitable[object]]", function)

    async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> _Result:
        if not batch:
            return None
        result = await self._function(batch)
        if failed_records(result, batch) is not None:
            return cast("_Result", result)
        await checkpointer.checkpoint()
        return None


def undecodable(shape: Shape, error: BaseException) -> str:
    wanted = type_name(shape) if shape.takes is Takes.VALUE else "text"
    return f"cannot be decoded to {wanted}: {error}"


def tell(error: Exception, record: Record) -> None:
    position = record.position
    sub = f", {position.sub_sequence_number} in its aggregate" if position.sub_sequence_number else ""
    error.add_note(
        f"kcl_client: at record {position.sequence_number}{sub}, partition key {record.partition_key!r}"
    )


def refuse_awaitable(shape: Shape) -> NoReturn:
    raise TypeError(
        f"{shape.where}: {shape.name} returned a coroutine, which nobody runs; make it `async def`"
    )
