"""The runner of `make prove`: what has passed is not run again, what hangs is ended, and nothing is taken for passed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from kcl_local.demo.check import monotonic_s
from tests.proof.__main__ import Proved, prove, table
from tests.proof.parts import Beside, Part
from tests.proof.running import PASSED, Result, passed_before, run

WORKS = "sum(range(3_000_000)); print('3 passed, 1 skipped')"
HANGS = """
import subprocess, sys, time
print("1 passed", flush=True)
apart = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(apart.pid, flush=True)
time.sleep(600)  # the line in the stack
"""
LEAVES = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True).pid)
print("1 passed")
"""
# Begins when the other has begun, too.
MEETS = """
import pathlib, sys, time
mine, other = map(pathlib.Path, sys.argv[1:])
mine.touch()
until = time.monotonic() + 30
while not other.exists() and time.monotonic() < until:
    time.sleep(0.01)
print(f"{other.exists():d} passed")
"""


# Says how it is weighed, and what it has started.
LAST = """
import os, subprocess, sys, time
print(os.nice(0), flush=True)
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(started.pid, flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of one file."""
    root = tmp_path / "repository"
    root.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True, timeout=60)
    (root / "a.py").write_text("a = 1\n", "ascii")
    return root


def part(program: str, *words: str) -> Part:
    command = (sys.executable, "-X", "faulthandler", "-c", program, *words)
    return Part("some", 1, command, r"(\d+) passed")


def proved(each: Part, root: Path, limit_s: float = 60.0) -> Result:
    return run(each, root.parent / "out", limit_s=limit_s, root=root)


def again(each: Part, root: Path) -> Result | None:
    return passed_before(each, root.parent / "out", root)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def said(root: Path) -> Sequence[str]:
    return (root.parent / "out" / "some.log").read_text("utf-8").splitlines()


def test_the_result_of_a_passed_part_is_found_again(root: Path) -> None:
    assert again(part(WORKS), root) is None
    result = proved(part(WORKS), root)
    assert (result.result, result.count, result.skipped) == (PASSED, 3, 1)
    assert result.cpu_seconds > 0
    assert again(part(WORKS), root) == result


@pytest.mark.parametrize("name", ["a.py", "new.py"])
def test_a_passed_part_is_run_again_when_a_file_is_added(root: Path, name: str) -> None:
    proved(part(WORKS), root)
    (root / name).write_text("a = 2\n", "ascii")
    assert again(part(WORKS), root) is None


def test_another_command_or_environment_begins_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proved(part(WORKS), root)
    assert again(part(WORKS, "more"), root) is None
    monkeypatch.setenv("FUZZ_S", "1")
    assert again(part(WORKS), root) is None


def test_a_result_that_is_damaged_is_none(root: Path) -> None:
    proved(part(WORKS), root)
    (root.parent / "out" / "some.json").write_text('{"part": "some"', "ascii")
    assert again(part(WORKS), root) is None


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("print('3 passed'); raise SystemExit(1)", "failed with 1"),
        ("print('no tests ran')", "nothing was run"),
        ("print('0 passed')", "nothing was run"),
        ("open('a.py', 'a').write('#'); print('3 passed')", "the files changed meanwhile"),
    ],
)
def test_a_part_that_did_not_pass_is_run_again(root: Path, program: str, result: str) -> None:
    assert proved(part(program), root).result == result
    assert again(part(program), root) is None


def test_a_part_that_hangs_is_ended_with_its_processes_and_its_stacks_are_in_the_log(root: Path) -> None:
    result = proved(part(HANGS), root, limit_s=3.0)
    assert result.result == "ended after 0.05 min"
    assert any('File "<string>", line 6 in <module>' in line for line in said(root)), said(root)
    assert is_gone(int(said(root)[1]))


def test_processes_left_by_a_part_are_ended(root: Path) -> None:
    assert proved(part(LEAVES), root).result == PASSED
    assert is_gone(int(said(root)[0]))


