"""Proves that a log is whole: numbers, positions, checksums, manifests and pages."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import msgspec
from pyarrow import compute

from kcl_landing.keeping.chain import (
    Chain,
    Problem,
    differences,
    family_problems,
    listed_twice,
    spans_of,
    uncovered,
)
from kcl_landing.keeping.complete import statements_of, wrong_marks
from kcl_landing.keeping.names import Held, LogObjects, ShardKey, sorted_out
from kcl_landing.keeping.read import Head, Unreadable, heads, live, page_of, side_by_side, survey
from kcl_landing.log import (
    PAGE,
    Entry,
    Footer,
    LogInfo,
    entry_path,
    first_path,
    manifest_path,
    page_path,
    place,
    said,
    segment_path,
)
from kcl_landing.positions import Position
from kcl_landing.segments import Damaged, decode, read_footer
from kcl_landing.store import LogStore, NoObject

Tell = Callable[[Problem], object]
_C: Final[Any] = compute
_NAMED_OTHERS: Final = 20
_LOST_PAGE: Final = "the page is lost; `verify --mend` makes it again if all its segments are there"
_LOST_MANIFEST: Final = "the manifest is lost; the writer of the shard makes it again when it next begins"


@dataclass(frozen=True, slots=True)
class Work:
    """`held`: segments that are there."""

    head: Head
    page: int
    held: Sequence[Held]


@dataclass(slots=True)
class Facts:
    head: Head
    main: list[tuple[Entry, str]] = field(default_factory=list)
    replaced: int = 0
    problems: list[Problem] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """`notes` are no damage."""

    segments: int = 0
    records: int = 0
    size_bytes: int = 0
    problems: int = 0
    replaced: int = 0
    expired: int = 0
    notes: list[Problem] = field(default_factory=list)

    def __str__(self) -> str:
        found = "clean" if not self.problems else f"{self.problems} problem{'s' * (self.problems > 1)}"
        return (
            f"verified {self.segments} segment{'s' * (self.segments != 1)}, {self.records} "
            f"record{'s' * (self.records != 1)}, {self.size_bytes} bytes: {found}"
        )


class Verifier:
    """Holds at most `2 * jobs` pages of entries, and `jobs` segments.

    `quick`: no segment that has an entry is read. `mend`: a lost page is written again if its segments are there.
    """

    def __init__(
        self, store: LogStore, info: LogInfo, tell: Tell, *, jobs: int, quick: bool, mend: bool = False
    ) -> None:
        self._store = store
        self._info = info
        self._tell = tell
        self._jobs = jobs
        self._quick = quick
        self._mend = mend
        self._children: dict[ShardKey, tuple[str, ...]] = {}
        self._ends: dict[ShardKey, int] = {}
        self._verdict = Verdict()

    def run(self, stream: str | None = None, shard: str | None = None) -> Verdict:
        # Before the segments: what a mark names is there.
        stated = statements_of(self._store, self._info, survey(self._store, self._info, stream, shard))
        found = sorted_out(self._info, self._store.listing(""), stream, shard)
        everything = side_by_side(self._page, self._works(found), self._jobs)
        for _key, pages in groupby(everything, lambda facts: facts.head.key):
            self._shard(pages)
        for each in family_problems(self._children):
            self._problem(each)
        for error in stated.trouble:
            self._problem(Problem(str(error)))
        for each in wrong_marks(
            stated.hosts, self._ends, lambda key: stream in {None, key[0]} and shard in {None, key[1]}
        ):
            self._problem(each)
        self._note_others(found)
        return self._verdict

    def _works(self, found: LogObjects) -> Iterator[Work]:
        for head in heads(self._store, found.shards.values()):
            first, page = head.first.first, -PAGE
            tail = head.tail_page
            wanted = {*head.older_pages(), *([] if tail is None else [tail])}
            kept = (each for each in head.objects.segments() if self._is_kept(each, first))
            for page, held in groupby(kept, lambda each: each.number // PAGE * PAGE):
                yield from (Work(head, each, ()) for each in sorted(wanted) if each < page)
                wanted = {each for each in wanted if each > page}
                yield Work(head, page, tuple(held))
            yield from (Work(head, each, ()) for each in sorted(wanted))
            if page < 0 and tail is None:
                yield Work(head, first // PAGE * PAGE, ())

    def _is_kept(self, held: Held, first: int) -> bool:
        self._verdict.expired += held.to < first
        return held.to >= first

    def _page(self, work: Work) -> Facts:
        facts = Facts(work.head)
        entries = self._entries(work, facts)
        known = {(each.number, each.to): each for each in entries}
        stored = {(each.number, each.to): each for each in work.held}
        unlisted = [
            Held(each.number, each.to, each.size_bytes, entry_path(self._info, *work.head.key, each))
            for key, each in known.items()
            if key not in stored
        ]
        spans = spans_of(sorted((*work.held, *unlisted), key=lambda each: (each.number, -each.to)))
        facts.replaced = len(spans.replaced)
        facts.problems += [Problem(why, work.head.key, each.number, each.path) for each, why in spans.wrong]
        main = {each.path for each in spans.main}
        for held in (*spans.main, *spans.replaced):
            is_listed = stored.get((held.number, held.to)) is held
            found = self._segment(work.head.key, held, known.get((held.number, held.to)), is_listed, facts)
            if found is not None and held.path in main:
                facts.main.append((found, held.path))
        left = [Held(each.number, each.to, each.size_bytes, path) for each, path in facts.main]
        for each in uncovered(left, entries):
            facts.problems.append(
                Problem("the page of its numbers has no entry for it", work.head.key, each.number, each.path)
            )
        if self._mend and [each.message for each in facts.problems] == [_LOST_PAGE]:
            self._write_page(work, facts)
        return facts

    def _write_page(self, work: Work, facts: Facts) -> None:
        entries = [entry for entry, _path in facts.main]
        chain = Chain(work.head.key, max(work.page, work.head.first.first))
        is_whole = bool(entries) and not any(list(chain.take(each)) for each in entries)
        if is_whole and chain.number == work.page + PAGE and chain.last:
            path = page_path(*work.head.key, work.page)
            # One made meanwhile may be compacted.
            self._store.create(path, msgspec.json.encode(entries))
            facts.problems = [Problem("the page was lost; it is there again", work.head.key, work.page, path)]

    def _entries(self, work: Work, facts: Facts) -> list[Entry]:
        head, key = work.head, work.head.key
        path = page_path(*key, work.page)
        entries: Sequence[Entry] = ()
        try:
            if head.tail_page == work.page:
                path, entries = manifest_path(*key), head.newest
            else:
                found = page_of(self._store, key, work.page)
                entries = live(found or (), head.first.first)
                if found is None and head.tail_page is not None and work.page < head.tail_page:
                    facts.problems.append(Problem(_LOST_PAGE, key, work.page, path))
        except Unreadable as error:
            facts.problems.append(Problem(str(error), key, work.page, path))
        facts.problems += [Problem(each, key, None, path) for each in listed_twice(entries)]
        return [each for each in entries if each.number // PAGE * PAGE == work.page]

    def _segment(
        self, key: ShardKey, held: Held, entry: Entry | None, is_listed: bool, facts: Facts
    ) -> Entry | None:
        """None: it was removed, and no page knows it."""

        def problem(message: str) -> None:
            facts.problems.append(Problem(message, key, held.number, held.path))

        if self._quick and is_listed and entry is not None:
            if entry.size_bytes != held.size_bytes:
                problem(f"it has {held.size_bytes} bytes, and its entry says {entry.size_bytes}")
            return entry
        try:
            content = self._store.read(held.path)
        except NoObject:
            if entry is not None:
                problem(f"it is missing: {entry.rows} records after {entry.after} up to {entry.last}")
            return entry
        found, wrong = self._examined(held, content)
        if found is not None and entry is not None:
            wrong += differences(entry, found)
        elif entry is not None and (entry.size_bytes, entry.crc) != (len(content), zlib.crc32(content)):
            wrong.append(
                f"it has {len(content)} bytes with crc {zlib.crc32(content)}, and its entry says "
                f"{entry.size_bytes} and {entry.crc}"
            )
        for each in wrong:
            problem(each)
        unknown = Entry(held.number, held.to, "", "", 0, len(content), 0, 0, 0)
        return found or entry or unknown

    def _examined(self, held: Held, content: bytes) -> tuple[Entry | None, list[str]]:
        try:
            footer = read_footer(content, self._info.format)
        except Damaged as error:
            return None, [f"it is damaged: {error}"]
        wrong = self._foreign(held, footer)
        if not self._quick:
            try:
                wrong += position_problems(decode(content, self._info.format), footer)
            except Damaged as error:
                wrong.append(f"it is damaged: {error}")
        found = footer.entry(len(content), zlib.crc32(content))
        # `_foreign` has told where the footer differs.
        return msgspec.structs.replace(found, number=held.number, to=held.to), wrong

    def _foreign(self, held: Held, footer: Footer) -> list[str]:
        says = segment_path(
            self._info,
            footer.stream,
            footer.shard,
            number=footer.number,
            to=footer.to,
            first_ms=footer.first_ms,
            is_end=footer.children is not None,
        )
        wrong = (
            [f"it is the segment of another place: it says that it is {says}"] if says != held.path else []
        )
        if footer.application != self._info.application:
            wrong.append(
                f"application {footer.application} wrote it, and the log is of {self._info.application}"
            )
        return wrong

    def _shard(self, pages: Iterator[Facts]) -> None:
        chain: Chain | None = None
        head: Head | None = None
        for facts in pages:
            head = facts.head
            if chain is None:
                chain = Chain(head.key, head.first.first, head.first.last)
                if head.trouble:
                    self._problem(Problem(head.trouble, head.key))
            for each in facts.problems:
                self._problem(each)
            for entry, path in facts.main:
                for each in chain.take(entry, path):
                    self._problem(each)
                self._verdict.records += entry.rows
                self._verdict.size_bytes += entry.size_bytes
            self._verdict.segments += len(facts.main)
            self._verdict.replaced += facts.replaced
        if chain is not None and head is not None:
            self._end_of_shard(head, chain)

    def _end_of_shard(self, head: Head, chain: Chain) -> None:
        self._ends[head.key] = chain.number - 1
        if chain.is_ended:
            self._children[head.key] = chain.children
        known = -1 if head.manifest is None or not head.newest else head.newest[-1].to
        if not head.objects.has_manifest and chain.number - chain.first > 1:
            path = manifest_path(*head.key)
            self._problem(Problem(_LOST_MANIFEST, head.key, None, path))
        elif chain.number - 1 > known and not head.trouble:
            self._verdict.notes.append(
                Problem(
                    f"the manifest ends with {known}, the log with {chain.number - 1}: readers see the rest when the "
                    "writer of the shard next writes",
                    head.key,
                )
            )
        if not chain.is_begun and head.first.first:
            path = first_path(*head.key)
            self._problem(Problem("everything has expired, also the newest segment", head.key, None, path))

    def _note_others(self, found: LogObjects) -> None:
        named = found.others[:_NAMED_OTHERS]
        self._verdict.notes += [Problem("is no object of a landing log", path=each) for each in named]
        if len(found.others) > len(named):
            self._verdict.notes.append(
                Problem(f"{len(found.others) - len(named)} more are no objects of the log")
            )

    def _problem(self, problem: Problem) -> None:
        self._verdict.problems += 1
        self._tell(problem)


def position_problems(table: Any, footer: Footer) -> list[str]:
    """Positions must grow, in (after, last]."""
    wrong = []
    if table.num_rows != footer.rows:
        wrong.append(f"it has {table.num_rows} records, and says {footer.rows}")
    for column, expected in (("stream", footer.stream), ("shard_id", footer.shard)):
        if table.num_rows and _C.unique(table.column(column)).to_pylist() != [expected]:
            wrong.append(f"column {column} is not {expected} throughout")
    if footer.children is not None and table.num_rows:
        wrong.append("it is the end of the shard, and has records")
    if not table.num_rows or wrong:
        return wrong
    sequences = table.column("sequence_number").combine_chunks()
    if sequences.null_count or not _C.all(_C.ascii_is_decimal(sequences)).as_py():
        return ["it has a record without a sequence number"]
    if (row := _first_not_growing(table)) is not None:
        return [
            f"its records {row} and {row + 1} do not grow: {said(_at(table, row))}, {said(_at(table, row + 1))}"
        ]
    first, last = _at(table, 0), _at(table, table.num_rows - 1)
    if first <= place(footer.after) or last > place(footer.last):
        return [
            f"its records are {said(first)} to {said(last)}, and it says after {footer.after} up to {footer.last}"
        ]
    return []


def _at(table: Any, row: int) -> Position:
    sequences, subs = table.column("sequence_number"), table.column("sub_sequence_number")
    return int(sequences[row].as_py()), subs[row].as_py() or 0


def _first_not_growing(table: Any) -> int | None:
    """By texts of digits, too large for integers."""
    sequences, subs = table.column("sequence_number"), table.column("sub_sequence_number")
    lengths = _C.binary_length(sequences)
    is_greater: Any = _C.greater(subs[1:], subs[:-1])
    for column in (sequences, lengths):
        younger, older = column[1:], column[:-1]
        is_greater = _C.or_(_C.greater(younger, older), _C.and_(_C.equal(younger, older), is_greater))
    at = _C.index(is_greater, False).as_py()
    return None if at < 0 else int(at)
