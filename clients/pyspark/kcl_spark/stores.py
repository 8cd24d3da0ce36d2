"""The folder of segments and lease notes. The source sees a file whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kcl_landing.control import make_folder, write_text
from kcl_landing.positions import START, Position, from_text, to_text
from kcl_spark.segments import (
    OPEN_MS,
    SUFFIX,
    MissingRange,
    Segment,
    is_covered,
    is_whole,
    list_segments,
    segment_at,
    span_ms,
)

_NAME: Final = "lease.json"
_ROWS_OF_A_BATCH: Final = 10_000
_ON_LINUX: Final = sys.platform == "linux" and os.environ.get("KCL_POSIX_ONLY") != "1"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id") if _ON_LINUX else None
_HORIZON: Final = "horizon"
Table: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease note: whether a relay of this host serves the shard. All up to `after` was committed, somewhere."""

    held: bool
    after: Position = START


NOT_HELD: Final = Grant(held=False)


def read_grant(spool: Path, shard_id: str) -> Grant:
    try:
        reported = json.loads((spool / shard_id / _NAME).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return NOT_HELD
    return Grant(bool(reported["held"]), from_text(reported["after"]))


@dataclass(frozen=True, slots=True)
class StoredShard:
    segments: list[Segment] = field(default_factory=list[Segment])
    grant: Grant = NOT_HELD

    def has(self, shard_id: str, after: Position, last: Position) -> bool:
        """Nothing of (after, last] is still to come. MissingRange: later records are here."""
        try:
            return is_covered(shard_id, self.segments, max(after, self.grant.after), last)
        except MissingRange:
            if self.grant.held:
                raise
            return False

    def is_lost(self, shard_id: str, after: Position, last: Position) -> bool:
        return not self.grant.held and not self.has(shard_id, after, last)


class FolderStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def poll(self) -> Mapping[str, StoredShard]:
        """Files may come and go meanwhile."""
        return {
            shard_id: StoredShard(segments, read_grant(self.folder, shard_id))
            for shard_id, segments in list_segments(self.folder).items()
        }

    def recover(self) -> None:
        """Empty the spool after a reboot: writes are not fsynced.

        A system that does not tell may have had one before every start.
        """
        make_folder(self.folder)
        boot = "unknown" if _BOOT_ID is None or not _BOOT_ID.exists() else _BOOT_ID.read_text().strip()
        note = self.folder / "boot"
        if boot == "unknown" or not note.exists() or note.read_text() != boot:
            for path in self.folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
            write_text(note, boot)
        for folder in filter(Path.is_dir, self.folder.iterdir()):
            for path in folder.glob(f"*{SUFFIX}"):
                segment = segment_at(path)
                if segment is None or not is_whole(path, segment.size_bytes):
                    path.unlink()
            self.note(folder.name, NOT_HELD)

    def put(
        self, shard_id: str, after: Position, last: Position, table: Table, *, not_before_ms: int = 0
    ) -> Segment:
        """`not_before_ms`: latest arrival before."""
        folder = self.folder / shard_id
        make_folder(folder)
        temporary = folder / ".next"
        try:
            with pa.OSFile(str(temporary), "wb") as file:
                _write(file, table, Segment(shard_id, after, last, table.num_rows, 0).schema)
        except OSError:
            temporary.unlink(missing_ok=True)  # half a file is in the way
            raise
        size_bytes, times = temporary.stat().st_size, span_ms(table, not_before_ms)
        segment = Segment(shard_id, after, last, table.num_rows, size_bytes, *times)
        temporary.replace(segment.path(self.folder))
        return segment

    def drop(self, segment: Segment) -> None:
        segment.path(self.folder).unlink(missing_ok=True)

    def note(self, shard_id: str, grant: Grant) -> None:
        folder = self.folder / shard_id
        make_folder(folder)
        _replace(folder / _NAME, json.dumps({"held": grant.held, "after": to_text(grant.after)}))

    def set_horizon(self, arrived_ms: int) -> None:
        """No new batch takes later arrivals. Put all earlier records first."""
        _replace(self.folder / _HORIZON, str(arrived_ms))

    def horizon_ms(self) -> int:
        """Before `poll`."""
        try:
            return int((self.folder / _HORIZON).read_text())
        except FileNotFoundError:
            return OPEN_MS

    def location(self, segment: Segment) -> str:
        return str(segment.path(self.folder))


def _replace(path: Path, text: str) -> None:
    """Not fsynced."""
    temporary = path.with_name(f".{path.name}")
    write_text(temporary, text)
    temporary.replace(path)


def _write(file: object, table: Table, schema: Any) -> None:
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_table(table.cast(schema), max_chunksize=_ROWS_OF_A_BATCH)
