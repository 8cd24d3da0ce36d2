"""Starting a program as the Java daemon does, with reasons when it cannot be started.

Owns the lookup of the program, the fork and the words of the errors. Knows nothing of the event loop, and nothing of
what becomes of a child once it runs.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kcl_daemon.children.environment import environment_of
from kcl_daemon.children.options import AS_THE_DAEMON, ChildOptions, limit
from kcl_daemon.errors import ChildStartFailed

NOTHING_MORE: Final[Mapping[str, str]] = MappingProxyType({})
_SHELL = "/bin/sh"
_FIRST_LINE_BYTES = 256


@dataclass(frozen=True, slots=True)
class Started:
    """A process that runs, in a session of its own, and our ends of its pipes (close-on-exec, still blocking).

    Args:
        process: holds no pipes; whoever reaps the process sets its `returncode`.
        stdin: to write to.
        stdout: to read from.
        stderr: to read from.
    """

    process: subprocess.Popen[bytes]
    stdin: int
    stdout: int
    stderr: int


def find_program(program: str) -> str:
    """The path of a program: as it is where it contains a slash, else the first in PATH that can be executed.

    The rules are ProcessBuilder's: relative paths and empty entries of PATH mean the daemon's own directory.

    Raises:
        ChildStartFailed: there is none; says where it looked and what it found instead.
    """
    if not program:
        raise ChildStartFailed("cannot start a child: executableName is empty; set it to a program")
    if "/" in program:
        problem = _why_not(program)
        if problem is None:
            return program
        looked = "" if program.startswith("/") else f" (looked from {_here()})"
        raise _cannot_start(program, f"{problem}{looked}")
    path = os.environ.get("PATH", os.defpath)
    return _find_in(path.split(os.pathsep), program)


def spawn(
    command: tuple[str, ...],
    options: ChildOptions = AS_THE_DAEMON,
    environment: Mapping[str, str] = NOTHING_MORE,
) -> Started:
    """Start a program with its arguments, in the daemon's directory and environment.

    The whole process stands still until the program has been loaded: 0.2 ms from a local disk (vfork: whatever memory
    this process has; as another user it is a fork, which takes longer the more memory this process has).

    Args:
        command: program and arguments.
        options: as whom, within which limits, and whether with the daemon's credentials.
        environment: variables that it has beside the daemon's.

    Raises:
        ChildStartFailed: names the program and the reason; nothing is left behind.
    """
    program = find_program(command[0] if command else "")
    try:
        try:
            return _fork(command, program, options, environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # Not a binary and no first line with an interpreter: a shell script, says the JDK.
            return _fork((_SHELL, program, *command[1:]), _SHELL, options, environment)
    except (OSError, ValueError) as error:
        raise _cannot_start(program, _reason(error, program)) from error


def _fork(
    arguments: tuple[str, ...], executable: str, options: ChildOptions, environment: Mapping[str, str]
) -> Started:
    account = options.account
    more = {**environment, **(account.environment if account is not None else {})}
    with ExitStack() as theirs, ExitStack() as ours:
        stdin_read, stdin_write = _pipe(theirs, ours)
        stdout_read, stdout_write = _pipe(ours, theirs)
        stderr_read, stderr_write = _pipe(ours, theirs)
        process = subprocess.Popen(  # noqa: S603 - the operator's own program, no shell
            arguments,
            executable=executable,
            stdin=stdin_read,
            stdout=stdout_write,
            stderr=stderr_write,
            close_fds=True,
            start_new_session=True,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else account.groups,
            env=environment_of(os.environ, more, credentials=options.inherit_credentials),
        )
        _limit(process, options)
        ours.pop_all()
        return Started(process, stdin_write, stdout_read, stderr_read)


def _limit(process: subprocess.Popen[bytes], options: ChildOptions) -> None:
    """Put the limits on it; it is not left running without them."""
    try:
        limit(process.pid, options.limits)
    except OSError:
        process.kill()
        process.wait()
        raise


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with their owners' stacks."""
    read_end, write_end = os.pipe()
    reader.callback(os.close, read_end)
    writer.callback(os.close, write_end)
    return read_end, write_end


def _find_in(directories: list[str], program: str) -> str:
    found: list[str] = []
    for directory in directories:
        path = f"{directory or '.'}/{program}"
        problem = _why_not(path)
        if problem is None:
            return path
        if problem != _ABSENT:
            found.append(f"{path}: {problem}")
    looked = f"looked in PATH ({os.pathsep.join(directories)})"
    advice = "; ".join(found) or "use a path with a slash in executableName, or add its directory to PATH"
    plain = "; ".join(found) or f"{_ABSENT} in any directory of PATH; give it a path with a slash"
    raise _cannot_start(program, f"{_ABSENT}, {looked}; {advice}", plain=plain)


def _cannot_start(program: str, problem: str, *, plain: str = "") -> ChildStartFailed:
    return ChildStartFailed(
        f"cannot start {program!r} of executableName: {problem}",
        plain=f"cannot start {program!r}: {plain or problem}",
    )


_ABSENT = "no such file"


def _why_not(path: str) -> str | None:
    """What keeps this path from being executed; None where nothing is seen to."""
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
    """An error of the system in words that say what to do."""
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
    """The file is there but the kernel says that something is not: its interpreter or its loader."""
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
