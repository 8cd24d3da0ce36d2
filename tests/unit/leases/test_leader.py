"""The lock row and when it may be taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcl_daemon.leases.leader import (
    LEADER_KEY,
    ClaimLock,
    LeaderLock,
    LockObservation,
    WatchLock,
    assignment_notice,
    decide_lock_claim,
    heartbeat,
    lock_from_row,
    lock_row,
)
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Absent, Equals, Present
from tests.simulator.memory.updates import apply_update

ME, OTHER = WorkerId("me"), WorkerId("other")
LOCK = LeaderLock(OTHER, "v-1", 120_000)


def ask(
    lock: LeaderLock | None, seen: LockObservation | None = None, *, now_s: float = 1000.0
) -> ClaimLock | WatchLock:
    return decide_lock_claim(lock, seen, me=ME, now_s=now_s, key_attribute="key")


def test_the_row_is_that_of_the_lock_client() -> None:
    assert lock_row("key", LOCK) == {
        "key": "Leader",
        "ownerName": "other",
        "leaseDuration": "120000",
        "recordVersionNumber": "v-1",
        "entityType": "LEADER",
    }


def test_a_row_is_read_back_with_its_owners_duration() -> None:
    assert lock_from_row(lock_row("leaseKey", LOCK)) == LOCK
    assert lock_from_row(None) is None


def test_a_duration_that_cannot_be_read_counts_as_the_default() -> None:
    for duration in ("soon", 7):
        lock = lock_from_row({"ownerName": "other", "recordVersionNumber": "v", "leaseDuration": duration})
        assert lock is not None
        assert lock.duration_ms == 120_000


@pytest.mark.parametrize(("text", "duration_ms"), [("99999999", 99_999_999), ("100000000", 120_000)])
def test_a_duration_of_more_than_a_day_counts_as_the_default(text: str, duration_ms: int) -> None:
    lock = lock_from_row({"ownerName": "other", "recordVersionNumber": "v", "leaseDuration": text})
    assert lock is not None
    assert lock.duration_ms == duration_ms


def test_our_attributes_of_the_lock_row_are_read_back_and_values_of_another_type_are_ignored() -> None:
    row = {**lock_row("key", LOCK), "daemonDeputy": "third", "daemonHolds": "h-1"}
    assert lock_from_row(row) == replace(LOCK, deputy=WorkerId("third"), holds="h-1")
    assert lock_from_row({**row, "daemonDeputy": 7, "daemonHolds": 7, "daemonAssigned": 7}) == LOCK


def test_no_row_is_claimed_only_if_there_is_still_none() -> None:
    assert ask(None) == ClaimLock((Absent("key"),), "there is no leader")


def test_a_released_row_is_claimed_at_once() -> None:
    claim = ask(LeaderLock(OTHER, "v-1", 120_000, released=True))
    assert isinstance(claim, ClaimLock)
    assert claim.require == (Present("key"), Equals("isReleased", "1"))


def test_a_lock_seen_for_the_first_time_is_watched() -> None:
    assert ask(LOCK) == WatchLock(LockObservation("v-1", 1000.0), OTHER, 0.0, 120.0)


def test_a_lock_is_taken_once_its_version_stood_still_for_its_owners_duration() -> None:
    seen = LockObservation("v-1", 1000.0)
    assert isinstance(ask(LOCK, seen, now_s=1120.0), WatchLock)
    claim = ask(LOCK, seen, now_s=1120.1)
    assert isinstance(claim, ClaimLock)
    assert claim.require == (Present("key"), Equals("recordVersionNumber", "v-1"))


@pytest.mark.parametrize("before", ["v-1", "v-3"])
def test_a_heartbeat_starts_the_wait_anew(before: str) -> None:
    watch = ask(LeaderLock(OTHER, "v-2", 120_000), LockObservation(before, 0.0), now_s=5000.0)
    assert watch == WatchLock(LockObservation("v-2", 5000.0), OTHER, 0.0, 120.0)


def test_a_duration_is_kept_to_the_millisecond() -> None:
    lock = LeaderLock(OTHER, "v-1", 1_500)
    assert isinstance(ask(lock, LockObservation("v-1", 1000.0), now_s=1001.2), WatchLock)
    assert isinstance(ask(lock, LockObservation("v-1", 1000.0), now_s=1001.6), ClaimLock)


def test_the_lock_of_a_worker_that_is_proven_dead_is_taken_as_it_was_read_before_the_proof() -> None:
    def ask_after(proof: LeaderLock) -> ClaimLock | WatchLock:
        return decide_lock_claim(LOCK, None, me=ME, now_s=1000.0, key_attribute="key", dead=proof)

    claim = ask_after(LOCK)
    assert isinstance(claim, ClaimLock)
    assert claim.require == (Present("key"), Equals("recordVersionNumber", "v-1"))
    for other in ("v-0", "v-2"):
        assert isinstance(ask_after(replace(LOCK, version=other)), WatchLock)
    for other in ("a", "z"):
        assert isinstance(ask_after(replace(LOCK, owner=WorkerId(other))), WatchLock)


def test_a_lock_of_an_earlier_process_of_ours_is_taken_at_once() -> None:
    assert isinstance(ask(LeaderLock(ME, "v-1", 120_000)), ClaimLock)


def test_a_row_that_is_no_lock_is_never_overwritten() -> None:
    lock = lock_from_row({"key": LEADER_KEY, "something": "else"})
    assert isinstance(ask(lock, LockObservation("", 0.0), now_s=10_000.0), WatchLock)


@pytest.mark.parametrize("owner", [{}, {"ownerName": 7}])
def test_a_lock_without_an_owner_is_taken_by_its_version_like_another(owner: dict[str, int]) -> None:
    lock = lock_from_row({"key": LEADER_KEY, "recordVersionNumber": "v-1", "leaseDuration": "1000", **owner})
    assert isinstance(ask(lock, LockObservation("v-1", 1000.0), now_s=1000.9), WatchLock)
    claim = ask(lock, LockObservation("v-1", 1000.0), now_s=1001.1)
    assert isinstance(claim, ClaimLock)
    assert claim.require == (Present("key"), Equals("recordVersionNumber", "v-1"))
    assert claim.reason == "an owner without a name was silent for 1.1 s"


def test_a_lock_without_a_version_is_left_alone_even_if_it_names_us_and_until_it_is_released() -> None:
    row = {"key": LEADER_KEY, "ownerName": ME}
    assert isinstance(ask(lock_from_row(row), LockObservation("", 0.0), now_s=10_000.0), WatchLock)
    claim = ask(lock_from_row({**row, "isReleased": "1"}))
    assert isinstance(claim, ClaimLock)
    assert claim.require == (Present("key"), Equals("isReleased", "1"))


@pytest.mark.parametrize("change", [{"ownerName": "x"}, {"recordVersionNumber": "x"}])
def test_a_heartbeat_is_refused_when_the_lock_is_not_ours_any_more(change: dict[str, str]) -> None:
    row = lock_row("key", LOCK)
    update = heartbeat(LOCK, "v-2")
    assert not apply_update(update, {**row, **change}, key_attribute="key").applied
    after = apply_update(update, row, key_attribute="key").row
    assert after == {**row, "recordVersionNumber": "v-2"}


def test_news_are_one_attribute_more_and_are_read_back() -> None:
    row = lock_row("key", replace(LOCK, assignment_epoch="n-1"))
    assert row == {**lock_row("key", LOCK), "daemonAssigned": "n-1"}
    assert lock_from_row(row) == replace(LOCK, assignment_epoch="n-1")


def test_a_heartbeat_without_news_leaves_those_of_others_alone() -> None:
    row = lock_row("key", replace(LOCK, assignment_epoch="theirs"))
    quiet = apply_update(heartbeat(LOCK, "v-2"), row, key_attribute="key").row
    assert quiet == {**row, "recordVersionNumber": "v-2"}
    telling_beat = apply_update(heartbeat(LOCK, "v-2", "n-2"), row, key_attribute="key").row
    assert telling_beat == {**row, "recordVersionNumber": "v-2", "daemonAssigned": "n-2"}


def test_a_heartbeat_names_the_deputy_and_takes_away_the_name_of_a_former_one() -> None:
    row = lock_row("key", LOCK)
    named = apply_update(heartbeat(replace(LOCK, deputy=ME), "v-2"), row, key_attribute="key").row
    assert named == {**row, "recordVersionNumber": "v-2", "daemonDeputy": "me"}
    without = apply_update(heartbeat(LOCK, "v-2"), {**row, "daemonDeputy": "me"}, key_attribute="key").row
    assert without == {**row, "recordVersionNumber": "v-2"}


def test_whoever_tells_in_anothers_row_changes_nothing_else() -> None:
    row = lock_row("key", replace(LOCK, assignment_epoch="n-1"))
    assert apply_update(assignment_notice(LOCK, "n-2"), row, key_attribute="key").row == {
        **row,
        "daemonAssigned": "n-2",
    }


def test_nothing_is_reported_in_the_row_of_a_leader_that_does_not_tell_or_of_another_one() -> None:
    reported = assignment_notice(LOCK, "n-2")
    assert not apply_update(reported, lock_row("key", LOCK), key_attribute="key").applied
    another = lock_row("key", replace(LOCK, owner=ME, assignment_epoch="n-1"))
    assert not apply_update(reported, another, key_attribute="key").applied
    assert not apply_update(reported, None, key_attribute="key").applied
