"""Records at which every child fails: found, set aside, and nothing else is; by a whole worker in virtual time."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.children import ChildSettings, FailureSettings
from tests.unit.consumer.poison_stage import (
    DEAD,
    POISON,
    SKIP,
    EarlyReader,
    Stage,
    TalkativeReader,
    Ways,
    perform,
    until,
)
from tests.unit.records.aggregates import aggregate

GOOD = [f"record {number}" for number in range(300)]


def with_poison(*places: int) -> list[str]:
    """The good records, with one that is not before each of these places."""
    texts = list(GOOD)
    for place in sorted(places, reverse=True):
        texts.insert(place, f"{POISON} {place}")
    return texts


@pytest.mark.parametrize("frames", [None, 1], ids=["lines", "frames"])
@pytest.mark.parametrize("checkpoints", [True, False], ids=["checkpoints", "never checkpoints"])
@pytest.mark.parametrize(
    "places", [(0,), (300,), (140,), (10, 11, 250)], ids=["first", "last", "one", "several"]
)
def test_exactly_the_records_that_kill_children_become_dead_letters(
    places: tuple[int, ...], checkpoints: bool, frames: int | None
) -> None:
    stage = Stage(Ways(checkpoints=checkpoints, frames=frames))

    async def scene() -> None:
        stage.put(with_poison(*places))
        await until(lambda: len(stage.set_aside) == len(places) and len(stage.seen) == len(GOOD))
        stage.put(["one more"])
        await until(lambda: "one more" in stage.seen)

    perform(stage, scene)
    assert stage.seen == [*GOOD, "one more"]
    assert stage.set_aside == [f"{POISON} {place}" for place in places]
    assert len(stage.reported("record_set_aside")) == len(places)
    for each in stage.children.seen:
        assert each == [text for text in [*GOOD, "one more"] if text in set(each)]


def test_a_dead_letter_tells_what_it_is_where_it_was_and_the_childs_last_words() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(["fine", "poison!"])
        await until(lambda: bool(stage.letters.letters))

    perform(stage, scene)
    (letter,) = stage.letters.letters
    (row,) = stage.reported("record_set_aside")
    assert letter.record.partition_key == "k\u00fc"
    assert letter.record.sequence_number == row["sequence_number"]
    assert letter.record.approximate_arrival_timestamp == pytest.approx(1_770_000_000_000, abs=60_000)
    assert (letter.stream_name, letter.shard_id) == ("orders", "shardId-000000000000")
    assert (letter.application_name, letter.worker_id) == ("app", "worker")
    assert letter.stderr == ("last words",)
    assert letter.error == "child ended with exit code 3 during processRecords"
    assert letter.failures == 3


def test_a_checkpoint_may_pass_it_so_that_the_next_worker_does_not_meet_it() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(["fine", "poison at the end"])
        await until(lambda: bool(stage.reported("record_set_aside")))
        await anyio.sleep(5)

    perform(stage, scene)
    last = stage.letters.letters[0].record.sequence_number
    assert stage.row["checkpoint"] == last


@pytest.mark.parametrize("failures", [DEAD, SKIP], ids=["deadletter", "skip"])
def test_a_record_is_left_out_only_after_so_many_lone_failures_in_a_row(failures: FailureSettings) -> None:
    stage = Stage(failures=replace(failures, poison_tries=5))

    async def scene() -> None:
        stage.put(["poison", *GOOD[:3]])
        await until(lambda: len(stage.seen) == 3)

    perform(stage, scene)
    searches = [fields["records"] for fields in stage.reported("poison_record_search")]
    assert searches == [4, 2, 1, 1, 1, 1, 1]
    assert len(stage.reported("record_skipped")) == (failures is not DEAD and failures.poison is SKIP.poison)
    assert len(stage.set_aside) == (failures.poison is DEAD.poison)


def test_a_child_that_fails_once_costs_no_record() -> None:
    deaths = ["record 7", "record 7", "record 100"]

    def dies_at(text: str) -> bool:
        if deaths and text == deaths[0]:
            deaths.pop(0)
            return True
        return False

    stage = Stage(Ways(dies_at=dies_at))

    async def scene() -> None:
        stage.put(GOOD)
        await until(lambda: len(stage.seen) == len(GOOD))

    perform(stage, scene)
    assert stage.seen == GOOD
    assert stage.set_aside == []
    assert deaths == []


@pytest.mark.parametrize("status", [-9, -15, 137], ids=["SIGKILL", "SIGTERM", "SIGKILL told by a shell"])
def test_a_child_that_is_killed_from_outside_says_nothing_of_its_records(status: int) -> None:
    stage = Stage(Ways(dies_at=lambda text: True, status=status), replace(DEAD, failures_most=0))

    async def scene() -> None:
        stage.put(["fine"])
        await until(lambda: len(stage.reported("child_failed")) == 12)
        stage.ways.dies_at = lambda text: False
        await until(lambda: stage.seen == ["fine"])

    perform(stage, scene)
    assert stage.set_aside == []
    assert stage.reported("poison_record_search") == []


def test_a_program_that_cannot_be_started_says_nothing_of_its_records() -> None:
    stage = Stage(Ways(starts=False), replace(DEAD, failures_most=0))

    async def scene() -> None:
        stage.put(["fine"])
        await until(lambda: len(stage.reported("child_failed")) == 12)
        stage.ways.starts = True
        await until(lambda: stage.seen == ["fine"])

    perform(stage, scene)
    assert stage.set_aside == []


def test_a_child_that_fails_at_a_refused_checkpoint_says_nothing_of_its_records() -> None:
    stage = Stage(failures=replace(DEAD, failures_most=0))

    async def scene() -> None:
        stage.leases.refuses = True
        stage.put(["fine"])
        await until(lambda: len(stage.reported("child_failed")) == 12)
        stage.leases.refuses = False
        await until(lambda: bool(stage.row.get("checkpoint", "").isdigit()))

    perform(stage, scene)
    assert len(stage.reported("checkpoint_refused")) == 12
    assert stage.set_aside == []
    assert stage.reported("poison_record_search") == []


def test_a_child_that_breaks_the_protocol_between_two_batches_says_nothing_of_the_next_ones_records() -> None:
    stage = Stage(failures=replace(SKIP, failures_most=0))
    stage.children.kind = TalkativeReader

    async def scene() -> None:
        for number in range(6):
            stage.put([f"record {number}"])
            await until(lambda: len(stage.seen) > number)  # noqa: B023 - it is over before the next

    perform(stage, scene)
    assert stage.seen == [f"record {number}" for number in range(6)]
    assert "before it was given processRecords" in stage.reported("child_failed")[0]["error"]
    assert stage.reported("poison_record_search") == stage.reported("record_skipped") == []


def test_a_child_that_fails_at_a_checkpoint_refused_between_two_batches_says_nothing_of_the_records() -> None:
    stage = Stage(failures=replace(DEAD, failures_most=0))
    stage.children.kind = EarlyReader

    async def scene() -> None:
        stage.put(["fine"])
        await until(lambda: stage.seen == ["fine"])
        stage.leases.refuses = True
        stage.put(["fine too"])
        await until(lambda: len(stage.reported("child_failed")) == 1)
        stage.leases.refuses = False
        await until(lambda: stage.seen == ["fine", "fine too"])

    perform(stage, scene)
    assert len(stage.reported("checkpoint_refused")) == 1
    assert stage.set_aside == []
    assert stage.reported("poison_record_search") == []


def test_a_record_at_which_every_child_hangs_is_found_as_well() -> None:
    stage = Stage(Ways(hangs=True))

    async def scene() -> None:
        stage.put(["fine", "poison", "fine too"])
        await until(lambda: len(stage.seen) == 2)

    perform(stage, scene, child=ChildSettings(("child",), timeout_s=30.0))
    assert stage.set_aside == ["poison"]
    assert "did not answer processRecords within 30 s" in stage.letters.letters[0].error


def test_of_an_aggregate_the_one_user_record_is_set_aside() -> None:
    stage = Stage()
    texts = [f"record {number}" for number in range(9)]
    texts[5] = "poison"

    async def scene() -> None:
        stage.put_bytes(
            aggregate((f"key {number}", text.encode(), None) for number, text in enumerate(texts))
        )
        await until(lambda: len(stage.seen) == 8)

    perform(stage, scene)
    (letter,) = stage.letters.letters
    assert letter.record.sub_sequence_number == 5
    assert letter.record.partition_key == "key 5"
    assert stage.seen == [text for text in texts if text != "poison"]


def test_a_poison_record_is_not_set_aside_until_its_letter_is_stored() -> None:
    stage = Stage(failures=replace(DEAD, failures_most=0))
    stage.letters.refusals = 12

    async def scene() -> None:
        stage.put(["poison", "fine"])
        await until(lambda: bool(stage.reported("dead_letter_not_stored")))
        assert stage.seen == []
        await until(lambda: stage.seen == ["fine"])

    perform(stage, scene)
    assert stage.set_aside == ["poison"]
    assert [fields["attempt"] for fields in stage.reported("dead_letter_failed")] == [1, 2, 3, 4, 5]
    assert len(stage.reported("dead_letter_not_stored")) == 1
    assert len(stage.reported("poison_record_search")) == 4  # no child is started meanwhile
    assert len(stage.reported("record_set_aside")) == 1


def test_a_stop_does_not_wait_for_the_place_of_dead_letters() -> None:
    stage = Stage()
    stage.letters.refusals = 1_000

    async def scene() -> None:
        stage.put(["poison", "fine"])
        await until(lambda: bool(stage.reported("dead_letter_failed")))
        asked_s.append(anyio.current_time())

    asked_s: list[float] = []
    ended_s = perform(stage, scene).ended_s
    assert ended_s - asked_s[0] < 10
    assert stage.seen == stage.set_aside == []


def test_without_a_policy_nothing_is_searched_for() -> None:
    stage = Stage(failures=FailureSettings(failures_most=0))

    async def scene() -> None:
        stage.put(["fine", "poison"])
        await until(lambda: len(stage.reported("child_failed")) == 20)

    perform(stage, scene)
    assert stage.set_aside == []
    assert stage.reported("poison_record_search") == []
    assert {fields["failures"] for fields in stage.reported("child_failed")} == set(range(1, 21))


def test_once_it_is_behind_batches_are_delivered_as_they_come_again() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(with_poison(100))
        await until(lambda: len(stage.seen) == len(GOOD))
        before = len(stage.children.seen)
        stage.put(f"later {number}" for number in range(150))
        await until(lambda: "later 149" in stage.seen)
        assert len(stage.children.seen) == before

    perform(stage, scene)
    assert stage.set_aside == [f"{POISON} 100"]
