"""The engine's side of one shard: the line protocol with the daemon, at the pace of the queries.

Owns when a status is given, when a checkpoint is asked for and what the end of a shard waits for. A checkpoint never goes
beyond what all queries have committed. Runs in a thread of its own and blocks; knows nothing of sockets or of Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kcl_protocol.codec import encode
from kcl_protocol.messages import CheckpointRequest, Status
from kcl_spark.clock import monotonic_s, pause
from kcl_spark.control import Tell
from kcl_spark.ingest import Message, behind, read_line, to_arrow
from kcl_spark.positions import START, Position, position, to_text
from kcl_spark.progress import Progress
from kcl_spark.spool import NotHeld, Spool
from kcl_spark.wire import RelayGone

_RETRYABLE: Final = frozenset({"ThrottlingException", "KinesisClientLibDependencyException"})
_LAST_ATTEMPTS: Final = 5
_REPORT_S: Final = 30.0
_LOOK_S: Final = 0.5
_TAKE_OVER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how long.

    Args:
        checkpoint_s: least time between two checkpoints of a shard.
        drain_s: how long a shard may take to commit what it has when it is to be given up.
    """

    checkpoint_s: float = 5.0
    drain_s: float = 60.0


@dataclass(slots=True)
class ShardState:
    """What others may know of a conversation.

    Args:
        shard_id: the shard; empty before `initialize`.
        behind_ms: how far behind the stream's tip the last batch was; None: not told yet.
        records: received, without what was trimmed.
        trimmed: redelivered records that were done already.
        ended: whether the shard is finished.
        checkpoint: the newest that the daemon has stored.
        asked_s: since when the daemon has been free to say more; None: it waits for us.
        is_last: whether no more records will come: the shard is at its end.
    """

    shard_id: str = ""
    behind_ms: int | None = None
    records: int = 0
    trimmed: int = 0
    ended: bool = False
    checkpoint: Position = START
    asked_s: float | None = None
    is_last: bool = False


