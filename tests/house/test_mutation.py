"""`python -m tests.mutation` knows what it judges: its files exist, and its reasons are about lines that stand there."""

from __future__ import annotations

from collections import Counter
from types import CodeType

from tests.house.files import ROOT
from tests.mutation.equivalents import equivalents, stale
from tests.mutation.planted import planted
from tests.mutation.results import basis_of
from tests.mutation.running import changed_function
from tests.mutation.subjects import SUBJECTS

SOURCE = "LIMIT = 3\nclass A:\n    def f(self, x=1):\n        return x < LIMIT\n    def g(self):\n        return 5\n"


def compiled(text: str) -> CodeType:
    return compile(text, "a.py", "exec", dont_inherit=True)


def test_each_file_and_its_tests_exist_once() -> None:
    named = [path for each in SUBJECTS for path in (each.path, *each.tests)]
    assert [path for path in named if not (ROOT / path).is_file()] == []
    assert [path for path, times in Counter(each.path for each in SUBJECTS).items() if times > 1] == []
    for each in SUBJECTS:
        assert each.path.removesuffix(".py").endswith(each.module.replace(".", "/"))
        assert len(set(each.tests)) == len(each.tests) > 0


def test_each_reason_is_about_a_line_that_stands_in_the_source() -> None:
    known = equivalents()
    assert stale(known) == []
    assert {each.file for each in known} <= {each.path for each in SUBJECTS}
    entries = Counter((each.file, each.within, each.line) for each in known)
    assert [entry for entry, times in entries.items() if times > 1] == []


def test_each_planted_fault_is_in_the_source_and_has_one_that_notices_it() -> None:
    known = planted()
    assert [name for name, times in Counter(each.name for each in known).items() if times > 1] == []
    assert [each.name for each in known if each.source.count(each.text) != 1] == []
    assert [each.name for each in known if bool(each.test) == bool(each.scenario)] == []
    for each in (each for each in known if each.test):
        file, _, test = each.test.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text("utf-8"), each.name


def test_planted_faults_are_of_all_capabilities_and_as_many_as_the_documents_say() -> None:
    known = planted()
    assert sum(each.reader for each in known) == 12
    rows = Counter(each.of for each in known)
    text = (ROOT / "docs/reliability.md").read_text("utf-8")
    assert [of for of, count in rows.items() if f"| {of} | {count} |" not in text] == []
    assert f"{len(known)} faults" in text


def test_a_mutant_stays_killed_while_its_test_is_the_same() -> None:
    before, now = {"tests/a.py": "1", "tests/b.py": "1"}, {"tests/a.py": "1", "tests/b.py": "2"}
    kept = ["killed tests/a.py::test_x", "killed tests/b.py::test_x", "killed ", "survived"]
    assert [basis_of(each, before) == basis_of(each, now) for each in kept] == [True, False, False, False]


def test_a_fault_inside_a_function_is_found_and_one_outside_is_not() -> None:
    changed = changed_function(compiled(SOURCE), compiled(SOURCE.replace("x < LIMIT", "x <= LIMIT")))
    assert changed is not None
    assert [each.co_name for each in changed] == ["f", "f"]
    for one, other in (("LIMIT = 3", "LIMIT = 4"), ("x=1", "x=2")):
        assert changed_function(compiled(SOURCE), compiled(SOURCE.replace(one, other))) is None
