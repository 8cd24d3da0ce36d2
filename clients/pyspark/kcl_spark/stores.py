"""Stores segments and lease notes, in a local folder or on any file system of pyarrow.

The engine writes; the source reads in Spark's planner. A reader sees a file whole or not at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
from pyarrow import fs

from kcl_landing.control import make_folder, write_text
from kcl_landing.positions import START, Position, from_text, to_text
from kcl_landing.records import SCHEMA
from kcl_spark.segments import OPEN_MS, SUFFIX, Segment, is_whole, list_segments, parse_name, span_ms

_NAME: Final = "lease.json"


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease note; it decides whether missing records of a planned range can still come.

    `held`: a relay of this host serves the shard; otherwise no new batch takes its records. Everything up to
    `after` was committed.
    """

    held: bool
    after: Position = START


NOT_HELD: Final = Grant(held=False)


def read_grant(spool: Path, shard_id: str) -> Grant:
    try:
        reported = json.loads((spool / shard_id / _NAME).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return NOT_HELD
    return Grant(bool(reported["held"]), from_text(reported["after"]))


_ROWS_OF_A_BATCH: Final = 10_000
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LEASE: Final = ".lease"
_HORIZON: Final = "horizon"
Table: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class StoredShard:
    segments: list[Segment] = field(default_factory=list[Segment])
    grant: Grant = NOT_HELD


class Store(Protocol):
    def poll(self) -> Mapping[str, StoredShard]:
        """May omit files that are being written or removed."""
        ...

    def recover(self) -> None: ...

    def put(
        self, shard_id: str, after: Position, last: Position, table: Table, *, not_before_ms: int = 0
    ) -> Segment:
        """Others can read the segment on return. `not_before_ms`: latest arrival in earlier segments."""
        ...

    def drop(self, segment: Segment) -> None: ...

    def note(self, shard_id: str, grant: Grant) -> None: ...

    def set_horizon(self, arrived_ms: int) -> None:
        """No new batch takes later arrivals. Put all earlier records first."""
        ...

    def horizon_ms(self) -> int:
        """The last horizon. Read it before `poll`."""
        ...

    def location(self, segment: Segment) -> str: ...


class FolderStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def poll(self) -> Mapping[str, StoredShard]:
        return {
            shard_id: StoredShard(segments, read_grant(self.folder, shard_id))
            for shard_id, segments in list_segments(self.folder).items()
        }

    def recover(self) -> None:
        """After a reboot everything is removed: files may be incomplete, because writes are not fsynced."""
        make_folder(self.folder)
        boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"
        note = self.folder / "boot"
        if not note.exists() or note.read_text() != boot:
            for path in self.folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
            write_text(note, boot)
        for folder in filter(Path.is_dir, self.folder.iterdir()):
            for path in folder.glob(f"*{SUFFIX}"):
                segment = parse_name(folder.name, path.name)
                if segment is None or not is_whole(path, segment.size_bytes):
                    path.unlink()  # its records are delivered again
            self.note(folder.name, NOT_HELD)

    def put(
        self, shard_id: str, after: Position, last: Position, table: Table, *, not_before_ms: int = 0
    ) -> Segment:
        folder = self.folder / shard_id
        make_folder(folder)
        temporary = folder / ".next"
        with pa.OSFile(str(temporary), "wb") as file:
            _write(file, table)
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
        _replace(self.folder / _HORIZON, str(arrived_ms))

    def horizon_ms(self) -> int:
        try:
            return int((self.folder / _HORIZON).read_text())
        except FileNotFoundError:
            return OPEN_MS

    def location(self, segment: Segment) -> str:
        return str(segment.path(self.folder))


class SharedStore:
    """Any file system of pyarrow, such as s3, gs, hdfs or a mounted folder.

    One listing shows everything. A note is an empty file whose name is its content; the highest number
    counts. A segment counts once it has the size that its name says.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")
        self._files, path = fs.FileSystem.from_uri(self._uri)
        self._base = str(path).rstrip("/")
        self._notes: dict[str, tuple[int, str]] = {}

    def poll(self) -> Mapping[str, StoredShard]:
        segments: dict[str, list[Segment]] = {}
        notes: dict[str, tuple[int, Grant]] = {}
        for shard_id, name, size in self._entries():
            segment, note = parse_name(shard_id, name), _read_note(name)
            if segment is not None and segment.size_bytes == size:
                segments.setdefault(shard_id, []).append(segment)
            elif note is not None and (shard_id not in notes or note[0] > notes[shard_id][0]):
                notes[shard_id] = note
        gone = (0, NOT_HELD)
        return {
            shard_id: StoredShard(
                sorted(segments.get(shard_id, []), key=lambda one: one.last), notes.get(shard_id, gone)[1]
            )
            for shard_id in segments.keys() | notes.keys()
        }

    def recover(self) -> None:
        if isinstance(self._files, fs.LocalFileSystem):
            make_folder(Path(self._base))
        for shard_id, name, size in self._entries():
            segment, note = parse_name(shard_id, name), _read_note(name)
            if note is not None and note[0] > self._notes.get(shard_id, (0, ""))[0]:
                self._notes[shard_id] = (note[0], name)
            elif segment is not None and segment.size_bytes != size:
                self.drop(segment)
            elif segment is None and name.endswith(SUFFIX):
                self._remove(shard_id, name)
        for shard_id in list(self._notes):
            self.note(shard_id, NOT_HELD)

    def put(
        self, shard_id: str, after: Position, last: Position, table: Table, *, not_before_ms: int = 0
    ) -> Segment:
        memory = pa.BufferOutputStream()
        _write(memory, table)
        content = memory.getvalue()
        times = span_ms(table, not_before_ms)
        segment = Segment(shard_id, after, last, table.num_rows, content.size, *times)
        self._create(shard_id, segment.name, content)
        return segment

    def drop(self, segment: Segment) -> None:
        self._remove(segment.shard_id, segment.name)

    def note(self, shard_id: str, grant: Grant) -> None:
        number, before = self._notes.get(shard_id, (0, ""))
        name = f"{number + 1}~{to_text(grant.after, '.')}~{'held' if grant.held else 'gone'}{_LEASE}"
        self._create(shard_id, name, b"")
        self._notes[shard_id] = (number + 1, name)
        if before:
            self._remove(shard_id, before)

    def set_horizon(self, arrived_ms: int) -> None:
        before = self._horizons()
        number = max((each for each, _ in before), default=0) + 1
        self._create(_HORIZON, f"{number}~{arrived_ms}", b"")
        for old in before:
            self._remove(_HORIZON, "~".join(map(str, old)))

    def horizon_ms(self) -> int:
        return max(self._horizons(), default=(0, OPEN_MS))[1]

    def _horizons(self) -> list[tuple[int, int]]:
        selector = fs.FileSelector(f"{self._base}/{_HORIZON}", allow_not_found=True)
        names = [PurePosixPath(each.path).name for each in self._files.get_file_info(selector)]
        parts = [name.partition("~") for name in names]
        return [(int(number), int(arrived_ms)) for number, _, arrived_ms in parts]

    def location(self, segment: Segment) -> str:
        return f"{self._uri}/{segment.shard_id}/{segment.name}"

    def _entries(self) -> list[tuple[str, str, int]]:
        selector = fs.FileSelector(self._base, recursive=True, allow_not_found=True)
        paths = [(PurePosixPath(each.path), each) for each in self._files.get_file_info(selector)]
        return [(path.parent.name, path.name, each.size) for path, each in paths if each.is_file]

    def _create(self, shard_id: str, name: str, content: object) -> None:
        self._files.create_dir(f"{self._base}/{shard_id}", recursive=True)
        with self._files.open_output_stream(f"{self._base}/{shard_id}/{name}") as file:
            file.write(content)

    def _remove(self, shard_id: str, name: str) -> None:
        try:
            self._files.delete_file(f"{self._base}/{shard_id}/{name}")
        except FileNotFoundError:
            return


def open_store(where: str) -> Store:
    return SharedStore(where) if "://" in where else FolderStore(Path(where))


def _replace(path: Path, text: str) -> None:
    """Readers see the old or the new text. Not fsynced: after a reboot the spool begins anew."""
    temporary = path.with_name(f".{path.name}")
    write_text(temporary, text)
    temporary.replace(path)


def _write(file: object, table: Table) -> None:
    with pa.ipc.new_file(file, SCHEMA) as writer:
        writer.write_table(table, max_chunksize=_ROWS_OF_A_BATCH)


def _read_note(name: str) -> tuple[int, Grant] | None:
    parts = name.removesuffix(_LEASE).split("~")
    if not name.endswith(_LEASE) or len(parts) != 3:
        return None
    number, after, word = parts
    return int(number), Grant(held=word == "held", after=from_text(after, "."))
