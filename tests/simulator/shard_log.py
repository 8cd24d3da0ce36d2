"""Stand-in for kcl_landing.manifests until it is there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kcl_landing.log import Entry, Footer, Format, LogInfo, Manifest, manifest_path, place, segment_path
from kcl_landing.store import LogStore, NoObject
from kcl_landing.writer import Tail


class ShardLog:
    def __init__(
        self,
        store: LogStore,
        info: LogInfo,
        stream: str,
        shard: str,
        read_footer: Callable[[bytes | memoryview, Format], Footer],
    ) -> None:
        self._store, self._info, self._stream, self._shard = store, info, stream, shard
        self._read_footer = read_footer
        self._entries: list[Entry] = []

    def open(self) -> Tail:
        try:
            content = self._store.read(manifest_path(self._stream, self._shard))
            self._entries = list(msgspec.json.decode(content, type=Manifest).entries)
        except NoObject:
            self._entries = []
        while (footer := self._beyond()) is not None:
            self._entries.append(footer.entry(0, 0))
        if not self._entries:
            return Tail()
        last = self._entries[-1]
        return Tail(last.to, place(last.last), last.last_ms, last.is_end)

    def _beyond(self) -> Footer | None:
        number = self._entries[-1].to + 1 if self._entries else 0
        if self._info.layout == "log":
            return self.footer(number, 0, False)
        name = f"{self._shard}-{number:012d}."
        for each in self._store.listing(self._stream):
            if each.path.rpartition("/")[2].startswith(name):
                return self._read_footer(self._store.read(each.path), self._info.format)
        return None

    def append(self, entry: Entry, *, behind_ms: int | None, at_ms: int) -> None:
        if not self._entries or entry.number > self._entries[-1].number:
            self._entries.append(entry)
        self._write(behind_ms, at_ms)

    def at_tip(self, *, behind_ms: int | None, at_ms: int) -> None:
        self._write(behind_ms, at_ms)

    def _write(self, behind_ms: int | None, at_ms: int) -> None:
        manifest = Manifest(self._stream, self._shard, tuple(self._entries[-256:]), behind_ms, at_ms)
        self._store.replace(manifest_path(self._stream, self._shard), msgspec.json.encode(manifest))

    def footer(self, number: int, first_ms: int, is_end: bool) -> Footer | None:
        path = segment_path(
            self._info, self._stream, self._shard, number=number, to=number, first_ms=first_ms, is_end=is_end
        )
        try:
            return self._read_footer(self._store.read(path), self._info.format)
        except NoObject:
            return None
