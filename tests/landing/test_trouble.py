"""A store that has trouble: nothing is lost, memory is bounded, and the lander goes on by itself."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kcl_landing import conversation
from kcl_landing.control import pause
from kcl_landing.store import Cause
from tests.landing.daemon import ShardOfDaemon, given
from tests.landing.landers import Landed, LanderThread, options, until
from tests.landing.memory_store import Fault, MemoryStore

KIB = 1024


def waiting_bytes(lander: LanderThread) -> int:
    newest = lander.named("landing_figures")[-1]["shards"]
    return sum(each["waiting_bytes"] for each in newest.values())


@pytest.mark.parametrize("cause", ["full", "denied", "unreachable", "slow down", "failed"])
def test_records_wait_for_the_store_and_are_landed_then(tmp_path: Path, cause: Cause) -> None:
    store = MemoryStore()
    with (
        LanderThread(options(tmp_path, window_ms=20), store) as lander,
        ShardOfDaemon(lander.socket) as daemon,
    ):
        daemon.initialize()
        store.faults.append(Fault("create", cause, times=3, within="/shardId"))
        for number in range(20):
            daemon.give(given(number, number))
        waits = lander.wait_for("landing_store_waits")
        assert (waits["cause"], waits["level"]) == (cause, "warning")
        assert "goes on by itself" in waits["advice"]
        lander.wait_for("landing_store_works_again")
        daemon.shut_down()
        assert daemon.checkpoint == (19, 0)
        assert len(lander.named("landing_store_waits")) == 1
    assert Landed(store).numbers() == list(range(20))


def test_a_manifest_that_cannot_be_written_holds_nothing_up_that_is_durable(tmp_path: Path) -> None:
    store = MemoryStore()
    with LanderThread(options(tmp_path), store) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        store.faults.append(Fault("replace", "denied", times=2, within="_manifests"))
        daemon.give(given(1, 3))
        daemon.shut_down()
        assert daemon.checkpoint == (3, 0)
        assert lander.named("landing_store_waits")[0]["cause"] == "denied"
    assert Landed(store).numbers() == [1, 2, 3]


def test_memory_is_bounded_while_the_store_is_full_and_all_shards_go_on(tmp_path: Path) -> None:
    store, most, shards, batch = MemoryStore(), 400 * KIB, 4, 50 * KIB
    chosen = options(tmp_path, window_ms=50, memory_bytes=most, max_bytes=200 * KIB)
    with LanderThread(chosen, store) as lander:
        daemons = [ShardOfDaemon(lander.socket, f"shardId-{number:012d}") for number in range(shards)]
        for daemon in daemons:
            daemon.initialize()
        store.faults.append(Fault("create", "full", times=10**6, within="/shardId"))
        given_to = [0] * shards

        def feed(index: int) -> None:
            for number in range(30):
                daemons[index].give(given(number, number, data=b"x" * batch))
                given_to[index] = number + 1

        threads = [threading.Thread(target=feed, args=(index,)) for index in range(shards)]
        for thread in threads:
            thread.start()
        until(lambda: sum(given_to) >= 4)
        pause(2.5)
        stopped_at = list(given_to)
        assert most <= waiting_bytes(lander) <= most + shards * (batch + KIB)
        pause(0.5)
        assert given_to == stopped_at
        store.faults.clear()
        for thread in threads:
            thread.join(30)
        for daemon in daemons:
            daemon.shut_down()
            assert daemon.checkpoint == (29, 0)
            daemon.close()
        assert lander.named("landing_store_works_again")
    for number in range(shards):
        assert Landed(store, f"shardId-{number:012d}").numbers() == list(range(30))


def test_many_shards_share_memory_without_trouble(tmp_path: Path) -> None:
    """More shards than segments fit: they are written early."""
    store, shards = MemoryStore(), 8
    chosen = options(tmp_path, memory_bytes=200 * KIB, max_bytes=200 * KIB)
    with LanderThread(chosen, store) as lander:
        daemons = [ShardOfDaemon(lander.socket, f"shardId-{number:012d}") for number in range(shards)]
        for daemon in daemons:
            daemon.initialize()
        for number in range(20):
            for daemon in daemons:
                daemon.give(given(number, number, data=b"x" * 10 * KIB))
        for daemon in daemons:
            daemon.shut_down()
            daemon.close()
    for number in range(shards):
        assert Landed(store, f"shardId-{number:012d}").numbers() == list(range(20))


def test_a_shard_opens_when_the_store_answers(tmp_path: Path) -> None:
    store = MemoryStore()
    with LanderThread(options(tmp_path), store) as lander, ShardOfDaemon(lander.socket) as daemon:
        store.faults.append(Fault("read", times=2, within="_manifests"))
        daemon.initialize()
        assert lander.named("landing_store_works_again")


def test_the_lander_begins_when_the_store_answers(tmp_path: Path) -> None:
    store = MemoryStore()
    store.faults.append(Fault("create", times=2))
    with LanderThread(options(tmp_path), store) as lander:
        lander.wait_for("lander_ready")
        assert lander.named("landing_store_waits")


def test_the_end_of_a_shard_waits_for_the_store(tmp_path: Path) -> None:
    store = MemoryStore()
    with LanderThread(options(tmp_path), store) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give(given(1, 3))
        store.faults.append(Fault("create", "slow down", times=3, within="/shardId"))
        daemon.end(["child"])
        assert daemon.is_finished
    assert [each.children for each in Landed(store).entries] == [None, ("child",)]


def test_a_shard_is_handed_over_while_the_store_has_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written later is the log's all the same, but no checkpoint may follow the status."""
    monkeypatch.setattr(conversation, "_DRAIN_S", 0.2)
    store = MemoryStore()
    with (
        LanderThread(options(tmp_path, window_ms=300), store) as lander,
        ShardOfDaemon(lander.socket) as daemon,
    ):
        daemon.initialize()
        daemon.give(given(1, 3))
        store.faults.append(Fault("create", times=10**6, within="/shardId"))
        daemon.shut_down()
        store.faults.clear()
        lander.wait_for("landing_store_works_again")
        assert daemon.listen(1) == []
        daemon.act({"action": "leaseLost"})
        assert daemon.checkpoints == []


def test_a_connection_that_goes_while_the_store_has_trouble_is_noticed(tmp_path: Path) -> None:
    store = MemoryStore()
    with LanderThread(options(tmp_path), store) as lander:
        with ShardOfDaemon(lander.socket) as daemon:
            daemon.initialize()
            store.faults.append(Fault("create", times=10**6, within="/shardId"))
            daemon.give(given(1, 3))
            daemon.send(b'{"action":"shardEnded"}\n')
            lander.wait_for("landing_store_waits")
        lander.wait_for("relay_gone")
        until(lambda: lander.named("landing_figures")[-1]["shards"] == {})


@pytest.mark.parametrize("line", [b"{no message}\n", b'{"action":7}\n'])
def test_a_malformed_message_ends_its_connection_and_no_other(tmp_path: Path, line: bytes) -> None:
    with (
        LanderThread(options(tmp_path), MemoryStore()) as lander,
        ShardOfDaemon(lander.socket) as broken,
        ShardOfDaemon(lander.socket, "shardId-000000000001") as other,
    ):
        broken.initialize()
        other.initialize()
        broken.send(line)
        assert lander.wait_for("relay_malformed")["shard_id"] == broken.shard
        other.give(given(1, 3))
