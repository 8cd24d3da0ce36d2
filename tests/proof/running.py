"""Runs one part of `make prove`: within its limit, into a log, with a result that the next `make prove` finds again."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import psutil

from kcl_local.demo.check import monotonic_s
from tests.house.files import ROOT, listed
from tests.proof.parts import Beside, Part

# What tests ask the environment for, so that they prove more or less.
KNOBS: Final = ("FLEET_SEEDS", "FUZZ_S", "KCL_BACKLOGS", "KCL_TESTS_OFFLINE", "SOAK_S")
PASSED: Final = "passed"
_MARK: Final = "MAKE_PROVE_MARK"
_LAST_BYTES: Final = 20_000
_STACKS_WITHIN_S: Final = 15.0
_GONE_WITHIN_S: Final = 10.0
_LAST: Final = 19


@dataclass(frozen=True, slots=True)
class Result:
    """What a part came to.

    Args:
        part: its name.
        basis: digest of all that the result depends on.
        commit: for people; a tree that is not committed has other files.
        count: tests that passed, or runs; None if it did not say.
        skipped: tests that could not be run here.
        seconds: on the clock.
        cpu_seconds: of its processes that have been waited for.
        result: `passed`, or what went wrong.
    """

    part: str
    basis: str
    commit: str
    count: int | None
    skipped: int
    seconds: float
    cpu_seconds: float
    result: str


def run(part: Part, folder: Path, *, limit_s: float, root: Path = ROOT) -> Result:
    """Run it, and write its result beside its log.

    Args:
        part: which.
        folder: where results and logs are.
        limit_s: after which it is ended, and has failed.
        root: the repository.
    """
    folder.mkdir(parents=True, exist_ok=True)
    basis, began_s, cpu_s = basis_of(part, root), monotonic_s(), _cpu_s()
    log = folder / f"{part.name}.log"
    code = _ran(part, log, limit_s, root)
    said = _end_of(log)
    result = Result(
        part=part.name,
        basis=basis,
        commit=_commit(root),
        count=_number(part.counted, said),
        skipped=_number(r"(\d+) skipped", said) or 0,
        seconds=round(monotonic_s() - began_s, 2),
        cpu_seconds=round(_cpu_s() - cpu_s, 2),
        result=_judged(
            code, limit_s, count=_number(part.counted, said), changed=basis != basis_of(part, root)
        ),
    )
    (folder / f"{part.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


def passed_before(part: Part, folder: Path, root: Path = ROOT) -> Result | None:
    """Its result, if it has passed with the files as they are now."""
    try:
        found = msgspec.json.decode((folder / f"{part.name}.json").read_bytes(), type=Result)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if (found.basis, found.result) == (basis_of(part, root), PASSED) else None


def basis_of(part: Part, root: Path = ROOT) -> str:
    """A digest of the part, the interpreter, what the environment asks for, and every file of the repository."""
    digest = hashlib.sha256(
        repr((part.command, sys.version, [os.environ.get(each) for each in KNOBS])).encode()
    )
    for path in sorted(listed(root)):
        digest.update(f"\0{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _judged(code: int | None, limit_s: float, *, count: int | None, changed: bool) -> str:
    if code is None:
        return f"ended after {limit_s / 60:g} min"
    if code != 0:
        return f"failed with {code}"
    if not count:
        return "nothing was run"
    return "the files changed meanwhile" if changed else PASSED


def _ran(part: Part, log: Path, limit_s: float, root: Path) -> int | None:
    """Its exit code, None if it took too long; whatever it has started is gone afterwards."""
    mark = f"{os.getpid()}-{log.stem}-{monotonic_s()}"
    process: subprocess.Popen[bytes] | None = None
    with log.open("wb") as said:
        try:
            process = subprocess.Popen(
                part.command,
                cwd=root,
                env={**os.environ, _MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            if part.beside is Beside.WHAT_WAITS:
                give_way(process.pid)
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            assert process is not None
            _print_stacks(process)
            return None
        finally:
            # Without a process there may be one all the same: an interrupt can come when it has just begun.
            _end(_left(process, mark))
            if process is not None:
                process.wait()


def give_way(pid: int) -> None:
    """All else goes before it, and before what it starts. Linux may weigh sessions, and processes within each."""
    with suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, _LAST)
    with suppress(OSError):  # a kernel that does not
        Path(f"/proc/{pid}/autogroup").write_text(str(_LAST), "ascii")


def _print_stacks(process: subprocess.Popen[bytes]) -> None:
    """Python's own handler prints them and ends: pytest, and the processes that it shares its work with."""
    around = psutil.Process(process.pid)
    with suppress(psutil.NoSuchProcess):
        for each in (*around.children(), around):
            if "python" in each.name():
                each.send_signal(signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STACKS_WITHIN_S)


def _left(process: subprocess.Popen[bytes] | None, mark: str) -> set[psutil.Process]:
    """What still runs: the process, all below it, and what bears the mark of the part, wherever that has gone."""
    found: set[psutil.Process] = set()
    with suppress(psutil.NoSuchProcess):
        if process is not None and process.poll() is None:
            found |= {psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)}
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get(_MARK) == mark:
                found.add(each)
    return found


def _end(processes: Iterable[psutil.Process]) -> None:
    waiting = list(processes)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for each in waiting:
            with suppress(psutil.Error):
                each.send_signal(number)
        _, waiting = psutil.wait_procs(waiting, timeout=_GONE_WITHIN_S)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end_of(log: Path) -> str:
    data = log.read_bytes()
    return data[-_LAST_BYTES:].decode("utf-8", "replace")


def _number(pattern: str, text: str) -> int | None:
    found = re.findall(pattern, text)
    return int(found[-1].replace(",", "")) if found else None


def _commit(root: Path) -> str:
    asked = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return asked.stdout.strip()
