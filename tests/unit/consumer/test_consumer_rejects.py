"""Records that children reject: stored, answered, done; by a whole worker in virtual time."""

from __future__ import annotations

from base64 import b64decode
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.children import ChildSettings, ConcurrencySettings, FailureSettings, LaneCounts
from kcl_daemon.ports import Clock
from kcl_daemon.records.dead_letter import LetterCause
from kcl_daemon.retrieval import readers
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_protocol.codec import encode
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    DaemonMessage,
    Initialize,
    ProcessRecords,
    Record,
    Reject,
    RejectAnswer,
    ShutdownRequested,
    Status,
)
from tests.unit.consumer.poison_stage import DEAD, SKIP, Reader, Stage, Ways, perform, until
from tests.unit.records.aggregates import aggregate

ONLY_REJECTS = FailureSettings(dead_letters=DEAD.dead_letters)


class Rejecting(Reader):
    """Rejects each record whose text begins with `bad`, one at a time, then checkpoints.

    Class attributes say how: `together`, before it reads an answer; `times` each; `also` these numbers.
    """

    together = False
    times = 1
    also: tuple[tuple[str, int], ...] = ()
    frames: int | None = None
    ignores_errors = True
    answers: list[RejectAnswer]
    checkpoints: list[str | None]
    _todo: deque[Reject]
    _batch: list[Record]
    _owed = 0

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        if isinstance(message, Initialize):
            self.answers, self.checkpoints = [], []
            return encode(Status(message.action, self.frames))
        if isinstance(message, ProcessRecords):
            self._doing = message.action
            self._batch = list(message.records)
            self._todo = deque(self._rejects())
            return self._next()
        if isinstance(message, RejectAnswer):
            self._owed -= 1
            self.answers.append(message)
            return None if self._owed else self._next()
        if isinstance(message, CheckpointAnswer):
            self.checkpoints.append(message.error)
            return encode(Status(self._doing))
        self._doing = message.action
        if isinstance(message, ShutdownRequested):
            return encode(CheckpointRequest(None, None))
        return encode(Status(message.action))

    def _rejects(self) -> Iterator[Reject]:
        for record in self._batch:
            text = b64decode(record.data).decode()
            if text.startswith("bad"):
                for _ in range(self.times):
                    yield Reject(record.sequence_number, record.sub_sequence_number, f"why {text}")
            else:
                self._seen.append(text)
        for number, sub_number in self.also:
            yield Reject(number, sub_number, "not there")

    def _next(self) -> bytes | None:
        if not self._todo:
            return encode(CheckpointRequest(None, None))
        most = len(self._todo) if self.together else 1
        self._owed = most
        return b"".join(encode(self._todo.popleft()) for _ in range(most))


def rejecting(**changes: object) -> type[Rejecting]:
    """Children of this kind."""
    return type("Kind", (Rejecting,), changes)


def answers(stage: Stage) -> list[str | None]:
    """The errors of all answers."""
    return [
        answer.error
        for child in stage.children.children
        if isinstance(child, Rejecting)
        for answer in child.answers
    ]


def all_done(stage: Stage) -> bool:
    """Whether the stored checkpoint is at the last record."""
    return bool(stage.children.children) and stage.row["checkpoint"] == stage.numbers()[-1]


def stage_of(failures: FailureSettings = ONLY_REJECTS, **changes: object) -> Stage:
    stage = Stage(failures=failures)
    stage.children.kind = rejecting(**changes)
    return stage


@pytest.mark.parametrize("frames", [None, 1], ids=["lines", "frames"])
@pytest.mark.parametrize("together", [False, True], ids=["one at a time", "together"])
def test_rejected_records_become_letters_and_checkpoints_pass_them(
    together: bool, frames: int | None
) -> None:
    stage = stage_of(together=together, frames=frames)
    texts = [f"{'bad' if number % 7 == 0 else 'good'} {number}" for number in range(100)]

    async def scene() -> None:
        stage.put(texts)
        await until(lambda: all_done(stage))

    perform(stage, scene)
    bad = [text for text in texts if text.startswith("bad")]
    assert stage.set_aside == bad
    assert stage.seen == [text for text in texts if text not in bad]
    assert {letter.cause for letter in stage.letters.letters} == {LetterCause.REJECTED}
    assert [letter.error for letter in stage.letters.letters] == [f"why {text}" for text in bad]
    assert stage.letters.letters[0].record.partition_key == "k\u00fc"
    assert len(stage.children.children) == 1, "no restart"
    assert answers(stage) == [None] * len(bad)
    told = stage.reported("records_rejected")
    assert sum(each["records"] for each in told) == len(bad)
    assert len(told) <= 2, "the first, and a summary at the end"


