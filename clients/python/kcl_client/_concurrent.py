"""Many records of a shard at once, in one process.

A batch is answered as soon as the window has room, so slow records do not hold up the next one.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the user's coroutines are asyncio's, and anyio would be a dependency of every child
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kcl_client._processor import (
    CHECKPOINT_ATTEMPTS,
    AsyncCheckpointer,
    AsyncRecordProcessor,
    Record,
    RejectRecord,
    batch_of,
    handles_single_records,
    size_of,
)
from kcl_client._session import DaemonGone, ProcessorFailed, Runtime, Session, SessionOptions, is_end_of_shard
from kcl_client._window import Entry, Window
from kcl_protocol import errors, messages
from kcl_protocol.conversation import State
from kcl_protocol.messages import Action, CheckpointAnswer, CheckpointRequest, RejectAnswer
from kcl_protocol.sequence import ExtendedSequenceNumber

if TYPE_CHECKING:
    from kcl_client._session import Concurrency

# After a failure. The Java daemon does not answer between two actions.
_LAST_CHECKPOINT_S: Final = 5.0
_NO_DESTINATION: Final = "the daemon has no deadLetterDestination, so it cannot store a rejected record"
_Numbers = tuple[str, int]


def session_of(
    processor: AsyncRecordProcessor, runtime: Runtime, concurrency: Concurrency, options: SessionOptions
) -> Session[AsyncCheckpointer]:
    if handles_single_records(processor):
        return ConcurrentSession(processor, runtime, concurrency, options)
    return Session(processor, AsyncCheckpointer, runtime, options)


class ConcurrentSession(Session[AsyncCheckpointer]):
    def __init__(
        self,
        processor: AsyncRecordProcessor,
        runtime: Runtime,
        concurrency: Concurrency,
        options: SessionOptions,
    ) -> None:
        super().__init__(processor, AsyncCheckpointer, runtime, options)
        self._process_record = processor.process_record
        self._concurrency = concurrency
        by_key = concurrency.order == "key"
        self._window: Window[_Numbers, Record] = Window(concurrency=concurrency.most, by_key=by_key)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._early_answer: asyncio.Future[CheckpointAnswer] | None = None
        self._stored: _Numbers | None = None
        self._storing = asyncio.Lock()
        self._starts_more = True
        self._cancels = False
        self._all_done = False

    async def serve(self) -> None:
        serving = asyncio.ensure_future(self._outcome())
        timer = asyncio.ensure_future(self._checkpoint_regularly())
        try:
            either: tuple[asyncio.Future[Any], ...] = (serving, self._failure)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                with suppress(errors.CheckpointError, errors.RejectError, TimeoutError):
                    async with asyncio.timeout(_LAST_CHECKPOINT_S):
                        await self._store_mark(1)
        finally:
            timer.cancel()
            serving.cancel()
            await self._cancel_all()
            await asyncio.gather(timer, serving, return_exceptions=True)
        if self._failure.done():
            error = self._failure.result()
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise error
            raise ProcessorFailed(messages.ProcessRecords.action) from error
        if (ended := await serving) is not None:
            raise ended

    async def store(self, request: CheckpointRequest | None, attempts: int) -> None:
        """For the processor itself; never above the mark."""
        if request is not None and not self._all_done:
            if request.sequence_number is None:
                return await self._store_mark(attempts)
            mark = self._window.mark
            asked = ExtendedSequenceNumber(request.sequence_number, request.sub_sequence_number or 0)
            if mark is None or asked > ExtendedSequenceNumber(*mark):
                raise errors.CheckpointIllegalArgument(f"not every record up to {asked} is done")
        return await super().store(request, attempts)

    async def _store_mark(self, attempts: int) -> None:
        async with self._storing:
            mark = self._window.mark
            if mark is None or mark == self._stored or self._all_done:
                return
            await super().store(CheckpointRequest(*mark), attempts)
            self._stored = mark

    async def _checkpoint_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._concurrency.checkpoint_every_s)
            await self._try_to_store_mark()

    async def _try_to_store_mark(self) -> None:
        try:
            await self._store_mark(1)
        except errors.CheckpointShutdown:
            await self._cancel_all()
        except errors.CheckpointInvalidState:
            return
        except Exception as error:  # noqa: BLE001 - the session ends with it
            if not isinstance(error, errors.CheckpointError) or not error.retryable:
                self._fail(error)

    async def _outcome(self) -> BaseException | None:
        """A task that raised SystemExit would end the event loop before anything is cleaned up."""
        try:
            await super().serve()
        except BaseException as error:  # noqa: BLE001 - raised by `serve`
            return error
        return None

    async def _next_action(self) -> Action:
        action: Action | None = None
        while action is None or self._early_answer is not None:
            try:
                message = await self._receive()
            except (DaemonGone, errors.RemoteProtocolError) as error:
                if self._early_answer is not None:
                    self._early_answer.set_exception(error)
                raise
            assert not isinstance(message, RejectAnswer), "inside an action `_receive_answer` reads it"
            if not isinstance(message, CheckpointAnswer):
                action = message
                continue
            assert self._early_answer is not None, "the conversation lets none pass that nobody asked for"
            # Known before the next batch, which may be there already.
            self._lease_gone |= message.error == errors.CheckpointShutdown.wire_name
            self._early_answer.set_result(message)
            self._early_answer = None
        return action

    async def _receive_answer(self) -> CheckpointAnswer | RejectAnswer:
        if self._side.state is not State.IDLE_CHECKPOINT:
            return await super()._receive_answer()
        self._early_answer = asyncio.get_running_loop().create_future()
        return await self._early_answer

    def _told(self) -> None:
        """The refusal stays: the window counts the record as done, so nothing may be stored any more."""

    def _may_ask(self) -> bool:
        return super()._may_ask() or self._side.state is State.IDLE

    def _steps(self, action: Action) -> Coroutine[object, object, object]:
        return self._take(action) if isinstance(action, messages.ProcessRecords) else self._finish(action)

    async def _take(self, batch: messages.ProcessRecords) -> None:
        if not self._lease_gone:
            add = self._window.add
            for record in batch_of(batch):
                numbers = (record.sequence_number, record.sub_sequence_number)
                add(record.partition_key, numbers, record, size_of(record))
            self._start_more()
        await self._until(self._has_room)

    def _has_room(self) -> bool:
        window, limits = self._window, self._concurrency
        if limits.finish_batches:
            return not window
        return len(window) < limits.max_outstanding and window.waiting_bytes < limits.max_outstanding_bytes

    async def _finish(self, action: Action) -> None:
        if isinstance(action, messages.ShutdownRequested):
            self._starts_more = False
            await self._try_to_store_mark()  # what runs may outlast the time that the daemon gives
            await self._until(lambda: not self._running)
        elif is_end_of_shard(action):
            await self._until(lambda: not self._window)
            self._all_done = True
        elif not isinstance(action, messages.Initialize):
            await self._cancel_all()
        await super()._steps(action)
        if isinstance(action, messages.ShutdownRequested):
            await self._store_mark(CHECKPOINT_ATTEMPTS)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """After a failure it waits until `serve` cancels it, after a lost lease not at all."""
        while (self._failure.done() or not holds()) and not self._cancels:
            self._changed.clear()
            await self._changed.wait()

    def _start_more(self) -> None:
        while self._starts_more and (entry := self._window.start()) is not None:
            self._running[entry.index] = asyncio.ensure_future(self._process(entry))

    async def _process(self, entry: Entry[_Numbers, Record]) -> None:
        assert entry.item is not None, "it is not done yet"
        try:
            await self._work(entry.item)
        except asyncio.CancelledError as error:
            if not self._cancels:
                self._fail(error)
        except BaseException as error:  # noqa: BLE001 - raised by `serve`
            self._fail(error)
        else:
            self._window.done(entry)
            self._start_more()
        finally:
            del self._running[entry.index]
            self._changed.set()

    async def _work(self, record: Record) -> None:
        try:
            await self._runtime.call(self._process_record, record)
        except RejectRecord as wish:
            if self._takes_rejects and not self._concurrency.finish_batches:
                # The batch may be answered already: only with a destination are batches finished.
                raise errors.NoDeadLetterDestination(_NO_DESTINATION) from wish
            self.reject(record, wish)

    def _fail(self, error: BaseException) -> None:
        self._starts_more = False
        if not self._failure.done():
            self._failure.set_result(error)

    async def _cancel_all(self) -> None:
        self._starts_more, self._cancels = False, True
        running = list(self._running.values())
        for task in running:
            task.cancel()
        self._changed.set()
        await asyncio.gather(*running, return_exceptions=True)
