"""Merges small segments of full pages into larger ones.

After a crash anybody may go on with the steps for a page:

1. A note says which segments are to be merged. Compactors that see the same page use one note.
2. The merged segments are created. Nobody knows them yet.
3. The page is written with their entries. Readers read either the old segments or the merged ones.
4. After the grace period what was merged is removed, then the note.

A writer creates a full page only if it is not there, so a late one does not undo step 3.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from kcl_landing.control import Refused
from kcl_landing.keeping.names import LogObjects, ShardKey, compaction_path
from kcl_landing.keeping.read import Head, Unreadable, heads, optional, page_of, side_by_side
from kcl_landing.keeping.verify import position_problems
from kcl_landing.log import Entry, Footer, LogInfo, entry_path, page_path, segment_path
from kcl_landing.segments import Damaged, decode, encode, read_footer
from kcl_landing.store import LogStore, NoObject

NOT_DATED: Final = (
    "a log with layout dated is not compacted: Spark's file source, Athena and others would read the merged file as new "
    "records beside the old ones. Make larger segments (landingWindowMillis, landingMaxBytes), or compact the table that "
    "you write from it"
)


class Compaction(msgspec.Struct, frozen=True, rename="camel"):
    """`swapped_ms` 0: the page is not written yet."""

    groups: tuple[tuple[Entry, ...], ...]
    at_ms: int
    swapped_ms: int = 0


class Compacted(msgspec.Struct):
    merged: int = 0
    into: int = 0
    size_bytes: int = 0
    removed: int = 0
    waiting: int = 0

    def add(self, other: Compacted) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def groups_of(entries: Iterable[Entry], target_bytes: int) -> tuple[tuple[Entry, ...], ...]:
    """Neighbours, at most `target_bytes` together. What has half of it is not worth a copy."""
    groups: list[tuple[Entry, ...]] = []
    open_group: list[Entry] = []
    size = 0
    for each in entries:
        is_small = not each.is_end and each.size_bytes < target_bytes / 2
        follows = not open_group or open_group[-1].to + 1 == each.number
        if not is_small or not follows or size + each.size_bytes > target_bytes:
            groups.append(tuple(open_group))
            open_group, size = [], 0
        if is_small:
            open_group.append(each)
            size += each.size_bytes
    groups.append(tuple(open_group))
    return tuple(each for each in groups if len(each) > 1)


def swapped(entries: Sequence[Entry], merged: Iterable[Entry]) -> list[Entry]:
    found = list(entries)
    for new in merged:
        inside = [at for at, each in enumerate(found) if new.number <= each.number and each.to <= new.to]
        if inside and (found[inside[0]].number, found[inside[-1]].to) == (new.number, new.to):
            found[inside[0] : inside[-1] + 1] = [new]
    return found


class Compactor:
    """`grace_ms`: how long readers may use what they planned with."""

    def __init__(
        self,
        store: LogStore,
        info: LogInfo,
        tell: Callable[[str], object],
        now_ms: Callable[[], int],
        *,
        target_bytes: int,
        grace_ms: int,
        writer: str,
        dry_run: bool = False,
    ) -> None:
        if info.layout == "dated":
            raise Refused(NOT_DATED)
        self._store = store
        self._info = info
        self._tell = tell
        self._now_ms = now_ms
        self._target_bytes = target_bytes
        self._grace_ms = grace_ms
        self._writer = writer
        self._dry_run = dry_run

    def run(self, found: LogObjects, jobs: int) -> Compacted:
        """`jobs` pages at a time, a merged segment of each in memory."""
        whole = Compacted()
        pages = (
            (head, page) for head in heads(self._store, found.shards.values()) for page in _pages_of(head)
        )
        for each in side_by_side(lambda work: self._page(*work), pages, jobs):
            whole.add(each)
        return whole

    def _page(self, head: Head, page: int) -> Compacted:
        done, key = Compacted(), head.key
        try:
            begun = [entries for number, entries in sorted(head.objects.compactions) if number == page]
            for entries in begun:
                self._go_on(key, page, compaction_path(key, page, entries), done)
            if not begun:
                self._begin(head, page, done)
        except NoObject:
            self._tell(
                f"{'/'.join(key)} page {page}: somebody else has compacted it meanwhile, or it expired"
            )
        except (Damaged, Unreadable) as error:
            self._tell(
                f"{'/'.join(key)} page {page}: left as it is: {error}; see `kcl-daemon landing verify`"
            )
        return done

    def _begin(self, head: Head, page: int, done: Compacted) -> None:
        key = head.key
        entries = page_of(self._store, key, page) or ()
        groups = groups_of([each for each in entries if each.number >= head.first.first], self._target_bytes)
        if not groups:
            return
        if self._dry_run:
            self._count(done, groups)
            self._tell(f"{'/'.join(key)} page {page}: {_words(groups)}")
            return
        path = compaction_path(key, page, len(entries))
        self._store.create(path, msgspec.json.encode(Compaction(groups, self._now_ms())))
        self._go_on(key, page, path, done)

    def _go_on(self, key: ShardKey, page: int, path: str, done: Compacted) -> None:
        note = optional(self._store, path, Compaction)
        if note is None:
            return
        if self._dry_run:
            done.waiting += sum(map(len, note.groups))
            return
        if not note.swapped_ms or self._is_used(key, page, note):
            if not self._swap(key, page, note):
                return
            self._count(done, note.groups)
            self._tell(f"{'/'.join(key)} page {page}: {_words(note.groups)}")
            note = msgspec.structs.replace(note, swapped_ms=self._now_ms())
            self._store.replace(path, msgspec.json.encode(note))
        count = sum(map(len, note.groups))
        if self._now_ms() - note.swapped_ms < self._grace_ms:
            done.waiting += count
            return
        self._store.remove([entry_path(self._info, *key, each) for group in note.groups for each in group])
        self._store.remove([path])
        done.removed += count

    def _is_used(self, key: ShardKey, page: int, note: Compaction) -> bool:
        entries = {(each.number, each.to) for each in page_of(self._store, key, page) or ()}
        return any((each.number, each.to) in entries for group in note.groups for each in group)

    def _swap(self, key: ShardKey, page: int, note: Compaction) -> bool:
        merged = [self._merged(key, group) for group in note.groups]
        entries = page_of(self._store, key, page)
        if entries is None:
            return False
        self._store.replace(page_path(*key, page), msgspec.json.encode(swapped(entries, merged)))
        return True

    def _merged(self, key: ShardKey, group: Sequence[Entry]) -> Entry:
        """By now, before, or another. Raises NoObject, Damaged."""
        number, to = group[0].number, group[-1].to
        path = segment_path(self._info, *key, number=number, to=to, first_ms=0, is_end=False)
        try:
            content: bytes | memoryview = self._store.read(path)
        except NoObject:
            content = self._encoded(key, group)
            if not self._store.create(path, content):
                content = self._store.read(path)
        footer = read_footer(content, self._info.format)
        expected = number, to, group[0].after, group[-1].last, sum(each.rows for each in group)
        if (footer.number, footer.to, footer.after, footer.last, footer.rows) != expected:
            raise Damaged(f"{path} does not hold what {number} to {to} hold")
        return footer.entry(len(content), zlib.crc32(content))

    def _encoded(self, key: ShardKey, group: Sequence[Entry]) -> memoryview:
        batches, starts, last, rows = [], list[tuple[int, int]](), group[0].after, 0
        for each in group:
            path = entry_path(self._info, *key, each)
            content = self._store.read(path)
            footer, table = read_footer(content, self._info.format), decode(content, self._info.format)
            wrong = position_problems(table, footer)
            if wrong or footer.entry(len(content), zlib.crc32(content)) != each or each.after != last:
                raise Damaged(f"{path} is not what its entry says{''.join(f': {every}' for every in wrong)}")
            starts += [(start, rows + row) for start, row in footer.starts or ((each.number, 0),)]
            batches += table.to_batches()
            last, rows = each.last, rows + each.rows
        footer = Footer(
            application=self._info.application,
            stream=key[0],
            shard=key[1],
            number=group[0].number,
            to=group[-1].to,
            after=group[0].after,
            last=last,
            rows=rows,
            first_ms=next((each.first_ms for each in group if each.first_ms), 0),
            last_ms=max(each.last_ms for each in group),
            token=max(each.token for each in group),
            writer=self._writer,
            starts=tuple(starts),
        )
        return encode(self._info, batches, footer)

    @staticmethod
    def _count(done: Compacted, groups: Sequence[Sequence[Entry]]) -> None:
        done.into += len(groups)
        done.merged += sum(map(len, groups))
        done.size_bytes += sum(each.size_bytes for group in groups for each in group)


def _pages_of(head: Head) -> list[int]:
    """Full ones before the newest, and those with a note."""
    tail = head.tail_page
    noted = {page for page, _entries in head.objects.compactions}
    return sorted({*(each for each in head.older_pages() if tail is not None and each < tail), *noted})


def _words(groups: Sequence[Sequence[Entry]]) -> str:
    return f"{sum(map(len, groups))} segments into {len(groups)}"
