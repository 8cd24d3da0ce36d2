"""`process_record`: many records at once, and no checkpoint above one that is not done."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the client's asynchronous form is asyncio's
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kcl_client import (
    AsyncCheckpointer,
    AsyncRecordProcessor,
    Batch,
    CheckpointIllegalArgument,
    CheckpointShutdown,
    CheckpointThrottled,
    ExtendedSequenceNumber,
    Record,
    RecordProcessor,
    run,
)
from kcl_client._asynchronous import AsyncRuntime
from kcl_client._concurrent import session_of
from kcl_client._session import Concurrency, ProcessorFailed, SessionOptions
from kcl_client.testing import Ending, drive, make_record
from kcl_protocol.codec import decode_child_line, encode
from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    DaemonMessage,
    LeaseLost,
    ProcessRecords,
    ShardEnded,
    ShutdownRequested,
    Status,
)
from kcl_protocol.messages import Record as WireRecord
from kcl_protocol.sequence import SHARD_END
from tests.unit.client.support import INITIALIZE, Idle

Work = Callable[[Record], Awaitable[object]]
PATIENCE_S = 60


class Worked(AsyncRecordProcessor):
    """Notes what begins, what ends and how much was under way; `work` is each record's work."""

    def __init__(self, work: Work | None = None) -> None:
        self._work = work
        self.begun: list[Record] = []
        self.ended: list[Record] = []
        self.cancelled: list[Record] = []
        self.lost = False
        self.most = 0

    async def process_record(self, record: Record) -> None:
        self.begun.append(record)
        self.most = max(self.most, len(self.begun) - len(self.ended) - len(self.cancelled))
        try:
            if self._work is None:
                await asyncio.sleep(0)
            else:
                await self._work(record)
        except asyncio.CancelledError:
            self.cancelled.append(record)
            raise
        self.ended.append(record)

    async def lease_lost(self) -> None:
        self.lost = True


def records_of(keys: Iterable[str]) -> list[WireRecord]:
    return [
        make_record(f"{key}{number}", sequence_number=str(number), partition_key=key)
        for number, key in enumerate(keys, start=1)
    ]


def batch_of(keys: str, first: int = 1) -> ProcessRecords:
    numbered = enumerate(keys, start=first)
    return ProcessRecords([WireRecord("YQ==", key, str(number)) for number, key in numbered], 0)


def numbers(records: Iterable[Record]) -> list[int]:
    return [int(record.sequence_number) for record in records]


async def by_turns(record: Record) -> None:
    """Some records take many more turns of the loop than others."""
    for _ in range(int(record.sequence_number) * 7919 % 13):
        await asyncio.sleep(0)


@pytest.mark.parametrize("concurrency", [None, 1, 2, 16])
def test_each_key_comes_in_order_and_all_are_done_at_the_end_of_the_shard(concurrency: int | None) -> None:
    worked = Worked(by_turns)
    report = drive(worked, records_of("abcdeacde" * 30), concurrency=concurrency, batch_size=40)
    assert worked.most == (min(concurrency or 1, 5)), "five keys are five at once"
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for record in worked.ended:
        by_key[record.partition_key].append(int(record.sequence_number))
    assert all(before < after for each in by_key.values() for before, after in pairwise(each))
    assert sorted(numbers(worked.ended)) == list(range(1, 271))
    assert (report.exit_code, report.checkpoints) == (0, (SHARD_END,))


def test_without_an_order_one_key_fills_all_places() -> None:
    worked = Worked(by_turns)
    report = drive(worked, records_of("a" * 100), concurrency=8, order="none")
    assert (worked.most, len(worked.ended), report.last_checkpoint) == (8, 100, SHARD_END)


def test_a_shutdown_finishes_what_runs_starts_nothing_and_stores_the_mark() -> None:
    worked = Worked(by_turns)
    report = drive(worked, records_of("abcd" * 50), concurrency=3, ending=Ending.SHUTDOWN)
    done = set(numbers(worked.ended))
    assert len(worked.ended) == len(worked.begun) < 200
    mark = next(number for number in range(1, 201) if number not in done) - 1
    assert report.last_checkpoint == ExtendedSequenceNumber(str(mark))
    assert worked.lost


def test_a_lost_lease_cancels_what_runs_and_stores_nothing() -> None:
    worked = Worked(lambda _: asyncio.sleep(PATIENCE_S))
    report = drive(worked, records_of("abcd"), concurrency=3, ending=Ending.LEASE_LOST)
    assert (numbers(worked.cancelled), worked.lost) == ([1, 2, 3], True)
    assert (report.checkpoints, report.exit_code) == ((), 0)


def test_a_daemon_that_is_gone_cancels_what_runs() -> None:
    worked = Worked(lambda _: asyncio.sleep(PATIENCE_S))
    report = drive(worked, records_of("abcd"), concurrency=2, ending=Ending.CLOSED)
    assert (len(worked.cancelled), report.checkpoints, report.exit_code) == (2, (), 0)