@pytest.mark.parametrize("together", [False, True], ids=["one at a time", "together"])
def test_a_second_reject_is_answered_as_stored_without_a_second_letter(together: bool) -> None:
    stage = stage_of(together=together, times=3)

    async def scene() -> None:
        stage.put(["good", "bad", "bad too"])
        await until(lambda: len(answers(stage)) == 6)

    perform(stage, scene)
    assert stage.set_aside == ["bad", "bad too"]
    assert answers(stage) == [None] * 6


@pytest.mark.parametrize("frames", [None, 1], ids=["lines", "frames"])
def test_of_an_aggregate_the_one_user_record_is_rejected(frames: int | None) -> None:
    stage = stage_of(frames=frames)
    texts = ["good", "bad 1", "good", "bad 3", "good"]

    async def scene() -> None:
        stage.put_bytes(
            aggregate((f"key {number}", text.encode(), None) for number, text in enumerate(texts))
        )
        await until(lambda: len(answers(stage)) == 2)

    perform(stage, scene)
    found = [(each.record.sub_sequence_number, each.record.partition_key) for each in stage.letters.letters]
    assert found == [(1, "key 1"), (3, "key 3")]


@pytest.mark.parametrize(
    "also",
    [("9" * 56, 0), ("1", 0), ("", 0), ("x", 0), ("1\u0660", 0)],
    ids=["later", "earlier", "none", "no number", "other digits"],
)
@pytest.mark.parametrize("frames", [None, 1], ids=["lines", "frames"])
def test_a_record_that_is_not_in_the_batch_is_an_error_that_can_be_read(
    also: tuple[str, int], frames: int | None
) -> None:
    stage = stage_of(also=(also,), frames=frames)

    async def scene() -> None:
        stage.put(["good"])
        await until(lambda: all_done(stage))

    perform(stage, scene)
    (child,) = stage.children.children
    assert isinstance(child, Rejecting)
    (answer,) = child.answers
    assert answer.error == "IllegalArgumentException"
    assert "no record of the current batch" in str(answer.message)
    assert child.checkpoints[0] is None, "a final refusal holds no checkpoint back"
    assert stage.letters.letters == []
    assert stage.reported("reject_refused")[0]["error"] == "IllegalArgumentException"


def test_without_a_destination_the_error_names_the_property() -> None:
    stage = stage_of(FailureSettings())

    async def scene() -> None:
        stage.put(["bad"])
        await until(lambda: len(answers(stage)) == 1)

    perform(stage, scene)
    (child,) = stage.children.children
    assert isinstance(child, Rejecting)
    assert child.answers[0].error == "NoDeadLetterDestination"
    assert "deadLetterDestination" in str(child.answers[0].message)
    assert stage.letters.letters == []


def test_a_letter_that_is_too_large_is_refused_at_once_and_the_child_goes_on() -> None:
    stage = stage_of()
    stage.letters.most_bytes = 1_000

    async def scene() -> None:
        stage.put(["bad" * 1_000, "bad"])
        await until(lambda: len(answers(stage)) == 2)
        await until(lambda: all_done(stage))

    perform(stage, scene)
    (child,) = stage.children.children
    assert isinstance(child, Rejecting)
    assert [answer.error for answer in child.answers] == ["DeadLetterTooLarge", None]
    assert "deadLetterOverflow" in str(child.answers[0].message)
    assert stage.set_aside == ["bad"]


def test_a_destination_that_is_away_is_a_wait_with_a_name_that_no_timeout_counts() -> None:
    stage = stage_of()
    stage.letters.refusals = 12  # for some six minutes

    async def scene() -> None:
        stage.put(["good", "bad"])
        await until(lambda: len(answers(stage)) == 1)
        await until(lambda: all_done(stage))
        await anyio.sleep(10)

    perform(stage, scene, child=ChildSettings(("child",), timeout_s=30.0, stuck_timeout_ms=20_000))
    assert len(stage.children.children) == 1, "it waited, and was not replaced"
    assert stage.set_aside == ["bad"]
    stalls = stage.reported("shard_stalled")
    assert [each["cause"] for each in stalls] == ["dead letters"]
    assert "file:dead.jsonl" in stalls[0]["detail"]
    assert "too large" in stalls[0]["detail"]
    assert stage.reported("shard_moves_again")
    assert len(stage.reported("dead_letter_not_stored")) == 1


