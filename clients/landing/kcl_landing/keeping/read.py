"""Reads many objects at a time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeVar

import msgspec

from kcl_landing.control import Refused
from kcl_landing.keeping.names import LogObjects, ShardKey, ShardObjects, sorted_out
from kcl_landing.log import (
    MANIFESTS,
    MARKS,
    PAGE,
    READERS,
    ROSTERS,
    VERSION,
    Entry,
    First,
    LogInfo,
    Manifest,
    ReaderNote,
    first_path,
    manifest_path,
    page_path,
    reader_path,
)
from kcl_landing.store import LogStore, NoObject

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
AT_ONCE: Final = 32
_AHEAD: Final = 2

Item = TypeVar("Item")
Result = TypeVar("Result")
_Struct = TypeVar("_Struct")


class Unreadable(Exception):
    def __init__(self, path: str, why: object) -> None:
        super().__init__(f"{path} cannot be read: {why}; {_advice(path)}")
        self.path = path


def _advice(path: str) -> str:
    if path.startswith(f"{READERS}/"):
        name = path.rpartition("/")[2].removesuffix(".json")
        return f"its reader needs everything until it has written its note again, or `landing expire --forget {name}`"
    if path.startswith((f"{MARKS}/", f"{ROSTERS}/")):
        return "readers ignore it; its host's next write replaces it, or remove it"
    if path.endswith(".first.json"):
        return "nothing of this shard expires until it is put back; `landing verify` shows where its segments begin"
    if path.rpartition("/")[2].removesuffix(".json").isdecimal():
        return "remove the page, and `landing verify --mend` makes it again from its segments"
    return "the next write of the shard's writer replaces it"


def decoded(store: LogStore, path: str, kind: type[_Struct]) -> _Struct:
    """Raises NoObject, Unreadable."""
    try:
        found = msgspec.json.decode(store.read(path), type=kind)
    except msgspec.DecodeError as error:
        raise Unreadable(path, error) from error
    if (version := getattr(found, "version", VERSION)) != VERSION:
        raise Unreadable(path, f"it has version {version}, and this program knows {VERSION}: upgrade it")
    return found


def optional(store: LogStore, path: str, kind: type[_Struct]) -> _Struct | None:
    try:
        return decoded(store, path, kind)
    except NoObject:
        return None


def manifest_of(store: LogStore, key: ShardKey) -> Manifest | None:
    found, path = optional(store, manifest_path(*key), Manifest), manifest_path(*key)
    if found is not None and (found.stream, found.shard) != key:
        raise Unreadable(path, f"it says that it is the manifest of {found.stream}/{found.shard}")
    return found


def page_of(store: LogStore, key: ShardKey, number: int) -> tuple[Entry, ...] | None:
    return optional(store, page_path(*key, number), tuple[Entry, ...])


def first_of(store: LogStore, key: ShardKey) -> First:
    return optional(store, first_path(*key), First) or First(0)


def reader_of(store: LogStore, name: str) -> ReaderNote | None:
    found, path = optional(store, reader_path(name), ReaderNote), reader_path(name)
    if found is not None and found.name != name:
        raise Unreadable(path, f"it says that it is the note of {found.name}")
    return found


def side_by_side(
    act: Callable[[Item], Result], items: Iterable[Item], at_once: int = AT_ONCE
) -> Iterator[Result]:
    """In order; only few are taken ahead of the caller."""
    with ThreadPoolExecutor(at_once) as pool:
        running: deque[Future[Result]] = deque()
        try:
            for item in items:
                running.append(pool.submit(act, item))
                if len(running) >= at_once * _AHEAD:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for each in running:
                each.cancel()


@dataclass(frozen=True, slots=True)
class Head:
    """`trouble`: why manifest or `.first.json` cannot be used."""

    objects: ShardObjects
    manifest: Manifest | None
    first: First
    trouble: str = ""

    @property
    def key(self) -> ShardKey:
        return self.objects.key

    @property
    def newest(self) -> tuple[Entry, ...]:
        return () if self.manifest is None else live(self.manifest.entries, self.first.first)

    @property
    def tail_page(self) -> int | None:
        entries = () if self.manifest is None else self.manifest.entries
        return entries[-1].number // PAGE * PAGE if entries else None

    def older_pages(self) -> list[int]:
        tail = self.tail_page
        return [
            each
            for each in sorted(self.objects.pages)
            if each + PAGE > self.first.first and (tail is None or each < tail)
        ]


def live(entries: Iterable[Entry], first: int) -> tuple[Entry, ...]:
    return tuple(each for each in entries if each.to >= first)


def heads(store: LogStore, shards: Iterable[ShardObjects]) -> Iterator[Head]:
    def head(objects: ShardObjects) -> Head:
        first, trouble = First(0), ""
        try:
            first = first_of(store, objects.key) if objects.has_first else first
            return Head(objects, manifest_of(store, objects.key) if objects.has_manifest else None, first)
        except Unreadable as error:
            trouble = str(error)
        return Head(objects, None, first, trouble)

    return side_by_side(head, shards)


def survey(store: LogStore, info: LogInfo, stream: str | None = None, shard: str | None = None) -> LogObjects:
    """Without listing segments."""
    folders = (store.listing(each) for each in (MANIFESTS, READERS, MARKS, ROSTERS))
    return sorted_out(info, chain.from_iterable(folders), stream, shard)


def readers_of(store: LogStore, names: Iterable[str], tell: Callable[[str], object]) -> list[ReaderNote]:
    """One whose note cannot be read needs everything."""

    def read(name: str) -> tuple[ReaderNote | None, str]:
        try:
            return reader_of(store, name), ""
        except Unreadable as error:
            return ReaderNote(name, {}, 0), str(error)

    notes = []
    for note, trouble in side_by_side(read, sorted(names)):
        notes += [] if note is None else [note]
        if trouble:
            tell(trouble)
    return notes


def register(store: LogStore, name: str, *, at_ms: int) -> ReaderNote:
    """A new one needs everything. Refused: a wrong name."""
    note = ReaderNote(_checked(name), {}, at_ms)
    if store.create(reader_path(name), msgspec.json.encode(note)):
        return note
    return reader_of(store, name) or note


def report(store: LogStore, name: str, done: Mapping[str, int], *, at_ms: int) -> None:
    """Replaces all that it has said."""
    store.replace(reader_path(_checked(name)), msgspec.json.encode(ReaderNote(name, dict(done), at_ms)))


def forget(store: LogStore, name: str) -> bool:
    path = reader_path(_checked(name))
    is_known = any(each.path == path for each in store.listing(READERS))
    store.remove([path])
    return is_known


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise Refused(
            f"{name!r} cannot be the name of a reader: letters, digits, '.', '_' and '-'; at most 128, a letter or digit first"
        )
    return name
