"""Writes the table of sicknesses into the runbook: `python -m tests.sick.runbook`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.sick.all import SICKNESSES
from tests.sick.sickness import Sickness

PAGE: Final = Path(__file__).parents[2] / "docs" / "runbook.md"
_BEGIN: Final = "<!-- sicknesses: written by `python -m tests.sick.runbook` -->"
_END: Final = "<!-- end of sicknesses -->"
_WHERE: Final = {
    "page": "status page, `/readyz`",
    "status": "`kcl-daemon status`, `top`",
    "watch": "`kcl-daemon watch`",
    "log": "log",
    "end": "last words of the process",
}


def table() -> str:
    """What you see, what it is, what to do."""
    rows = ["| Alert | Where the cause is named | What it is | What to do |", "|---|---|---|---|"]
    return "\n".join([*rows, *map(_row, SICKNESSES)])


def _row(sickness: Sickness) -> str:
    named = "; ".join(f"{_WHERE[where]}: *{_readable(words)}*" for where, words in sickness.words)
    return f"| `{sickness.alert}`, {sickness.severity} | {named} | {sickness.broken} | {sickness.do} |"


def _readable(words: str) -> str:
    """Of a regular expression the words that a person sees."""
    text = re.sub(r"\.\*", " … ", words)
    text = re.sub(r"(\w)\?", r"\1", text)
    text = re.sub(r"\(([^()|]*)\|([^()]*)\)", r"\1", text)
    return " ".join(text.replace("|", " or ").replace("\\", "").split())


def written(page: str) -> str:
    """The page with the table of now."""
    before, found, rest = page.partition(_BEGIN)
    _, ended, after = rest.partition(_END)
    if not found or not ended:
        raise ValueError(f"{PAGE} lacks {_BEGIN} or {_END}")
    return f"{before}{_BEGIN}\n\n{table()}\n\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