def test_a_failure_stores_what_is_below_it_and_cancels_the_rest() -> None:
    async def work(record: Record) -> None:
        if record.sequence_number == "4":
            for _ in range(9):
                await asyncio.sleep(0)
            raise LookupError("mine")
        await asyncio.sleep(0 if int(record.sequence_number) < 7 else PATIENCE_S)

    worked = Worked(work)
    report = drive(worked, records_of("abcdefghij"), concurrency=8)
    assert isinstance(report.exception, LookupError)
    assert report.exit_code == 70
    assert report.checkpoints == (ExtendedSequenceNumber("3"),)
    assert {8, 9} <= set(numbers(worked.cancelled))


@pytest.mark.parametrize("ending", [SystemExit(9), asyncio.CancelledError()], ids=["exit", "cancelled"])
def test_an_exception_of_one_record_ends_the_process(ending: BaseException) -> None:
    async def work(record: Record) -> None:
        if record.sequence_number == "2":
            raise ending

    report = drive(Worked(work), records_of("abc"), concurrency=3, order="none")
    assert report.exception is ending
    assert report.exit_code == (9 if isinstance(ending, SystemExit) else 70)


def test_a_plain_process_record_is_refused() -> None:
    class Plain(AsyncRecordProcessor):
        def process_record(self, record: Record) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride] - the mistake
            ...

    report = drive(Plain(), ["a"], concurrency=2)
    assert "must be `async def`" in str(report.exception)


def test_user_records_of_an_aggregate_have_positions_of_their_own() -> None:
    async def work(record: Record) -> None:
        if record.sub_sequence_number == 2:
            raise LookupError

    parts = [make_record("x", sequence_number="7", sub_sequence_number=part) for part in range(4)]
    report = drive(Worked(work), parts, concurrency=2)
    assert report.checkpoints == (ExtendedSequenceNumber("7", 1),)


def test_the_checkpointer_of_a_shutdown_stays_below_the_mark() -> None:
    refused: list[str] = []

    class Flushing(Worked):
        async def shutdown_requested(self, checkpointer: AsyncCheckpointer) -> None:
            with pytest.raises(CheckpointIllegalArgument, match="not every record up to 4"):
                await checkpointer.checkpoint(ExtendedSequenceNumber("4"))
            refused.append("4")

    report = drive(Flushing(by_turns), records_of("aaaa"), concurrency=2, ending=Ending.SHUTDOWN)
    assert refused == ["4"]
    assert report.last_checkpoint is not None
    assert report.last_checkpoint < ExtendedSequenceNumber("4")


def test_a_throttled_last_checkpoint_is_tried_again() -> None:
    report = drive(Worked(), ["a"], concurrency=2, checkpoint_errors=[CheckpointThrottled] * 2)
    assert (report.backoffs_s, report.last_checkpoint) == ((0.5, 1.0), SHARD_END)


def test_the_example_of_the_documents_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "concurrency.md").read_text("utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    asked: list[int] = []

    def drive_it(processor: AsyncRecordProcessor, *, concurrency: int) -> None:
        asked.append(concurrency)
        assert drive(processor, "abc", concurrency=concurrency).last_checkpoint == SHARD_END

    monkeypatch.setattr("kcl_client.run", drive_it)
    exec(text.partition("```py\n")[2].partition("```")[0], names)
    assert asked == [64]


class Batches(AsyncRecordProcessor):
    """Has the other method."""

    async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None: ...


class Both(Batches, Worked):
    """Has both."""


class Neither(AsyncRecordProcessor):
    """Has none."""


@pytest.mark.parametrize(
    ("processor", "concurrency", "text"),
    [
        (Batches(), 2, "concurrency needs an AsyncRecordProcessor with `async def process_record"),
        (Idle(), 2, "Idle has none"),
        (Both(), 2, "Both defines both process_records and process_record"),
        (Neither(), None, "Neither defines neither process_records nor process_record"),
    ],
)
def test_a_processor_of_the_wrong_kind_is_refused_at_the_start(
    processor: RecordProcessor | AsyncRecordProcessor, concurrency: int | None, text: str
) -> None:
    for start in (
        lambda: run(processor, concurrency=concurrency),
        lambda: drive(processor, [], concurrency=concurrency),
    ):
        with pytest.raises(TypeError, match=text.replace("(", r"\(")):
            start()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: run(Worked(), concurrency=0),
        lambda: run(Worked(), max_outstanding=0),
        lambda: run(Worked(), max_outstanding_bytes=0),
        lambda: run(Worked(), checkpoint_every_s=0.0),
        lambda: run(Worked(), order="keys"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - the mistake
        lambda: drive(Worked(), [], concurrency=0),
    ],
)
def test_options_without_a_meaning_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|above 0|order must be"):
        wrong()