def test_an_interrupt_ends_the_part_that_runs(root: Path) -> None:
    program = (
        "import sys, pathlib\nfrom tests.proof.running import run\nfrom tests.proof.parts import Part\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "part = Part('some', 1, (sys.executable, '-c', sys.argv[2]), 'x')\n"
        "run(part, root.parent / 'out', limit_s=60.0, root=root)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(root), HANGS], env={**os.environ}) as runner:
        while not (root.parent / "out" / "some.log").exists() or len(said(root)) < 2:
            assert runner.poll() is None
        runner.send_signal(2)
    assert runner.returncode != 0
    assert is_gone(int(said(root)[1]))


def named(name: str, beside: Beside, program: str, *words: object) -> Part:
    command = (sys.executable, "-c", program, *map(str, words))
    return Part(name, 1, command, r"(\d+) passed", beside=beside)


def test_a_part_that_computes_runs_beside_one_that_waits_and_gives_way(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    nice = "import os; print(os.nice(0), 'passed')"
    found = prove(
        [
            named("computes", Beside.WHAT_WAITS, MEETS, one, other),
            named("gives-way", Beside.WHAT_WAITS, nice),
            named("waits", Beside.WHAT_COMPUTES, MEETS, other, one),
        ],
        tmp_path / "out",
        limit_s=60.0,
    )
    counts = {each.result.part: (each.result.result, each.result.count) for each in found}
    assert counts == {"computes": (PASSED, 1), "gives-way": (PASSED, 19), "waits": (PASSED, 1)}


def test_a_part_that_measures_has_nothing_beside_it(tmp_path: Path) -> None:
    absent = "import pathlib, sys; print(f'{not any(map(os.path.exists, sys.argv[1:])):d} passed')"
    begun = [tmp_path / "waits", tmp_path / "computes"]
    touches = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch(); print('1 passed')"
    found = prove(
        [
            named("waits", Beside.WHAT_COMPUTES, touches, begun[0]),
            named("computes", Beside.WHAT_WAITS, touches, begun[1]),
            named("measures", Beside.NOTHING, f"import os, time; time.sleep(0.5); {absent}", *begun),
        ],
        tmp_path / "out",
        limit_s=60.0,
    )
    assert {each.result.part: each.result.count for each in found} == {
        "measures": 1,
        "waits": 1,
        "computes": 1,
    }


def test_an_interrupt_ends_what_computes_beside_the_part_that_runs(tmp_path: Path) -> None:
    begun = tmp_path / "computes", tmp_path / "waits"
    program = (
        "import sys, pathlib\nfrom tests.proof.__main__ import prove\nfrom tests.proof.parts import Beside, Part\n"
        "def part(name, beside):\n"
        "    return Part(name, 1, (sys.executable, '-c', sys.argv[2], sys.argv[1] + '/' + name), 'x', (), beside)\n"
        "parts = [part('computes', Beside.WHAT_WAITS), part('waits', Beside.WHAT_COMPUTES)]\n"
        "print(list(prove(parts, pathlib.Path(sys.argv[1]) / 'out', limit_s=60.0)))"
    )
    hangs = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path), hangs]) as runner:
        while not all(each.exists() and each.read_text("ascii") for each in begun):
            assert runner.poll() is None
        runner.send_signal(2)
    assert runner.returncode != 0
    assert all(is_gone(int(each.read_text("ascii"))) for each in begun)


def test_the_table_has_a_line_for_each_part_and_a_sum() -> None:
    found = [
        Proved(Result("one", "", "", 1_200, 2, 60.4, 100.0, PASSED), before=True),
        Proved(Result("another", "", "", None, 0, 1_500.0, 20.0, "ended after 25 min"), before=False),
    ]
    assert table(found) == [
        "part     tests or runs  seconds  CPU seconds  result",
        "one              1,200       60          100  passed, 2 not run here, before",
        "another        unknown    1,500           20  ended after 25 min",
        "all              1,200    1,560          120  1 of 2 passed",
    ]


def test_the_last_command_gives_way_and_its_output_and_exit_code_are_passed_on() -> None:
    done = subprocess.run(last("0"), capture_output=True, text=True, timeout=60, check=False)
    niceness, started = map(int, done.stdout.split())
    assert (niceness, done.returncode) == (19, 3)
    left = [each for each in psutil.process_iter() if each.pid == started]
    assert psutil.wait_procs(left, timeout=30.0)[1] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_last_command_is_ended_with_all_that_it_started(number: signal.Signals) -> None:
    with subprocess.Popen(last("600"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        begun = psutil.Process(process.pid)
        began_s = monotonic_s()
        while len(begun.children(recursive=True)) < 2 and monotonic_s() < began_s + 30.0:
            threading.Event().wait(0.05)
        below = begun.children(recursive=True)
        process.send_signal(number)
        assert process.wait(60.0) != 0
    _, alive = psutil.wait_procs(below, timeout=30.0)
    assert (len(below), alive) == (2, [])


def last(seconds: str) -> list[str]:
    return [sys.executable, "-m", "tests.proof.last", sys.executable, "-c", LAST, seconds]
