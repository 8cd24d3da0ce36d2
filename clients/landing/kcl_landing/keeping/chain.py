"""What is wrong with a chain of segments, and which stand for others. Pure.

Of one that cannot be read `after` and `last` are empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from kcl_landing.keeping.names import Held, ShardKey
from kcl_landing.log import Entry, place


class Problem(NamedTuple):
    """`number` None: of the shard or the log."""

    message: str
    key: ShardKey | None = None
    number: int | None = None
    path: str = ""

    def __str__(self) -> str:
        where = [] if self.key is None else ["/".join(self.key)]
        where += [] if self.number is None else [f"segment {self.number}"]
        where += [f"({self.path})"] if self.path else []
        return f"{' '.join(where)}: {self.message}" if where else self.message


@dataclass(slots=True)
class Chain:
    """In order. `last`: the end so far."""

    key: ShardKey
    number: int = 0
    last: str = ""
    is_ended: bool = False
    children: tuple[str, ...] = ()
    is_begun: bool = False
    first: int = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.number

    def take(self, entry: Entry, path: str = "") -> Iterator[Problem]:
        def problem(message: str) -> Problem:
            return Problem(message, self.key, entry.number, path)

        if self.is_ended:
            yield problem(f"comes after the end of the shard, segment {self.number - 1}")
        skipped = entry.number - self.number
        if skipped > 0:
            upto = "" if skipped == 1 else f" to {entry.number - 1}"
            gap = f"missing: the log has nothing between {self.last or '?'} and {entry.after or '?'}"
            yield Problem(f"segment {self.number}{upto} {gap}", self.key, self.number)
        elif skipped < 0 and (self.is_begun or entry.to < self.number):
            yield problem(f"overlaps the segments up to {self.number - 1}")
        elif not skipped and self.last and entry.after:
            yield from (problem(each) for each in self._joins(entry))
        if entry.after and entry.last:
            begins, ends = place(entry.after), place(entry.last)
            if ends < begins or (ends == begins and entry.rows):
                yield problem(f"ends at {entry.last}, not behind its beginning after {entry.after}")
        self.number, self.last, self.is_begun = max(entry.to + 1, self.number), entry.last, True
        self.is_ended, self.children = self.is_ended or entry.is_end, entry.children or self.children

    def _joins(self, entry: Entry) -> Iterator[str]:
        begins, ended = place(entry.after), place(self.last)
        if begins > ended:
            yield f"begins after {entry.after}, but the one before ends at {self.last}: what is between is missing"
        elif begins < ended:
            yield f"begins after {entry.after}, but the one before ends at {self.last}: it repeats records"


@dataclass(slots=True)
class Spans:
    """`replaced` lie within one of `main`."""

    main: list[Held] = field(default_factory=list)
    replaced: list[Held] = field(default_factory=list)
    wrong: list[tuple[Held, str]] = field(default_factory=list)


def spans_of(segments: Iterable[Held]) -> Spans:
    found = Spans()
    for each in segments:
        last = found.main[-1] if found.main else None
        if last is None or each.number > last.to:
            found.main.append(each)
        elif (each.number, each.to) == (last.number, last.to):
            found.wrong.append((each, f"its number is there twice, also as {last.path}"))
        elif each.to <= last.to:
            found.replaced.append(each)
        else:
            found.wrong.append(
                (each, f"holds numbers {each.number} to {each.to}, which {last.path} has in part")
            )
    return found


def differences(said: Entry, found: Entry) -> list[str]:
    return [
        f"{name} is {getattr(found, name)}, and its entry says {getattr(said, name)}"
        for name in Entry.__struct_fields__
        if getattr(said, name) != getattr(found, name)
    ]


def uncovered(main: Sequence[Held], entries: Sequence[Entry]) -> list[Held]:
    if not entries:
        return []
    covered = {number for each in entries for number in range(each.number, each.to + 1)}
    newest = max(each.to for each in entries)
    return [each for each in main if each.number <= newest and each.number not in covered]


def listed_twice(entries: Sequence[Entry]) -> list[str]:
    return [
        f"entries {before.number} to {before.to} and {each.number} to {each.to} are not in order: readers would repeat records"
        for before, each in pairwise(entries)
        if each.number <= before.to
    ]


def family_problems(children: Mapping[ShardKey, Sequence[str]]) -> list[Problem]:
    """A shard that descends from itself would never be read."""
    found = []
    for key in children:
        stream, shard = key
        seen, todo = set[str](), list(children[key])
        while todo:
            each = todo.pop()
            if each not in seen:
                seen.add(each)
                todo += children.get((stream, each), ())
        if shard in seen:
            found.append(Problem("its end names it among its own descendants", key))
    return found
