"""The matrix in docs/from-java.md is what the libraries do."""

from __future__ import annotations

import pytest

from tests.dropin.libraries import LIBRARIES, Library
from tests.dropin.matrix import CASES, ROOT, column

pytestmark = pytest.mark.timeout(300)

BEGIN = "<!-- matrix: python -m tests.dropin.matrix -->"
END = "<!-- end of matrix -->"


def committed() -> list[list[str]]:
    """The rows of the table in the document, without the line below its head."""
    text = (ROOT / "docs" / "from-java.md").read_text("utf-8")
    table = text.partition(BEGIN)[2].partition(END)[0].strip()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [rows[0], *rows[2:]]


def test_the_document_has_every_library_and_every_message() -> None:
    head, *rows = committed()
    assert head == ["message", *(library.name for library in LIBRARIES)]
    assert [row[0] for row in rows] == [case.title for case in CASES]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_library_does_what_the_document_says(library: Library) -> None:
    head, *rows = committed()
    place = head.index(library.name)
    assert column(library) == [row[place] for row in rows]
