"""The conversation with one child (KCL: MultiLangProtocol, ShardRecordProcessorCheckpointer)."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from kcl_daemon import errors, faults
from kcl_daemon.config.children import ChildProtocol, ChildSettings
from kcl_daemon.consumer.lane import Lane
from kcl_daemon.consumer.set_aside import Rejects
from kcl_daemon.errors import (
    AwsError,
    ChildBrokeProtocol,
    ChildError,
    ChildExited,
    ChildTimedOut,
    TableNotFound,
    Throttled,
)
from kcl_daemon.leases.lease import CheckpointWindow
from kcl_daemon.metrics import kcl as shard_metrics
from kcl_daemon.metrics.metric import Operation
from kcl_daemon.ports import ChildPipes, Clock, Log, Meters, at_level, level_of
from kcl_daemon.progress.invariants import Invariants
from kcl_daemon.progress.progress import NEVER_S
from kcl_daemon.records.batch_text import LINES, BatchEncoder, framing_of
from kcl_daemon.retrieval.source import DeliveryBatch
from kcl_protocol.codec import LogLine, Stray, encode
from kcl_protocol.conversation import DaemonSide
from kcl_protocol.errors import (
    CheckpointDependencyFailed,
    CheckpointError,
    CheckpointIllegalArgument,
    CheckpointInvalidState,
    CheckpointShutdown,
    CheckpointThrottled,
    RemoteProtocolError,
)
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Reject,
    ShardEnded,
    Shutdown,
    Status,
)
from kcl_protocol.sequence import ExtendedSequenceNumber


def shard_ended(protocol: ChildProtocol, children: tuple[str, ...] | None = None) -> Action:
    """`children` are only for a lander."""
    return Shutdown("TERMINATE") if protocol is ChildProtocol.KCL_1_8 else ShardEnded(children)


def lease_lost(protocol: ChildProtocol) -> Action:
    return Shutdown("ZOMBIE") if protocol is ChildProtocol.KCL_1_8 else LeaseLost()


_OPERATIONS: Final[Mapping[str, Operation]] = {
    Initialize.action: shard_metrics.INITIALIZE_CHILD,
    LeaseLost.action: shard_metrics.SHUTDOWN_CHILD,
    ShardEnded.action: shard_metrics.SHUTDOWN_CHILD,
    Shutdown.action: shard_metrics.SHUTDOWN_CHILD,
}


class ChildMetrics:
    def __init__(self, meters: Meters, clock: Clock, labels: Mapping[str, str]) -> None:
        self._meters = meters
        self._clock = clock
        self._labels = labels
        self._began_s = 0.0

    def begin(self) -> None:
        self._began_s = self._clock.monotonic()

    def performed(self, action: Action) -> None:
        operation = _OPERATIONS.get(action.action)
        if operation is not None:
            self._meters.done(operation, self._clock.monotonic() - self._began_s)

    def processed(self, batch: DeliveryBatch) -> None:
        meters, labels = self._meters, self._labels
        seconds = self._clock.monotonic() - self._began_s
        meters.add(shard_metrics.PROCESS_RECORDS, batch.count, **labels)
        meters.add(shard_metrics.PROCESS_BYTES, batch.data_bytes, **labels)
        meters.done(shard_metrics.PROCESS, seconds, **labels)
        meters.done(shard_metrics.PROCESS_CHILD, seconds, **labels)

    def failed(self) -> None:
        self._meters.done(
            shard_metrics.PROCESS, self._clock.monotonic() - self._began_s, False, **self._labels
        )


T = TypeVar("T")

_INBOX_MESSAGES: Final = 16
MAX_PAUSE_MS: Final = 15 * 60_000
_EXIT_STATUS_WAIT_S: Final = 1.0
_LOG_MESSAGE_CHARACTERS: Final = 16 * 1024
# A log event takes 10 to 50 microseconds.
_LINES_PER_TURN: Final = 64
_RECORDS: Final = ProcessRecords((), None)


class ChildConnection:
    """`pump` must run beside it, from start to end.

    `on_early_request`: there is a message between two actions; `answer_early_requests` may be called. `invariants`: of its
    consumer, set before it is used. `paused_until_s` (monotonic): whoever delivers waits until then.
    """

    def __init__(
        self,
        child: ChildPipes,
        settings: ChildSettings,
        *,
        clock: Clock,
        log: Log,
        metrics: ChildMetrics,
        on_checkpoint: Callable[[CheckpointRequest], Awaitable[CheckpointAnswer]],
        on_early_request: Callable[[], None] = lambda: None,
        rejects: Rejects | None = None,
    ) -> None:
        self._child = child
        self.invariants = Invariants()
        self._timeout_s = settings.timeout_s
        self._warn_after_s = None if settings.warn_after_ms is None else settings.warn_after_ms / 1000
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._on_checkpoint = on_checkpoint
        self._on_early_request = on_early_request
        self._rejects = rejects or Rejects(None)
        self._side = DaemonSide(accepts_logs=settings.log_messages)
        self._inbox: deque[ChildMessage] = deque()
        self._inbox_most = _INBOX_MESSAGES
        self._arrived = anyio.Event()
        self._flooded = False
        self._strays = 0
        self.silent = False
        self.encoder = BatchEncoder()
        self.paused_until_s = NEVER_S
        self._odd_pause = False

    async def pump(self) -> None:
        """Also between actions: a chatty child must not block."""
        while data := await self._child.receive():
            await self._take(data)
        await self._take(b"")
        self.silent = True
        self._arrived.set()

    async def perform(self, action: Action, *, before_send: Callable[[], None] | None = None) -> Status:
        """Send an action and wait for its status.

        `before_send` is called just before the line is written. If it is not called, the child has not seen the action.

        Raises:
            ChildExited: it ended or closed its stdout.
            ChildTimedOut: the caller should end the child.
            ChildBrokeProtocol: the child sent any other answer.
        """
        line = self._side.send_data(action)
        await self._begin(action, before_send)
        if isinstance(action, ProcessRecords):
            self._inbox_most = _INBOX_MESSAGES + len(action.records)
        self.invariants.sent(action)
        await self._send(line, action.action)
        status = await self._finish(action)
        if isinstance(action, Initialize):
            self._choose_framing(status.frames)
        self._metrics.performed(action)
        return status

    async def deliver(self, batch: DeliveryBatch, *, before_send: Callable[[], None] | None = None) -> None:
        """As `perform`. The batch is released as soon as its line is written, if nothing may be rejected."""
        self._side.send(_RECORDS)
        await self._begin(_RECORDS, before_send)
        try:
            line = self._line_of(batch)
            self.invariants.gives(batch.first, batch.last, batch.count)
            await self._send(line, _RECORDS.action)
            if not self._rejects.keeps_batch:
                batch.release()
            await self._processed()
        finally:
            batch.release()
            self._rejects.end()
        faults.maybe("after-batch-processed")
        self._metrics.processed(batch)

    def _line_of(self, batch: DeliveryBatch) -> bytes:
        """Without `keeps_batch` nobody keeps the line: the child may take hours."""
        encoded = batch.take_encoded(self.encoder)
        if self._rejects.keeps_batch:
            self._rejects.begin(encoded)
        self._inbox_most = _INBOX_MESSAGES + batch.count  # it may reject them all before it reads an answer
        return encoded.data

    async def _processed(self) -> None:
        try:
            await self._finish(_RECORDS)
        except ChildError:
            self._metrics.failed()
            raise

    async def _begin(self, action: Action, before_send: Callable[[], None] | None) -> None:
        if self._inbox:
            await self.answer_early_requests(action.action)
        if self._inbox:
            # Taken as the answer to this action, it would confirm records that the child never saw.
            raise ChildBrokeProtocol(f"it sent {self._inbox[0]} before it was given {action.action}")
        if before_send is not None:
            before_send()
        self._metrics.begin()

    async def answer_early_requests(self, doing: str = "idle") -> None:
        """Between two actions; raises as `perform`.

        At the latest before the line of the next action: a request without a position would else cover records that the child has
        not seen.
        """
        while self._inbox and isinstance(request := self._inbox[0], CheckpointRequest | Reject):
            self._inbox.popleft()
            await self._serve(request, doing)

    def _choose_framing(self, version: int | None) -> None:
        found = framing_of(version)
        self.encoder.framing = LINES if isinstance(found, str) else found
        if isinstance(found, str):
            self._log.info("child_frames_unknown", version=version, reason=found, advice="it is given lines")

    async def _finish(self, action: Action) -> Status:
        while True:
            match await self._next(action.action):
                case Status() as status:
                    self._received(status)
                    self.invariants.answers(status.response_for)
                    if status.pause_ms is not None:
                        self._pause(status.pause_ms)
                    return status
                case CheckpointRequest() | Reject() as request:
                    await self._serve(request, action.action)

    def _pause(self, pause_ms: int) -> None:
        used_ms = min(max(pause_ms, 0), MAX_PAUSE_MS)
        if used_ms != pause_ms and not self._odd_pause:
            self._odd_pause = True
            self._log.warning("child_pause_bounded", asked_ms=pause_ms, used_ms=used_ms)
        self.paused_until_s = self._clock.monotonic() + used_ms / 1000

    async def _serve(self, request: CheckpointRequest | Reject, doing: str) -> None:
        if self._flooded:
            raise ChildBrokeProtocol(
                f"it sent more than {self._inbox_most} messages without an answer to any"
            )
        if isinstance(request, Reject):
            await self._serve_rejects(request, doing)
            return
        self._received(request)
        self.invariants.note("request", "checkpoint", request.sequence_number)
        answer = await self._answer(request)
        self.invariants.note("answer", "checkpoint", answer.sequence_number, answer.error)
        await self._send(self._side.send_data(answer), doing)

    async def _serve_rejects(self, first: Reject, doing: str) -> None:
        """All that have come, so that they are stored together."""
        if not self._side.may_reject:
            (answer,) = await self._rejects.answer([first], self._is_silent, possible=False)
            await self._send(encode(answer), doing)
            return
        self._received(first)
        self.invariants.note("request", "reject", first.sequence_number)
        requests = [first]
        while self._inbox and isinstance(request := self._inbox[0], Reject):
            self._inbox.popleft()
            self._received(request)
            requests.append(request)
        answers = await self._rejects.answer(requests, self._is_silent)
        await self._send(b"".join(map(self._side.send_data, answers)), doing)

    def _is_silent(self) -> bool:
        return self.silent

    def _received(self, message: ChildMessage) -> None:
        try:
            self._side.receive(message)
        except RemoteProtocolError as broken:
            raise ChildBrokeProtocol(str(broken)) from broken

    async def _answer(self, request: CheckpointRequest) -> CheckpointAnswer:
        if self._side.may_checkpoint:
            return await self._on_checkpoint(request)
        refused = CheckpointInvalidState.wire_name
        self._log.warning(
            "checkpoint_refused", error=refused, reason=f"not possible during {self._side.awaiting}"
        )
        return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, refused)

    async def exited(self, doing: str) -> ChildExited:
        with self._clock.move_on_after(_EXIT_STATUS_WAIT_S):
            return ChildExited(doing, await self._child.wait())
        return ChildExited(doing, None)

    async def _send(self, line: bytes, doing: str) -> None:
        try:
            await self._within_timeout(doing, lambda: self._child.send(line))
        except ChildExited as gone:
            raise await self.exited(doing) from gone

    async def _next(self, doing: str) -> ChildMessage:
        receive = self._receive if self._warn_after_s is None else partial(self._receive_or_warn, doing)
        message = await self._within_timeout(doing, receive)
        if message is None:
            raise await self.exited(doing)
        return message

    async def _receive(self) -> ChildMessage | None:
        while not self._inbox:
            if self.silent:
                return None
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._inbox.popleft()

    async def _receive_or_warn(self, doing: str) -> ChildMessage | None:
        with self._clock.move_on_after(self._warn_after_s):
            return await self._receive()
        self._log.warning("child_is_slow", action=doing, waited_s=self._warn_after_s)
        return await self._receive()

    async def _within_timeout(self, doing: str, wait: Callable[[], Awaitable[T]]) -> T:
        if self._timeout_s is None:
            return await wait()  # a cancel scope would cost a third of the record path
        with self._clock.move_on_after(self._timeout_s):
            return await wait()
        raise ChildTimedOut(doing, self._timeout_s)

    async def _take(self, data: bytes) -> None:
        for number, message in enumerate(self._side.receive_data(data), start=1):
            match message:
                case LogLine():
                    self._forward(message)
                case Stray():
                    if not message.blank:
                        self._log_stray(message.reason, message.text)
                case _ if len(self._inbox) < self._inbox_most:
                    self._inbox.append(message)
                    self._arrived.set()
                    if self._side.awaiting is None:
                        self._on_early_request()
                case _:
                    self._flooded = True
                    self._log_stray("more messages than were asked for", str(message))
            if number % _LINES_PER_TURN == 0:
                await checkpoint()

    def _forward(self, said: LogLine) -> None:
        at_level(self._log, level_of(said.level) or "info")(
            "child_log", message=said.message[:_LOG_MESSAGE_CHARACTERS]
        )

    def _log_stray(self, reason: str, text: str) -> None:
        self._strays += 1
        log_event = self._log.warning if self._strays == 1 else self._log.debug
        awaiting = self._side.awaiting
        log_event(
            "child_stray_output",
            reason=reason,
            text=text[:200],
            count=self._strays,
            awaits=None if awaiting is None else f"status for {awaiting}",
        )


class Checkpointer:
    """Stores only what the child requests.

    `refused`: a checkpoint of the batch failed through no fault of the child. `largest`: what it was given, or what was passed
    over. With `lands` nothing is passed: beyond its end, a landing log would seem to have lost it.
    """

    def __init__(self, *, lane: Lane, log: Log, rejects: Rejects, lands: bool = False) -> None:
        self._lane = lane
        self._lands = lands
        self._log = log
        self._rejects = rejects
        self._given = self.largest = lane.checkpoint
        self._began: ExtendedSequenceNumber | None = None
        self._shard_ended = False
        self.advanced = False
        self.refused = False

    def begin_batch(self) -> None:
        self.refused = False

    async def begins_at(self, position: ExtendedSequenceNumber) -> None:
        """It has stored all up to there by itself: the lease follows, or stays where it is ahead."""
        self._began = self._given = self.largest = position
        self._lane.progress.invariants.begins(position)
        if position <= self._lane.checkpoint:
            return
        try:
            await self._lane.store(position)
        except (AwsError, errors.LeaseLost) as error:  # the child's next checkpoint covers it
            self._log.debug("own_position_not_stored", checkpoint=str(position), error=str(error))
        else:
            self.advanced = True
            self._log.debug("checkpoint_stored", checkpoint=str(position))

    def delivering(self, last: ExtendedSequenceNumber) -> None:
        self._given = self.largest = last

    def passed(self, position: ExtendedSequenceNumber) -> None:
        self.largest = self.largest if self._lands else max(self.largest, position)
        self._lane.progress.invariants.passed(position)

    def shard_ended(self) -> None:
        self._shard_ended = True
        self.largest = self._given

    async def store_passed(self) -> None:
        """If the child has checkpointed all that it was given. A failure leaves it to the next time."""
        lane, position, before = self._lane, self.largest, self._lane.checkpoint
        if lane.lost is not None or not self._given <= before < position:
            return
        try:
            await lane.store(position)
        except (AwsError, errors.LeaseLost) as error:
            self._log.debug("passed_position_not_stored", error=str(error))
        else:
            lane.progress.moved()
            self._log.debug("checkpoint_stored", checkpoint=str(position))

    async def answer(self, request: CheckpointRequest) -> CheckpointAnswer:
        """It names the error; nothing is raised."""
        error: str | None = None
        try:
            await self._store(request)
        except CheckpointError as refused:
            error = refused.wire_name
            self.refused |= not isinstance(refused, CheckpointIllegalArgument)
            self._log.warning(
                "checkpoint_refused",
                sequence_number=request.sequence_number,
                sub_sequence_number=request.sub_sequence_number,
                error=error,
                reason=str(refused),
            )
        return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, error)

    async def _store(self, request: CheckpointRequest) -> None:
        if self._lane.lost is not None:
            raise CheckpointShutdown(self._lane.lost)
        held_back = self._rejects.held_back
        before, progress = self._lane.checkpoint, self._lane.progress
        window = CheckpointWindow(min(before, self._given), self.largest, self._shard_ended, self._began)
        position = window.position(request.sequence_number, request.sub_sequence_number)
        if held_back is not None and held_back <= position:
            raise CheckpointShutdown(f"the rejected record {held_back} could not be stored, and comes again")
        if position < before:
            return  # it was passed; the child may ask again for the last record that it was given
        refused: str | None = None
        progress.checkpoint_started()
        try:
            await self._lane.store(position)
        except errors.LeaseLost as lost:
            raise CheckpointShutdown(str(lost)) from lost
        except Throttled as throttled:
            refused = str(throttled)
            raise CheckpointThrottled(refused) from throttled
        except TableNotFound as gone:
            refused = str(gone)
            raise CheckpointInvalidState(refused) from gone
        except AwsError as failed:
            refused = str(failed)
            raise CheckpointDependencyFailed(refused) from failed
        finally:
            progress.checkpoint_ended(moved=self._lane.checkpoint > before, refused=refused)
        if position > before:
            self.advanced = True
            self._log.debug("checkpoint_stored", checkpoint=str(position))
