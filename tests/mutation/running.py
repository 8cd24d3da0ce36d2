"""Runs tests against mutants: each mutant in a process of its own, forked from one that has everything loaded.

Nothing is written into the source. The fault of a function is put into the function that the tests have imported already. What runs
while modules are imported (constants, fields, defaults) is imported anew with its fault. A mutant meets the tests that run its lines.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

import msgspec
import pytest
from hypothesis import Phase, settings

from tests.house.files import ROOT
from tests.mutation.forks import forked
from tests.mutation.loading import FaultyFinder
from tests.mutation.mutants import Mutant, plain
from tests.mutation.subjects import Subject

SURVIVED: Final = "survived"
KILLED: Final = "killed"
"""Followed by the test that did it; by none if the process was ended by a limit."""

Keep = Callable[[dict[str, str]], None]

_OURS: Final = ("kcl_", "tests", "conftest")
_WHOLE_CPU_S: Final = 300
_WHOLE_WALL_S: Final = 900.0
_OPTIONS: Final = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are loaded before pytest begins
)


class TestsFailError(Exception):
    """They fail without any fault, so they say nothing about one."""


class Measured(msgspec.Struct):
    """What a test does without a fault: the lines of the file that it runs, and its seconds of CPU."""

    test: str
    failed: bool
    rows: frozenset[int]
    cpu_s: float


class Answer(msgspec.Struct):
    """Of the process that has the tests loaded.

    Args:
        verdicts: by the name of the mutant.
        again: names of mutants that must be imported.
        cpu_s: of all tests.
        failed: tests that fail without a fault.
        loaded: modules of others that the tests need.
    """

    verdicts: dict[str, str]
    again: list[str]
    cpu_s: float
    failed: list[str]
    loaded: list[str]


@dataclass(frozen=True, slots=True)
class Later:
    """Mutants that must be imported, each for all tests, with a limit of seconds of CPU."""

    subject: Subject
    mutants: list[Mutant]
    cpu_s: int

    def judge(self, keep: Keep) -> None:
        for mutant in self.mutants:
            keep({mutant.name: _imported_anew(self.subject, mutant, self.cpu_s)})


def judge(subject: Subject, mutants: list[Mutant], keep: Keep) -> Later:
    """Hand on a verdict for each mutant whose fault is in a function; the others take longer, and are returned.

    Args:
        subject: whose tests are run.
        mutants: of its file.
        keep: called whenever there are new verdicts.
    """
    said = forked(
        lambda: _with_tests_loaded(subject, mutants, keep), cpu_s=4 * _WHOLE_CPU_S, wall_s=4 * _WHOLE_WALL_S
    )
    if said is None:
        raise TestsFailError(f"{subject.path}: its tests could not be loaded; build/mutation/pytest.log")
    answer = msgspec.json.decode(said, type=Answer)
    if answer.failed:
        raise TestsFailError(f"{subject.path}: {', '.join(answer.failed)}")
    keep(answer.verdicts)
    _load(answer.loaded)
    again = [mutant for mutant in mutants if mutant.name in answer.again]
    return Later(subject, again, math.ceil(2 * answer.cpu_s) + 10)


def _load(names: Sequence[str]) -> None:
    """Here, so that no process has to."""
    for name in names:
        try:
            import_module(name)
        except Exception:  # noqa: BLE001 - it will be imported where it is needed, or not
            continue


def _quiet_pytest(subject: Subject, plugin: object, *options: str) -> int:
    """Its exit status; what it prints goes into a log."""
    log = os.open(ROOT / "build/mutation/pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return int(pytest.main([*_OPTIONS, *options, *subject.tests], plugins=[plugin]))


class _Quick:
    """A failure is enough: the smallest example is not looked for."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", settings(), phases=phases)
        settings.load_profile("mutation")


# What runs while modules are imported.


class _FirstFailure(_Quick):
    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def _imported_anew(subject: Subject, mutant: Mutant, cpu_s: int) -> str:
    assert subject.module not in sys.modules, f"{subject.module} is loaded already"

    def work() -> str:
        sys.meta_path.insert(0, FaultyFinder(subject.module, str(ROOT / subject.path), mutant.text))
        plugin = _FirstFailure()
        status = _quiet_pytest(subject, plugin, "-x")
        return SURVIVED if status == 0 else f"{KILLED} {plugin.name}"

    return forked(work, cpu_s=cpu_s, wall_s=20.0 * cpu_s) or KILLED


# What the tests have loaded already.


