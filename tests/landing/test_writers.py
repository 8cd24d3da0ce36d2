"""Two landers and one shard: whoever comes first, nothing is lost or repeated."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from kcl_landing.keeping.chain import Problem
from kcl_landing.keeping.verify import Verifier
from tests.landing.daemon import BASE_MS, Given, Refused, ShardOfDaemon, given
from tests.landing.landers import (
    Landed,
    LanderProgram,
    LanderThread,
    options,
    until,
)
from tests.landing.memory_store import Fault, MemoryStore


def test_a_new_owner_goes_on_behind_the_last_segment(tmp_path: Path) -> None:
    first, second = (options(tmp_path, window_ms=50) for _ in range(2))
    with LanderThread(first) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.errors = ["ThrottlingException"] * 100  # the checkpoint stays behind the log
        daemon.give(given(1, 4))
        until(lambda: Landed.at(first).numbers() == [1, 2, 3, 4])
    with LanderThread(second) as lander, ShardOfDaemon(lander.socket, token=2) as daemon:
        assert daemon.initialize() == (4, 0)
        daemon.give(given(3, 6))  # a daemon that reads from the checkpoint all the same
        daemon.shut_down()
        assert daemon.checkpoint == (6, 0)
        assert Landed.at(second).numbers() == [1, 2, 3, 4, 5, 6]


def test_the_late_write_of_a_former_owner_is_kept_and_not_repeated(tmp_path: Path) -> None:
    old, new = (options(tmp_path) for _ in range(2))
    with (
        LanderThread(old) as old_lander,
        LanderThread(new) as new_lander,
        ShardOfDaemon(old_lander.socket, token=1) as before,
        ShardOfDaemon(new_lander.socket, token=2) as after,
    ):
        before.initialize()
        before.give(given(1, 5))
        after.initialize()
        after.give([*given(1, 3), Given(4, sub=0), Given(4, sub=1), *given(5, 9)])
        before.shut_down()  # it writes segment 0 first
        after.shut_down()
        new_lander.wait_for("landing_segment_taken")
        assert Landed.at(new).numbers() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert after.checkpoint == (9, 0)
    assert [each.token for each in Landed.at(new).entries] == [1, 2]


def test_a_scan_is_begun_anew_behind_the_late_write_of_a_former_owner(tmp_path: Path) -> None:
    """The items have other numbers in each scan: only by a number of the first one does a second one go on behind it."""
    segment = "snapshot-1795190400000-0000-0001"
    old, new = (options(tmp_path) for _ in range(2))
    with LanderThread(old) as old_lander, LanderThread(new) as new_lander:
        with (
            ShardOfDaemon(old_lander.socket, segment, token=1) as before,
            ShardOfDaemon(new_lander.socket, segment, token=2) as after,
        ):
            before.initialize()
            before.give(given(1, 5))
            after.initialize()
            after.give(given(101, 103))
            before.shut_down()
            with pytest.raises(Refused):
                after.shut_down()
            assert after.checkpoints == []
        with ShardOfDaemon(new_lander.socket, segment, token=2) as again:
            assert again.initialize() == (5, 0)
            again.give(given(106, 109))
            again.shut_down()
    assert Landed.at(new, segment).numbers() == [1, 2, 3, 4, 5, 106, 107, 108, 109]


def test_a_former_owner_that_finds_its_number_taken_lets_go(tmp_path: Path) -> None:
    old, new = (options(tmp_path) for _ in range(2))
    with (
        LanderThread(old) as old_lander,
        LanderThread(new) as new_lander,
        ShardOfDaemon(old_lander.socket, token=1) as before,
        ShardOfDaemon(new_lander.socket, token=2) as after,
    ):
        before.initialize()
        before.give(given(1, 5))
        after.initialize()
        after.give(given(1, 3))
        after.shut_down()
        with pytest.raises(Refused):
            before.shut_down()
        assert old_lander.wait_for("landing_let_go")["number"] == 0
        assert before.checkpoints == []
    assert Landed.at(new).numbers() == [1, 2, 3]


HOUR_MS = 3_600_000


def hour(number: int, *records: int) -> list[Given]:
    return [Given(each, arrival_ms=BASE_MS + number * HOUR_MS) for each in records]


@pytest.mark.parametrize("has_named", [False, True], ids=["before it names", "when it has named"])
@pytest.mark.parametrize("ends", [False, True], ids=["records", "the end"])
def test_a_first_writer_that_was_paused_cannot_begin_another_hour(
    tmp_path: Path, has_named: bool, ends: bool
) -> None:
    """Without a checkpoint the next owner begins at another record: at `LATEST`, or after some were trimmed."""
    old, new = (options(tmp_path, layout="dated") for _ in range(2))
    with (
        LanderThread(old) as old_lander,
        LanderThread(new) as new_lander,
        ShardOfDaemon(old_lander.socket, token=1) as before,
        ShardOfDaemon(new_lander.socket, token=2) as after,
    ):
        before.initialize()
        before.give(hour(0, 1, 2))
        if has_named:
            landed = Landed.at(new)
            assert landed.log.other_begin(0, BASE_MS, is_end=False) is None
        after.initialize()
        if ends:
            after.end([])
        else:
            after.give(hour(3, 11, 12))
            after.shut_down()
        with pytest.raises(Refused):
            before.shut_down()
        assert before.checkpoints == []
    landed = Landed.at(new)
    assert landed.numbers() == ([] if ends else [11, 12])
    assert [(each.number, each.rows) for each in landed.entries][-1] == (int(has_named), 0 if ends else 2)
    found = list((tmp_path / "log" / "words").rglob("*.parquet"))
    assert len(found) == 1 + has_named, "each number once"
    problems: list[Problem] = []
    verdict = Verifier(landed.store, landed.info, problems.append, jobs=1, quick=False).run()
    assert (problems, verdict.notes) == ([], [])


def test_a_paused_lander_that_wakes_lets_go(tmp_path: Path) -> None:
    old, new = (options(tmp_path, window_ms=1500) for _ in range(2))
    with LanderProgram(old) as zombie, ShardOfDaemon(old_socket := zombie.socket, token=1) as before:
        assert old_socket
        before.initialize()
        before.give(given(1, 5))
        zombie.signal(signal.SIGSTOP)
        with LanderProgram(new) as owner, ShardOfDaemon(owner.socket, token=2) as after:
            after.initialize()
            for number in range(1, 7):
                after.give(given(number, number))
            after.shut_down()
            assert after.checkpoint == (6, 0)
            zombie.signal(signal.SIGCONT)
            assert zombie.wait_for("landing_let_go")["level"] == "warning"
            with pytest.raises(Refused):
                before.hear()
            after.close()
            assert owner.stop() == 0
        assert before.checkpoints == []
        assert zombie.stop() == 0
    assert Landed.at(new).numbers() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("more", [[], given(4, 6)])
def test_an_answer_that_was_lost_repeats_nothing(tmp_path: Path, more: list[Given]) -> None:
    """The first attempt had taken effect; what has come since goes into the next segment."""
    store = MemoryStore()
    with LanderThread(options(tmp_path), store) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give(given(1, 3))
        store.faults.append(Fault("create", after=True, within="/shardId"))
        store.faults.append(Fault("read", within="/shardId"))
        if more:
            daemon.give(more)
        daemon.shut_down()
        assert daemon.checkpoint == (6 if more else 3, 0)
        assert lander.named("landing_segment_taken")[0]["ours"]
        assert lander.named("landing_store_waits")
    assert Landed(store).numbers() == list(range(1, 7 if more else 4))


def test_a_lander_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    chosen, number, checkpoint = options(tmp_path, window_ms=20), 1, (-1, 0)
    for run in range(5):
        with LanderProgram(chosen) as program, ShardOfDaemon(program.socket, checkpoint=checkpoint) as daemon:
            number = max(daemon.initialize()[0], checkpoint[0], 0) + 1
            for _ in range(20 + 7 * run):
                daemon.give(given(number, number + 2))
                number += 3
            program.process.kill()
            checkpoint = daemon.checkpoint
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket, checkpoint=checkpoint) as daemon:
        number = daemon.initialize()[0]
        daemon.give(given(number + 1, number + 1))
        daemon.shut_down()
        assert daemon.checkpoint == (number + 1, 0)
    assert Landed.at(chosen).numbers() == list(range(1, number + 2))
