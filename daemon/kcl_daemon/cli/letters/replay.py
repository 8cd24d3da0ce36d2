"""A receipt is on disk before its letter counts as done."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

import anyio

from kcl_daemon import faults
from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.cli.common import NotChanged
from kcl_daemon.cli.run_child import EXIT_GRACE_S, MemoryCheckpoints, not_in_batch
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.consumer.child_session import end_child
from kcl_daemon.consumer.connection import ChildConnection, ChildMetrics, lease_lost
from kcl_daemon.consumer.set_aside import RejectsByHand
from kcl_daemon.errors import ChildError, ChildExited, ChildStartFailed, DeadLetterNotStored
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import NO_METERS, Child, Clock, Log, StreamRef
from kcl_daemon.records.letter_queue import LetterQueue
from kcl_daemon.records.letters import (
    BadLetter,
    BadPlace,
    LetterSource,
    Outcome,
    Receipt,
    ShardLetters,
    StoredLetter,
    receipts_of,
)
from kcl_daemon.system import append_lines
from kcl_protocol.messages import Initialize, ProcessRecords, Record, Reject, RejectAnswer, ShutdownRequested
from kcl_protocol.sequence import ExtendedSequenceNumber


class Receipts:
    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: int | None = None
        self.latest: dict[str, Receipt] = {}
        self.now: dict[str, Receipt] = {}

    @classmethod
    @contextmanager
    def opened(cls, path: Path | None) -> Generator[Self, None, None]:
        receipts = cls(path)
        try:
            receipts._open()
            yield receipts
        finally:
            if receipts._file is not None:
                os.close(receipts._file)  # also unlocks it

    def _open(self) -> None:
        if self.path is None:
            return
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.latest = read_receipts(self.path)
        except BlockingIOError:
            raise NotChanged(
                f"another replay is using {self.path}; wait for its end, or give another file with --receipts"
            ) from None
        except OSError as error:
            raise NotChanged(
                f"the receipts {self.path} cannot be written: {error.strerror}; give another file with --receipts"
            ) from error

    def is_done(self, letter: StoredLetter) -> bool:
        receipt = self.latest.get(letter.name)
        return receipt is not None and receipt.is_done(letter)

    def write(self, letters: Iterable[StoredLetter], outcome: Outcome, reason: str, at_ms: int) -> None:
        """Returns after fsync; DeadLetterNotStored."""
        new = [Receipt(each.name, each.letter.set_aside_ms, outcome, reason, at_ms) for each in letters]
        if new and self._file is not None:
            try:
                append_lines(self._file, b"".join(each.line() + b"\n" for each in new))
            except OSError as error:
                raise DeadLetterNotStored(f"receipts {self.path}: {error.strerror or error}") from error
        for receipt in new:
            self.latest[receipt.letter] = self.now[receipt.letter] = receipt


def read_receipts(path: Path) -> dict[str, Receipt]:
    with path.open("rb") as file:
        return {each.letter: each for each in receipts_of(file)}


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """`names_streams`: the program is told the stream of each shard. `delete_singly`: at once, not at the end."""

    settings: ChildSettings
    names_streams: bool
    batch: int
    tries: int
    parallel: int
    delete_done: bool
    delete_singly: bool


@dataclass(slots=True)
class LetterReplay:
    """`lost` are letters whose data is gone."""

    source: LetterSource
    copies: Mapping[str, Sequence[StoredLetter]]
    receipts: Receipts
    options: ReplayOptions
    children: ProcessChildren
    clock: Clock
    log: Log
    lost: list[BadPlace] = field(default_factory=list[BadPlace])
    stopped: list[str] = field(default_factory=list[str])
    _done: list[StoredLetter] = field(default_factory=list[StoredLetter])

    async def run(self, shards: Sequence[ShardLetters]) -> None:
        waiting, unfinished = list(shards), list(shards)
        changed = anyio.Event()
        limiter = anyio.Semaphore(self.options.parallel)

        async def replay(shard: ShardLetters) -> None:
            nonlocal changed
            try:
                await _ShardReplay(self, shard).run()
            finally:
                limiter.release()
            unfinished.remove(shard)
            changed.set()

        async with anyio.create_task_group() as tasks:
            while waiting:
                await limiter.acquire()
                changed = anyio.Event()
                ready = next((each for each in waiting if each.may_begin(unfinished)), None)
                if ready is None:
                    limiter.release()
                    await changed.wait()
                    continue
                waiting.remove(ready)
                tasks.start_soon(replay, ready)

    async def settle(self, letters: Sequence[StoredLetter], outcome: Outcome, reason: str = "") -> None:
        faults.maybe("before-receipt-write")
        self.receipts.write(letters, outcome, reason, self.clock.wall_ms())
        faults.maybe("after-receipt-write")
        if outcome is Outcome.DONE:
            await self.are_done(letters)

    async def are_done(self, letters: Sequence[StoredLetter]) -> None:
        if self.options.delete_done:
            self._done += letters
            if self.options.delete_singly:
                await self.delete_done()

    async def delete_done(self) -> None:
        done, self._done = self._done, []
        if done:
            await self.source.delete([copy for each in done for copy in self.copies[each.name]])


class _ShardReplay:
    def __init__(self, replay: LetterReplay, shard: ShardLetters) -> None:
        options = replay.options
        self._replay = replay
        self._of = shard.of
        self._queue = LetterQueue(shard.letters, batch_most=options.batch, tries_most=options.tries)
        self._checkpoints = MemoryCheckpoints(replay.log, self._stored)

    async def run(self) -> None:
        while not self._queue.is_empty:
            error = await self._one_child()
            if error is None:
                await self._replay.settle(self._queue.ended(), Outcome.DONE)
                continue
            given_up = self._queue.failed()
            if given_up is not None:
                await self._replay.settle([given_up], Outcome.FAILED, error)
            elif self._queue.is_hopeless:
                self._replay.stopped.append(f"{self._of.shard_id}: {error}")
                return

    async def _one_child(self) -> str | None:
        replay, of = self._replay, self._of
        stream = StreamRef(of.stream_name, of.stream_arn) if replay.options.names_streams else None
        try:
            child = await replay.children.start(ShardId(of.shard_id), stream)
        except ChildStartFailed as failed:
            raise NotChanged(failed.plain) from failed
        try:
            return await self._converse(child)
        finally:
            await child.aclose()

    async def _converse(self, child: Child) -> str | None:
        replay = self._replay
        connection = ChildConnection(
            child,
            replay.options.settings,
            clock=replay.clock,
            log=replay.log,
            metrics=ChildMetrics(NO_METERS, replay.clock, {}),
            on_checkpoint=self._checkpoints.answer,
            rejects=RejectsByHand(self._reject),
        )
        error: ChildError | None = None
        async with anyio.create_task_group() as background:
            background.start_soon(connection.pump)
            try:
                await self._give_all(connection)
            except ChildError as failed:
                error = failed
            await end_child(
                child, clock=replay.clock, grace_s=EXIT_GRACE_S, ask=error is None, log=replay.log
            )
            background.cancel_scope.cancel()
        status = await child.wait()
        if error is None and status:
            error = ChildExited("its end", status)
        return None if error is None else str(error)

    async def _give_all(self, connection: ChildConnection) -> None:
        perform, of, clock = connection.perform, self._of, self._replay.clock
        self._checkpoints.begin_again()
        position = self._checkpoints.position
        named = (of.stream_name, of.stream_arn) if self._replay.options.names_streams else (None, None)
        await perform(Initialize(of.shard_id, position.sequence_number, position.sub_sequence_number, *named))
        while batch := self._queue.take():
            records = [record for each in batch for record in await self._record(each)]
            if records:
                delivering = partial(self._checkpoints.delivering, records[-1])
                await perform(ProcessRecords(records, 0), before_send=delivering)
            self._queue.answered()
            await clock.sleep(connection.paused_until_s - clock.monotonic())
        await perform(ShutdownRequested())
        await perform(lease_lost(self._replay.options.settings.protocol))

    async def _record(self, stored: StoredLetter) -> list[Record]:
        try:
            return [(await self._replay.source.read(stored)).record]
        except BadLetter as bad:
            self._replay.lost.append(BadPlace(stored.place, str(bad)))
            self._queue.drop(stored)
            return []

    async def _stored(self, position: ExtendedSequenceNumber) -> None:
        await self._replay.settle(self._queue.stored(position), Outcome.DONE)

    async def _reject(self, request: Reject) -> RejectAnswer:
        letter = self._queue.held(request.sequence_number, request.sub_sequence_number)
        if letter is None:
            return not_in_batch(request)
        await self._replay.settle([letter], Outcome.REJECTED, request.reason)
        self._queue.drop(letter)
        return RejectAnswer(request.sequence_number, request.sub_sequence_number, None)
