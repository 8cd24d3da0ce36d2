"""Asked once, if shards have several children."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

FILES_OF_A_CHILD: Final = 4
# For the daemon itself: connections, log; threads and the guard.
_OTHER_FILES: Final = 100
_OTHER_PROCESSES: Final = 20
_CGROUPS: Final = "sys/fs/cgroup"
# Without maxLeasesForWorker nobody knows how many shards there will be.
_FEW_SHARDS: Final = 10


@dataclass(frozen=True, slots=True)
class ChildRoom:
    """`limit` names the limit that leaves room for `children`, and what raises it."""

    children: int
    limit: str


def child_room(root: Path = Path("/")) -> ChildRoom | None:
    return min(_limits(root), key=lambda each: each.children, default=None)


def _limits(root: Path) -> Iterator[ChildRoom]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        words = f"{files} open files (ulimit -n, LimitNOFILE=)"
        yield ChildRoom(max(0, (files - _OTHER_FILES) // FILES_OF_A_CHILD), words)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and os.geteuid() != 0:
        words = f"{processes} processes of this user (ulimit -u, LimitNPROC=)"
        yield ChildRoom(max(0, processes - _OTHER_PROCESSES), words)
    for most in _pids_of_cgroups(root):
        words = f"{most} processes of this container or service (pids limit, TasksMax=)"
        yield ChildRoom(max(0, most - _OTHER_PROCESSES), words)


def _pids_of_cgroups(root: Path) -> Iterator[int]:
    """Those of the groups above limit it, too."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "pids" not in controllers.split(","):
            continue
        folder = root / _CGROUPS / ("pids" if controllers else "")
        inside = PurePath(path.lstrip("/"))
        for each in (inside, *inside.parents):
            most = _read(folder / each / "pids.max").strip()
            if most.isdecimal():
                yield int(most)


def _read(path: Path) -> str:
    """Empty on other systems, and in containers that do not show it."""
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""


def too_little_room(lanes: int, room: ChildRoom) -> str | None:
    if lanes <= room.children:
        return None
    return f"{lanes} children for each shard are too many for {room.limit}; raise that limit, or set {max(1, room.children)} at most"


def few_shards(lanes: int, room: ChildRoom, max_leases: int | None) -> dict[str, object] | None:
    """A warning if fewer shards fit than this worker may hold."""
    shards = room.children // lanes
    if shards >= (_FEW_SHARDS if max_leases is None else max_leases):
        return None
    advice = f"raise that limit, lower shardConcurrency, or set maxLeasesForWorker to {shards} at most"
    return {"limit": room.limit, "lanes": lanes, "shards": shards, "advice": advice}
