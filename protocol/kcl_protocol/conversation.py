"""Who may send what, and when, in the conversation between the daemon and one child about one shard.

A side may speak in the states of its table, `DAEMON_TRANSITIONS` or `CHILD_TRANSITIONS`. All else is
forbidden.

1. The first action is `initialize`.
2. The child finishes each action with exactly one status of its name before the next one. After a wrong name
   the two sides disagree, and nothing can repair that.
3. Inside any action the child may ask for checkpoints, one at a time; then only the answer may follow. In
   initialize and leaseLost the answer is an error.
4. `shutdownRequested` comes at most once, and no records follow it.
5. `leaseLost` or `shardEnded` ends the shard, never both; nothing follows its status.
6. Before KCL 2.0 both ends were called `shutdown`, with reason TERMINATE (shard end) or ZOMBIE (lease lost).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol

from kcl_protocol.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from kcl_protocol.messages import CheckpointRequest, Message, Shutdown, Status


class Role(StrEnum):
    DAEMON = "daemon"
    CHILD = "child"

    @property
    def other(self) -> Role:
        return Role.CHILD if self is Role.DAEMON else Role.DAEMON


class State(StrEnum):
    """`..._CHECKPOINT`: the child waits for a checkpoint answer within that action."""

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
    """The values appear in errors and diagrams."""

    INITIALIZE = "initialize"
    PROCESS_RECORDS = "processRecords"
    SHUTDOWN_REQUESTED = "shutdownRequested"
    LEASE_LOST = "leaseLost"
    SHARD_ENDED = "shardEnded"
    CHECKPOINT_ANSWER = "checkpoint answer"
    CHECKPOINT_REQUEST = "checkpoint request"
    STATUS = "status"


_KINDS: Final[Mapping[str, MessageKind]] = {kind.value: kind for kind in MessageKind}

TransitionTable = Mapping[State, Mapping[MessageKind, State]]

# While the child performs an action, and after it.
_ACTIONS: Final[Mapping[State, State]] = {
    State.INITIALIZING: State.IDLE,
    State.PROCESSING: State.IDLE,
    State.STOPPING: State.STOPPED,
    State.LOSING_LEASE: State.OVER,
    State.ENDING_SHARD: State.OVER,
}


def _checkpoint_in(action: State) -> State:
    return State(f"{action.value}_checkpoint")


_ENDS: Final = {
    MessageKind.LEASE_LOST: State.LOSING_LEASE,
    MessageKind.SHARD_ENDED: State.ENDING_SHARD,
}

DAEMON_TRANSITIONS: Final[TransitionTable] = {
    State.START: {MessageKind.INITIALIZE: State.INITIALIZING},
    State.IDLE: {
        MessageKind.PROCESS_RECORDS: State.PROCESSING,
        MessageKind.SHUTDOWN_REQUESTED: State.STOPPING,
        **_ENDS,
    },
    State.STOPPED: _ENDS,
    **{_checkpoint_in(action): {MessageKind.CHECKPOINT_ANSWER: action} for action in _ACTIONS},
    State.OVER: {},
}

CHILD_TRANSITIONS: Final[TransitionTable] = {
    action: {MessageKind.CHECKPOINT_REQUEST: _checkpoint_in(action), MessageKind.STATUS: after}
    for action, after in _ACTIONS.items()
}

TRANSITIONS: Final[Mapping[Role, TransitionTable]] = {
    Role.DAEMON: DAEMON_TRANSITIONS,
    Role.CHILD: CHILD_TRANSITIONS,
}
_NOTHING: Final[Mapping[MessageKind, State]] = {}

# Before its first batch a child has nothing to checkpoint; after losing the lease it may not.
_MAY_CHECKPOINT: Final = frozenset(
    state
    for action in (State.PROCESSING, State.STOPPING, State.ENDING_SHARD)
    for state in (action, _checkpoint_in(action))
)

_EXCERPT_CHARACTERS: Final = 80


class ForeignMessage(Protocol):
    """A message of a client's own type; `action` is its name on the wire."""

    @property
    def action(self) -> str: ...


AnyMessage = Message | ForeignMessage


class Conversation:
    """One conversation as one side sees it.

    A refused message changes nothing. After a refused `receive`, end the conversation: the sides disagree.
    """

    def __init__(self, role: Role) -> None:
        self._role = role
        self._other = role.other
        self._state = State.START
        self._awaiting: str | None = None

    @property
    def state(self) -> State:
        return self._state

    @property
    def awaiting(self) -> str | None:
        """Name of the action whose status the child still owes."""
        return self._awaiting

    @property
    def may_checkpoint(self) -> bool:
        """Whether a checkpoint can succeed within the current action."""
        return self._state in _MAY_CHECKPOINT

    @property
    def is_over(self) -> bool:
        return self._state is State.OVER

    def send(self, message: Message) -> None:
        """Raises LocalProtocolError if our side may not send this now."""
        self._advance(self._role, message, LocalProtocolError)

    def receive(self, message: AnyMessage) -> None:
        """Raises RemoteProtocolError if the other side may not send this now; says what was expected."""
        self._advance(self._other, message, RemoteProtocolError)

    def _advance(self, speaker: Role, message: AnyMessage, error: type[ProtocolError]) -> None:
        kind = _kind_of(speaker, message)
        following = TRANSITIONS[speaker].get(self._state, _NOTHING).get(kind)
        is_for_another = isinstance(message, Status) and message.response_for != self._awaiting
        if following is None or is_for_another:
            raise error(
                f"{speaker.value} said {_describe(message, kind)} in state {self._state.value}; "
                f"expected {self._expected(speaker)}"
            )
        self._state = following
        if kind is MessageKind.STATUS:
            self._awaiting = None
        elif message.action != CheckpointRequest.action:
            self._awaiting = message.action

    def _expected(self, speaker: Role) -> str:
        kinds = TRANSITIONS[speaker].get(self._state, _NOTHING)
        if not kinds:
            return "nothing more" if self.is_over else f"nothing until the {speaker.other.value} has spoken"
        return " or ".join(
            f"status for {self._awaiting!r}" if kind is MessageKind.STATUS else kind.value for kind in kinds
        )


def _kind_of(speaker: Role, message: AnyMessage) -> MessageKind:
    kind = _KINDS.get(message.action)
    if kind is not None:
        return kind
    if message.action == CheckpointRequest.action:  # and of its answer
        is_answer = speaker is Role.DAEMON
        return MessageKind.CHECKPOINT_ANSWER if is_answer else MessageKind.CHECKPOINT_REQUEST
    is_end = isinstance(message, Shutdown) and message.reason == "TERMINATE"
    return MessageKind.SHARD_ENDED if is_end else MessageKind.LEASE_LOST


def _describe(message: AnyMessage, kind: MessageKind) -> str:
    if isinstance(message, Status):
        return f"status for {message.response_for!r:.{_EXCERPT_CHARACTERS}}"
    return message.action if isinstance(message, Shutdown) else kind.value


def state_diagram() -> str:
    """All transitions as a mermaid `stateDiagram-v2`, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.START.value}"]
    for role, table in TRANSITIONS.items():
        lines.extend(
            f"    {state.value} --> {following.value} : {role.value} says {kind.value}"
            for state, row in table.items()
            for kind, following in row.items()
        )
    lines.append(f"    {State.OVER.value} --> [*]")
    return "\n".join(lines) + "\n"
