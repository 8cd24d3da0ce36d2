"""What a simulated child does, as a script: one generator whose steps are reads, waits and prints.

Owns the child's side of the conversation, in real bytes of the line protocol, and tells the checkers what it was given.
Knows nothing of pipes or processes (`children`) or of the daemon.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_protocol.codec import encode
from kcl_protocol.conversation import Conversation, Role
from kcl_protocol.errors import ProtocolError
from kcl_protocol.messages import (
    FRAMES_VERSION,
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    DaemonMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    Reject,
    RejectAnswer,
    ShardEnded,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.chance import Chance
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief, When
from tests.simulator.rules.deliveries import Deliveries, Incarnation
from tests.simulator.rules.truth import Position
from tests.simulator.violation import report

_RETRYABLE: Final = frozenset({"ThrottlingException", "KinesisClientLibDependencyException"})
LEASE_GONE: Final = "ShutdownException"
_TRIES: Final = 8
_PAUSES_MS: Final = (100, 8_000)
_EXIT_IN_TROUBLE: Final = 3


class Read:
    """Wait for the next message, perhaps not for ever; None: stdin was closed, or `is_late`: none came in time."""

    def __init__(self, within_s: float | None = None) -> None:
        self.within_s = within_s
        self.is_late = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Be busy; nothing is read meanwhile."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Print:
    """Write to stdout."""

    data: bytes


class CloseStdout:
    """Close stdout and go on."""


class Hang:
    """Do nothing ever again."""


@dataclass(frozen=True, slots=True)
class ExitLater:
    """End with an error after that time, whatever is going on then."""

    seconds: float


Step = Read | Wait | Print | CloseStdout | Hang | ExitLater
Script = Generator[Step, DaemonMessage | None, None]
READ: Final = Read()


class Exit(Exception):
    """Raised inside a script to end the process with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Program:
    """One child's script."""

    def __init__(
        self,
        identity: Incarnation,
        *,
        behaviour: Behaviour,
        children_plan: ChildrenPlan,
        chance: Chance,
        deliveries: Deliveries,
    ) -> None:
        self._identity = identity
        self._behaviour = behaviour
        self._children_plan = children_plan
        self._chance = chance
        self._deliveries = deliveries
        self._conversation = Conversation(Role.CHILD)
        self._batches = 0
        self._rejects: list[Record] = []
        self._is_out_of_step = False
        self._is_refused = False
        """A reject was: its record is neither processed nor a letter."""

    def run(self) -> Script:
        """Until stdin is closed; raises Exit where the process ends on its own."""
        if self._children_plan.import_s is not None:
            self._deliveries.seen["slow start of a child"] += 1
            yield Wait(self._chance.uniform(*self._children_plan.import_s))
        while True:
            message = yield from self._next_message()
            if message is None:
                if self._behaviour.ignores_eof:
                    yield Hang()
                yield Wait(self._chance.uniform(0.0, 0.2))
                return
            if self._is_out_of_step:
                raise Exit(_EXIT_IN_TROUBLE)
            self._hear(message)
            if isinstance(message, CheckpointAnswer | RejectAnswer):
                continue
            self._take_in(message)
            mischief = self._children_plan.mischief_now(self._chance)
            if mischief is not None:
                yield from self._misbehave_before(mischief)
            yield from self._act(message, mischief)
            yield from self._report_done(message, mischief)

    def _next_message(self) -> Generator[Step, DaemonMessage | None, DaemonMessage | None]:
        return (yield READ)

    def _hear(self, message: DaemonMessage) -> None:
        try:
            self._conversation.receive(message)
        except ProtocolError as broken:
            report("daemon_broke_protocol", f"{self._identity}: {broken}")

    def _take_in(self, message: Action) -> None:
        """Tell the checkers."""
        child = self._identity
        match message:
            case Initialize(shard_id, number, sub_number, stream_name, extra=extra):
                if not _is_for(child.shard_id, shard_id, stream_name):
                    report("wrong_shard", f"{child} was told that it is for {shard_id} of {stream_name}")
                token = extra.get("fencingToken")
                if not isinstance(token, int):
                    report("no_token", f"{child} was given the token {token!r}")
                else:
                    child.token = token
                position = ExtendedSequenceNumber(number or TRIM_HORIZON.sequence_number, sub_number or 0)
                self._deliveries.initialized(child, position)
            case ProcessRecords(records, _, complete_ms):
                healthy = self._up_to_poison(records)
                self._rejects = self._children_plan.rejected(healthy, self._chance)
                self._deliveries.delivered(child, healthy)
                if complete_ms is not None and len(healthy) == len(records):
                    self._deliveries.completed(child, complete_ms)
                if self._children_plan.reject_every:
                    self._deliveries.rejects.chose(child.shard_id, healthy, self._rejects)
            case ShardEnded():
                self._deliveries.shard_ended(child)
            case ShutdownRequested():
                self._deliveries.on_stop(child)
            case _:
                pass

    def _act(self, message: Action, mischief: Mischief | None) -> Script:
        match message:
            case ProcessRecords(records, _):
                yield from self._process(records, mischief)
            case ShutdownRequested():
                yield from self._checkpoint(self._largest())
            case ShardEnded() if mischief is not Mischief.NO_CHECKPOINT_AT_END:
                yield from self._checkpoint_end()
            case _:
                yield Wait(self._chance.uniform(0.0, 0.05))

    def _process(self, records: Sequence[Record], mischief: Mischief | None) -> Script:
        self._batches += 1
        behaviour = self._behaviour
        yield Wait(self._chance.uniform(*behaviour.process_s))
        yield from self._reject()
        healthy = self._up_to_poison(records)
        yield from self._write_output(healthy)
        if len(healthy) < len(records):
            self._deliveries.met_poison(self._identity, records[len(healthy)])
            if healthy and behaviour.when is When.MIDDLE_OF_BATCH:
                yield from self._checkpoint(_request_for(healthy[-1]))
            raise Exit(_EXIT_IN_TROUBLE)
        if mischief is Mischief.EXIT_INSIDE and records:
            yield from self._checkpoint(_request_for(self._chance.pick(records)))
            raise Exit(_EXIT_IN_TROUBLE)
        last = self._largest()
        middle = records[len(records) // 2] if records else None
        match behaviour.when:
            case When.EACH_BATCH:
                yield from self._checkpoint(last)
            case When.EVERY_NTH if self._batches % behaviour.every == 0:
                yield from self._checkpoint(last)
            case When.MIDDLE_OF_BATCH if middle is not None:
                yield from self._checkpoint(_request_for(middle))
            case When.TWICE_A_BATCH if middle is not None:
                yield from self._checkpoint(_request_for(middle))
                yield from self._checkpoint(last)
            case _:
                pass

    def _write_output(self, records: Sequence[Record]) -> Script:
        """Write the output of these, if it has any."""
        yield from ()

    def _reject(self) -> Script:
        """In any order, some of them twice, and now and then one that it was not given; what follows takes no notice."""
        chance, todo = self._chance, list(self._rejects)
        if not todo:
            return
        if chance.happens(0.3):
            todo.reverse()
        if chance.happens(0.3):
            todo.append(chance.pick(todo))
        requests = [Reject(each.sequence_number, each.sub_sequence_number, "no good") for each in todo]
        if chance.happens(0.2):
            requests.insert(chance.between(0, len(requests)), Reject("9" * 56, 0, "not mine"))
        at_once = chance.pick((1, 1, len(requests)))
        while requests:
            yield from self._ask_to_reject(requests[:at_once])
            del requests[:at_once]

    def _ask_to_reject(self, requests: Sequence[Reject]) -> Script:
        for request in requests:
            self._deliveries.rejects.asked(self._identity.shard_id, _rejected(request))
            self._conversation.send(request)
        yield Print(b"".join(map(encode, requests)))
        for request in requests:
            answer = yield READ
            if answer is None:
                raise Exit(_EXIT_IN_TROUBLE)
            self._hear(answer)
            assert isinstance(answer, RejectAnswer), (
                f"{self._identity} got {answer} as the answer to a reject"
            )
            self._check_answer(request, answer)

    def _check_answer(self, request: Reject, answer: RejectAnswer) -> None:
        number = request.sequence_number or ""
        if (answer.sequence_number, answer.sub_sequence_number) != (number, request.sub_sequence_number):
            report("wrong_answer", f"{self._identity} got {answer} for {request}")
        if set(number) == {"9"}:
            if answer.error != "IllegalArgumentException":
                report("foreign_reject_accepted", f"{self._identity} may reject {request}: {answer}")
            return
        if answer.error not in {None, LEASE_GONE}:
            report("legal_reject_refused", f"{self._identity} may not reject {request}: {answer}")
        self._deliveries.rejected(self._identity, _rejected(request), answer.error)
        self._is_refused |= answer.error is not None

    def _up_to_poison(self, records: Sequence[Record]) -> Sequence[Record]:
        """Those before the first one that it cannot process."""
        for index, record in enumerate(records):
            if self._children_plan.is_poison(record):
                return records[:index]
        return records

    def _largest(self) -> CheckpointRequest:
        """Everything so far, by number or without one, as this child likes it."""
        largest = self._identity.largest
        if not self._behaviour.explicit or largest is None:
            return CheckpointRequest()
        return CheckpointRequest(largest.sequence_number, largest.sub_sequence_number)

    def _checkpoint_end(self) -> Script:
        request = self._largest()
        self._deliveries.asked(self._identity, SHARD_END)
        yield from self._checkpoint(request, at_end=True)

    def _checkpoint(self, request: CheckpointRequest, *, at_end: bool = False) -> Script:
        """Ask, again where that may help; what is legal must not be refused for other reasons than these."""
        position = SHARD_END if at_end else self._identity.position
        if request.sequence_number is not None:
            number, sub_number = request.sequence_number, request.sub_sequence_number or 0
            position = ExtendedSequenceNumber(number, sub_number)
        tries = 0
        while True:
            tries += 1
            error = yield from self._ask(request, position)
            if error is None or error == LEASE_GONE:
                return
            if error not in _RETRYABLE:
                self._deliveries.legal_refused(self._identity, position, error)
                return
            if tries >= _TRIES and not at_end:
                return
            yield Wait(self._chance.uniform(0.2, 1.5))

    def _ask(
        self, request: CheckpointRequest, position: ExtendedSequenceNumber
    ) -> Generator[Step, DaemonMessage | None, str | None]:
        """One request; its error, None where it was stored. Ends the process where stdin is closed."""
        self._deliveries.asked(self._identity, position)
        self._conversation.send(request)
        yield Print(encode(request))
        answer = yield READ
        if answer is None:
            raise Exit(_EXIT_IN_TROUBLE)
        self._hear(answer)
        assert isinstance(answer, CheckpointAnswer), (
            f"{self._identity} got {answer} as the answer to a checkpoint"
        )
        self._deliveries.answered(self._identity, position, answer.error)
        return answer.error

    def _ask_nonsense(self, request: CheckpointRequest) -> Script:
        """A request that must be refused."""
        self._conversation.send(request)
        yield Print(encode(request))
        answer = yield READ
        if answer is None:
            raise Exit(_EXIT_IN_TROUBLE)
        self._hear(answer)
        if isinstance(answer, CheckpointAnswer) and answer.error is None:
            report("foreign_checkpoint_accepted", f"{self._identity} may checkpoint {request}")

    def _misbehave_before(self, mischief: Mischief | None) -> Script:
        match mischief:
            case Mischief.EXIT:
                yield Wait(self._chance.uniform(0.0, 0.5))
                raise Exit(_EXIT_IN_TROUBLE)
            case Mischief.DAWDLE:
                yield Wait(self._chance.uniform(5.0, 40.0))
            case Mischief.HANG:
                yield Hang()
            case Mischief.CLOSE_STDOUT:
                yield CloseStdout()
            case Mischief.EXIT_LATER:
                yield ExitLater(self._chance.uniform(0.0, 5.0))
            case Mischief.GARBAGE:
                yield Print(self._garbage())
            case Mischief.ECHO:
                yield Print(encode(LeaseLost()) + encode(ProcessRecords((), 0)))
            case Mischief.FOREIGN_CHECKPOINT:
                yield from self._ask_nonsense(CheckpointRequest("9" * 56))
            case Mischief.MALFORMED_CHECKPOINT:
                yield from self._ask_nonsense(CheckpointRequest("not-a-number", 0))
            case _:
                pass

    def _report_done(self, message: Action, mischief: Mischief | None) -> Script:
        line = encode(self._status(message))
        half = len(line) // 2
        match mischief:
            case Mischief.WRONG_STATUS:
                yield Print(encode(Status("initialise")))
            case Mischief.HALF_LINE_AND_EXIT:
                yield Print(line[:half])
                raise Exit(_EXIT_IN_TROUBLE)
            case Mischief.HALF_LINE:
                self._conversation.send(Status(message.action))
                yield Print(line[:half])
                yield Wait(self._chance.uniform(0.0, 2.0))
                yield Print(line[half:])
            case _:
                self._conversation.send(Status(message.action))
                yield Print(line)
                if mischief is Mischief.SECOND_STATUS:
                    self._is_out_of_step = True  # the daemon may take it for the answer to its next action
                    yield Print(line)

    def _status(self, message: Action) -> Status:
        takes_frames = self._behaviour.takes_frames and isinstance(message, Initialize)
        self._deliveries.seen["child takes frames"] += takes_frames
        pause_ms: int | None = None
        if isinstance(message, ProcessRecords) and self._chance.happens(self._children_plan.pauses):
            pause_ms = self._chance.between(*_PAUSES_MS)
            self._deliveries.asked_pause(self._identity, pause_ms)
        return Status(message.action, FRAMES_VERSION if takes_frames else None, pause_ms)

    def _garbage(self) -> bytes:
        junk: tuple[bytes, ...] = (
            b"\n\n",
            b"loading model...\n",
            b"null\n",
            b"[1,2]\n",
            b'{"action":"no such action"}\n',
            b'{"no":"action"}\r\n',
            b'{"action":"status"\n',
            b"\xff\xfe\x00\n",
            b"x" * 70_000 + b"\n",
        )
        return b"".join(self._chance.pick(junk) for _ in range(self._chance.between(1, 5)))


def _request_for(record: Record) -> CheckpointRequest:
    return CheckpointRequest(record.sequence_number, record.sub_sequence_number)


def _rejected(request: Reject) -> Position:
    return int(request.sequence_number or 0), request.sub_sequence_number or 0


def _is_for(key: str, shard_id: str, stream_name: str | None) -> bool:
    """Whether shard and stream are those of a lease key; among many streams the key names the stream too."""
    if stream_name is None:
        return key == shard_id
    return key.split(":")[1::2] == [stream_name, shard_id]