@dataclass
class _Loaded(_Quick):
    """A plugin of pytest: instead of running the tests once, it runs some of them for each mutant."""

    subject: Subject
    mutants: list[Mutant]
    rows: set[int]
    keep: Keep
    answer: Answer = field(default_factory=lambda: Answer({}, [], 0.0, [], []))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.settrace(None)
        said = forked(lambda: self._measure(session.items), cpu_s=_WHOLE_CPU_S, wall_s=_WHOLE_WALL_S)
        measured = msgspec.json.decode(said or "[]", type=list[Measured])
        self.answer.cpu_s = sum(each.cpu_s for each in measured)
        self.answer.failed = [each.test for each in measured if each.failed] or ([] if measured else ["all"])
        self.answer.loaded = [each for each in sys.modules if not each.startswith(_OURS)]
        if not self.answer.failed:
            self._judge(session, sorted(measured, key=lambda each: each.cpu_s))
        return True

    def _judge(self, session: pytest.Session, measured: list[Measured]) -> None:
        items = {item.nodeid: item for item in session.items}
        functions = _functions_of(str(ROOT / self.subject.path))
        source = _compiled(self.subject, (ROOT / self.subject.path).read_text("utf-8"))
        for mutant in self.mutants:
            rows = range(mutant.first_row, mutant.last_row + 1)
            changed = changed_function(source, _compiled(self.subject, mutant.text))
            faulty = [] if changed is None else functions.get(plain(changed[0]), [])
            if changed is None or not faulty or self.rows.intersection(rows):
                self.answer.again.append(mutant.name)
                continue
            meeting = [each for each in measured if each.rows.intersection(rows)]
            cpu_s = math.ceil(2 * sum(each.cpu_s for each in meeting)) + 5
            work = _Faulty(faulty, changed[1], [(items[each.test], each.cpu_s) for each in meeting])
            self.answer.verdicts[mutant.name] = forked(work, cpu_s=cpu_s, wall_s=20.0 * cpu_s) or KILLED
            self.keep(
                self.answer.verdicts
            )  # in the file only: the process that asked gets them with the answer

    def _measure(self, items: Sequence[pytest.Item]) -> str:
        found: list[Measured] = []
        for item in items:
            before = _cpu_s()
            with _traced(str(ROOT / self.subject.path)) as rows:
                failed = _fails(item)
            found.append(Measured(item.nodeid, failed, frozenset(rows), _cpu_s() - before))
        return msgspec.json.encode(found).decode()


@dataclass(frozen=True, slots=True)
class _Faulty:
    """Runs tests with the fault in a function, until one fails."""

    functions: list[FunctionType]
    code: CodeType
    items: list[tuple[pytest.Item, float]]

    def __call__(self) -> str:
        for function in self.functions:
            function.__code__ = self.code
        for item, cpu_s in self.items:
            _allow(2 * cpu_s + 1)
            if _fails(item):
                return f"{KILLED} {item.nodeid}"
        return SURVIVED


def _with_tests_loaded(subject: Subject, mutants: list[Mutant], keep: Keep) -> str:
    with _traced(str(ROOT / subject.path)) as rows:
        plugin = _Loaded(subject, mutants, rows, keep)
        _quiet_pytest(subject, plugin)
    return msgspec.json.encode(plugin.answer).decode()


def _fails(item: pytest.Item) -> bool:
    session = item.session
    before = session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return session.testsfailed > before


def _compiled(subject: Subject, text: str) -> CodeType:
    return compile(text, str(ROOT / subject.path), "exec", dont_inherit=True)


def changed_function(one: CodeType, other: CodeType) -> tuple[CodeType, CodeType] | None:
    """The function that differs, before and after; None if it is not a function that differs."""
    if one.co_flags & CO_OPTIMIZED:
        return one, other
    pairs = zip(_inner(one), _inner(other), strict=False)
    inner = [pair for pair in pairs if plain(pair[0]) != plain(pair[1])]
    if len(inner) != 1 or _outer(one) != _outer(other):
        return None
    return changed_function(*inner[0])


def _inner(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _outer(code: CodeType) -> CodeType:
    kept = tuple(None if isinstance(each, CodeType) else each for each in code.co_consts)
    return plain(code.replace(co_consts=kept))


def _functions_of(path: str) -> dict[CodeType, list[FunctionType]]:
    gc.unfreeze()
    found: dict[CodeType, list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == path:
            found.setdefault(plain(each.__code__), []).append(each)
    gc.freeze()
    return found


@contextmanager
def _traced(path: str) -> Generator[set[int]]:
    """The lines of a file that are run meanwhile, in all threads that begin meanwhile, too."""
    rows = set[int]()

    def inside(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            rows.add(frame.f_lineno)
        return inside

    def begun(frame: FrameType, _event: str, _argument: Any) -> Any:
        return inside(frame, "line", None) if frame.f_code.co_filename == path else None

    threading.settrace(begun)
    sys.settrace(begun)
    try:
        yield rows
    finally:
        sys.settrace(None)
        threading.settrace(None)


def _allow(more_s: float) -> None:
    """From now on; the process ends if it needs more."""
    _, most_s = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (min(math.ceil(_cpu_s() + more_s), most_s), most_s))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
