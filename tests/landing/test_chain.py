"""The rules of a chain of segments: whole ones have no problem, and each kind of break has one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_landing.keeping.chain import (
    Chain,
    Problem,
    differences,
    family_problems,
    listed_twice,
    spans_of,
    uncovered,
)
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


def segment(
    number: int, to: int, after: str, last: str, rows: int = 1, *, children: tuple[str, ...] | None = None
) -> Entry:
    return Entry(number, to, after, last, rows, 9, 0, 0, 0, children=children)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            [segment(0, 0, "-1/0", "5/0"), segment(2, 2, "7/0", "9/0")],
            ["segment 1: segment 1 missing: the log has nothing between 5/0 and 7/0"],
        ),
        (
            [segment(0, 0, "-1/0", "5/0"), segment(4, 4, "", "")],
            ["segment 1: segment 1 to 3 missing: the log has nothing between 5/0 and ?"],
        ),
        (
            [segment(0, 4, "-1/0", "5/0"), segment(3, 9, "4/0", "9/0"), segment(10, 10, "9/0", "10/0")],
            ["segment 3: overlaps the segments up to 4"],
        ),
        (
            [segment(0, 4, "-1/0", "5/0"), segment(2, 3, "4/0", "5/0"), segment(5, 5, "5/0", "6/0")],
            ["segment 2: overlaps the segments up to 4"],
        ),
        ([segment(0, 5, "-1/0", ""), segment(6, 6, "5/0", "")], []),
        ([segment(0, 0, "", "5/0"), segment(1, 1, "5/0", "5/0", 0)], []),
        (
            [segment(0, 0, "5/3", "5/3")],
            ["segment 0: ends at 5/3, not behind its beginning after 5/3"],
        ),
    ],
)
def test_each_break_of_the_chain_is_named_once_with_numbers_and_places(
    entries: list[Entry], said: list[str]
) -> None:
    assert [str(each).removeprefix("/".join(KEY) + " ") for each in problems(entries)] == said


def test_nothing_comes_after_the_end_of_a_shard_and_its_children_stay_known() -> None:
    chain = Chain(KEY)
    for each in (segment(0, 6, "-1/0", "5/0"), segment(7, 7, "5/0", "5/0", 0, children=("a", "b"))):
        assert list(chain.take(each)) == []
    for number in (8, 9):
        (late,) = chain.take(segment(number, number, f"{number - 3}/0", f"{number - 2}/0"))
        assert late.message == f"comes after the end of the shard, segment {number - 1}"
        assert (chain.is_ended, chain.children) == (True, ("a", "b"))


@pytest.mark.parametrize(("first", "to"), [(0, 5), (0, 9), (5, 5)])
def test_a_log_may_begin_within_a_merged_segment(first: int, to: int) -> None:
    chain = Chain(KEY, 5, "5/0")
    assert list(chain.take(segment(first, to, "5/0", "9/0"))) == []
    assert (chain.first, chain.number) == (5, to + 1)


def test_segments_that_stand_beside_each_other_with_the_same_numbers_are_named() -> None:
    first, twice, across = (
        Held(0, 4, 9, "first"),
        Held(0, 4, 9, "twice"),
        Held(3, 5, 9, "across"),
    )
    spans = spans_of(
        [first, twice, Held(4, 4, 9, "within"), across, Held(5, 6, 9, "next"), Held(6, 6, 9, "in next")]
    )
    assert [each.path for each in spans.main] == ["first", "next"]
    assert [each.path for each in spans.replaced] == ["within", "in next"]
    assert spans.wrong == [
        (twice, "its number is there twice, also as first"),
        (across, "holds numbers 3 to 5, which first has in part"),
    ]


def test_files_without_an_entry_are_found_up_to_the_last_entry() -> None:
    files = [Held(number, number, 9, str(number)) for number in range(7)]
    entries = [segment(0, 1, "-1/0", "2/0"), segment(4, 5, "5/0", "6/0")]
    assert [each.number for each in uncovered(files, entries)] == [2, 3]
    assert uncovered(files, []) == []


def test_entries_that_share_a_number_are_listed_twice() -> None:
    entries = [segment(0, 3, "", ""), segment(3, 5, "", ""), segment(4, 6, "", ""), segment(7, 7, "", "")]
    assert listed_twice(entries) == [
        f"entries {one} and {other} are not in order: readers would repeat records"
        for one, other in (("0 to 3", "3 to 5"), ("3 to 5", "4 to 6"))
    ]


def test_an_entry_that_says_something_else_than_its_segment_is_told_by_field() -> None:
    said = segment(0, 0, "-1/0", "5/0")
    assert differences(said, said) == []
    assert differences(said, msgspec.structs.replace(said, rows=2)) == ["rows is 2, and its entry says 1"]


def test_ancestors() -> None:
    def family(**children: list[str]) -> list[str]:
        return [str(each) for each in family_problems({("s", key): value for key, value in children.items()})]

    assert family(a=["b", "c"], b=["d"], c=["d"]) == []
    assert family(a=["b"], b=["a"], c=["c"]) == [
        f"s/{each}: its end names it among its own descendants" for each in "abc"
    ]
