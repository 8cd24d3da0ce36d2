"""What only Linux has is used in one module, and in a few places that may not import it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.house.files import ROOT, content, modules, shown, tree
from tests.process.imitations import LINUX_ONLY

PLATFORM: Final = "daemon/kcl_daemon/children/platform.py"
NAMES: Final = {name for names in LINUX_ONLY.values() for name in names} | {"mallopt", "prctl"}
# Each asks `KCL_POSIX_ONLY`, too, or reads a file that is absent elsewhere.
ELSEWHERE: Final = {
    ("clients/landing/kcl_landing/lander.py", "mallopt"),
    ("clients/landing/kcl_landing/relay.py", "splice"),
    ("clients/pyspark/kcl_spark/state.py", "/proc"),
    ("clients/pyspark/kcl_spark/stores.py", "/proc/sys/kernel/random/boot_id"),
    ("clients/python/kcl_client/_preload.py", "/proc/self/task"),
    ("daemon/kcl_daemon/children/room.py", "proc/self/cgroup"),
    ("daemon/kcl_daemon/children/room.py", "sys/fs/cgroup"),
    ("daemon/kcl_daemon/cpu/sources.py", "sys/fs/cgroup"),
}
PLACES: Final = ("/proc", "proc/", "/sys/", "sys/fs", "/dev/shm")


def product() -> Iterator[Path]:
    for path in modules():
        if not path.is_relative_to(ROOT / "tests") and "samples" not in path.parts:
            yield path


def linux_only(path: Path) -> set[str]:
    """Names and paths in a module; prose does not count."""
    found: set[str] = set()
    if not any(each.encode() in content(path) for each in (*NAMES, *PLACES)):
        return found
    for node in ast.walk(tree(path)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name) if name in NAMES:
                found.add(name)
            case ast.Constant(value=str() as text) if text in NAMES or (
                text.startswith(PLACES) and not set(text) & set(" \n")
            ):
                found.add(text)
            case _:
                pass
    return found


def test_functions_that_only_linux_has_are_used_in_one_module() -> None:
    found = {(shown(path), name) for path in product() for name in linux_only(path)}
    assert {(path, name) for path, name in found if path != PLATFORM} == ELSEWHERE
    assert {
        "pidfd_open",
        "waitid",
        "F_SETPIPE_SZ",
        "prlimit",
        "SO_PASSCRED",
        "SOCK_SEQPACKET",
        "mallopt",
    } <= {name for path, name in found if path == PLATFORM}
