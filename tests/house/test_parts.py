"""Every long proof is in one part of `make prove`, each part ends in time, and so does the whole."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from tests.house.files import content, modules, shown
from tests.proof.parts import LIMIT_MIN, PROPERTIES, WHOLE_MIN, Beside, parts

# In two pieces, so that this file has none.
MARK: Final = re.compile(rb"\bmark" + rb"\.prove\b")


def marked() -> list[Path]:
    return [path for path in modules() if MARK.search(content(path))]


def test_each_file_with_a_long_proof_is_in_one_part() -> None:
    run = Counter(file for part in parts() for file in part.files)
    assert [file for file, times in run.items() if times > 1] == []
    assert sorted(run) == sorted(map(shown, marked())), "put the file into a part in tests/proof/parts.py"
    assert len(run) > 30


def test_only_files_of_tests_mark_long_proofs() -> None:
    """A mark that is made elsewhere, and used under another name, would be in no part."""
    assert [shown(path) for path in marked() if not path.name.startswith("test_")] == []


def test_every_property_draws_new_examples_in_a_part() -> None:
    drawn = [shown(path) for path in modules() if b"\nfrom hypothesis import" in content(path)]
    files = [name for name in drawn if name.rpartition("/")[2].startswith("test_")]
    assert [name for name in files if not name.startswith(tuple(f"{each}/" for each in PROPERTIES))] == []
    assert len(files) > 90


def test_a_part_runs_the_files_that_it_names_and_no_other() -> None:
    for part in parts():
        named = {word for word in part.command if word.startswith("tests/")}
        assert named == set(part.files) or not part.files, part.name


def test_the_whole_ends_in_time() -> None:
    minutes = {part.name: part.minutes for part in parts()}
    assert len(minutes) == len(parts())
    assert {name: each for name, each in minutes.items() if not 0 < each < LIMIT_MIN} == {}
    row = {beside: sum(part.minutes for part in parts() if part.beside is beside) for beside in Beside}
    # What computes gets half of the machine while something waits beside it.
    waits, computes = row[Beside.WHAT_COMPUTES], row[Beside.WHAT_WAITS]
    assert row[Beside.NOTHING] + waits + max(0, computes - waits / 2) <= WHOLE_MIN
