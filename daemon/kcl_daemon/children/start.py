"""Starts a child program as the Java daemon does.

`childInheritCredentials=false` removes AWS access from the environment only: a child of the same user can still read
the daemon's `/proc` entry and files.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import resource
import stat
import subprocess
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

from kcl_daemon.children import platform
from kcl_daemon.config.children import MAX_ID, ChildSettings
from kcl_daemon.config.properties import normal
from kcl_daemon.errors import ChildStartFailed
from kcl_daemon.ports import LogLevel

_PREFIX: Final = "AWS_"
# Location and behaviour of SDKs. Any other AWS_ variable may lead to a credential.
_HARMLESS: Final = frozenset(
    {
        "AWS_CA_BUNDLE",
        "AWS_DEFAULTS_MODE",
        "AWS_DEFAULT_OUTPUT",
        "AWS_DEFAULT_REGION",
        "AWS_EXECUTION_ENV",
        "AWS_MAX_ATTEMPTS",
        "AWS_REGION",
        "AWS_RETRY_MODE",
        "AWS_STS_REGIONAL_ENDPOINTS",
        "AWS_USE_DUALSTACK_ENDPOINT",
        "AWS_USE_FIPS_ENDPOINT",
    }
)
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
# Headers of the OTLP exporter may hold a key.
_OTLP_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
_OTLP_HEADERS: Final = "HEADERS"
# Opens the status page; in the normal form of property names.
_ADMIN_TOKEN: Final = "kcladmintoken"  # noqa: S105 - the name of the variable
STREAM_NAME: Final = "KCL_STREAM_NAME"
STREAM_ARN: Final = "KCL_STREAM_ARN"
SHARD_ID: Final = "KCL_SHARD_ID"
LANE: Final = "KCL_LANE"
LOG_MESSAGES: Final = "KCL_LOG_MESSAGES"
FINISH_BATCHES: Final = "KCL_FINISH_BATCHES"
PRELOAD_FD: Final = "KCL_PRELOAD_FD"
FRAMES: Final = "KCL_FRAMES"
REJECTS: Final = "KCL_REJECTS"
_OFFERS: Final = frozenset({LOG_MESSAGES, FINISH_BATCHES, PRELOAD_FD, FRAMES, REJECTS, LANE})
# Without credentials, SDKs ask the instance metadata for those of its role.
_NO_METADATA: Final = {"AWS_EC2_METADATA_DISABLED": "true"}
DEFAULT_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
_SHELL = "/bin/sh"
_FIRST_LINE_BYTES = 256
_ABSENT = "no such file"
# As in asyncio, if another process reaped the child (SIGCHLD ignored).
UNKNOWN_STATUS: Final = 255
# With a dot, a last word of up to three letters is that of a script.
_FUNCTION: Final = re.compile(r"([A-Za-z_][\w.]*)(?:(:)|\.)([A-Za-z_]\w{3,})")


@dataclass(frozen=True, slots=True)
class ChildAccount:
    """`environment`: HOME, USER and LOGNAME; empty for a user without a name."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """`limits`: pairs of RLIMIT_... and value; `finish_batches`: a batch must be done when it is answered."""

    account: ChildAccount | None = None
    limits: tuple[tuple[int, int], ...] = ()
    inherit_credentials: bool = True
    stderr_level: LogLevel = "info"
    log_messages: bool = False
    finish_batches: bool = False
    preload: bool = False
    frames: bool = False
    stderr_lines_per_s: int = 0


SAME_AS_DAEMON: Final = ChildOptions()


def options_of(settings: ChildSettings, *, finish_batches: bool = False) -> ChildOptions:
    """ChildStartFailed for an unknown or forbidden user, or if this system has no such limits."""
    wanted = (
        (resource.RLIMIT_AS, settings.memory_limit_bytes),
        (resource.RLIMIT_NOFILE, settings.open_files_limit),
        (resource.RLIMIT_NPROC, settings.processes_limit),
    )
    limits = tuple((kind, most) for kind, most in wanted if most is not None)
    if limits and not platform.LINUX:
        raise ChildStartFailed("children can be limited on Linux only; remove the lines child...Limit")
    account = None if settings.user is None else account_of(settings.user)
    return ChildOptions(
        account,
        limits,
        inherit_credentials=settings.inherit_credentials,
        stderr_level=settings.stderr_level,
        log_messages=settings.log_messages,
        finish_batches=finish_batches,
        preload=settings.preload,
        frames=True,
        stderr_lines_per_s=settings.stderr_lines_per_s,
    )


def account_of(text: str) -> ChildAccount | None:
    """None if it is our own account; ChildStartFailed if unknown or forbidden."""
    user, colon, group = text.partition(":")
    entry = _user(user)
    uid = int(user) if entry is None else entry.pw_uid
    if not colon and entry is None:
        raise ChildStartFailed(
            f"childUser = {text}: this number has no name here; give the group too, USER:GROUP"
        )
    gid = _group(group, text) if colon else cast("pwd.struct_passwd", entry).pw_gid
    _check_id(text, uid, gid)
    if os.geteuid() != 0:
        if (uid, gid) == (os.geteuid(), os.getegid()):
            return None
        raise ChildStartFailed(
            f"childUser = {text}: only a daemon that runs as root can start children as another user"
        )
    if entry is None:
        return ChildAccount(uid, gid, (gid,))
    names = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    return ChildAccount(uid, gid, tuple(os.getgrouplist(entry.pw_name, gid)), names)


def _check_id(text: str, *numbers: int) -> None:
    """A number that is too large means "no change" to the kernel, or does not fit."""
    for number in numbers:
        if number > MAX_ID:
            raise ChildStartFailed(
                f"childUser = {text}: no user or group has the number {number}; the largest is {MAX_ID}"
            )


def _user(name: str) -> pwd.struct_passwd | None:
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


def environment_of(
    inherited: Mapping[str, str], more: Mapping[str, str], *, credentials: bool
) -> dict[str, str]:
    """`more` wins.

    The admin token and our own `KCL_...` that only some children get are never inherited. Without `credentials`, AWS
    credentials and OTLP headers go too.
    """
    kept = {name: value for name, value in inherited.items() if not _is_private(name)}
    if credentials:
        return {**kept, **more}
    kept = {name: value for name, value in kept.items() if not _gives_access(name)}
    return {**kept, **_NO_METADATA, **more}


def _is_private(name: str) -> bool:
    return name in _OFFERS or normal(name) == _ADMIN_TOKEN


def _gives_access(name: str) -> bool:
    if name.startswith(_OTLP_PREFIX) and name.endswith(_OTLP_HEADERS):
        return True
    return name.startswith(_PREFIX) and name not in _HARMLESS and not name.startswith(_ENDPOINTS)


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """Our ends of the pipes are close-on-exec and still blocking.

    `reap` returns the exit code, negative for a signal, of a process that has ended. `stdin_reader` is the child's end
    of its stdin.
    """

    leader: platform.Leader
    stdin: int
    stdout: int
    stderr: int
    stdin_reader: int
    reap: Callable[[], Awaitable[int]]

    @property
    def pid(self) -> int:
        return self.leader.pid


def find_program(program: str) -> str:
    """Unchanged if it contains a slash, else the first executable one in PATH.

    As in Java's ProcessBuilder, relative paths and empty PATH entries mean the daemon's directory.
    """
    if not program:
        raise ChildStartFailed("cannot start a child: executableName is empty; set it to a program")
    if "/" in program:
        problem = _problem_with(program)
        if problem is None:
            return program
        checked = "" if program.startswith("/") else f" (looked from {_here()})"
        raise _cannot_start(program, f"{problem}{checked}")
    path = os.environ.get("PATH", os.defpath)
    return _find_in(path.split(os.pathsep), program)


def spawn(
    command: tuple[str, ...],
    options: ChildOptions = SAME_AS_DAEMON,
    environment: Mapping[str, str] = DEFAULT_OPTIONS,
    template_fd: int | None = None,
) -> StartedProcess:
    """In the daemon's directory. A template has `template_fd` open, and its stdout goes to stderr.

    Blocks the event loop: 0.2 ms with vfork. For another user it is a fork, longer the more memory the daemon has.
    After ChildStartFailed nothing is left behind.
    """
    program = find_program(command[0] if command else "")
    try:
        try:
            return _fork(command, program, options, environment, template_fd)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # Neither a binary nor a `#!` line: the JDK runs it as a shell script.
            return _fork((_SHELL, program, *command[1:]), _SHELL, options, environment, template_fd)
    except (OSError, ValueError) as error:
        raise _cannot_start(program, _reason(error, program)) from error


def _fork(
    arguments: tuple[str, ...],
    executable: str,
    options: ChildOptions,
    environment: Mapping[str, str],
    template_fd: int | None,
) -> StartedProcess:
    account = options.account
    more = {**environment, **(account.environment if account is not None else {})}
    with child_pipes() as (theirs, ours):
        process = subprocess.Popen(  # noqa: S603 - the operator's own program, no shell
            arguments,
            executable=executable,
            stdin=theirs[0],
            stdout=theirs[1 if template_fd is None else 2],
            stderr=theirs[2],
            close_fds=True,
            pass_fds=() if template_fd is None else (template_fd,),
            start_new_session=True,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else account.groups,
            env=environment_of(os.environ, more, credentials=options.inherit_credentials),
        )
        _limit(process, options)
        return StartedProcess(platform.child_leader(process.pid), *ours, partial(reap, process))


async def reap(process: subprocess.Popen[bytes]) -> int:
    """Never pauses: the number of the process is free afterwards."""
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])  # noqa: ASYNC222 - it has ended
    except ChildProcessError:
        status = UNKNOWN_STATUS
    process.returncode = status  # else its finalizer warns and waits again
    return status


@contextmanager
def child_pipes() -> Generator[tuple[tuple[int, int, int], tuple[int, int, int, int]]]:
    """The child's ends of stdin, stdout and stderr; ours and a copy of its stdin, which stay open unless it raised."""
    with ExitStack() as theirs, ExitStack() as ours:
        stdin_read, stdin_write = _pipe(theirs, ours)
        stdout_read, stdout_write = _pipe(ours, theirs)
        stderr_read, stderr_write = _pipe(ours, theirs)
        stdin_copy = os.dup(stdin_read)
        ours.callback(os.close, stdin_copy)
        yield (stdin_read, stdout_write, stderr_write), (stdin_write, stdout_read, stderr_read, stdin_copy)
        ours.pop_all()


