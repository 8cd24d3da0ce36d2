"""Segments that are nothing but their footer, for tests that need no records."""

from __future__ import annotations

from zlib import crc32

import msgspec

from kcl_landing.log import Damaged, Entry, Footer, Format, LogInfo, entry_path
from kcl_landing.store import LogStore

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
