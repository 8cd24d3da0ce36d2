"""As whom children run and what they may use; from the words of the settings to what the system takes.

Owns the lookup of users and groups, and the limits of the kernel. Knows nothing of pipes.
"""

from __future__ import annotations

import grp
import os
import pwd
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from kcl_daemon.config.keys_children import ID_MOST
from kcl_daemon.config.log_settings import LogLevel
from kcl_daemon.config.settings import ChildSettings
from kcl_daemon.errors import ChildStartFailed

_Prlimit = Callable[[int, int, tuple[int, int]], object]


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine.

    Args:
        uid: number of the user.
        gid: number of the group.
        groups: numbers of all groups, `gid` among them.
        environment: variables that tell a program who it is; empty where the user has no name.
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """How children are started.

    Args:
        account: as whom; None: as the daemon.
        limits: what the kernel calls a limit, and how much.
        inherit_credentials: whether they find the daemon's AWS credentials in their environment.
        stderr_level: of the log events that its stderr becomes.
        log_messages: whether it is told that it may send `log` messages.
    """

    account: Account | None = None
    limits: tuple[tuple[int, int], ...] = ()
    inherit_credentials: bool = True
    stderr_level: LogLevel = "info"
    log_messages: bool = False


AS_THE_DAEMON: Final = ChildOptions()


def options_of(settings: ChildSettings) -> ChildOptions:
    """The options that the settings ask for.

    Raises:
        ChildStartFailed: there is no such user, this process may not become it, or this system has no such limits.
    """
    wanted = (
        (resource.RLIMIT_AS, settings.memory_limit_bytes),
        (resource.RLIMIT_NOFILE, settings.open_files_limit),
        (resource.RLIMIT_NPROC, settings.processes_limit),
    )
    limits = tuple((kind, most) for kind, most in wanted if most is not None)
    if limits and sys.platform != "linux":
        raise ChildStartFailed("children can be limited on Linux only; remove the lines child...Limit")
    account = None if settings.user is None else account_of(settings.user)
    return ChildOptions(
        account,
        limits,
        inherit_credentials=settings.inherit_credentials,
        stderr_level=settings.stderr_level,
        log_messages=settings.log_messages,
    )


def account_of(text: str) -> Account | None:
    """The account of `USER` or `USER:GROUP`; None where this process runs as that user and needs to change nothing.

    Raises:
        ChildStartFailed: there is none, or this process may not become it.
    """
    user, colon, group = text.partition(":")
    entry = _user(user)
    uid = int(user) if entry is None else entry.pw_uid
    if not colon and entry is None:
        raise ChildStartFailed(
            f"childUser = {text}: this number has no name here; give the group too, USER:GROUP"
        )
    gid = _group(group, text) if colon else cast("pwd.struct_passwd", entry).pw_gid
    _refuse_what_is_no_id(text, uid, gid)
    if os.geteuid() != 0:
        if (uid, gid) == (os.geteuid(), os.getegid()):
            return None
        raise ChildStartFailed(
            f"childUser = {text}: only a daemon that runs as root can start children as another user"
        )
    if entry is None:
        return Account(uid, gid, (gid,))
    names = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    return Account(uid, gid, tuple(os.getgrouplist(entry.pw_name, gid)), names)


def _refuse_what_is_no_id(text: str, *numbers: int) -> None:
    """Nobody is started under a number that means "no change" to the kernel, or that it cannot hold."""
    for number in numbers:
        if number > ID_MOST:
            raise ChildStartFailed(
                f"childUser = {text}: no user or group has the number {number}; the largest is {ID_MOST}"
            )


def limit(pid: int, limits: tuple[tuple[int, int], ...]) -> None:
    """Put limits on a process that has just been started, soft and hard.

    What it may have forked before is not bound: between the start of a program and this there is a fraction of a
    millisecond.

    Raises:
        OSError: this process may not set so high a limit.
    """
    prlimit = cast("_Prlimit | None", getattr(resource, "prlimit", None))
    for kind, most in limits:
        assert prlimit is not None, "limits are refused where there is no prlimit"
        try:
            prlimit(pid, kind, (most, most))
        except ProcessLookupError:
            return  # it has ended already


def _user(name: str) -> pwd.struct_passwd | None:
    """Its entry; None for a number without one."""
    try:
        return pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        if name.isdecimal():
            return None
        raise ChildStartFailed(f"childUser: there is no user {name!r} on this machine") from None


def _group(name: str, text: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ChildStartFailed(f"childUser = {text}: there is no group {name!r} on this machine") from None
