"""Removes what is old, or read by all who registered.

`.first.json` is raised before anything is removed, so no reader plans with what goes. What a crash leaves, the next
run removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from kcl_landing.control import Refused
from kcl_landing.keeping.compact import Compaction
from kcl_landing.keeping.names import LogObjects, ShardKey, compaction_path
from kcl_landing.keeping.read import Head, Unreadable, first_of, heads, live, optional, page_of, side_by_side
from kcl_landing.keeping.status import needs
from kcl_landing.log import PAGE, Entry, First, LogInfo, ReaderNote, entry_path, first_path, page_path
from kcl_landing.store import LogStore


@dataclass(frozen=True, slots=True)
class Rules:
    """All that is given must hold. A segment without an arrival time is never old.

    `read_by` have committed it; `needed_by` protect what they have not committed.
    """

    before_ms: int | None = None
    read_by: Sequence[ReaderNote] = ()
    needed_by: Sequence[ReaderNote] = ()

    def holds(self, entry: Entry, key: ShardKey) -> bool:
        is_old = self.before_ms is None or 0 < entry.last_ms < self.before_ms
        return is_old and all(entry.to < needs(each, key) for each in self.read_by)

    def who_needs(self, entry: Entry, key: ShardKey) -> str:
        return next((each.name for each in self.needed_by if needs(each, key) <= entry.to), "")


def rules_of(
    readers: Sequence[ReaderNote],
    *,
    before_ms: int | None,
    read_by: Sequence[str],
    all_readers: bool,
    force: bool,
) -> Rules:
    """Refused: nothing is given, or a reader is not registered."""
    known = {each.name: each for each in readers}
    if unknown := [each for each in read_by if each not in known]:
        there = ", ".join(sorted(known)) or "none"
        raise Refused(f"no reader {', '.join(unknown)} is registered; there is {there}")
    if all_readers and not known:
        raise Refused("no reader is registered, so nobody has read anything; use --older-than")
    if before_ms is None and not read_by and not all_readers:
        raise Refused("say what may expire: --older-than 7d, --read-by NAME or --all-readers")
    chosen = readers if all_readers else [known[each] for each in read_by]
    return Rules(before_ms, chosen, () if force else readers)


@dataclass(slots=True)
class Cut:
    """`kept_for`: the reader that needs the next segment.

    `has_gap`: no page knows it; what lies behind must not go before that is mended.
    """

    first: First
    segments: int = 0
    rows: int = 0
    size_bytes: int = 0
    kept_for: str = ""
    has_gap: bool = False


def cut_of(key: ShardKey, first: First, entries: Iterator[Entry], rules: Rules, at_ms: int) -> Cut:
    """The newest stays: the log goes on there."""
    cut = Cut(first)
    gone = next(entries, None)
    for following in entries:
        assert gone is not None, "there is one before"
        cut.has_gap = gone.number > cut.first.first or following.number > gone.to + 1
        if cut.has_gap or not rules.holds(gone, key):
            break
        cut.kept_for = rules.who_needs(gone, key)
        if cut.kept_for:
            break
        cut.segments, cut.rows = cut.segments + 1, cut.rows + gone.rows
        cut.size_bytes += gone.size_bytes
        cut.first = First(
            following.number,
            gone.last,
            max(cut.first.last_ms, gone.last_ms),
            first.segments + cut.segments,
            first.rows + cut.rows,
            first.size_bytes + cut.size_bytes,
            at_ms,
        )
        gone = following
    return cut


class Expirer:
    def __init__(
        self, store: LogStore, info: LogInfo, tell: Callable[[str], object], *, at_ms: int, dry_run: bool
    ) -> None:
        self._store = store
        self._info = info
        self._tell = tell
        self._at_ms = at_ms
        self._dry_run = dry_run

    def run(self, found: LogObjects, rules: Rules, jobs: int) -> Cut:
        whole = Cut(First(0))
        for each in side_by_side(
            lambda head: self._shard(head, rules), heads(self._store, found.shards.values()), jobs
        ):
            whole.segments += each.segments
            whole.rows += each.rows
            whole.size_bytes += each.size_bytes
        return whole

    def _shard(self, head: Head, rules: Rules) -> Cut:
        shard = "/".join(head.key)
        if head.trouble:
            self._tell(f"{shard}: nothing expires: {head.trouble}")
            return Cut(head.first)
        try:
            cut = cut_of(head.key, head.first, self._entries(head), rules, self._at_ms)
            if cut.segments:
                would = "would expire" if self._dry_run else "expire"
                self._tell(
                    f"{shard}: segments {head.first.first} to {cut.first.first - 1} {would}: {cut.rows} records, "
                    f"{cut.size_bytes} bytes"
                )
            if cut.kept_for:
                self._tell(
                    f"{shard}: reader {cut.kept_for} still needs segment {cut.first.first}, so it stays"
                )
            if cut.has_gap:
                self._tell(
                    f"{shard}: nothing expires from segment {cut.first.first} on, as a page is lost: `verify --mend`"
                )
            if not self._dry_run:
                self._raise(head.key, cut.first)
                self._remove(head, cut.first.first)
        except Unreadable as error:
            self._tell(f"{shard}: nothing expires: {error}")
            return Cut(head.first)
        return cut

    def _entries(self, head: Head) -> Iterator[Entry]:
        if head.manifest is None:
            return
        for page in head.older_pages():
            yield from live(page_of(self._store, head.key, page) or (), head.first.first)
        yield from head.newest

    def _raise(self, key: ShardKey, first: First) -> None:
        """Another run may have raised it further."""
        while first_of(self._store, key).first < first.first:
            self._store.replace(first_path(*key), msgspec.json.encode(first))

    def _remove(self, head: Head, first: int) -> None:
        """Before their page, so that a crash forgets none."""
        if not first:
            return
        key = head.key
        for page in sorted(each for each in head.objects.pages if each < first):
            entries = page_of(self._store, key, page) or ()
            self._remove_entries(key, entries, first)
            if page + PAGE <= first and all(each.to < first for each in entries):
                self._remove_notes(head, page)
                self._store.remove([page_path(*key, page)])
        self._remove_entries(key, () if head.manifest is None else head.manifest.entries, first)

    def _remove_entries(self, key: ShardKey, entries: Sequence[Entry], first: int) -> None:
        gone = [entry_path(self._info, *key, each) for each in entries if each.to < first]
        if gone:
            self._store.remove(gone)

    def _remove_notes(self, head: Head, page: int) -> None:
        for number, count in head.objects.compactions:
            path = compaction_path(head.key, page, count)
            note = optional(self._store, path, Compaction) if number == page else None
            if note is not None:
                for group in note.groups:
                    self._remove_entries(head.key, group, page + PAGE)
                self._store.remove([path])
