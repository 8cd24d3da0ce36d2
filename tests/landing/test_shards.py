"""How a shard's records are cut into segments, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcl_landing.control import pause
from kcl_landing.log import manifest_path
from tests.landing.daemon import BASE_MS, SHARD, Given, Refused, ShardOfDaemon, given
from tests.landing.landers import Landed, LanderThread, options, until
from tests.landing.memory_store import MemoryStore

HOUR_MS = 3_600_000


def test_a_segment_has_records_that_arrived_within_the_window(tmp_path: Path) -> None:
    chosen = options(tmp_path, window_ms=1000)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give(given(0, 5, step_ms=400))
        daemon.give(given(6, 7, step_ms=400))
        daemon.shut_down()
    landed = Landed.at(chosen)
    assert landed.numbers() == list(range(8))
    assert [(each.rows, each.last_ms - each.first_ms) for each in landed.entries] == [
        (3, 800),
        (3, 800),
        (2, 400),
    ]
    assert [each.after for each in landed.entries] == ["-1/0", "2/0", "5/0"]


def test_a_segment_has_at_most_so_many_bytes(tmp_path: Path) -> None:
    chosen = options(tmp_path, max_bytes=10_000)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        for number in range(8):
            daemon.give(given(number, number, data=b"x" * 3_000))
        until(lambda: len(Landed.at(chosen).entries) == 2)
        assert daemon.checkpoints[0] == (2, 0)
        daemon.shut_down()
    assert [each.rows for each in Landed.at(chosen).entries] == [3, 3, 2]


def test_dated_segments_have_records_of_one_hour(tmp_path: Path) -> None:
    chosen = options(tmp_path, window_ms=2 * HOUR_MS, layout="dated")
    before = BASE_MS // HOUR_MS * HOUR_MS + HOUR_MS - 2
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give([Given(number, arrival_ms=before + number) for number in range(4)])
        daemon.end([])
        assert daemon.is_finished
    paths = sorted(
        str(each.relative_to(tmp_path / "log")) for each in (tmp_path / "log" / "words").rglob("*.parquet")
    )
    assert paths == [
        f"words/_ends/{SHARD}-000000000002.parquet",
        f"words/dt=2026-11-20/hour=16/{SHARD}-000000000000.parquet",
        f"words/dt=2026-11-20/hour=17/{SHARD}-000000000001.parquet",
    ]
    assert Landed.at(chosen).numbers() == [0, 1, 2, 3]


def test_a_record_of_ten_mebibytes_is_landed(tmp_path: Path) -> None:
    chosen, data = options(tmp_path), bytes(range(256)) * 40 * 1024
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        for number, frame in enumerate((True, False)):
            daemon.give([Given(number, data)], frame=frame)
        daemon.shut_down()
    assert [each["data"] == data for each in Landed.at(chosen).rows()] == [True, True]


def test_the_end_of_a_shard_names_its_children(tmp_path: Path) -> None:
    chosen, children = options(tmp_path), ["shardId-000000000001", "shardId-000000000002"]
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give(given(1, 3))
        daemon.errors = ["ThrottlingException", None]
        daemon.end(children)
        assert daemon.is_finished
        lander.wait_for("landing_shard_finished")
    data, end = Landed.at(chosen).entries
    assert (data.rows, data.children) == (3, None)
    assert (end.rows, end.children, end.after, end.last) == (0, tuple(children), "3/0", "3/0")


def test_the_end_is_written_once(tmp_path: Path) -> None:
    """Its writer died before the checkpoint of the end was stored."""
    chosen = options(tmp_path)
    with LanderThread(chosen) as lander:
        for attempt in range(2):
            with ShardOfDaemon(lander.socket, token=attempt) as daemon:
                assert daemon.initialize() == ((-1, 0), (3, 0))[attempt]
                daemon.give(given(1, 3))
                daemon.errors = ["ShutdownException"] if attempt == 0 else []
                daemon.end(["child"])
                assert daemon.is_finished is (attempt == 1)
    assert [each.is_end for each in Landed.at(chosen).entries] == [False, True]


def test_items_that_a_second_scan_finds_are_no_part_of_a_segment_of_a_snapshot_that_has_its_end(
    tmp_path: Path,
) -> None:
    """Its writer died before the checkpoint of the end was stored. What was written since then is in the stream."""
    chosen, segment = options(tmp_path), "snapshot-1795190400000-0000-0001"
    with LanderThread(chosen) as lander:
        with ShardOfDaemon(lander.socket, segment) as daemon:
            daemon.initialize()
            daemon.give(given(1, 3))
            daemon.errors = ["ShutdownException"]
            daemon.end(["child"])
        with ShardOfDaemon(lander.socket, segment, token=2) as daemon:
            assert daemon.initialize() == (3, 0)
            daemon.give(given(4, 5))
            daemon.end(["child"])
            assert daemon.is_finished
    landed = Landed.at(chosen, segment)
    assert landed.numbers() == [1, 2, 3]
    assert [each.is_end for each in landed.entries] == [False, True]


@pytest.mark.parametrize("layout", ["log", "dated"])
def test_an_empty_shard_ends(tmp_path: Path, layout: str) -> None:
    chosen = options(tmp_path, layout=layout)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        assert daemon.initialize() == (-1, 0)
        daemon.end()
        assert daemon.is_finished
    (end,) = Landed.at(chosen).entries
    assert (end.number, end.children, end.last, end.rows) == (0, (), "-1/0", 0)


def test_buffered_records_are_dropped_when_the_lease_is_lost(tmp_path: Path) -> None:
    chosen = options(tmp_path, window_ms=300)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give(given(1, 3))
        daemon.act({"action": "leaseLost"})
        daemon.close()
        pause(0.5)
    assert Landed.at(chosen).entries == []


@pytest.mark.parametrize("checkpoint", [(7, 0), (5, 1)])
def test_a_shard_whose_log_is_behind_its_checkpoint_is_refused(
    tmp_path: Path, checkpoint: tuple[int, int]
) -> None:
    chosen = options(tmp_path, window_ms=50)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give(given(1, 5))
        daemon.shut_down()
        with ShardOfDaemon(lander.socket, checkpoint=checkpoint) as behind, pytest.raises(Refused):
            behind.initialize()
        refused = lander.wait_for("landing_shard_refused")
        assert (refused["level"], refused["shard_id"]) == ("error", SHARD)
        assert f"before the stored checkpoint {checkpoint}" in refused["error"]
        with ShardOfDaemon(lander.socket, "shardId-000000000001") as other:
            other.initialize()
            other.give(given(1, 2))
            other.shut_down()
    assert Landed.at(chosen, "shardId-000000000001").numbers() == [1, 2]


def test_a_damaged_tail_refuses_its_shard(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give(given(1, 5))
        daemon.shut_down()
        segment = next((tmp_path / "log" / "words").rglob("*.parquet"))
        segment.chmod(0o600)
        segment.write_bytes(segment.read_bytes()[:-100])
        with (
            ShardOfDaemon(lander.socket, checkpoint=daemon.checkpoint) as again,
            pytest.raises(Refused),
        ):
            again.initialize()
        assert "no whole segment" in lander.wait_for("landing_shard_refused")["error"]


def test_a_checkpoint_that_was_refused_is_asked_for_again(tmp_path: Path) -> None:
    chosen = options(tmp_path, max_bytes=1024)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.errors = ["ThrottlingException"]
        daemon.give(given(1, 1, data=b"x" * 2000))
        assert daemon.checkpoints == []
        daemon.give([])
        assert daemon.checkpoints == [(1, 0)]
        assert lander.named("checkpoint_not_stored")


def test_the_manifest_says_when_the_tip_is_reached(tmp_path: Path) -> None:
    store = MemoryStore()
    with LanderThread(options(tmp_path), store) as lander, ShardOfDaemon(lander.socket) as daemon:

        def behind_ms() -> int | None:
            said: int | None = json.loads(store.objects[manifest_path("words", SHARD)])["behindMs"]
            return said

        daemon.initialize()
        daemon.give(given(1, 3), behind_ms=60_000)
        daemon.shut_down()
        assert behind_ms() == 60_000
    with LanderThread(options(tmp_path), store) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give([], behind_ms=0)
        assert behind_ms() == 0
