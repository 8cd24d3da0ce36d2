"""The line protocol with the daemon, in one thread per shard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kcl_landing.control import EmitEvent, monotonic_s, pause
from kcl_landing.positions import START, Position, Positions, position, to_text
from kcl_landing.records import (
    FrameMessage,
    Message,
    RecordBatch,
    behind,
    frame_to_arrow,
    last_position,
    rows_up_to,
    to_arrow,
)
from kcl_landing.relays import RelayConnection, RelayGone
from kcl_protocol.messages import FRAMES_VERSION, CheckpointRequest, Status
from kcl_spark.positions import QueryLog, QueryPositions, minimum
from kcl_spark.spool import NotHeld, Spool

_RETRYABLE: Final = frozenset({"ThrottlingException", "KinesisClientLibDependencyException"})
_LAST_ATTEMPTS: Final = 5
_REPORT_S: Final = 30.0
_POLL_S: Final = 0.5
_TAKE_OVER_S: Final = 10.0


class CommitProgress:
    """Only one thread may call `poll`."""

    def __init__(self, spool: Spool, logs: Mapping[str, QueryLog]) -> None:
        self._spool = spool
        self._logs = dict(logs)
        self._lock = threading.Lock()
        self._committed: Positions = {}
        self._books: dict[str, QueryPositions] = {}
        self._changed_s: dict[str, float] = {}

    def poll(self) -> None:
        books = {name: log.read() for name, log in self._logs.items()}
        committed = minimum(each.committed for each in books.values() if each.is_ours)
        planned: dict[str, Position] = {}
        for each in books.values():
            for shard, where in each.planned.items():
                planned[shard] = max(where, planned.get(shard, START))
        now_s = monotonic_s()
        with self._lock:
            for name, each in books.items():
                before = self._books.get(name)
                if before is None or before.committed_batch != each.committed_batch:
                    self._changed_s[name] = now_s
            self._books, self._committed = books, committed
        self._spool.reported(planned, committed)

    def committed(self, shard_id: str) -> Position:
        with self._lock:
            return self._committed.get(shard_id, START)

    def batches(self) -> dict[str, int]:
        with self._lock:
            return {
                name: -1 if books.committed_batch is None else books.committed_batch
                for name, books in self._books.items()
            }

    def ages_s(self) -> dict[str, float]:
        """Since the last commit, or the first poll."""
        now_s = monotonic_s()
        with self._lock:
            return {name: now_s - since_s for name, since_s in self._changed_s.items()}

    def is_new(self) -> bool:
        with self._lock:
            return all(books.planned_batch is None for books in self._books.values())


@dataclass(frozen=True, slots=True)
class CheckpointTimings:
    checkpoint_s: float = 5.0
    drain_s: float = 60.0


@dataclass(slots=True)
class ShardState:
    """What other threads may read.

    `trimmed`: redelivered and dropped. `ended`: that is checkpointed. `asked_s`: since when we wait for the daemon;
    None: it waits. `is_last`: no more records. `is_drained`: the daemon wants the shard back.
    """

    shard_id: str = ""
    behind_ms: int | None = None
    records: int = 0
    trimmed: int = 0
    ended: bool = False
    checkpoint: Position = START
    asked_s: float | None = None
    is_last: bool = False
    is_drained: bool = False


class RelayConversation:
    """`admit` raises to refuse a shard."""

    def __init__(
        self,
        relay: RelayConnection,
        *,
        stream: str,
        spool: Spool,
        progress: CommitProgress,
        pace: CheckpointTimings,
        admit: Callable[[str, Position], None],
        stopping: Callable[[], bool],
        log_event: EmitEvent,
    ) -> None:
        self._relay = relay
        self._stream = stream
        self._spool = spool
        self._progress = progress
        self._pace = pace
        self._admit = admit
        self._stopping = stopping
        self._log_event = log_event
        self._delivered: Position = START
        self._stored_s = monotonic_s()
        self._lost = False
        self.state = ShardState()

    def run(self) -> None:
        """Until the daemon closes the connection or the engine stops.

        RelayGone: it broke during an action, or another relay serves the shard.
        """
        try:
            while self._perform():
                pass
        finally:
            if self.state.shard_id:
                self._spool.revoke(self.state.shard_id, self)

    def _perform(self) -> bool:
        self.state.asked_s = monotonic_s()
        message = self._relay.receive()
        if message is None:
            return False
        self.state.asked_s = None
        action = message.action
        match action:
            case "initialize":
                self._initialize(message)
            case "processRecords":
                self._process(message)
                del message
                self._hold_back()
            case "shutdownRequested":
                self._drain()
            case "shardEnded":
                self._end_shard()
            case _:
                self._lost = True
                self._spool.revoke(self.state.shard_id, self)
        self._relay.send(Status(action, FRAMES_VERSION if action == "initialize" else None))
        return True

    def _initialize(self, message: Message) -> None:
        shard_id = message.shard_id
        stored = position(message.sequence_number, message.sub_sequence_number)
        self._admit(shard_id, stored)
        self._wait_for_the_one_before(shard_id)
        self.state.shard_id, self.state.checkpoint, self._delivered = shard_id, stored, stored
        mark = self._spool.grant(shard_id, stored, self)
        self._log_event(
            "info", "shard_started", shard_id=shard_id, checkpoint=to_text(stored), known=to_text(mark)
        )

    def _wait_for_the_one_before(self, shard_id: str) -> None:
        """It may not know yet that its lease is lost, or be gone: do not wait for long."""
        deadline_s = monotonic_s() + _TAKE_OVER_S
        while not self._spool.is_free(shard_id) and monotonic_s() < deadline_s:
            if self._stopping():
                raise RelayGone
            self._spool.wait(lambda: self._spool.is_free(shard_id), _POLL_S)

    def _process(self, message: Message) -> None:
        shard_id = self.state.shard_id
        if isinstance(message, FrameMessage):
            whole = frame_to_arrow(message.frame, stream=self._stream, shard_id=shard_id)
            batch, last = whole.slice(rows_up_to(whole, self._spool.mark(shard_id))), last_position(whole)
            self._take(batch, last, len(message.frame))
        elif message.records:
            new_records = behind(message.records, self._spool.mark(shard_id))
            batch = to_arrow(new_records, stream=self._stream, shard_id=shard_id)
            self._take(batch, message.records[-1].where, len(message.records))
        self._spool.complete(shard_id, message.complete_millis, self)
        self.state.behind_ms = message.millis_behind_latest

    def _take(self, batch: RecordBatch, last: Position, delivered: int) -> None:
        """`batch`: the new ones of the `delivered`; both end at `last`."""
        if batch.num_rows:
            try:
                self._spool.add(self.state.shard_id, batch, last, self)
            except NotHeld as error:
                raise RelayGone from error
        self._delivered = max(self._delivered, last)
        self.state.records += batch.num_rows
        self.state.trimmed += delivered - batch.num_rows

    def _hold_back(self) -> None:
        """While the spool is full no status is sent, so no further batch comes.

        A daemon that stops says so only after the status. If it takes another shard back, the status is sent.
        """
        shard_id, drains = self.state.shard_id, self._spool.drains
        while self._spool.must_wait(shard_id) and self._spool.drains == drains:
            self._wait(lambda: not self._spool.must_wait(shard_id) or self._spool.drains != drains)
            self._checkpoint_when_due()
        self._checkpoint_when_due()

    def _checkpoint_when_due(self) -> None:
        if monotonic_s() - self._stored_s >= self._pace.checkpoint_s:
            self._checkpoint()

    def _checkpoint(self) -> bool:
        done = min(self._progress.committed(self.state.shard_id), self._delivered)
        if done <= self.state.checkpoint or self._lost:
            return True
        self._stored_s = monotonic_s()
        error = self._ask(CheckpointRequest(str(done[0]), done[1]))
        if error is None:
            self.state.checkpoint = done
        return error is None

    def _ask(self, request: CheckpointRequest) -> str | None:
        self._relay.send(request)
        answer = self._relay.receive()
        if answer is None:
            raise RelayGone
        error = answer.error
        if error is not None:
            self._lost = self._lost or error == "ShutdownException"
            self._log_event("warning", "checkpoint_not_stored", shard_id=self.state.shard_id, error=error)
        return error

    def _end_shard(self) -> None:
        """Child shards start after this, so all records must be committed first.

        If the daemon stops meanwhile, batches may not take the rest; the end is told again.
        """
        shard_id, drains = self.state.shard_id, self._spool.drains
        self._spool.leaves(shard_id, is_last=True)
        self.state.is_last = True
        mark = self._spool.mark(shard_id)
        asked_s = reported_s = monotonic_s()
        while self._done() < mark:
            self._wait(lambda: self._done() >= mark)
            if self._spool.drains != drains and self._spool.only_ends_are_left() and self._has_taken_all():
                self._log_left()
                return
            if monotonic_s() - reported_s >= _REPORT_S:
                reported_s = monotonic_s()
                self._log_event(
                    "warning",
                    "shard_end_waits",
                    shard_id=shard_id,
                    waited_s=round(reported_s - asked_s),
                    committed=to_text(self._done()),
                    last=to_text(mark),
                )
        self._still_mine()
        error = self._ask(CheckpointRequest())
        for attempt in range(_LAST_ATTEMPTS):
            if error not in _RETRYABLE:
                break
            pause(0.2 * 2**attempt)
            error = self._ask(CheckpointRequest())
        if error is None:
            self.state.ended = True
            self._log_event("info", "shard_finished", shard_id=shard_id, records=self.state.records)

    def _drain(self) -> None:
        """The next owner gets the rest."""
        shard_id = self.state.shard_id
        self.state.is_drained = True
        self._spool.leaves(shard_id, is_last=False)
        before = self._progress.batches()
        deadline_s = monotonic_s() + self._pace.drain_s

        def enough() -> bool:
            if self._has_taken_all():
                return True
            # the running one, and one planned after the request
            now = self._progress.batches()
            return all(now[name] >= before.get(name, -1) + 2 for name in now)

        while not enough() and monotonic_s() < deadline_s:
            self._wait(enough)
        for attempt in range(_LAST_ATTEMPTS):
            if self._checkpoint() or self._lost:
                break
            pause(0.1 * 2**attempt)
        self._log_left()

    def _has_taken_all(self) -> bool:
        shard_id = self.state.shard_id
        return self._done() >= min(self._spool.mark(shard_id), self._spool.within_horizon(shard_id))

    def _log_left(self) -> None:
        shard_id = self.state.shard_id
        self._log_event(
            "info",
            "shard_drained",
            shard_id=shard_id,
            checkpoint=to_text(self.state.checkpoint),
            left=self._done() < self._spool.mark(shard_id),
        )

    def _done(self) -> Position:
        """Here, or elsewhere before."""
        return max(self._progress.committed(self.state.shard_id), self.state.checkpoint)

    def _still_mine(self) -> None:
        if not self._spool.holds(self.state.shard_id, self):
            raise RelayGone

    def _wait(self, until: Callable[[], bool]) -> None:
        if self._stopping():
            raise RelayGone
        self._still_mine()
        self._spool.wait(until, _POLL_S)
