"""Other systems, imitated: a `sitecustomize` that Python loads before anything of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

LINUX_ONLY: Final = {
    "os": (
        "CLONE_NEWNS", "O_DIRECT", "O_PATH", "O_TMPFILE", "P_PIDFD", "WNOWAIT", "copy_file_range", "epoll", "eventfd",
        "getrandom", "memfd_create", "pidfd_open", "pipe2", "posix_fadvise", "posix_fallocate", "sched_getaffinity",
        "sched_setaffinity", "setns", "setresgid", "setresuid", "splice", "unshare", "waitid",
    ),
    "fcntl": ("F_GETPIPE_SZ", "F_SETPIPE_SZ", "F_ADD_SEALS"),
    "resource": ("prlimit",),
    "select": ("epoll",),
    "signal": ("pidfd_send_signal",),
    "socket": (
        "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "SCM_CREDENTIALS", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SOCK_SEQPACKET",
        "SO_PASSCRED", "SO_PEERCRED", "SO_BINDTODEVICE", "TCP_USER_TIMEOUT", "TCP_QUICKACK",
    ),
}  # fmt: skip
"""What CPython 3.11 on macOS does not have (`waitid` came with 3.13), by module."""

MAC: Final = f"""
import importlib, os, psutil  # of another system than this one, psutil has nothing
real = os.killpg
def killpg(group, number):
    members = []
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group:
                members.append(psutil.Process(pid).status())
        except (psutil.Error, ProcessLookupError):
            pass
    if members and set(members) == {{psutil.STATUS_ZOMBIE}}:
        raise PermissionError(1, "Operation not permitted")  # macOS, where only zombies are left
    real(group, number)
for module, names in {LINUX_ONLY!r}.items():
    module = importlib.import_module(module)
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
os.killpg = killpg
os.environ["KCL_POSIX_ONLY"] = "1"
"""

WINDOWS: Final = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "grp", "pwd", "resource", "termios"}:
            raise ModuleNotFoundError(name)
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
sys.platform = "win32"
"""


def imitating(system: str, folder: Path) -> dict[str, str]:
    """Environment variables for a program on that system."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(system)
    path = (str(folder), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def run_on(
    system: str, folder: Path, *words: str, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Python with these words."""
    environment = {**os.environ, **imitating(system, folder), **(more or {})}
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