class Daemon:
    """A daemon that says what a test tells it to, when it tells it."""

    def __init__(self) -> None:
        self._to_say: asyncio.Queue[bytes] = asyncio.Queue()
        self._said: asyncio.Queue[Status | CheckpointRequest] = asyncio.Queue()

    async def read(self) -> bytes:
        return await self._to_say.get()

    def write(self, data: bytes) -> None:
        message = decode_child_line(data.strip())
        assert isinstance(message, Status | CheckpointRequest)
        self._said.put_nowait(message)

    def say(self, *messages: DaemonMessage | bytes) -> None:
        for message in messages:
            self._to_say.put_nowait(message if isinstance(message, bytes) else encode(message))

    async def heard(self) -> Status | CheckpointRequest:
        return await asyncio.wait_for(self._said.get(), PATIENCE_S)

    @property
    def is_quiet(self) -> bool:
        return self._said.empty()


SELDOM = Concurrency(4, checkpoint_every_s=3600)
QUICK = Concurrency(4, checkpoint_every_s=0.01)


def converse(
    processor: AsyncRecordProcessor,
    scene: Callable[[Daemon], Awaitable[None]],
    concurrency: Concurrency = SELDOM,
) -> None:
    """Run a session beside the scene, both to their ends."""

    async def main() -> None:
        daemon = Daemon()
        runtime = AsyncRuntime(daemon.read, daemon.write)
        session = session_of(processor, runtime, concurrency, SessionOptions())
        daemon.say(INITIALIZE)
        serving = asyncio.ensure_future(session.serve())
        assert await daemon.heard() == Status("initialize")
        try:
            await scene(daemon)
        finally:
            daemon.say(b"")
            await asyncio.wait_for(serving, PATIENCE_S)

    asyncio.run(main())


def stored(number: int) -> CheckpointAnswer:
    return CheckpointAnswer(str(number), 0, None)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - of no event
            await asyncio.sleep(0)


async def stays_quiet(daemon: Daemon) -> None:
    for _ in range(50):
        await asyncio.sleep(0.001)
        assert daemon.is_quiet


def test_in_a_quiet_stream_the_mark_is_stored_between_two_actions() -> None:
    gate = asyncio.Event()

    async def scene(daemon: Daemon) -> None:
        daemon.say(batch_of("abc"))
        assert await daemon.heard() == Status("processRecords")
        gate.set()
        assert await daemon.heard() == CheckpointRequest("3", 0)
        daemon.say(stored(3))
        await stays_quiet(daemon)
        gate.clear()
        daemon.say(batch_of("d", 4))
        assert await daemon.heard() == Status("processRecords")
        gate.set()
        assert await daemon.heard() == CheckpointRequest("4", 0)

    converse(Worked(lambda _: gate.wait()), scene, QUICK)


def test_an_answer_that_comes_after_the_next_batch_is_waited_for() -> None:
    """So does the Java daemon; and the two can cross on their way."""
    gate = asyncio.Event()

    async def scene(daemon: Daemon) -> None:
        daemon.say(batch_of("abc"))
        assert await daemon.heard() == Status("processRecords")
        gate.set()
        assert await daemon.heard() == CheckpointRequest("3", 0)
        gate.clear()
        daemon.say(batch_of("d", 4))
        await stays_quiet(daemon)
        daemon.say(stored(3))
        assert await daemon.heard() == Status("processRecords")
        gate.set()
        assert await daemon.heard() == CheckpointRequest("4", 0)

    converse(Worked(lambda _: gate.wait()), scene, QUICK)


def test_a_slow_key_does_not_hold_the_next_batches_up_until_the_window_is_full() -> None:
    gate = asyncio.Event()

    async def work(record: Record) -> None:
        if record.partition_key == "slow":
            await gate.wait()

    async def scene(daemon: Daemon) -> None:
        slow = WireRecord("YQ==", "slow", "1")
        first = ProcessRecords([slow, *batch_of("abc", 2).records], 0)
        daemon.say(first, batch_of("abc", 5), batch_of("abc", 8))
        assert await daemon.heard() == Status("processRecords")
        assert await daemon.heard() == Status("processRecords")
        await until(lambda: sorted(numbers(worked.ended)) == list(range(2, 11)))
        await stays_quiet(daemon)  # ten records from the slow one on: the window is full
        gate.set()
        assert await daemon.heard() == Status("processRecords")
        daemon.say(ShardEnded())
        assert await daemon.heard() == CheckpointRequest()
        daemon.say(CheckpointAnswer(None, None, None))
        assert await daemon.heard() == Status("shardEnded")

    worked = Worked(work)
    converse(worked, scene, replace(SELDOM, max_outstanding=10))


