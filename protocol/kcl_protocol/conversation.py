"""Who may say what, and when, in the conversation between the daemon and one child.

Owns the state of one conversation, seen from either side, and the rules below. Knows nothing of JSON, lines,
processes or time: feeding it messages is the whole use of it.

The rules
---------
A conversation is about one shard and takes place with one child, and it is strictly by turns. The daemon speaks when
the child owes nothing (at the start, between two actions, and when the child waits for a checkpoint); in every other
state the child has the word. So each state appears in exactly one of two tables below: in `DAEMON_SAYS` when the
daemon has the word, in `CHILD_SAYS` when the child has it. What is not in the table of the speaker is forbidden. That
is the reason for writing tables and not conditions: what cannot be found in them cannot happen.

1. The first action is `initialize`; nothing else starts a conversation.
2. Each action is finished by exactly one status with its name, and only then may the next one come. An answer with
   another name, or none, means that both sides no longer talk about the same thing: there is no way back from that.
3. Inside any action the child may ask for checkpoints, one after the other. While it waits for an answer it says
   nothing, and the daemon says nothing but the answer. Asking is allowed even where no checkpoint can succeed
   (initialize, leaseLost): the answer is an error then, and the action goes on (`may_checkpoint`).
4. `shutdownRequested` comes at most once, and no records follow it. The child's last word on the shard is still open.
5. `leaseLost` or `shardEnded` ends the shard, with or without `shutdownRequested` before it. They exclude each other,
   and nothing follows their status.
6. Before KCL 2.0 both ends were called `shutdown`, with reason TERMINATE for the end of the shard and ZOMBIE for a
   lost lease. It takes the same way through the tables as the end that it stands for; only its status bears its name.

The conversation may break off in any state, because either side can die. That is not a message and so not here.
A checkpoint being served is a state of its own for each action, not a flag beside the state, so that the answer leads
back to where the child asked and no combination exists that the tables do not show.

The picture of the conversation's tables, drawn from the tables so that it cannot lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kcl_protocol.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    Message,
    ProcessRecords,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)


class Role(StrEnum):
    """The two sides."""

    DAEMON = "daemon"
    CHILD = "child"

    @property
    def other(self) -> Role:
        """The side one talks to."""
        return Role.CHILD if self is Role.DAEMON else Role.DAEMON


class State(StrEnum):
    """Where a conversation is; `..._CHECKPOINT`: the child waits for the answer to a checkpoint in that action."""

    START = "start"
    INITIALIZING = "initializing"
    INITIALIZING_CHECKPOINT = "initializing_checkpoint"
    IDLE = "idle"
    PROCESSING = "processing"
    PROCESSING_CHECKPOINT = "processing_checkpoint"
    STOPPING = "stopping"
    STOPPING_CHECKPOINT = "stopping_checkpoint"
    STOPPED = "stopped"
    LOSING_LEASE = "losing_lease"
    LOSING_LEASE_CHECKPOINT = "losing_lease_checkpoint"
    ENDING_SHARD = "ending_shard"
    ENDING_SHARD_CHECKPOINT = "ending_shard_checkpoint"
    OVER = "over"


class MessageKind(StrEnum):
    """What a message is to the tables; the value is how errors and diagrams call it."""

    INITIALIZE = "initialize"
    PROCESS_RECORDS = "processRecords"
    SHUTDOWN_REQUESTED = "shutdownRequested"
    LEASE_LOST = "leaseLost"
    SHARD_ENDED = "shardEnded"
    CHECKPOINT_ANSWER = "checkpoint answer"
    CHECKPOINT_REQUEST = "checkpoint request"
    STATUS = "status"


_KINDS: Final[Mapping[type[Message], MessageKind]] = {
    Initialize: MessageKind.INITIALIZE,
    ProcessRecords: MessageKind.PROCESS_RECORDS,
    ShutdownRequested: MessageKind.SHUTDOWN_REQUESTED,
    LeaseLost: MessageKind.LEASE_LOST,
    ShardEnded: MessageKind.SHARD_ENDED,
    CheckpointAnswer: MessageKind.CHECKPOINT_ANSWER,
    CheckpointRequest: MessageKind.CHECKPOINT_REQUEST,
    Status: MessageKind.STATUS,
}

TransitionTable = Mapping[State, Mapping[MessageKind, State]]

DAEMON_TRANSITIONS: Final[TransitionTable] = {
    State.START: {MessageKind.INITIALIZE: State.INITIALIZING},
    State.IDLE: {
        MessageKind.PROCESS_RECORDS: State.PROCESSING,
        MessageKind.SHUTDOWN_REQUESTED: State.STOPPING,
        MessageKind.LEASE_LOST: State.LOSING_LEASE,
        MessageKind.SHARD_ENDED: State.ENDING_SHARD,
    },
    State.STOPPED: {
        MessageKind.LEASE_LOST: State.LOSING_LEASE,
        MessageKind.SHARD_ENDED: State.ENDING_SHARD,
    },
    State.INITIALIZING_CHECKPOINT: {MessageKind.CHECKPOINT_ANSWER: State.INITIALIZING},
    State.PROCESSING_CHECKPOINT: {MessageKind.CHECKPOINT_ANSWER: State.PROCESSING},
    State.STOPPING_CHECKPOINT: {MessageKind.CHECKPOINT_ANSWER: State.STOPPING},
    State.LOSING_LEASE_CHECKPOINT: {MessageKind.CHECKPOINT_ANSWER: State.LOSING_LEASE},
    State.ENDING_SHARD_CHECKPOINT: {MessageKind.CHECKPOINT_ANSWER: State.ENDING_SHARD},
    State.OVER: {},
}

CHILD_TRANSITIONS: Final[TransitionTable] = {
    State.INITIALIZING: {
        MessageKind.CHECKPOINT_REQUEST: State.INITIALIZING_CHECKPOINT,
        MessageKind.STATUS: State.IDLE,
    },
    State.PROCESSING: {
        MessageKind.CHECKPOINT_REQUEST: State.PROCESSING_CHECKPOINT,
        MessageKind.STATUS: State.IDLE,
    },
    State.STOPPING: {
        MessageKind.CHECKPOINT_REQUEST: State.STOPPING_CHECKPOINT,
        MessageKind.STATUS: State.STOPPED,
    },
    State.LOSING_LEASE: {
        MessageKind.CHECKPOINT_REQUEST: State.LOSING_LEASE_CHECKPOINT,
        MessageKind.STATUS: State.OVER,
    },
    State.ENDING_SHARD: {
        MessageKind.CHECKPOINT_REQUEST: State.ENDING_SHARD_CHECKPOINT,
        MessageKind.STATUS: State.OVER,
    },
}

TRANSITIONS: Final[Mapping[Role, TransitionTable]] = {
    Role.DAEMON: DAEMON_TRANSITIONS,
    Role.CHILD: CHILD_TRANSITIONS,
}
_NOTHING: Final[Mapping[MessageKind, State]] = {}

# Before its first batch a child has nothing to checkpoint, and after losing the lease it has no right to.
_MAY_CHECKPOINT: Final = frozenset(
    {
        State.PROCESSING,
        State.PROCESSING_CHECKPOINT,
        State.STOPPING,
        State.STOPPING_CHECKPOINT,
        State.ENDING_SHARD,
        State.ENDING_SHARD_CHECKPOINT,
    }
)

# The most of a foreign text that an error message repeats.
_EXCERPT_CHARACTERS: Final = 80


class Conversation:
    """One conversation as one side sees it.

    A refused message changes nothing. After a refused `receive` the other side can no longer be trusted to know where
    the conversation is: end it.

    Args:
        role: our side.
    """

    def __init__(self, role: Role) -> None:
        self._role = role
        self._other = role.other
        self._state = State.START
        self._awaiting: str | None = None

    @property
    def state(self) -> State:
        """Where it is."""
        return self._state

    @property
    def awaiting(self) -> str | None:
        """Name of the action whose status the child owes, None between actions."""
        return self._awaiting

    @property
    def may_checkpoint(self) -> bool:
        """Whether a checkpoint asked for in the action under way can succeed; the same while one is pending."""
        return self._state in _MAY_CHECKPOINT

    @property
    def is_over(self) -> bool:
        """Whether everything has been said about the shard."""
        return self._state is State.OVER

    def send(self, message: Message) -> None:
        """Note that our side says this.

        Raises:
            LocalProtocolError: our side may not say this now.
        """
        self._advance(self._role, message, LocalProtocolError)

    def receive(self, message: Message) -> None:
        """Note that the other side said this.

        Raises:
            RemoteProtocolError: the other side may not say this now; names the state, the message and what was expected.
        """
        self._advance(self._other, message, RemoteProtocolError)

    def _advance(self, speaker: Role, message: Message, error: type[ProtocolError]) -> None:
        kind = _kind_of(message)
        following = TRANSITIONS[speaker].get(self._state, _NOTHING).get(kind)
        is_for_another = isinstance(message, Status) and message.response_for != self._awaiting
        if following is None or is_for_another:
            raise error(
                f"{speaker.value} said {_describe(message, kind)} in state {self._state.value}; "
                f"expected {self._expected(speaker)}"
            )
        self._state = following
        if isinstance(message, Status):
            self._awaiting = None
        elif not isinstance(message, CheckpointRequest | CheckpointAnswer):
            self._awaiting = message.action

    def _expected(self, speaker: Role) -> str:
        kinds = TRANSITIONS[speaker].get(self._state, _NOTHING)
        if not kinds:
            return "nothing more" if self.is_over else f"nothing until the {speaker.other.value} has spoken"
        return " or ".join(
            f"status for {self._awaiting!r}" if kind is MessageKind.STATUS else kind.value for kind in kinds
        )


def _kind_of(message: Message) -> MessageKind:
    if isinstance(message, Shutdown):
        return MessageKind.SHARD_ENDED if message.reason == "TERMINATE" else MessageKind.LEASE_LOST
    return _KINDS[type(message)]


def _describe(message: Message, kind: MessageKind) -> str:
    if isinstance(message, Status):
        return f"status for {message.response_for!r:.{_EXCERPT_CHARACTERS}}"
    return message.action if isinstance(message, Shutdown) else kind.value


def state_diagram() -> str:
    """Every state and transition as the text of a mermaid `stateDiagram-v2`, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.START.value}"]
    for role, table in TRANSITIONS.items():
        lines.extend(
            f"    {state.value} --> {following.value} : {role.value} says {kind.value}"
            for state, row in table.items()
            for kind, following in row.items()
        )
    lines.append(f"    {State.OVER.value} --> [*]")
    return "\n".join(lines) + "\n"
