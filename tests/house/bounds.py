"""The bounds of the figures: `bounds.toml` says the rule, `--lower` and `--shift` write it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.house.files import ROOT

Table = Mapping[str, Mapping[str, float]]
"""Figures or bounds, by section and name."""

FILE: Final = ROOT / "tests" / "house" / "bounds.toml"
SUMS: Final = {"lines": "source lines", "words": "docstring and comment words"}
"""A section by package, and the ceiling in `whole` that its sum stays below."""


def bounds(path: Path = FILE) -> Table:
    return tomllib.loads(path.read_text("utf-8"))


def above(figures: Table, limits: Table) -> list[str]:
    """What has grown, by how much, and what to do."""
    return [
        f"{name}, {section}: {value:,}, which is {round(value - limits[section].get(name, 0), 1):,} above its bound"
        + (_deleted_as_much(section) if section in SUMS else "")
        for section, rows in figures.items()
        for name, value in rows.items()
        if value > limits[section].get(name, 0)
    ]


def _deleted_as_much(section: str) -> str:
    return (
        f"; delete as much there, or raise this bound in {FILE.name} by as much as you lower the one of another package: "
        f"their sum stays at most the ceiling, {SUMS[section]!r}"
    )


def sums_above(limits: Table) -> list[str]:
    """Sections whose bounds permit more than the ceiling does."""
    sums = {section: sum(limits[section].values()) for section in SUMS}
    return [
        f"the bounds of {section} sum up to {sums[section]:,}, above {ceiling!r} of {limits['whole'][ceiling]:,}"
        for section, ceiling in SUMS.items()
        if sums[section] > limits["whole"][ceiling]
    ]


def ceilings_before() -> dict[str, int]:
    """The lowest that each ceiling has been in a commit; empty without git."""
    command = ["git", "log", "--format=", "--patch", "--unified=0", "--", FILE.relative_to(ROOT).as_posix()]
    if not (ROOT / ".git").exists():
        return {}
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    found = {name: re.findall(rf'^\+"{name}" = (\d+)$', told, re.MULTILINE) for name in SUMS.values()}
    return {name: min(map(int, values)) for name, values in found.items() if values}


def lowered(figures: Table, limits: Table, *, shift: bool = False) -> dict[str, dict[str, float]]:
    """Bounds that no figure has reached come down to it. With `shift` those by package also rise, while the whole has room."""
    found: dict[str, dict[str, float]] = {}
    for section, rows in figures.items():
        known = limits[section]
        ceiling = limits["whole"][SUMS[section]] if shift and section in SUMS else -1
        may_rise = sum(rows.values()) <= ceiling
        found[section] = {
            name: value if may_rise or name not in known else min(value, known[name])
            for name, value in rows.items()
            if may_rise or name in known
        }
    return found


def write(limits: Table, path: Path = FILE) -> list[str]:
    """Says what has changed. The comment on top stays."""
    before = bounds(path)
    comment = path.read_text("utf-8").partition("[")[0]
    sections = [
        "\n".join([f"[{section}]", *(f'"{name}" = {value}' for name, value in rows.items())])
        for section, rows in limits.items()
    ]
    path.write_text(comment + "\n\n".join(sections) + "\n", encoding="utf-8")
    names = {
        (section, name) for table in (before, limits) for section, rows in table.items() for name in rows
    }
    pairs = [(key, before[key[0]].get(key[1], 0), limits[key[0]].get(key[1], 0)) for key in sorted(names)]
    return [f"{name}, {section}: {was:,} -> {now:,}" for (section, name), was, now in pairs if was != now]
