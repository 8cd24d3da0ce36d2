"""The lander states marks and rosters: over real sockets, with several processes, and while the store has trouble."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from kcl_landing.control import epoch_ms
from kcl_landing.log import Manifest, Mark, Marks, Roster, manifest_path, marks_path
from kcl_landing.store import LogStore, NoObject, open_store
from tests.landing.daemon import BASE_MS, SHARD, ShardOfDaemon, given
from tests.landing.landers import STREAM, LanderProgram, LanderThread, options, until
from tests.landing.memory_store import Fault, MemoryStore

KEY = f"{STREAM}/{SHARD}"


def marks_in(store: LogStore, worker: str = "host-1") -> Marks | None:
    try:
        return msgspec.json.decode(store.read(marks_path(worker)), type=Marks)
    except NoObject:
        return None


def mark_in(store: LogStore, key: str = KEY) -> Mark | None:
    found = marks_in(store)
    return None if found is None else found.shards.get(key)


@pytest.mark.parametrize("frame", [True, False])
def test_the_time_that_a_daemon_reports_for_a_shard_becomes_the_mark_of_its_host(
    tmp_path: Path, frame: bool
) -> None:
    chosen = options(tmp_path, window_ms=200)
    store = open_store(chosen.uri)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket, token=9) as daemon:
        daemon.initialize()
        daemon.give([], frame=False, complete_ms=BASE_MS - 500)
        until(lambda: mark_in(store) == Mark(-1, BASE_MS - 500, 9))
        daemon.give(given(1, 3), frame=frame, complete_ms=BASE_MS + 4_000)
        until(lambda: mark_in(store) == Mark(0, BASE_MS + 4_000, 9))
        found = marks_in(store)
        assert found is not None
        assert found.log == msgspec.json.decode(store.read("_kcl_landing.json"))["logId"]
        assert (found.worker, found.window_ms, found.version) == ("host-1", 200, 1)
        assert abs(found.at_ms - epoch_ms()) < 60_000
        manifest = msgspec.json.decode(store.read(manifest_path(STREAM, SHARD)), type=Manifest)
        assert (manifest.marks, manifest.entries[-1].to) == (True, 0)


def test_a_shard_that_left_has_no_mark_any_more(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    store = open_store(chosen.uri)
    with (
        LanderThread(chosen) as lander,
        ShardOfDaemon(lander.socket) as daemon,
        ShardOfDaemon(lander.socket, "shardId-1") as other,
    ):
        for each in (daemon, other):
            each.initialize()
            each.give([], frame=False, complete_ms=BASE_MS)
        until(lambda: mark_in(store) and mark_in(store, f"{STREAM}/shardId-1"))
        other.act({"action": "leaseLost"})
        until(lambda: mark_in(store, f"{STREAM}/shardId-1") is None)
        daemon.end([])
        assert daemon.is_finished
        until(lambda: mark_in(store) is None)


class MarksLookedAt(MemoryStore):
    """With each mark's number the last one that its manifest has."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []

    def replace(self, path: str, content: bytes) -> None:
        if path.startswith("_marks") and (mark := msgspec.json.decode(content, type=Marks).shards.get(KEY)):
            manifest = self.objects.get(manifest_path(STREAM, SHARD))
            entries = msgspec.json.decode(manifest, type=Manifest).entries if manifest else ()
            self.seen.append((mark.number, entries[-1].to if entries else -1))
        super().replace(path, content)


def test_a_mark_names_no_segment_before_the_manifest_has_it(tmp_path: Path) -> None:
    store = MarksLookedAt()
    with (
        LanderThread(options(tmp_path, window_ms=50), store) as lander,
        ShardOfDaemon(lander.socket) as daemon,
    ):
        daemon.initialize()
        for number in range(3):
            store.faults.append(Fault("replace", within="_manifests", after=number % 2 == 0))
            daemon.give(given(number, number), complete_ms=BASE_MS + 1_000 * number)
            daemon.listen(0.4)
        until(lambda: (mark := mark_in(store)) is not None and mark.complete_ms == BASE_MS + 2_000)
    assert len(store.seen) > 1
    assert all(stated <= known for stated, known in store.seen)