class Conversation:
    """One relay from `initialize` to its end.

    Args:
        lines: what the daemon says; ends when it goes.
        send: says something to the daemon.
        stream: name of the stream.
        spool: where records go.
        progress: of the queries.
        pace: of checkpoints.
        admit: called with a shard and its stored checkpoint before anything is taken; raises to refuse.
        stopping: whether the engine stops: no wait goes on then.
        tell: the log.
    """

    def __init__(
        self,
        *,
        lines: Iterator[bytes],
        send: Callable[[bytes], None],
        stream: str,
        spool: Spool,
        progress: Progress,
        pace: Pace,
        admit: Callable[[str, Position], None],
        stopping: Callable[[], bool],
        tell: Tell,
    ) -> None:
        self._lines = lines
        self._send = send
        self._stream = stream
        self._spool = spool
        self._progress = progress
        self._pace = pace
        self._admit = admit
        self._stopping = stopping
        self._tell = tell
        self._delivered: Position = START
        self._stored_s = monotonic_s()
        self._lost = False
        self.state = ShardState()

    def run(self) -> None:
        """Serve the daemon until it closes the connection or the engine stops.

        Raises:
            RelayGone: it broke off in the middle of an action, or somebody else has begun to serve the shard: then the
                daemon must begin again at its checkpoint, if it has the lease at all.
        """
        try:
            while self._perform():
                pass
        finally:
            if self.state.shard_id:
                self._spool.revoke(self.state.shard_id, self)

    def _perform(self) -> bool:
        """Perform the next action; False where there is none. No name outlives the batch that it stands for."""
        self.state.asked_s = monotonic_s()
        line = next(self._lines, None)
        if line is None:
            return False
        self.state.asked_s = None
        message = read_line(line)
        del line
        match message.action:
            case "initialize":
                self._initialize(message)
            case "processRecords":
                self._process(message)
                del message  # the batch must not stay in memory while its shard waits
                self._hold_back()
                self._send(encode(Status("processRecords")))
                return True
            case "shutdownRequested":
                self._drain()
            case "shardEnded":
                self._end_shard()
            case _:  # leaseLost, and the shutdown of KCL 1.x
                self._lost = True
                self._spool.revoke(self.state.shard_id, self)
        self._send(encode(Status(message.action)))
        return True

    def _initialize(self, message: Message) -> None:
        shard_id = message.shard_id
        stored = position(message.sequence_number, message.sub_sequence_number)
        self._admit(shard_id, stored)
        self._wait_for_the_one_before(shard_id)
        self.state.shard_id, self.state.checkpoint, self._delivered = shard_id, stored, stored
        mark = self._spool.grant(shard_id, stored, self)
        self._tell(
            "info", "shard_started", shard_id=shard_id, checkpoint=to_text(stored), known=to_text(mark)
        )

    def _wait_for_the_one_before(self, shard_id: str) -> None:
        """A daemon that has lost the lease gives up soon; it is not waited for for ever, as its host may be gone."""
        deadline_s = monotonic_s() + _TAKE_OVER_S
        while not self._spool.is_free(shard_id) and monotonic_s() < deadline_s:
            if self._stopping():
                raise RelayGone
            self._spool.wait(lambda: self._spool.is_free(shard_id), _LOOK_S)

    def _process(self, message: Message) -> None:
        shard_id, records = self.state.shard_id, message.records
        if records:
            news = behind(records, self._spool.mark(shard_id))
            if news:
                batch = to_arrow(news, stream=self._stream, shard_id=shard_id)
                try:
                    self._spool.add(shard_id, batch, news[-1].where, self)
                except NotHeld as error:
                    raise RelayGone from error
            self._delivered = max(self._delivered, records[-1].where)
            self.state.records += len(news)
            self.state.trimmed += len(records) - len(news)
        self.state.behind_ms = message.millis_behind_latest

    def _hold_back(self) -> None:
        """No status while the spool is full: the daemon sends nothing more of this shard."""
        shard_id = self.state.shard_id
        while self._spool.is_full_for(shard_id):
            self._wait(lambda: not self._spool.is_full_for(shard_id))
            self._checkpoint_when_due()
        self._checkpoint_when_due()

    def _checkpoint_when_due(self) -> None:
        if monotonic_s() - self._stored_s >= self._pace.checkpoint_s:
            self._checkpoint()

    def _checkpoint(self) -> bool:
        """Store what is committed, if it is more than what is stored; whether all of that went well."""
        done = min(self._progress.committed(self.state.shard_id), self._delivered)
        if done <= self.state.checkpoint or self._lost:
            return True
        self._stored_s = monotonic_s()
        error = self._ask(CheckpointRequest(str(done[0]), done[1]))
        if error is None:
            self.state.checkpoint = done
        return error is None

    def _ask(self, request: CheckpointRequest) -> str | None:
        """Ask for a checkpoint; the error's name, None where it is stored."""
        self._send(encode(request))
        line = next(self._lines, None)
        if line is None:
            raise RelayGone
        error = read_line(line).error
        if error is not None:
            self._lost = self._lost or error == "ShutdownException"
            self._tell("warning", "checkpoint_not_stored", shard_id=self.state.shard_id, error=error)
        return error

    def _end_shard(self) -> None:
        """The shards that follow start after this: everything of this one must be committed before."""
        shard_id = self.state.shard_id
        self._spool.flush(shard_id)
        self.state.is_last = True
        mark = self._spool.mark(shard_id)
        asked_s = reported_s = monotonic_s()
        while self._done() < mark:
            self._wait(lambda: self._done() >= mark)
            if monotonic_s() - reported_s >= _REPORT_S:
                reported_s = monotonic_s()
                self._tell(
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
            self._tell("info", "shard_finished", shard_id=shard_id, records=self.state.records)

    def _drain(self) -> None:
        """Let the batches under way end, and store what they did; the rest will be delivered to the next owner."""
        shard_id = self.state.shard_id
        self._spool.flush(shard_id)
        mark = self._spool.mark(shard_id)
        may_take = self._spool.within_horizon(shard_id)  # the rest waits for slower shards, which may be gone
        before = self._progress.batches()
        deadline_s = monotonic_s() + self._pace.drain_s

        def enough() -> bool:
            if self._done() >= min(mark, may_take):
                return True
            # Two batches: the one under way, and one that was planned after we were asked.
            now = self._progress.batches()
            return all(now[name] >= before.get(name, -1) + 2 for name in now)

        while not enough() and monotonic_s() < deadline_s:
            self._wait(enough)
        for attempt in range(_LAST_ATTEMPTS):
            if self._checkpoint() or self._lost:
                break
            pause(0.1 * 2**attempt)
        self._tell(
            "info",
            "shard_drained",
            shard_id=shard_id,
            checkpoint=to_text(self.state.checkpoint),
            left=self._done() < mark,
        )

    def _done(self) -> Position:
        """How far the shard is done, here or elsewhere.

        The books of this host know nothing of a shard until a batch has some of it, which a quiet one never gets; what
        its stored checkpoint covers was committed all the same.
        """
        return max(self._progress.committed(self.state.shard_id), self.state.checkpoint)

    def _still_mine(self) -> None:
        if not self._spool.holds(self.state.shard_id, self):
            raise RelayGone

    def _wait(self, until: Callable[[], bool]) -> None:
        if self._stopping():
            raise RelayGone
        self._still_mine()
        self._spool.wait(until, _LOOK_S)