def _limit(process: subprocess.Popen[bytes], options: ChildOptions) -> None:
    try:
        platform.limit_process(process.pid, options.limits)
    except OSError:
        process.kill()
        process.wait()
        raise


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    reader.callback(os.close, read_end)
    writer.callback(os.close, write_end)
    return read_end, write_end


def _find_in(directories: list[str], program: str) -> str:
    found: list[str] = []
    for directory in directories:
        path = f"{directory or '.'}/{program}"
        problem = _problem_with(path)
        if problem is None:
            return path
        if problem != _ABSENT:
            found.append(f"{path}: {problem}")
    if found:
        raise _cannot_start(program, "; ".join(found))
    advice = _advice_for(program)
    raise _cannot_start(program, f"{advice} (PATH is {os.pathsep.join(directories)})", plain=advice)


def _advice_for(program: str) -> str:
    if (problem := _problem_with(f"./{program}")) != _ABSENT:
        more = "" if problem is None else ", and make it executable (chmod +x)"
        return f"it is in {_here()}, but a name without a slash is looked for in PATH only: write ./{program}{more}"
    advice = "no such program; give it a path with a slash, or add its directory to PATH"
    function = _FUNCTION.fullmatch(program)
    if function is None:
        return advice
    module, mark, name = function.groups()
    run = f"a function is run by kcl-daemon run STREAM {module}:{name}; with --print-properties it prints the file for it"
    return run if mark == ":" else f"{advice}; {run}"


