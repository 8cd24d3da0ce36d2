"""The parts of `make prove`.

What measures runs first, alone. Then what waits runs one after another, and beside it, giving way, what computes.

The minutes are what a part takes on two quiet cores, rounded up. Each is to stay below `LIMIT_MIN`, the whole below
`WHOLE_MIN`: `tests/house/test_parts.py` adds them up, and looks that each file with a test marked `prove` is in one part.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import Final

LIMIT_MIN: Final = 25
WHOLE_MIN: Final = 100
SEEDS: Final = 9
"""Of each scenario: some 600 runs. `SEEDS=200` has more, and `make soak` others each time."""


ROWS_OF_TRIPLES: Final = 254
"""Of the array that has every triple of what touches positions."""
PROPERTIES: Final = ("tests/unit", "tests/contract", "tests/landing", "tests/process", "tests/spark")
"""Where property tests are; each draws ten times as many examples as every day, and new ones."""


class Beside(Enum):
    """What a part can run beside."""

    NOTHING = "nothing"
    """It measures time on the clock, or how time grows, or takes the whole machine."""
    WHAT_COMPUTES = "what computes"
    """It waits most of its time, and must not be kept waiting by others."""
    WHAT_WAITS = "what waits"
    """It computes, and may take as long as it takes: it gives way to all else."""


@dataclass(frozen=True, slots=True)
class Part:
    """One command.

    Args:
        name: for `PART=`, and of its files in `build/prove`.
        minutes: that it takes on two quiet cores.
        command: what is run, at the top of the repository.
        counted: pattern of the number of its tests, files or runs in what it prints; the last one counts.
        files: whose tests marked `prove` it runs.
        beside: what else may run at the same time.
    """

    name: str
    minutes: int
    command: tuple[str, ...]
    counted: str
    files: tuple[str, ...] = ()
    beside: Beside = Beside.WHAT_WAITS


def parts(*, seeds: int = SEEDS, first: int = 1) -> tuple[Part, ...]:
    """All of them.

    Args:
        seeds: of each scenario of the simulator.
        first: the first of them.
    """
    simulator = ("-m", "tests.simulator", "--scenario", "all", "--seeds", str(seeds), "--first", str(first))
    return (
        Part("types", 2, _python("-m", "basedpyright", "--warnings", "--stats"), r"Found (\d+) source files"),
        Part("properties", 3, _tests("hypothesis and not prove and not peer", *PROPERTIES), _PASSED),
        *_ALONE,
        *_WAITING,
        *_COMPUTING,
        Part("triples", 5, _python("-m", "tests.simulator", *_TRIPLES, "--jobs", "2"), _RUNS),
        Part("seeds", 10, _python(*simulator, "--jobs", "2"), _RUNS),
    )


def _python(*words: str) -> tuple[str, ...]:
    """With a handler of signals that prints where each thread is."""
    return sys.executable, "-X", "faulthandler", *words


def _tests(marks: str, *files: str, at_once: int = 2) -> tuple[str, ...]:
    beside = ("-n", str(at_once), "--dist", "worksteal") if at_once > 1 else ()
    each = ("--timeout", "1200", "--durations", "10", "--hypothesis-profile", "prove")
    return _python("-m", "pytest", "-m", marks, *each, *beside, *files)


def _proofs(
    name: str, minutes: int, *files: str, at_once: int = 2, beside: Beside = Beside.WHAT_COMPUTES
) -> Part:
    """The tests marked `prove` of some files, so many at the same time."""
    return Part(name, minutes, _tests("prove", *files, at_once=at_once), _PASSED, files, beside)


_PASSED: Final = r"(\d+) passed"
_RUNS: Final = r"runs (\d+)  virtual hours"
# Each row of the array once: `tests/simulator/pairs/test_array.py` looks that there are no more.
_TRIPLES: Final = ("--scenario", "triples", "--seeds", str(ROWS_OF_TRIPLES), "--first", "1")
_ALONE: Final = (
    _proofs(
        "quiet",
        5,
        "tests/page/test_looks.py",
        "tests/process/test_bootstrap_process.py",
        "tests/process/test_capacity_process.py",
        "tests/process/test_restart_in_place.py",
        "tests/benchmarks/test_assignment.py",
        at_once=1,
        beside=Beside.NOTHING,
    ),
    _proofs(
        "fleets",
        6,
        "tests/benchmarks/test_fleet.py",
        "tests/benchmarks/test_shards.py",
        beside=Beside.NOTHING,
    ),
    _proofs(
        "spark-hosts",
        17,
        "tests/spark/test_windows_whole.py",
        "tests/spark/test_hosts.py",
        beside=Beside.NOTHING,
    ),
    _proofs(
        "spark-elsewhere",
        7,
        "tests/spark/test_elsewhere.py",
        "tests/spark/test_packages.py",
        "tests/spark/test_shell.py",
        beside=Beside.NOTHING,
    ),
)
_WAITING: Final = (
    _proofs("dropin", 3, "tests/dropin/test_libraries.py", "tests/dropin/test_samples.py"),
    _proofs(
        "process",
        15,
        "tests/process/test_on_call.py",  # longest, so first
        "tests/process/test_soak.py",
        "tests/process/test_versions.py",
        "tests/process/test_bad_input.py",
        "tests/process/test_demo.py",
        "tests/process/test_fleet.py",
        "tests/process/test_init_process.py",
        "tests/process/test_local_process.py",
        "tests/process/test_metrics_of_kcl.py",
        "tests/process/test_reshard_process.py",
        "tests/process/test_throughput_process.py",
        "tests/landing/test_crashes.py",
        at_once=3,
    ),
    _proofs("spark-backlog", 5, "tests/spark/test_backlog.py"),
    _proofs("spark-crashes", 12, "tests/spark/test_crashes.py", "tests/spark/test_landing_crashes.py"),
)
_COMPUTING: Final = (
    _proofs(
        "unit",
        4,
        "tests/unit/records/test_record_filter.py",
        "tests/unit/retrieval/test_fuzz.py",
        "tests/unit/test_expressions.py",
        beside=Beside.WHAT_WAITS,
    ),
    _proofs(
        "installed",
        6,
        "tests/documents/test_story.py",
        "tests/packaging/test_extras.py",
        "tests/packaging/test_image.py",
        beside=Beside.WHAT_WAITS,
    ),
    _proofs(
        "simulator",
        8,
        "tests/simulator/soak/test_soak.py",
        "tests/simulator/java/test_java.py",
        "tests/simulator/pairs/test_array.py",
        "tests/simulator/sabotage/test_planted.py",
        "tests/simulator/test_determinism.py",
        "tests/simulator/test_points.py",
        "tests/simulator/test_scenarios.py",
        beside=Beside.WHAT_WAITS,
    ),
    _proofs("sick", 4, "tests/sick/test_sick.py", beside=Beside.WHAT_WAITS),
)