def test_a_stop_ends_the_wait_and_no_checkpoint_passes_the_record() -> None:
    stage = stage_of()
    stage.letters.refusals = 10_000

    async def scene() -> None:
        stage.put(["good", "good too"])
        await until(lambda: all_done(stage))
        stage.put(["good at last", "bad"])
        await until(lambda: bool(stage.reported("dead_letter_failed")))
        before.append(stage.row["checkpoint"])

    before: list[str] = []
    perform(stage, scene)
    (child,) = stage.children.children
    assert isinstance(child, Rejecting)
    assert [answer.error for answer in child.answers] == ["ShutdownException"]
    assert child.checkpoints == [None, "ShutdownException", "ShutdownException"]
    assert stage.row["checkpoint"] == before[0]
    assert stage.letters.letters == []


def test_no_letter_is_stored_once_the_lease_is_lost_while_it_had_to_wait() -> None:
    """The next owner stores it."""
    stage = stage_of()
    stage.letters.refusals = 10_000

    async def scene() -> None:
        stage.put(["good", "bad"])
        await until(lambda: stage.letters.refusals == 10_000 - 6)
        row = {**stage.row, "leaseOwner": "other", "leaseCounter": stage.row["leaseCounter"] + 5}
        await stage.leases.put(row)
        await until(lambda: bool(stage.reported("lease_lost")))
        await anyio.sleep(5)
        assert stage.letters.refusals == 10_000 - 6, "it waits for half a minute and longer"

    perform(stage, scene)


class Earlier(Rejecting):
    """Wants to checkpoint at the first record of its batch."""

    together = True

    def _next(self) -> bytes | None:
        return super()._next() if self._todo else encode(CheckpointRequest(self._batch[0].sequence_number, 0))


def test_of_several_records_that_come_again_the_first_one_holds_the_checkpoint_back() -> None:
    stage = stage_of()
    stage.children.kind = Earlier
    stage.letters.refusals = 10_000

    async def scene() -> None:
        stage.put(["bad", "bad too"])
        await until(lambda: bool(stage.reported("dead_letter_failed")))

    perform(stage, scene)
    (child,) = stage.children.children
    assert isinstance(child, Earlier)
    assert child.checkpoints[0] == "ShutdownException"
    assert stage.row["checkpoint"] == "TRIM_HORIZON"


def test_after_a_stop_request_a_last_try_is_made() -> None:
    stage = stage_of()
    stage.letters.refusals = 1

    async def scene() -> None:
        stage.put(["bad"])
        await until(lambda: bool(stage.reported("dead_letter_failed")))

    perform(stage, scene)
    assert answers(stage) == [None]
    assert stage.row["checkpoint"] == stage.letters.letters[0].record.sequence_number


class Eager(Rejecting):
    """Rejects something before it is given records, and asks nothing else."""

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        if isinstance(message, Initialize):
            self.answers, self.checkpoints = [], []
            return encode(Reject("17", 0, "too early"))
        if isinstance(message, RejectAnswer):
            self.answers.append(message)
            return encode(Status("initialize"))
        return super()._answer_to(message)


def test_outside_of_process_records_a_reject_is_refused() -> None:
    stage = stage_of()
    stage.children.kind = Eager

    async def scene() -> None:
        stage.put(["good"])
        await until(lambda: stage.seen == ["good"])

    perform(stage, scene)
    assert answers(stage) == ["InvalidStateException"]
    assert len(stage.children.children) == 1


def test_lanes_reject_too_and_the_mark_passes_their_letters() -> None:
    stage = stage_of()

    async def scene() -> None:
        for number in range(60):
            stage.put([f"{'bad' if number % 5 == 0 else 'good'} {number}"], f"key {number % 9}")
        await until(lambda: all_done(stage))

    perform(stage, scene, concurrency=ConcurrencySettings(lanes=LaneCounts(4)))
    assert sorted(stage.set_aside) == sorted(f"bad {number}" for number in range(0, 60, 5))
    assert len(stage.seen) == 48


class Dying(Rejecting):
    """As one with a bug at `poison`, after it has rejected what is before."""

    def _next(self) -> bytes | None:
        if not self._todo and any(b64decode(record.data) == b"poison" for record in self._batch):
            self.end(3)
            return None
        return super()._next()


def test_in_the_search_for_a_poison_record_a_rejected_one_is_a_success() -> None:
    stage = stage_of(DEAD)
    stage.children.kind = Dying
    texts = ["good", "bad", "poison", "bad too", "good too"]

    async def scene() -> None:
        stage.put(texts)
        await until(lambda: all_done(stage))

    perform(stage, scene)
    causes = {b64decode(each.record.data).decode(): each.cause.value for each in stage.letters.letters}
    assert causes == {"bad": "rejected", "poison": "failed", "bad too": "rejected"}


