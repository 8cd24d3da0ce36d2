"""What a log holds and how far readers are, from manifests only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kcl_landing.keeping.complete import Known, Statements, complete_ms, statements_of
from kcl_landing.keeping.names import ShardKey
from kcl_landing.keeping.read import Head, heads, page_of, readers_of, side_by_side, survey
from kcl_landing.log import Entry, First, LogInfo, ReaderNote
from kcl_landing.store import LogStore


class Unread(msgspec.Struct):
    """`oldest_ms`: when its first record arrived; 0: none, or unknown. `gone`: what expired before."""

    segments: int = 0
    rows: int = 0
    size_bytes: int = 0
    oldest_ms: int = 0
    gone: int = 0

    def add(self, other: Unread) -> None:
        self.segments += other.segments
        self.rows += other.rows
        self.size_bytes += other.size_bytes
        self.oldest_ms = min(filter(None, (self.oldest_ms, other.oldest_ms)), default=0)
        self.gone += other.gone


class ShardStatus(msgspec.Struct):
    """`number` -1: no segment. `complete_ms` 0: unknown, or all is.

    `worker`: whose mark says so; empty: the log. `trouble`: why the manifest is not known.
    """

    stream: str
    shard: str
    expired: First
    first: int = -1
    number: int = -1
    segments: int = 0
    rows: int = 0
    size_bytes: int = 0
    newest_ms: int = 0
    children: tuple[str, ...] | None = None
    behind_ms: int | None = None
    at_ms: int = 0
    complete_ms: int = 0
    worker: str = ""
    marks: bool = False
    readers: dict[str, Unread] = {}
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class LogStatus:
    """`hosts`: when each wrote its marks. `holder`: the shard at which readers wait."""

    info: LogInfo
    shards: Sequence[ShardStatus]
    readers: Sequence[ReaderNote]
    trouble: Sequence[str] = ()
    hosts: Mapping[str, int] = field(default_factory=dict[str, int])
    holder: ShardStatus | None = None

    def unread(self, reader: str) -> Unread:
        whole = Unread()
        for each in self.shards:
            whole.add(each.readers[reader])
        return whole


def needs(reader: ReaderNote, key: ShardKey) -> int:
    return reader.done.get("/".join(key), 0)


def status(store: LogStore, info: LogInfo, stream: str | None = None, shard: str | None = None) -> LogStatus:
    found = survey(store, info, stream, shard)
    stated = statements_of(store, info, found)
    trouble: list[str] = []
    readers = readers_of(store, found.readers, trouble.append)
    shards: dict[ShardKey, ShardStatus] = {}
    for head, each in _parts(store, heads(store, found.shards.values())):
        shards.setdefault(head.key, _begun(head, readers))
        _add(shards[head.key], each, readers, head.first.first)
    trouble += map(str, stated.trouble)
    holder = _complete(shards, stated, readers, stream, shard)
    hosts = {each.worker: each.at_ms for each in stated.hosts}
    return LogStatus(info, tuple(shards.values()), readers, trouble, hosts, holder)


def _complete(
    shards: dict[ShardKey, ShardStatus],
    stated: Statements,
    readers: Iterable[ReaderNote],
    stream: str | None,
    shard: str | None,
) -> ShardStatus | None:
    for roster in stated.rosters:
        for name in roster.shards:
            key = roster.stream, name
            if key not in shards and stream in {None, roster.stream} and shard in {None, name}:
                shards[key] = ShardStatus(*key, First(0), marks=True, trouble="nobody has written of it yet")
                shards[key].readers = {each.name: Unread() for each in readers}
    known = {
        key: Known(each.number, each.newest_ms, each.children, each.marks, each.behind_ms != 0)
        for key, each in shards.items()
    }
    complete = complete_ms(known, stated)
    for key, (until_ms, host) in complete.items():
        shards[key].complete_ms, shards[key].worker = until_ms, "" if host is None else host.worker
    return shards[min(complete, key=lambda key: complete[key][0])] if complete else None


def _parts(store: LogStore, known: Iterable[Head]) -> Iterator[tuple[Head, Sequence[Entry]]]:
    def read(work: tuple[Head, int | None]) -> tuple[Head, Sequence[Entry]]:
        head, page = work
        return head, head.newest if page is None else page_of(store, head.key, page) or ()

    pages: Iterator[tuple[Head, int | None]] = (
        (head, page) for head in known for page in (*head.older_pages(), None)
    )
    return side_by_side(read, pages)


def _begun(head: Head, readers: Iterable[ReaderNote]) -> ShardStatus:
    stream, shard = head.key
    begun = ShardStatus(stream, shard, head.first, trouble=head.trouble)
    if head.manifest is not None:
        begun.behind_ms, begun.at_ms = head.manifest.behind_ms, head.manifest.at_ms
        begun.marks = head.manifest.marks
    elif not head.trouble:
        begun.trouble = "there is no manifest; the writer of the shard makes one when it next begins"
    for each in readers:
        done = each.done.get(f"{stream}/{shard}")
        begun.readers[each.name] = Unread(gone=0 if done is None else max(head.first.first - done, 0))
    return begun


def _add(shard: ShardStatus, entries: Sequence[Entry], readers: Iterable[ReaderNote], first: int) -> None:
    if entries and entries[0].to < first:
        entries = [each for each in entries if each.to >= first]
    if not entries:
        return
    shard.first = entries[0].number if shard.first < 0 else shard.first
    shard.number, shard.children = entries[-1].to, entries[-1].children
    whole = _unread(entries)
    shard.segments += whole.segments
    shard.rows += whole.rows
    shard.size_bytes += whole.size_bytes
    shard.newest_ms = max(shard.newest_ms, *(each.last_ms for each in entries))
    for each in readers:
        done = needs(each, (shard.stream, shard.shard))
        if done <= entries[0].number:
            shard.readers[each.name].add(whole)
        elif done <= entries[-1].to:
            shard.readers[each.name].add(_unread([entry for entry in entries if entry.to >= done]))


def _unread(entries: Sequence[Entry]) -> Unread:
    oldest = next((each.first_ms for each in entries if each.rows and each.first_ms), 0)
    rows, size_bytes = sum([each.rows for each in entries]), sum([each.size_bytes for each in entries])
    return Unread(len(entries), rows, size_bytes, oldest)
