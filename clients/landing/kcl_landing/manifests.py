"""Opens a log; manifest and pages of a shard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice, pairwise, takewhile
from typing import Final, TypeAlias
from zlib import crc32

import msgspec

from kcl_landing.control import Refused
from kcl_landing.log import (
    INFO,
    MANIFESTS,
    PAGE,
    VERSION,
    Begin,
    Damaged,
    Entry,
    First,
    Footer,
    Format,
    LogInfo,
    Manifest,
    begin_path,
    entry_path,
    first_path,
    manifest_path,
    page_path,
    place,
    segment_path,
)
from kcl_landing.positions import START, Position
from kcl_landing.store import LogStore, NoObject
from kcl_landing.writer import LogAltered, Tail

ReadFooter: TypeAlias = Callable[[bytes | memoryview, Format], Footer]
_LOOKED_AT_MOST: Final = 2000
"""Of a listing in layout `dated`. A segment beyond is met when its number is taken."""
_HOUR_MS: Final = 3_600_000
_MOST_MS: Final = 253_402_300_800_000


class OtherLog(Refused): ...


def open_log(store: LogStore, wanted: LogInfo) -> LogInfo:
    """Create the log, or check the one that is there. OtherLog: of another application, layout or format, or none."""
    known = _info(store)
    if known is None:
        if next(iter(store.listing(MANIFESTS)), None) is not None:
            raise OtherLog(
                f"the landing has {MANIFESTS}/ but no {INFO}: it was removed. Put it back, or use an empty prefix"
            )
        if store.create(INFO, msgspec.json.encode(wanted)):
            return wanted
        known = known_log(store)
    for key, what in (
        ("application", "applicationName"),
        ("layout", "landingLayout"),
        ("format", "landingFormat"),
    ):
        there, ours = getattr(known, key), getattr(wanted, key)
        if there != ours:
            raise OtherLog(
                f"the landing is a log with {what} = {there}, and the properties say {ours}. "
                f"Set landing to a prefix of its own, or {what} to {there}"
            )
    return known


def known_log(store: LogStore) -> LogInfo:
    known = _info(store)
    if known is None:
        raise OtherLog(f"there is no landing log: {INFO} is missing. Check the address, up to the prefix")
    return known


def _info(store: LogStore) -> LogInfo | None:
    try:
        info = msgspec.json.decode(store.read(INFO), type=LogInfo)
    except NoObject:
        return None
    except msgspec.DecodeError as error:
        raise OtherLog(f"{INFO} is not the description of a landing log: {error}") from error
    if info.version != VERSION:
        raise OtherLog(
            f"the landing log has version {info.version}; this program knows {VERSION}. Upgrade it"
        )
    return info


def _read_footer(content: bytes | memoryview, file_format: Format) -> Footer:
    from kcl_landing import segments

    return segments.read_footer(content, file_format)


class ShardLog:
    """For one thread. Only the writer calls `open`, `append`, `adopt`, `at_tip` and `mend`.

    `warn` is told what is damaged; the segments are read instead, which may raise LogAltered or Damaged.
    """

    def __init__(
        self,
        store: LogStore,
        info: LogInfo,
        stream: str,
        shard: str,
        read_footer: ReadFooter | None = None,
        *,
        warn: Callable[[str], object] = lambda _message: None,
        marks: bool = False,
    ) -> None:
        self._marks = marks
        self._store = store
        self._info = info
        self._stream = stream
        self._shard = shard
        self._read_footer = read_footer or _read_footer
        self._warn = warn
        self._entries: list[Entry] = []
        self._found: dict[int, Entry] = {}
        self._bad_pages: set[str] = set()
        self._others: dict[int, Begin] = {}
        before = "" if info.layout == "log" else rf"{re.escape(shard)}-"
        self._name = re.compile(rf"{before}(\d{{12,}})(?:-(\d{{12,}}))?\.{info.format}")

    def open(self, *, is_new: bool = False, checkpoint: Position = START) -> Tail:
        """Find the true end, and write the manifest if it said another.

        In layout `dated` a shard without manifest lists the whole stream, unless `is_new`.
        """
        manifest = self.manifest()
        known = manifest.entries if manifest else ()
        if known and not self._is_true(known[-1]):
            self._warn(
                f"{self._at} is not what segment {known[-1].number} says; the segments are listed instead"
            )
            self._entries = self._newest_page()
        else:
            self._entries = list(known) or self._newest_page()
        most = _LOOKED_AT_MOST if self._entries or is_new else None
        self._add_beyond(most)
        if self._entries and self.tail.last < checkpoint:
            self._add_beyond(None)
        if tuple(self._entries) != known:
            self._write(manifest.behind_ms if manifest else None, manifest.at_ms if manifest else 0)
        return self.tail

    def mend_end(self) -> None:
        """For anyone: a writer that wakes in a PUT puts its old manifest over that of an ended shard."""
        manifest = self.manifest()
        if manifest is None or any(each.is_end for each in manifest.entries[-1:]):
            return
        if self._info.layout == "dated" and next(self._ends(), None) is None:
            return
        self._entries = list(manifest.entries) or self._newest_page()
        self._add_beyond(None)
        if self.tail.is_ended:
            self._warn(f"{self._at} had not the end of the shard: an older writer wrote it last")
            self._write(manifest.behind_ms, manifest.at_ms)

    @property
    def tail(self) -> Tail:
        if not self._entries:
            return Tail()
        last = self._entries[-1]
        return Tail(last.to, place(last.last), max(each.last_ms for each in self._entries), last.is_end)

    def append(self, entry: Entry, *, behind_ms: int | None, at_ms: int) -> None:
        """May be repeated after StoreTrouble."""
        self._add(entry)
        self._write(behind_ms, at_ms)

    def adopt(self, footer: Footer, *, behind_ms: int | None, at_ms: int) -> None:
        self.append(self._found[footer.number], behind_ms=behind_ms, at_ms=at_ms)

    def at_tip(self, *, behind_ms: int | None, at_ms: int) -> None:
        self._write(behind_ms, at_ms)

    def mend(self, *, behind_ms: int | None, at_ms: int) -> None:
        """If our newest segment is missing there. That of a newer owner stays."""
        found = self.manifest()
        if found is None or not found.entries or found.entries[-1].to < self.tail.number:
            self._warn(f"{self._at} had not segment {self.tail.number}: an older writer wrote it last")
            self._write(behind_ms, at_ms)

    def footer(self, number: int, first_ms: int, is_end: bool) -> Footer | None:
        if number in self._others:
            first_ms, is_end = self._others[number].first_ms, self._others[number].is_end
        path = segment_path(
            self._info, self._stream, self._shard, number=number, to=number, first_ms=first_ms, is_end=is_end
        )
        try:
            footer, self._found[number] = self._read(path)
        except NoObject:
            return None
        self._found = {number: self._found[number]}
        return footer

    def other_begin(self, number: int, first_ms: int, is_end: bool) -> Begin | None:
        """How another writer has named a segment that begins before any record; None: our name holds.

        The other name must be filled, or its writer is met there. LogAltered: it cannot be read.
        """
        if self._info.layout != "dated":
            return None
        path = begin_path(self._stream, self._shard, number)
        if self._store.create(path, msgspec.json.encode(Begin(first_ms, is_end))):
            return None
        try:
            found = msgspec.json.decode(self._store.read(path), type=Begin)
        except (NoObject, msgspec.DecodeError) as error:
            raise LogAltered(f"{path} cannot be read: {error}") from error
        if found.version != VERSION or not 0 <= found.first_ms < _MOST_MS:
            raise LogAltered(f"{path} cannot be used: {found}")
        if (found.is_end, found.first_ms // _HOUR_MS) == (is_end, first_ms // _HOUR_MS):
            return None
        self._others[number] = found
        return found

    def manifest(self) -> Manifest | None:
        """None also if it is damaged, which is told."""
        try:
            found = msgspec.json.decode(self._store.read(self._at), type=Manifest)
        except NoObject:
            return None
        except msgspec.DecodeError as error:
            self._warn(f"{self._at} is damaged ({error}); the segments are listed instead")
            return None
        if (found.stream, found.shard) != (self._stream, self._shard) or not _is_page(found.entries):
            self._warn(f"{self._at} is not of this shard, or not in order; the segments are listed instead")
            return None
        return found

    def first(self) -> int:
        """The first number that has not expired."""
        try:
            content = self._store.read(first_path(self._stream, self._shard))
        except NoObject:
            return 0
        return msgspec.json.decode(content, type=First).first

    def entries(self, first: int = 0) -> Iterator[Entry]:
        """From this number on, or the first. Writes nothing."""
        newest = self._newest()
        number, end = max(first, self.first()), newest[0].number if newest else 0
        while number < end:
            page = [each for each in self._page_with(number, end) if each.to >= number]
            yield from page
            number = page[-1].to + 1 if page else (number // PAGE + 1) * PAGE
        yield from (each for each in newest if each.to >= number)

    @property
    def _at(self) -> str:
        return manifest_path(self._stream, self._shard)

    def _add(self, entry: Entry) -> None:
        if self._entries:
            last = self._entries[-1]
            if entry.number <= last.to:
                return
            if entry.number // PAGE != last.number // PAGE:
                self._close_page()
        self._entries.append(entry)

    def _add_beyond(self, most: int | None) -> None:
        for entry in self._beyond(self._entries[-1] if self._entries else None, most):
            self._add(entry)

    def _close_page(self) -> None:
        """Two writers would write the same, but what is there may be compacted."""
        path = page_path(self._stream, self._shard, self._entries[0].number)
        content = msgspec.json.encode(self._entries)
        if not self._store.create(path, content) and (path in self._bad_pages or not self._page(path)):
            self._store.replace(path, content)
        self._entries = []

    def _write(self, behind_ms: int | None, at_ms: int) -> None:
        manifest = Manifest(
            self._stream, self._shard, tuple(self._entries), behind_ms, at_ms, marks=self._marks
        )
        self._store.replace(self._at, msgspec.json.encode(manifest))

    def _newest(self) -> list[Entry]:
        manifest = self.manifest()
        if manifest and manifest.entries:
            return list(manifest.entries)
        page = self._newest_page()
        return [*page, *self._beyond(page[-1] if page else None, None)]

    def _newest_page(self) -> list[Entry]:
        """Its last entry is true."""
        for path in reversed(self._pages()):
            entries = self._page(path)
            if entries and self._is_true(entries[-1]):
                return entries
            self._bad_pages.add(path)
            self._warn(f"{path} is damaged; the segments are listed instead")
        return []

    def _page_with(self, number: int, end: int) -> list[Entry]:
        path = page_path(self._stream, self._shard, number)
        page = self._page(path)
        if page and page[0].number <= number:
            return page
        # A merged segment may begin in an earlier page.
        earlier = next((each for each in reversed(self._pages()) if each < path), None)
        if earlier and (before := self._page(earlier)) and before[-1].to >= number:
            return before
        if not page:
            self._warn(f"{path} is lost or damaged; the segments are listed instead")
        after = (number // PAGE + 1) * PAGE
        return page or list(
            takewhile(lambda each: each.number < min(after, end), self._from(number, None, None))
        )

    def _pages(self) -> list[str]:
        folder = self._at.removesuffix(".json")
        return [each.path for each in self._store.listing(folder)]

    def _page(self, path: str) -> list[Entry]:
        try:
            entries = msgspec.json.decode(self._store.read(path), type=list[Entry])
        except (NoObject, msgspec.DecodeError):
            return []
        if not entries or not _is_page(entries):
            return []
        start = entries[0].number // PAGE * PAGE
        is_whole = page_path(self._stream, self._shard, start) == path and entries[-1].to >= start + PAGE - 1
        return entries if is_whole else []

    def _is_true(self, entry: Entry) -> bool:
        try:
            return self._read(entry_path(self._info, self._stream, self._shard, entry))[1] == entry
        except NoObject:
            return entry.to < self.first()

    def _beyond(self, last: Entry | None, most: int | None) -> Iterator[Entry]:
        return self._from(last.to + 1 if last else self.first(), last, most)

    def _from(self, number: int, last: Entry | None, most: int | None) -> Iterator[Entry]:
        """`last`: the entry before."""
        found: dict[int, tuple[int, str]] = {}
        for path in self._listed(number, last, most):
            if named := self._name.fullmatch(path.rpartition("/")[2]):
                begin = int(named[1])
                found[begin] = max(found.get(begin, (-1, "")), (int(named[2] or begin), path))
        for begin, (to, path) in sorted(found.items()):
            if begin < number:
                continue
            if begin > number:
                self._warn(f"segments {number} to {begin - 1} of {self._stream}/{self._shard} are missing")
            try:
                entry = self._read(path)[1]
            except NoObject:
                continue
            except Damaged as error:
                if begin == max(found):
                    raise
                self._warn(str(error))
                continue
            yield entry
            number = to + 1

    def _listed(self, number: int, last: Entry | None, most: int | None) -> Iterator[str]:
        if self._info.layout == "log":
            folder = f"{self._stream}/{self._shard}"
            listed = self._store.listing(folder, after=f"{folder}/{number:012d}")
            return (each.path for each in listed)
        after = ""
        if last and last.last_ms:
            hour = datetime.fromtimestamp(last.last_ms / 1000 - 3600, UTC)  # arrivals are not quite in order
            after = f"{self._stream}/dt={hour:%Y-%m-%d}/hour={hour:%H}"
        listed = islice(self._store.listing(self._stream, after=after), most)
        return chain((each.path for each in listed), self._ends())

    def _ends(self) -> Iterator[str]:
        ends = f"{self._stream}/_ends/{self._shard}-"
        listed = (each.path for each in self._store.listing(f"{self._stream}/_ends", after=ends))
        return takewhile(lambda path: path.startswith(ends), listed)

    def _read(self, path: str) -> tuple[Footer, Entry]:
        content = self._store.read(path)
        try:
            footer = self._read_footer(content, self._info.format)
        except Damaged as error:
            raise Damaged(f"{path}: {error}") from error
        of = (footer.application, footer.stream, footer.shard)
        named = self._name.fullmatch(path.rpartition("/")[2])
        if (
            of != (self._info.application, self._stream, self._shard)
            or not named
            or footer.number != int(named[1])
        ):
            raise LogAltered(f"{path} says that it is segment {footer.number} of {'/'.join(of)}")
        return footer, footer.entry(len(content), crc32(content))


def _is_page(entries: Sequence[Entry]) -> bool:
    numbers = [each.number // PAGE for each in entries]
    is_ordered = all(one.to < other.number for one, other in pairwise(entries))
    return is_ordered and numbers == numbers[:1] * len(numbers) and all(e.number <= e.to for e in entries)
