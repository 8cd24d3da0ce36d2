"""The house stays as small and as plain as it has become.

`bounds.toml` has a bound for each figure, by package for lines and words. A change may lower bounds and raises none without
deleting as much: a package may grow where another shrinks by as much, because lines and words of the whole have a ceiling that no
commit may raise. `python -m tests.house.figures --lower` lowers all bounds to the figures, `--shift` also
raises those of packages, while the whole has room.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house.bounds import above, bounds, ceilings_before, lowered, sums_above, write
from tests.house.figures import constants_below, figures, file_circles, imports, package_circles, source_files
from tests.house.imports import Imports, imports_of, loaded


def sources(root: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        path = root / "daemon" / "kcl_daemon" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def test_no_figure_is_above_its_bound() -> None:
    assert above(figures(), bounds()) == []


def test_the_bounds_of_packages_permit_no_more_than_the_ceiling() -> None:
    assert sums_above(bounds()) == []


def test_no_ceiling_is_higher_than_in_a_commit_before() -> None:
    now = bounds()["whole"]
    assert {name: lowest for name, lowest in ceilings_before().items() if now[name] > lowest} == {}


def test_a_package_may_grow_only_where_another_shrinks() -> None:
    whole = {"source lines": 30, "docstring and comment words": 0}
    limits = {"whole": whole, "lines": {"a": 10, "b": 20}, "words": {}}
    grown = above({"lines": {"a": 12, "b": 18, "c": 1}}, limits)
    assert [each.partition("; ")[0] for each in grown] == [
        "a, lines: 12, which is 2 above its bound",
        "c, lines: 1, which is 1 above its bound",
    ]
    assert sums_above({**limits, "lines": {"a": 12, "b": 18}}) == []
    assert sums_above({**limits, "lines": {"a": 12, "b": 20}}) == [
        "the bounds of lines sum up to 32, above 'source lines' of 30"
    ]


def test_lowering_raises_no_bound(tmp_path: Path) -> None:
    file = tmp_path / "bounds.toml"
    file.write_text('# Why.\n[whole]\n"x" = 5\n\n[lines]\n"a" = 10\n"b" = 20\n"gone" = 1\n', encoding="ascii")
    now = {"whole": {"x": 5}, "lines": {"a": 12, "b": 18, "new": 3}}
    assert write(lowered(now, bounds(file)), file) == ["b, lines: 20 -> 18", "gone, lines: 1 -> 0"]
    assert file.read_text("ascii") == '# Why.\n[whole]\n"x" = 5\n\n[lines]\n"a" = 10\n"b" = 18\n'


@pytest.mark.parametrize(("ceiling", "a"), [(30, 12), (29, 10)])
def test_shifting_raises_a_package_only_where_the_whole_has_room(ceiling: int, a: int) -> None:
    limits = {"whole": {"source lines": ceiling}, "lines": {"a": 10, "b": 20}}
    assert lowered({"lines": {"a": 12, "b": 18}}, limits, shift=True) == {"lines": {"a": a, "b": 18}}


def test_a_circle_of_packages_is_seen(tmp_path: Path) -> None:
    root = sources(
        tmp_path,
        {
            "a/one.py": "from kcl_daemon.b.two import X\n",
            "b/two.py": "from kcl_daemon.a import one\n",
            "c/three.py": "from kcl_daemon.b import two\n",
        },
    )
    files = source_files(root)
    assert package_circles(files, imports(files)) == [["kcl_daemon.a", "kcl_daemon.b"]]


def test_a_circle_of_files_is_seen_even_inside_a_function_but_not_where_it_is_for_types(
    tmp_path: Path,
) -> None:
    root = sources(
        tmp_path,
        {
            "a.py": "def f():\n    from kcl_daemon.b import X\n",
            "b.py": "import kcl_daemon.c\n",
            "c.py": "from kcl_daemon import a\nif TYPE_CHECKING:\n    from kcl_daemon.d import X\n",
            "d.py": "from kcl_daemon import c\n",
        },
    )
    assert file_circles(imports(source_files(root))) == [["kcl_daemon.a", "kcl_daemon.b", "kcl_daemon.c"]]


def test_an_import_inside_a_function_is_not_loaded_at_the_start() -> None:
    text = "try:\n    import p.a\nfinally:\n    pass\ndef f():\n    from p import b\nclass C:\n    from p.c import X\n"
    found = imports_of("p", ast.parse(text), ["p", "p.a", "p.b", "p.c"])
    assert found == Imports(frozenset({"p.a", "p.c"}), frozenset({"p.b"}))
    assert loaded({"p": found, "p.a": found, "p.b": found, "p.c": found}, ["p.a"]) == {"p", "p.a", "p.c"}


def test_a_constant_below_a_definition_is_seen_unless_it_needs_the_definition() -> None:
    text = "A = 1\nclass C: ...\nB: Final = A\nD = C()\nE = [D]\nkind = 2\nF: int\n"
    assert constants_below(ast.parse(text)) == ["B"]
