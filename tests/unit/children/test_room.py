"""How many children the limits of a system leave room for."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from kcl_daemon.children.room import ChildRoom, child_room, few_shards, too_little_room

NONE = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Sets what the system says: open files, processes."""

    def set_to(files: int, processes: int) -> None:
        says = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_NPROC: processes}
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (says[kind], NONE))
        monkeypatch.setattr(os, "geteuid", lambda: 1000)

    return set_to


def grouped(root: Path, lines: str, **most: str) -> Path:
    """A system whose groups have these limits of processes; `__` stands for a slash."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines, "ascii")
    for folder, text in most.items():
        place = root / "sys/fs/cgroup" / folder.replace("__", "/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "pids.max").write_text(f"{text}\n", "ascii")
    return root


def test_the_tightest_limit_counts_and_is_named(limits: Callable[[int, int], None], tmp_path: Path) -> None:
    limits(1024, 4096)
    assert child_room(tmp_path) == ChildRoom(231, "1024 open files (ulimit -n, LimitNOFILE=)")
    limits(65536, 52)
    assert child_room(tmp_path) == ChildRoom(32, "52 processes of this user (ulimit -u, LimitNPROC=)")
    limits(NONE, NONE)
    assert child_room(tmp_path) is None
    limits(10, NONE)
    assert child_room(tmp_path) == ChildRoom(0, "10 open files (ulimit -n, LimitNOFILE=)")


def test_root_is_not_held_to_the_processes_of_a_user(
    limits: Callable[[int, int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(NONE, 52)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert child_room(tmp_path) is None


@pytest.mark.parametrize(
    ("lines", "most", "children"),
    [
        ("0::/a/b\n", {"a__b": "max", "a": "70"}, 50),
        ("0::/\n", {".": "40"}, 20),
        ("0::/elsewhere\n", {".": "40"}, 20),
        ("3:cpu:/x\n2:pids:/x/y\n", {"pids__x": "30", "x": "1"}, 10),
        ("0::/a\n", {"a": "max"}, None),
    ],
)
def test_groups_and_those_above_them_limit_processes(
    limits: Callable[[int, int], None], tmp_path: Path, lines: str, most: dict[str, str], children: int | None
) -> None:
    limits(NONE, NONE)
    room = child_room(grouped(tmp_path, lines, **most))
    assert (None if room is None else room.children) == children
    assert room is None or "TasksMax=" in room.limit


def test_the_children_of_one_shard_must_fit() -> None:
    room = ChildRoom(31, "224 open files (ulimit -n)")
    assert too_little_room(31, room) is None
    assert too_little_room(32, room) == (
        "32 children for each shard are too many for 224 open files (ulimit -n); raise that limit, or set 31 at most"
    )


@pytest.mark.parametrize(
    ("lanes", "max_leases", "fit"),
    [(10, None, None), (11, None, 9), (25, 4, None), (26, 4, 3), (1, 101, 100)],
)
def test_a_worker_that_may_hold_more_shards_than_fit_is_warned_of(
    lanes: int, max_leases: int | None, fit: int | None
) -> None:
    facts = few_shards(lanes, ChildRoom(100, "500 open files"), max_leases)
    assert (None if facts is None else facts["shards"]) == fit
    assert facts is None or f"set maxLeasesForWorker to {fit} at most" in str(facts["advice"])
