"""What can be seen of one kind of thing: the columns of its table, for page and terminal, and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from kcl_daemon.metrics.metric import Family, Labels
from kcl_daemon.text import NONE

Of = TypeVar("Of")
Cells: TypeAlias = Mapping[str, str]
"""By the names of their columns."""
Samples: TypeAlias = list[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class Column:
    """Of a table for people; none without a heading.

    Args:
        number: right-aligned.
        shortened: a terminal may cut its cells.
        drops: a narrow terminal leaves out columns in this order; 0: never.
    """

    name: str = ""
    heading: str = ""
    number: bool = field(default=True, kw_only=True)
    shortened: bool = field(default=False, kw_only=True)
    drops: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class Shown(Column, Generic[Of]):
    """A column, a metric, or both.

    Args:
        value: None: not known; there is no sample.
        unit: writes the value into the cell.
        text: the cell, where it is more than that.
    """

    value: Callable[[Of], float | None] = lambda _: None
    unit: Callable[[float], str] = str
    metric: Family | None = None
    text: Callable[[Of], str] | None = None

    def cell(self, each: Of) -> str:
        if self.text is not None:
            return self.text(each)
        value = self.value(each)
        return NONE if value is None else self.unit(value)


def sample(metric: Family, value: Callable[[Of], float | None]) -> Shown[Of]:
    return Shown(value=value, metric=metric)


def words(
    name: str, heading: str, text: Callable[[Of], str], *, shortened: bool = False, drops: int = 0
) -> Shown[Of]:
    return Shown(name, heading, text=text, number=False, shortened=shortened, drops=drops)


@dataclass(frozen=True, slots=True)
class StatusTable:
    """`left_out` counts dropped rows."""

    title: str
    columns: tuple[Column, ...]
    empty: str
    rows: tuple[Cells, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Table(Generic[Of]):
    """`empty` is said in place of rows."""

    title: str
    shown: tuple[Shown[Of], ...]
    empty: str = "none"

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(each for each in self.shown if each.heading)

    @property
    def families(self) -> Iterator[Family]:
        return (each.metric for each in self.shown if each.metric is not None)

    def cells(self, each: Of) -> dict[str, str]:
        return {column.name: column.cell(each) for column in self.shown if column.heading}

    def of(self, rows: Iterable[Of], title: str = "") -> StatusTable:
        return StatusTable(title or self.title, self.columns, self.empty, tuple(map(self.cells, rows)))

    def samples(self, rows: Sequence[tuple[Of, Labels]]) -> Iterator[tuple[Family, Samples]]:
        for each in self.shown:
            if each.metric is not None:
                values = ((labels, each.value(row)) for row, labels in rows)
                yield each.metric, [(labels, float(value)) for labels, value in values if value is not None]