def test_a_store_without_marks_keeps_no_shard_waiting(tmp_path: Path) -> None:
    store = MemoryStore()
    store.faults.append(Fault("replace", cause="denied", within="_marks", times=1))
    with (
        LanderThread(options(tmp_path, window_ms=50), store) as lander,
        ShardOfDaemon(lander.socket) as daemon,
    ):
        daemon.initialize()
        daemon.give(given(1, 3), complete_ms=BASE_MS)
        until(lambda: daemon.listen(0.2) and daemon.checkpoint == (3, 0))
        assert lander.wait_for("landing_store_waits")["cause"] == "denied"
        assert marks_in(store) is None
        until(lambda: mark_in(store) == Mark(0, BASE_MS, 1))
        assert lander.wait_for("landing_store_works_again")


def test_a_lander_that_begins_again_states_nothing_before_it_knows(tmp_path: Path) -> None:
    chosen = options(tmp_path, window_ms=50)
    store = open_store(chosen.uri)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give(given(1, 3), complete_ms=BASE_MS + 60_000)
        until(lambda: mark_in(store) == Mark(0, BASE_MS + 60_000, 1))
    before = marks_in(store)
    with LanderThread(options(tmp_path, window_ms=50)) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.checkpoint = (3, 0)
        daemon.initialize()
        daemon.listen(1.5)
        assert marks_in(store) == before
        daemon.give([], frame=False, complete_ms=BASE_MS + 61_000)
        until(lambda: mark_in(store) == Mark(0, BASE_MS + 61_000, 1))


def test_the_first_of_several_processes_states_for_all_and_what_a_dead_one_had_drops_out(
    tmp_path: Path,
) -> None:
    chosen = options(tmp_path, processes=3, window_ms=50)
    store = open_store(chosen.uri)
    with LanderProgram(chosen) as program:
        program.wait_for("lander_ready")
        first, daemons = psutil.Process(program.process.pid), list[ShardOfDaemon]()

        def connected(process: psutil.Process) -> int:
            return len(process.net_connections("unix"))

        def is_spread() -> bool:
            daemons.append(ShardOfDaemon(program.socket, f"shardId-{len(daemons):012d}"))
            daemons[-1].initialize()
            daemons[-1].give(given(1, 5), complete_ms=BASE_MS)
            return max(map(connected, first.children()), default=0) > 1

        def shards() -> int:
            found = marks_in(store)
            return 0 if found is None else sum(each.number == 0 for each in found.shards.values())

        until(is_spread)
        until(lambda: shards() == len(daemons))
        assert len(list(store.listing("_marks"))) == 1
        os.kill(max(first.children(), key=connected).pid, signal.SIGKILL)
        program.wait_for("lander_process_ended")
        until(lambda: 0 < shards() < len(daemons))
        for daemon in daemons:
            daemon.close()


def test_rosters_of_the_daemon_are_written_and_damaged_ones_are_not(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    store = open_store(chosen.uri)
    with LanderProgram(chosen) as program:
        assert program.process.stdin is not None
        for line in (
            b'{"roster": 1}',
            b"x" * (20 << 20),
            b'{"roster": {"words": {"b": ["a"]}}, "failoverMs": 7}',
        ):
            program.process.stdin.write(line + b"\n")
        program.process.stdin.flush()
        until(lambda: list(store.listing("_shards")))
        assert len(program.named("landing_roster_not_read")) == 2
        found = msgspec.json.decode(store.read("_shards/words.json"), type=Roster)
        assert (found.stream, found.failover_ms, found.shards) == ("words", 7, {"b": ("a",)})
        assert psutil.Process(program.process.pid).memory_info().rss < 400 << 20
        assert program.stop() == 0


def test_the_leaders_host_mends_the_manifest_of_a_parent(tmp_path: Path) -> None:
    """Readers wait for the parent's end before they read its children: for ever, if the manifest does not say it."""
    chosen = options(tmp_path, window_ms=50)
    store = open_store(chosen.uri)
    path = manifest_path(STREAM, SHARD)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give(given(1, 3), complete_ms=BASE_MS)
        until(lambda: daemon.listen(0.2) and daemon.checkpoint == (3, 0))
        old = store.read(path)
        daemon.end(["child"])
        last = msgspec.json.decode(store.read(path), type=Manifest)
        store.replace(path, old)  # by a host that was stopped before the end, and wakes
        roster = {"roster": {STREAM: {SHARD: [], "child": [SHARD]}}, "failoverMs": 10_000}
        lander.rosters.hear(msgspec.json.encode(roster))
        assert lander.wait_for("landing_manifest_damaged")["shard_id"] == SHARD
        until(lambda: msgspec.json.decode(store.read(path), type=Manifest).entries == last.entries)
    assert last.entries[-1].children == ("child",)