@pytest.mark.parametrize(
    "limits",
    [replace(SELDOM, max_outstanding_bytes=4), replace(SELDOM, finish_batches=True)],
    ids=["bytes", "done"],
)
def test_a_batch_stays_open_when_its_bytes_are_too_many_or_it_must_be_done(limits: Concurrency) -> None:
    gate = asyncio.Event()

    async def scene(daemon: Daemon) -> None:
        daemon.say(batch_of("a"))
        await stays_quiet(daemon)
        gate.set()
        assert await daemon.heard() == Status("processRecords")

    converse(Worked(lambda _: gate.wait()), scene, limits)


def test_a_checkpoint_that_finds_the_lease_lost_cancels_what_runs() -> None:
    async def scene(daemon: Daemon) -> None:
        daemon.say(batch_of("ab"))
        assert await daemon.heard() == Status("processRecords")
        assert await daemon.heard() == CheckpointRequest("1", 0)
        daemon.say(CheckpointAnswer("1", 0, CheckpointShutdown.wire_name), batch_of("cd", 3), LeaseLost())
        assert await daemon.heard() == Status("processRecords")
        assert await daemon.heard() == Status("leaseLost")
        assert (numbers(worked.begun), numbers(worked.cancelled)) == ([1, 2], [2])

    worked = Worked(lambda record: asyncio.sleep(PATIENCE_S if record.sequence_number == "2" else 0))
    converse(worked, scene, QUICK)


@pytest.mark.parametrize("error", ["ThrottlingException", "InvalidStateException"])
def test_a_checkpoint_that_is_refused_for_now_is_asked_for_again(error: str) -> None:
    async def scene(daemon: Daemon) -> None:
        daemon.say(batch_of("a"))
        assert await daemon.heard() == Status("processRecords")
        for answer in (error, None):
            assert await daemon.heard() == CheckpointRequest("1", 0)
            daemon.say(CheckpointAnswer("1", 0, answer))
        daemon.say(ShutdownRequested())
        assert await daemon.heard() == Status("shutdownRequested")

    converse(Worked(), scene, QUICK)


def test_a_checkpoint_that_is_refused_for_good_ends_the_process() -> None:
    async def scene(daemon: Daemon) -> None:
        daemon.say(batch_of("a"))
        assert await daemon.heard() == Status("processRecords")
        for _ in range(2):
            assert await daemon.heard() == CheckpointRequest("1", 0)
            daemon.say(CheckpointAnswer("1", 0, "IllegalArgumentException"))

    with pytest.raises(ProcessorFailed) as caught:
        converse(Worked(), scene, QUICK)
    assert isinstance(caught.value.__cause__, CheckpointIllegalArgument)


def test_while_a_shutdown_waits_for_what_runs_the_mark_is_stored_already() -> None:
    gate = asyncio.Event()

    async def work(record: Record) -> None:
        if record.sequence_number == "2":
            await gate.wait()

    async def scene(daemon: Daemon) -> None:
        daemon.say(batch_of("ab"))
        assert await daemon.heard() == Status("processRecords")
        await until(lambda: len(worked.ended) == 1)
        await asyncio.sleep(0)
        daemon.say(ShutdownRequested())
        assert await daemon.heard() == CheckpointRequest("1", 0)
        daemon.say(stored(1))
        gate.set()
        assert await daemon.heard() == CheckpointRequest("2", 0)
        daemon.say(stored(2))
        assert await daemon.heard() == Status("shutdownRequested")

    worked = Worked(work)
    converse(worked, scene)


def test_a_failure_between_two_actions_does_not_wait_for_a_daemon_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kcl_client._concurrent._LAST_CHECKPOINT_S", 0.05)

    async def work(record: Record) -> None:
        if record.sequence_number == "2":
            await asyncio.sleep(0.02)
            raise LookupError

    async def scene(daemon: Daemon) -> None:
        daemon.say(batch_of("ab"))
        assert await daemon.heard() == Status("processRecords")
        assert await daemon.heard() == CheckpointRequest("1", 0)
        await asyncio.sleep(0.2)

    with pytest.raises(ProcessorFailed) as caught:
        converse(Worked(work), scene)
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("said", [b"nonsense\n", b""], ids=["nonsense", "end"])
def test_the_end_of_the_conversation_ends_a_checkpoint_that_waits(said: bytes) -> None:
    async def scene(daemon: Daemon) -> None:
        daemon.say(batch_of("a"))
        assert await daemon.heard() == Status("processRecords")
        assert await daemon.heard() == CheckpointRequest("1", 0)
        daemon.say(said)
        await asyncio.sleep(0.02)

    if said:
        with pytest.raises(RemoteProtocolError):
            converse(Worked(), scene, QUICK)
    else:
        converse(Worked(), scene, QUICK)
