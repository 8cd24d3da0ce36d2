"""Segments that are nothing but their footer, and a shard with such, for tests that need no records."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import msgspec

from kcl_landing.log import Damaged, Entry, Footer, Format, LogInfo, Manifest, entry_path, manifest_path
from kcl_landing.manifests import ShardLog
from kcl_landing.store import LogStore
from tests.landing.memory_store import MemoryStore

STREAM = "orders"
SHARD = "shardId-000000000000"
HOUR_MS = 3_600_000


def read_footer(content: bytes | memoryview, _format: Format) -> Footer:
    try:
        return msgspec.json.decode(content, type=Footer)
    except msgspec.DecodeError as error:
        raise Damaged(str(error)) from error


def made(
    number: int, *, to: int | None = None, is_end: bool = False, writer: str = "w", minutes: int = 1
) -> Footer:
    """Records 10 * number + 1 up to 10 * (to + 1), `minutes` after the one before."""
    last = number if to is None else to
    at_ms = 1_800_000_000_000 + number * minutes * 60_000
    return Footer(
        application="app",
        stream=STREAM,
        shard=SHARD,
        number=number,
        to=last,
        after=f"{10 * number}/0" if number else "-1/0",
        last=f"{10 * (last + 1)}/0",
        rows=10 * (last - number + 1),
        first_ms=at_ms,
        last_ms=at_ms + 59_000,
        token=1,
        writer=writer,
        children=("shardId-000000000001",) if is_end else None,
    )


def land(store: LogStore, info: LogInfo, footer: Footer) -> Entry:
    """Create the segment; its entry, whether it was there or not."""
    content = msgspec.json.encode(footer)
    entry = footer.entry(len(content), crc32(content))
    store.create(entry_path(info, STREAM, SHARD, entry), content)
    return entry


AT = manifest_path(STREAM, SHARD)


class Shard:
    """A shard's log with its warnings."""

    def __init__(self, store: MemoryStore, info: LogInfo) -> None:
        self.store, self.info = store, info
        self.warnings: list[str] = []
        self.log = ShardLog(store, info, STREAM, SHARD, read_footer, warn=self.warnings.append)

    def write(self, first: int, to: int) -> list[Entry]:
        entries = [land(self.store, self.info, made(number)) for number in range(first, to + 1)]
        for entry in entries:
            self.log.append(entry, behind_ms=0, at_ms=entry.number)
        return entries

    def again(self) -> Shard:
        return Shard(self.store, self.info)

    def path(self, entry: Entry) -> str:
        return entry_path(self.info, STREAM, SHARD, entry)

    def read_meanwhile(self, act: Callable[[], object]) -> list[str]:
        """The paths that are read."""
        before = len(self.store.calls)
        act()
        return [path for operation, path in self.store.calls[before:] if operation == "read"]

    def listed_meanwhile(self, act: Callable[[], object]) -> int:
        before = len(self.store.calls)
        act()
        return sum(operation == "listing" for operation, _path in self.store.calls[before:])


def stored(store: MemoryStore) -> Manifest:
    return msgspec.json.decode(store.read(AT), type=Manifest)
