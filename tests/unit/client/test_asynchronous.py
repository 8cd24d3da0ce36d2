"""The asynchronous form: the same rules, on a loop that belongs to the user's tasks as well."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the client's asynchronous form is asyncio's
import os
import threading
from pathlib import Path

import pytest

from kcl_client import (
    AsyncCheckpointer,
    AsyncRecordProcessor,
    Batch,
    CheckpointShutdown,
    CheckpointThrottled,
    ShardStart,
)
from kcl_client._asynchronous import read_when_ready
from kcl_client._session import ProcessorFailed
from kcl_client.testing import Ending, drive
from kcl_protocol.messages import CheckpointAnswer, CheckpointRequest, LeaseLost, Status
from kcl_protocol.sequence import SHARD_END
from tests.unit.client.support import BATCH, INITIALIZE, STORED, Wire, serve_async


class AsyncIdle(AsyncRecordProcessor):
    """Does nothing."""

    async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None: ...


def test_the_defaults_are_those_of_the_plain_form() -> None:
    assert drive(AsyncIdle(), "abc").last_checkpoint == SHARD_END
    report = drive(AsyncIdle(), "abc", ending=Ending.SHUTDOWN)
    assert len(report.checkpoints) == 1
    assert report.messages[-1] == Status("leaseLost")


def test_a_plain_method_in_an_async_processor_is_refused() -> None:
    class Wrong(AsyncIdle):
        def initialize(self, start: ShardStart) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride] - the mistake
            ...

    with pytest.raises(ProcessorFailed) as caught:
        serve_async(Wrong(), Wire(INITIALIZE))
    assert "must be `async def`" in str(caught.value.__cause__)


def test_an_exception_leaves_the_action_unreported() -> None:
    class Failing(AsyncIdle):
        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            raise LookupError("mine")

    wire = Wire(INITIALIZE, BATCH)
    with pytest.raises(ProcessorFailed):
        serve_async(Failing(), wire)
    assert wire.statuses == ["initialize"]


def test_a_cancellation_that_leaves_the_processor_is_a_failure() -> None:
    class Cancelled(AsyncIdle):
        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            raise asyncio.CancelledError

    wire = Wire(INITIALIZE, BATCH)
    with pytest.raises(ProcessorFailed):
        serve_async(Cancelled(), wire)
    assert wire.statuses == ["initialize"]


def test_tasks_run_between_messages_and_are_cancelled_at_the_end() -> None:
    class Ticking(AsyncIdle):
        def __init__(self) -> None:
            self.ticks = 0
            self.ticks_by_batch: list[int] = []
            self.cancelled = False
            self._task: asyncio.Task[None] | None = None

        async def initialize(self, start: ShardStart) -> None:
            self._task = asyncio.create_task(self._tick())

        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            self.ticks_by_batch.append(self.ticks)

        async def _tick(self) -> None:
            try:
                while True:
                    self.ticks += 1
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.cancelled = True
                raise

    ticking = Ticking()
    serve_async(ticking, Wire(INITIALIZE, BATCH, BATCH))
    first, second = ticking.ticks_by_batch
    assert 0 < first < second
    assert ticking.cancelled


def test_tasks_that_checkpoint_at_once_take_turns() -> None:
    class Parallel(AsyncIdle):
        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            await asyncio.gather(*(checkpointer.checkpoint(batch.records[-1]) for _ in range(5)))

    report = drive(Parallel(), "abc", ending=Ending.CLOSED)
    assert len(report.checkpoints) == 5
    assert report.exit_code == 0


def test_a_cancelled_checkpoint_does_not_break_the_conversation() -> None:
    class Impatient(AsyncIdle):
        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            task = asyncio.create_task(checkpointer.checkpoint())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    wire = Wire(INITIALIZE, BATCH, STORED, LeaseLost())
    serve_async(Impatient(), wire)
    assert wire.said == [
        Status("initialize"),
        CheckpointRequest(),
        Status("processRecords"),
        Status("leaseLost"),
    ]


def test_waits_between_tries_leave_the_loop_to_others() -> None:
    class Patient(AsyncIdle):
        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            await checkpointer.checkpoint()

    report = drive(Patient(), "a", ending=Ending.CLOSED, checkpoint_errors=[CheckpointThrottled] * 2)
    assert report.backoffs_s == (0.5, 1.0)
    assert len(report.checkpoints) == 1


def test_a_lost_lease_that_comes_out_of_a_task_group_is_no_failure() -> None:
    class Grouped(AsyncIdle):
        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(checkpointer.checkpoint())

    wire = Wire(INITIALIZE, BATCH, CheckpointAnswer(None, None, "ShutdownException"), LeaseLost())
    serve_async(Grouped(), wire)
    assert wire.statuses == ["initialize", "processRecords", "leaseLost"]


def test_another_failure_beside_the_lost_lease_is_one() -> None:
    class Grouped(AsyncIdle):
        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            raise ExceptionGroup("both", [CheckpointShutdown(), LookupError()])

    with pytest.raises(ProcessorFailed):
        serve_async(Grouped(), Wire(INITIALIZE, BATCH))


def read_all(descriptor: int) -> bytes:
    async def main() -> bytes:
        pieces: list[bytes] = []
        while piece := await read_when_ready(descriptor):
            pieces.append(piece)
        return b"".join(pieces)

    return asyncio.run(asyncio.wait_for(main(), 90))


def test_the_reader_takes_everything_from_a_pipe() -> None:
    source, sink = os.pipe()
    payload = os.urandom(1_000_000)

    def feed() -> None:
        with os.fdopen(sink, "wb") as stream:
            stream.write(payload)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        assert read_all(source) == payload
    finally:
        os.close(source)
        thread.join(90)


def test_the_reader_takes_everything_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "transcript"
    path.write_bytes(b"x" * 600_000)
    with path.open("rb") as stream:
        assert read_all(stream.fileno()) == b"x" * 600_000


def test_a_cancelled_read_loses_nothing() -> None:
    source, sink = os.pipe()

    async def main() -> bytes:
        task = asyncio.create_task(read_when_ready(source))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        os.write(sink, b"kept")
        return await asyncio.wait_for(read_when_ready(source), 20)

    try:
        assert asyncio.run(main()) == b"kept"
    finally:
        os.close(source)
        os.close(sink)