def test_records_that_are_too_old_become_letters_and_the_checkpoint_passes_them() -> None:
    stage = stage_of(replace(ONLY_REJECTS, max_age_ms=60_000))

    async def scene() -> None:
        stage.ways.starts = False
        stage.put(["old", "old too"])
        await anyio.sleep(100)
        stage.put(["new"])
        stage.ways.starts = True
        await until(lambda: stage.seen == ["new"])

    perform(stage, scene)
    assert stage.set_aside == ["old", "old too"]
    assert {letter.cause for letter in stage.letters.letters} == {LetterCause.EXPIRED}
    assert stage.reported("records_expired")[0]["records"] == 2


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_shard_of_nothing_but_old_records_gets_on_without_its_child(lanes: int) -> None:
    stage = stage_of(replace(SKIP, max_age_ms=60_000))

    async def scene() -> None:
        stage.ways.starts = False
        stage.put(["old", "old too"])
        await anyio.sleep(100)
        stage.ways.starts = True
        await until(lambda: all_done(stage))

    perform(stage, scene, concurrency=ConcurrencySettings(lanes=LaneCounts(lanes)))
    assert stage.seen == stage.set_aside == []
    assert len(stage.reported("records_expired")) == 1


@pytest.mark.parametrize("policy", [DEAD, SKIP], ids=["deadletter", "skip"])
def test_attempts_bound_the_search_and_set_all_records_of_the_last_one_aside(policy: FailureSettings) -> None:
    stage = Stage(Ways(), replace(policy, attempts=3))
    texts = [f"record {number}" for number in range(40)]
    texts[20] = "poison"

    async def scene() -> None:
        stage.put(texts)
        await until(lambda: all_done(stage))

    perform(stage, scene)
    searches = [fields["verdict"] for fields in stage.reported("poison_record_search")]
    assert searches == ["suspected", "narrowed", "tried_enough"]
    aside = texts[20:25]  # of 40, of 10 after 20 that succeeded, of 5
    assert [text for text in texts if text not in stage.seen] == aside
    if policy is DEAD:
        assert stage.set_aside == aside
        assert {(each.cause.value, each.failures) for each in stage.letters.letters} == {("attempts", 3)}
    else:
        assert stage.reported("record_skipped")[0]["records"] == 5


def test_one_attempt_sets_the_whole_batch_aside() -> None:
    stage = Stage(Ways(), replace(DEAD, attempts=1))

    async def scene() -> None:
        stage.put(["record", "poison", "record too"])
        await until(lambda: all_done(stage))

    perform(stage, scene)
    assert stage.set_aside == ["record", "poison", "record too"]
    assert stage.seen == ["record"]


class Thinking(Rejecting):
    """Takes its time for a batch."""

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        return None if isinstance(message, ProcessRecords) else super()._answer_to(message)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("failures", [ONLY_REJECTS, FailureSettings()], ids=["destination", "none"])
def test_a_batch_is_kept_and_counted_until_it_is_answered_only_where_its_records_may_be_rejected(
    failures: FailureSettings, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, budgets, reserved = stage_of(failures), list[ByteBudget](), list[int]()
    stage.children.kind = Thinking
    if not failures.dead_letters:
        monkeypatch.setattr(stage, "adapters", lambda: replace(Stage.adapters(stage), dead_letters=None))

    def made(clock: Clock) -> ByteBudget:
        budgets.append(ByteBudget(clock))
        return budgets[-1]

    monkeypatch.setattr(readers, "ByteBudget", made)

    async def scene() -> None:
        await anyio.sleep(60)
        stage.put(["x" * 30_000])
        await until(
            lambda: any(
                isinstance(heard, ProcessRecords)
                for child in stage.children.children
                for heard in child.heard
            )
        )
        await anyio.sleep(5)
        reserved.append(budgets[0].reserved_bytes)
        stage.children.children[0].say(encode(Status("processRecords")))
        await anyio.sleep(5)
        reserved.append(budgets[0].reserved_bytes)

    perform(stage, scene, concurrency=ConcurrencySettings(lanes=LaneCounts(lanes)))
    line = 40_000 if failures.dead_letters else 0
    window = 40_000 if lanes > 1 else 0  # until the child has checkpointed
    assert line + window <= reserved[0] < line + window + 5_000
    assert window <= reserved[1] < window + 5_000
