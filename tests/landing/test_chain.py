"""The rules of a chain of segments: whole ones have no problem, and each kind of break has one."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kcl_landing.keeping.chain import Chain, Problem, family_problems, listed_twice, spans_of, uncovered
from kcl_landing.keeping.names import Held
from kcl_landing.log import Entry

KEY = ("orders", "shardId-000000000000")


def problems(entries: list[Entry], *, number: int = 0, last: str = "") -> list[Problem]:
    chain = Chain(KEY, number, last)
    return [problem for each in entries for problem in chain.take(each)]


@st.composite
def chains(draw: st.DrawFn) -> list[Entry]:
    """At least three segments, some merged; numbers and positions of any length."""
    found, number, at = list[Entry](), draw(st.integers(0, 300)), draw(st.integers(-1, 10**40))
    for _ in range(draw(st.integers(3, 12))):
        width, rows = draw(st.integers(1, 5)), draw(st.integers(1, 10**30))
        found.append(Entry(number, number + width - 1, f"{at}/0", f"{at + rows}/0", rows, 9, 0, 0, 0))
        number, at = number + width, at + rows
    if draw(st.booleans()):
        found.append(Entry(number, number, f"{at}/0", f"{at}/0", 0, 9, 0, 0, 0, children=("x",)))
    return found


def held(entries: list[Entry]) -> list[Held]:
    return [Held(each.number, each.to, 9, f"at {each.number}-{each.to}") for each in entries]


@given(chains())
def test_a_whole_chain_has_no_problem(entries: list[Entry]) -> None:
    first = entries[0]
    assert problems(entries, number=first.number, last=first.after) == []
    assert problems(entries, number=first.number) == []
    assert not listed_twice(entries)
    spans = spans_of(held(entries))
    assert (spans.main, spans.replaced, spans.wrong) == (held(entries), [], [])
    assert uncovered(held(entries), entries) == []


@given(chains(), st.data())
def test_each_break_is_one_problem_at_its_place(entries: list[Entry], data: st.DataObject) -> None:
    first, at = entries[0], data.draw(st.integers(1, len(entries) - 2))
    entry = entries[at]

    def broken(*new: Entry) -> list[Problem]:
        return problems([*entries[:at], *new, *entries[at + 1 :]], number=first.number, last=first.after)

    [gap] = broken()
    assert gap.number == entry.number
    assert f"between {entry.after} and {entry.last}" in gap.message
    sequence = int(entry.after.split("/")[0])
    [missing] = broken(msgspec.structs.replace(entry, after=f"{sequence}/1"))
    assert (missing.number, "is missing" in missing.message) == (entry.number, True)
    [repeats] = broken(msgspec.structs.replace(entry, after=f"{sequence - 1}/0"))
    assert (repeats.number, "it repeats records" in repeats.message) == (entry.number, True)
    [twice] = broken(entry, entry)
    assert (twice.number, "overlaps" in twice.message) == (entry.number, True)
    assert (
        broken(msgspec.structs.replace(entry, after="", last="")) == []
    )  # cannot be read: that has been said
    backwards = broken(msgspec.structs.replace(entry, last=f"{sequence - 1}/0"))
    assert "not behind its beginning" in backwards[0].message


@given(chains(), st.data())
def test_merged_segments_stand_for_those_that_they_hold(entries: list[Entry], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(entries) - 2))
    end = data.draw(st.integers(begin + 1, len(entries) - 1))
    merged = Held(entries[begin].number, entries[end].to, 9, "merged")
    left = [
        each
        for each in held(entries)
        if data.draw(st.booleans()) or not (merged.number <= each.number <= merged.to)
    ]
    spans = spans_of(sorted([*left, merged], key=lambda each: (each.number, -each.to)))
    assert spans.wrong == []
    assert merged in spans.main
    assert all(merged.number <= each.number and each.to <= merged.to for each in spans.replaced)
    assert len(spans.main) + len(spans.replaced) == len(left) + 1


def test_the_first_segment_may_be_merged_over_what_has_expired() -> None:
    assert problems([Entry(0, 9, "1/0", "9/0", 8, 9, 0, 0, 0)], number=5, last="5/0") == []
    assert problems([Entry(0, 3, "1/0", "9/0", 8, 9, 0, 0, 0)], number=5, last="5/0") != []


def test_ancestors() -> None:
    def family(**children: list[str]) -> list[str]:
        return [str(each) for each in family_problems({("s", key): value for key, value in children.items()})]

    assert family(a=["b", "c"], b=["d"], c=["d"]) == []
    assert family(a=["b"], b=["a"], c=["c"]) == [
        f"s/{each}: its end names it among its own descendants" for each in "abc"
    ]
