"""The rules of rejected records, seen to fail: each is broken in the daemon, and noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kcl_daemon.config.children import ConcurrencySettings, FailureSettings, LaneCounts
from kcl_daemon.consumer.set_aside import Rejects, SetAside
from kcl_daemon.records.batch_text import BatchText
from kcl_daemon.records.dead_letter import DeadLetter, LetterCause
from kcl_protocol.messages import Record
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, When
from tests.simulator.plans.plan import Plan, Planned, Start, Stop
from tests.simulator.runner import run_plan
from tests.simulator.scenarios.poison import DEAD_LETTERS

Patch = Callable[[pytest.MonkeyPatch], None]


def violation(lanes: int = 1) -> str | None:
    """Of workers whose children reject records; one is stopped while no letter can be stored."""
    plan = Plan(
        shards=2,
        records_per_s=8.0,
        events=(Planned(0.0, Start()), Planned(62.0, Stop(0, 3.0))),
        calm_at_s=100.0,
        ends_at_s=260.0,
        bound_s=150.0,
        children_plan=ChildrenPlan(
            behaviour=Behaviour(when=When.EACH_BATCH, explicit=True, process_s=(0.05, 0.5)), reject_every=6
        ),
        failures=FailureSettings(dead_letters=DEAD_LETTERS.dead_letters),
        letters_away_s=((50.0, 90.0),),
        concurrency=ConcurrencySettings(lanes=LaneCounts(lanes)),
        keys=20,
    )
    found = run_plan(plan, scenario="sabotage", seed=1).violation
    return None if found is None else found.name


def told_and_not_stored(patch: pytest.MonkeyPatch) -> None:
    async def nothing(aside: SetAside, letters: Sequence[DeadLetter], **_: object) -> list[None]:
        return [None] * len(letters)

    patch.setattr(SetAside, "store", nothing)


def past_what_could_not_be_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rejects, "held_back", None)


def another_record(patch: pytest.MonkeyPatch) -> None:
    letter, last = SetAside.letter, dict[SetAside, Record]()

    def of_the_one_before(
        aside: SetAside, record: Record, cause: LetterCause, error: str, **_: object
    ) -> DeadLetter:
        before, last[aside] = last.get(aside, record), record
        return letter(aside, before, cause, error)

    patch.setattr(SetAside, "letter", of_the_one_before)


def any_number(patch: pytest.MonkeyPatch) -> None:
    find = BatchText.find

    def find_something(text: BatchText, number: str, sub_number: int) -> Record | None:
        found = find(text, number, sub_number)
        return found or Record("MQ==", "k", number, None, sub_number)

    patch.setattr(BatchText, "find", find_something)


def what_was_not_rejected(patch: pytest.MonkeyPatch) -> None:
    find = BatchText.find

    def find_the_next(text: BatchText, number: str, sub_number: int) -> Record | None:
        after = text._text.partition(number.encode())[2].partition(b'"sequenceNumber":"')[2][: len(number)]
        return find(text, after.decode(), 0) if after.isdigit() else find(text, number, sub_number)

    patch.setattr(BatchText, "find", find_the_next)


@pytest.mark.parametrize("lanes", [1, 3])
def test_rejects_that_are_right_break_no_rule(lanes: int) -> None:
    assert violation(lanes) is None


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (told_and_not_stored, "letter_missing"),
        (past_what_could_not_be_stored, "neither"),
        (another_record, "letter_missing"),
        (any_number, "unknown_record"),
        (what_was_not_rejected, "good_record_set_aside"),
    ],
)
def test_each_rule_of_rejects_can_be_broken(
    broken: Patch, noticed: str, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    assert violation(lanes) == noticed
