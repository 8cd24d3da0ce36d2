"""Who may say what and when, by example and against a second statement of the rules."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_protocol.conversation import (
    CHILD_TRANSITIONS,
    DAEMON_TRANSITIONS,
    Conversation,
    MessageKind,
    Role,
    State,
)
from kcl_protocol.errors import LocalProtocolError, RemoteProtocolError
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    Message,
    ProcessRecords,
    Reject,
    RejectAnswer,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)

INITIALIZE = Initialize("shardId-000000000000", "TRIM_HORIZON", 0)
BATCH = ProcessRecords([], None)
ASK = CheckpointRequest()
ANSWER = CheckpointAnswer(None, None, None)
REJECT = Reject("7", 0, "bad")
REJECTED = RejectAnswer("7", 0, None)
FROM_CHILD = (Status, CheckpointRequest, Reject)
OPENING: tuple[Message, ...] = (INITIALIZE, Status("initialize"))


def reported(role: Role, *messages: Message) -> Conversation:
    conversation = Conversation(role)
    for message in messages:
        say(conversation, role, message)
    return conversation


def say(conversation: Conversation, role: Role, message: Message) -> None:
    speaker = Role.CHILD if isinstance(message, FROM_CHILD) else Role.DAEMON
    if speaker is role:
        conversation.send(message)
    else:
        conversation.receive(message)


def owes_answer(conversation: Conversation) -> bool:
    """Whether the child waits for the answer to a checkpoint."""
    return MessageKind.CHECKPOINT_ANSWER in DAEMON_TRANSITIONS.get(conversation.state, {})


each_role = pytest.mark.parametrize("role", list(Role))


@each_role
def test_a_new_conversation_owes_no_answer_and_no_checkpoint(role: Role) -> None:
    conversation = Conversation(role)
    assert conversation.state is State.START
    assert conversation.awaiting is None
    assert not owes_answer(conversation)
    assert not conversation.may_checkpoint
    assert not conversation.is_over


@each_role
def test_an_action_awaits_its_status(role: Role) -> None:
    conversation = reported(role, *OPENING, BATCH)
    awaited = conversation.awaiting
    say(conversation, role, Status("processRecords"))
    assert (awaited, conversation.awaiting) == ("processRecords", None)
    assert conversation.state is State.IDLE


@each_role
def test_a_checkpoint_waits_for_its_answer_inside_the_action(role: Role) -> None:
    conversation = reported(role, *OPENING, BATCH)
    pending: list[bool] = []
    for message in (ASK, ANSWER, ASK, ANSWER):
        say(conversation, role, message)
        pending.append(owes_answer(conversation))
        assert conversation.awaiting == "processRecords"
    assert pending == [True, False, True, False]
    say(conversation, role, Status("processRecords"))
    assert conversation.state is State.IDLE


@each_role
@pytest.mark.parametrize(
    ("action", "may"),
    [
        (BATCH, True),
        (ShutdownRequested(), True),
        (ShardEnded(), True),
        (LeaseLost(), False),
        (Shutdown("TERMINATE"), True),
        (Shutdown("ZOMBIE"), False),
    ],
)
def test_a_checkpoint_may_be_asked_for_everywhere_but_not_succeed_everywhere(
    role: Role, action: Message, may: bool
) -> None:
    conversation = reported(role, *OPENING, action)
    assert conversation.may_checkpoint is may
    say(conversation, role, ASK)
    assert conversation.may_checkpoint is may
    say(conversation, role, ANSWER)
    say(conversation, role, Status(action.action))
    assert not conversation.may_checkpoint


@each_role
def test_between_two_actions_a_checkpoint_is_answered_before_or_after_the_next_one_begins(role: Role) -> None:
    conversation = reported(role, *OPENING, BATCH, Status("processRecords"))
    assert not conversation.may_checkpoint
    say(conversation, role, ASK)
    assert (conversation.state, conversation.may_checkpoint) == (State.IDLE_CHECKPOINT, True)
    for message, state in (
        (ANSWER, State.IDLE),
        (ASK, State.IDLE_CHECKPOINT),
        (BATCH, State.PROCESSING_CHECKPOINT),
        (ANSWER, State.PROCESSING),
    ):
        say(conversation, role, message)
        assert conversation.state is state
    assert conversation.awaiting == "processRecords"


@each_role
def test_rejects_are_answered_one_by_one_and_until_then_only_others_may_follow(role: Role) -> None:
    conversation = reported(role, *OPENING, BATCH)
    assert conversation.may_reject
    for message, state in (
        (REJECT, State.PROCESSING_REJECT),
        (REJECT, State.PROCESSING_REJECT),
        (REJECTED, State.PROCESSING_REJECT),
        (REJECT, State.PROCESSING_REJECT),
        (REJECTED, State.PROCESSING_REJECT),
        (REJECTED, State.PROCESSING),
        (ASK, State.PROCESSING_CHECKPOINT),
        (ANSWER, State.PROCESSING),
        (REJECT, State.PROCESSING_REJECT),
        (RejectAnswer("7", 0, "NoDeadLetterDestination", "set it"), State.PROCESSING),
    ):
        say(conversation, role, message)
        assert conversation.state is state
        assert conversation.awaiting == "processRecords"
    say(conversation, role, Status("processRecords"))
    assert not conversation.may_reject


@each_role
def test_no_checkpoint_can_succeed_before_the_first_batch(role: Role) -> None:
    conversation = reported(role, INITIALIZE)
    assert not conversation.may_checkpoint
    say(conversation, role, ASK)
    assert not conversation.may_checkpoint


@each_role
@pytest.mark.parametrize("end", [LeaseLost(), ShardEnded(), Shutdown("ZOMBIE"), Shutdown("TERMINATE")])
@pytest.mark.parametrize("is_requested", [False, True])
def test_the_end_comes_with_or_without_a_shutdown_request(
    role: Role, end: Message, is_requested: bool
) -> None:
    requested = (ShutdownRequested(), Status("shutdownRequested")) if is_requested else ()
    conversation = reported(role, *OPENING, *requested, end)
    was_over = conversation.is_over
    say(conversation, role, Status(end.action))
    assert (was_over, conversation.is_over) == (False, True)
    assert conversation.awaiting is None


REFUSED: list[tuple[tuple[Message, ...], Message, str]] = [
    ((), BATCH, "daemon said processRecords in state start; expected initialize"),
    ((), LeaseLost(), "daemon said leaseLost in state start; expected initialize"),
    (
        (),
        Status("initialize"),
        "child said status for 'initialize' in state start; expected nothing until the daemon",
    ),
    (
        (INITIALIZE,),
        INITIALIZE,
        "daemon said initialize in state initializing; expected nothing until the child",
    ),
    (
        (INITIALIZE,),
        BATCH,
        "daemon said processRecords in state initializing; expected nothing until the child",
    ),
    (
        (INITIALIZE,),
        ANSWER,
        "daemon said checkpoint answer in state initializing; expected nothing until the child",
    ),
    (
        OPENING,
        INITIALIZE,
        "daemon said initialize in state idle; expected processRecords or shutdownRequested or",
    ),
    ((*OPENING, ASK), ASK, "child said checkpoint request in state idle_checkpoint; expected nothing until"),
    ((*OPENING, ASK), Status("initialize"), "in state idle_checkpoint; expected nothing until the daemon"),
    ((*OPENING, ASK, BATCH), Status("processRecords"), "in state processing_checkpoint; expected nothing"),
    ((*OPENING, ASK, BATCH), BATCH, "in state processing_checkpoint; expected checkpoint answer"),
    (
        (*OPENING, ShutdownRequested(), Status("shutdownRequested")),
        ASK,
        "child said checkpoint request in state stopped",
    ),
    (OPENING, Status("initialize"), "child said status for 'initialize' in state idle"),
    (OPENING, Status(None), "child said status for None in state idle"),
    (
        (*OPENING, BATCH),
        Status("initialize"),
        "in state processing; expected checkpoint request or reject or status for 'processRecords'",
    ),
    ((*OPENING, BATCH), Status(None), "child said status for None in state processing"),
    ((INITIALIZE,), REJECT, "child said reject in state initializing; expected checkpoint request or status"),
    (OPENING, REJECT, "child said reject in state idle; expected checkpoint request"),
    ((*OPENING, ShutdownRequested()), REJECT, "child said reject in state stopping; expected"),
    ((*OPENING, BATCH, ASK), REJECT, "child said reject in state processing_checkpoint; expected nothing"),
    ((*OPENING, BATCH), REJECTED, "daemon said reject answer in state processing; expected nothing"),
    ((*OPENING, BATCH, REJECT), ANSWER, "in state processing_reject; expected reject answer"),
    ((*OPENING, BATCH, REJECT), LeaseLost(), "in state processing_reject; expected reject answer"),
    ((*OPENING, BATCH, REJECT), ASK, "in state processing_reject; expected reject"),
    ((*OPENING, BATCH, REJECT, REJECT, REJECTED), Status("processRecords"), "expected reject"),
    ((*OPENING, BATCH), BATCH, "daemon said processRecords in state processing"),
    ((*OPENING, BATCH, ASK), ASK, "child said checkpoint request in state processing_checkpoint"),
    (
        (*OPENING, BATCH, ASK),
        Status("processRecords"),
        "in state processing_checkpoint; expected nothing until",
    ),
    ((*OPENING, BATCH, ASK), LeaseLost(), "in state processing_checkpoint; expected checkpoint answer"),
    (
        (*OPENING, ShutdownRequested(), Status("shutdownRequested")),
        BATCH,
        "in state stopped; expected leaseLost or",
    ),
    ((*OPENING, ShutdownRequested(), Status("shutdownRequested")), ShutdownRequested(), "in state stopped"),
    ((*OPENING, LeaseLost(), Status("leaseLost")), ShardEnded(), "in state over; expected nothing more"),
    ((*OPENING, ShardEnded(), Status("shardEnded")), LeaseLost(), "in state over; expected nothing more"),
    (
        (*OPENING, ShardEnded(), Status("shardEnded")),
        Status("shardEnded"),
        "in state over; expected nothing more",
    ),
    (
        (*OPENING, Shutdown("ZOMBIE")),
        Status("leaseLost"),
        "expected checkpoint request or status for 'shutdown'",
    ),
    ((INITIALIZE,), Shutdown("ZOMBIE"), "daemon said shutdown in state initializing"),
]


@each_role
@pytest.mark.parametrize(("before", "message", "text"), REFUSED)
def test_a_forbidden_message_is_refused_and_leaves_the_conversation_as_it_was(
    role: Role, before: tuple[Message, ...], message: Message, text: str
) -> None:
    conversation = reported(role, *before)
    state, awaiting = conversation.state, conversation.awaiting
    speaker = Role.CHILD if isinstance(message, FROM_CHILD) else Role.DAEMON
    with pytest.raises(LocalProtocolError if speaker is role else RemoteProtocolError) as caught:
        say(conversation, role, message)
    assert text in str(caught.value)
    assert (conversation.state, conversation.awaiting) == (state, awaiting)


def test_nobody_may_say_what_is_for_the_other_to_say() -> None:
    daemon = reported(Role.DAEMON, *OPENING, BATCH)
    with pytest.raises(LocalProtocolError, match="daemon said status"):
        daemon.send(Status("processRecords"))
    with pytest.raises(RemoteProtocolError, match="child said leaseLost"):
        daemon.receive(LeaseLost())


def test_a_foreign_text_is_not_repeated_at_length() -> None:
    daemon = reported(Role.DAEMON, INITIALIZE)
    with pytest.raises(RemoteProtocolError) as caught:
        daemon.receive(Status("x" * 100_000))
    assert len(str(caught.value)) < 300


def test_each_state_but_two_is_the_turn_of_one_side() -> None:
    assert DAEMON_TRANSITIONS.keys() | CHILD_TRANSITIONS.keys() == set(State)
    both = {State.IDLE, State.PROCESSING_REJECT}
    assert DAEMON_TRANSITIONS.keys() & CHILD_TRANSITIONS.keys() == both


def test_every_state_can_be_reached() -> None:
    following = {
        next_state
        for table in (DAEMON_TRANSITIONS, CHILD_TRANSITIONS)
        for row in table.values()
        for next_state in row.values()
    }
    assert following == set(State) - {State.START}


def test_every_kind_of_message_is_allowed_somewhere() -> None:
    kinds = {
        kind for table in (DAEMON_TRANSITIONS, CHILD_TRANSITIONS) for row in table.values() for kind in row
    }
    assert kinds == set(MessageKind)


@dataclass
class Rules:
    """The rules once more, as conditions over what has been said."""

    actions: list[str] = field(default_factory=list)
    owes_status: bool = False
    owes_answer: bool = False
    rejects: int = 0

    def allow(self, message: Message) -> bool:
        if isinstance(message, RejectAnswer):
            return self.rejects > 0
        if isinstance(message, Reject):
            return self.owes_status and self.actions[-1] == "processRecords" and not self.owes_answer
        return not self.rejects and self._allow_others(message)

    def _allow_others(self, message: Message) -> bool:
        if isinstance(message, CheckpointAnswer):
            return self.owes_answer
        if self.owes_answer:  # only an action that crosses a request made between two actions
            begins = not isinstance(message, Status | CheckpointRequest)
            return begins and not self.owes_status and self._may_begin(message)
        if isinstance(message, Status):
            return self.owes_status and message.response_for == self.actions[-1]
        if isinstance(message, CheckpointRequest):
            return self.owes_status or (bool(self.actions) and self._may_begin(BATCH))
        return not self.owes_status and self._may_begin(message)

    def _may_begin(self, message: Message) -> bool:
        if isinstance(message, Initialize):
            return not self.actions
        if not self.actions or {"leaseLost", "shardEnded", "shutdown"} & set(self.actions):
            return False
        continue_after = isinstance(message, ProcessRecords | ShutdownRequested)
        return not (continue_after and "shutdownRequested" in self.actions)

    def note(self, message: Message) -> None:
        if isinstance(message, Reject | RejectAnswer):
            self.rejects += 1 if isinstance(message, Reject) else -1
        elif isinstance(message, CheckpointAnswer | CheckpointRequest):
            self.owes_answer = not self.owes_answer
        elif isinstance(message, Status):
            self.owes_status = False
        else:
            self.actions.append(message.action)
            self.owes_status = True


ANYTHING: list[Message] = [
    INITIALIZE,
    BATCH,
    ShutdownRequested(),
    LeaseLost(),
    ShardEnded(),
    Shutdown("ZOMBIE"),
    Shutdown("TERMINATE"),
    ASK,
    ANSWER,
    REJECT,
    REJECTED,
    Status(None),
    *(
        Status(name)
        for name in (
            "initialize",
            "processRecords",
            "shutdownRequested",
            "leaseLost",
            "shardEnded",
            "shutdown",
        )
    ),
]


@given(st.sampled_from(Role), st.data())
def test_both_sides_follow_the_rules_whatever_is_said(role: Role, data: st.DataObject) -> None:
    conversation, rules = Conversation(role), Rules()
    for _ in range(data.draw(st.integers(0, 40))):
        # Half of the time something allowed, or no conversation would get far.
        allowed = [message for message in ANYTHING if rules.allow(message)]
        message = data.draw(st.sampled_from(ANYTHING) | st.sampled_from(allowed or ANYTHING))
        if not rules.allow(message):
            with pytest.raises((LocalProtocolError, RemoteProtocolError)):
                say(conversation, role, message)
            continue
        say(conversation, role, message)
        rules.note(message)
        assert conversation.awaiting == (rules.actions[-1] if rules.owes_status else None)
        assert owes_answer(conversation) == rules.owes_answer
        assert (conversation.state is State.PROCESSING_REJECT) == (rules.rejects > 0)


@each_role
def test_a_child_may_reject_many_records_before_it_reads_the_answers(role: Role) -> None:
    conversation = reported(role, *OPENING, BATCH)
    for count in (3, 1):
        for _ in range(count):
            say(conversation, role, Reject("1", 0, "why"))
        for _ in range(count):
            assert conversation.state is State.PROCESSING_REJECT
            say(conversation, role, RejectAnswer("1", 0, None))
        assert conversation.state is State.PROCESSING
    say(conversation, role, Status("processRecords"))


@each_role
@pytest.mark.parametrize("message", [ASK, Status("processRecords")], ids=["checkpoint", "status"])
def test_until_it_has_all_answers_it_may_only_reject_more(role: Role, message: Message) -> None:
    conversation = reported(role, *OPENING, BATCH, Reject("1"), Reject("2"), RejectAnswer("1", None, None))
    with pytest.raises((LocalProtocolError, RemoteProtocolError), match="in state processing_reject"):
        say(conversation, role, message)
    say(conversation, role, RejectAnswer("2", None, None))
    say(conversation, role, message)