def _cannot_start(program: str, problem: str, *, plain: str = "") -> ChildStartFailed:
    return ChildStartFailed(
        f"cannot start {program!r} of executableName: {problem}",
        plain=f"cannot start {program!r}: {plain or problem}",
    )


def _problem_with(path: str) -> str | None:
    try:
        mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return _ABSENT
    except (OSError, ValueError) as error:
        return _reason(error, path)
    if stat.S_ISDIR(mode):
        return "it is a directory"
    return None if os.access(path, os.X_OK) else "it is not executable by this user (chmod +x)"


def _reason(error: OSError | ValueError, program: str) -> str:
    if not isinstance(error, OSError):
        return f"its name or arguments cannot be passed to it, {error}"
    match error.errno:
        case errno.ENOENT:
            return _missing_interpreter(program)
        case errno.EMFILE | errno.ENFILE:
            return "too many open files; a child needs four (raise the limit: ulimit -n, LimitNOFILE=)"
        case errno.EAGAIN | errno.ENOMEM:
            return f"{error.strerror} (limits on processes or memory: ulimit -u, the container's pids and memory)"
        case errno.EPERM:
            return f"{error.strerror} (childUser or a limit of children above the daemon's own needs more rights)"
        case _:
            return error.strerror or str(error)


def _missing_interpreter(program: str) -> str:
    try:
        with Path(program).open("rb") as file:
            first_line = file.read(_FIRST_LINE_BYTES).split(b"\n")[0]
    except OSError as error:
        return error.strerror or str(error)
    if first_line.startswith(b"#!"):
        return f"the interpreter of its first line does not exist: {first_line.decode(errors='replace')!r}"
    return "the loader that it was built for does not exist (a program for another system or C library?)"


def _here() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "a directory that does not exist any more"
