"""How far a query is, by Spark's logs in its local folder.

A batch is committed once `commits/N` exists: a source's `commit` comes only with the next batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcl_landing.control import replace_text
from kcl_landing.positions import START, Position, Positions, from_text, to_text

_WATERMARK: Final = re.compile(r'atchWatermarkMs": ?([0-9]{1,18})')


def to_offset(positions: Positions) -> dict[str, object]:
    return {"kcl": 1, "s": {shard: to_text(positions[shard]) for shard in sorted(positions)}}


def from_offset(offset: object) -> dict[str, Position] | None:
    """None: of another source."""
    match offset:
        case {"kcl": 1, "s": dict() as shards}:
            return {str(shard): from_text(str(text)) for shard, text in shards.items()}
        case _:
            return None


def minimum(all_positions: Iterable[Positions]) -> dict[str, Position]:
    """Without shards that one of them lacks."""
    each = list(all_positions)
    if not each:
        return {}
    shards = set(each[0]).intersection(*each[1:])
    return {shard: min(positions[shard] for positions in each) for shard in shards}


@dataclass(frozen=True, slots=True)
class QueryPositions:
    """Not only other sources."""

    planned_batch: int | None
    planned: dict[str, Position]
    committed_batch: int | None
    committed: dict[str, Position]
    is_ours: bool = True


class QueryLog:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._books = QueryPositions(None, {}, None, {})

    def read(self) -> QueryPositions:
        before = self._books
        planned_batch = self._newest("offsets", before.planned_batch)
        committed_batch = self._newest("commits", before.committed_batch)
        if (planned_batch, committed_batch) == (before.planned_batch, before.committed_batch):
            return before
        planned = {} if planned_batch is None else self._end_of(planned_batch)
        self._books = QueryPositions(
            planned_batch=planned_batch,
            planned=planned or {},
            committed_batch=committed_batch,
            committed={} if committed_batch is None else self.end_of(committed_batch),
            is_ours=planned is not None,
        )
        return self._books

    def watermark_ms(self) -> int:
        """Of the next batch; 0: none. Written with a commit."""
        books = self.read()
        logs = (("offsets", books.planned_batch), ("commits", books.committed_batch))
        text = "\n".join(line for log, number in logs for line in _lines(self.folder / log / str(number)))
        return max(map(int, _WATERMARK.findall(text)), default=0)

    def end_of(self, batch_id: int) -> dict[str, Position]:
        """The least, if it reads the stream more than once."""
        return self._end_of(batch_id) or {}

    def leave(
        self, is_lost: Callable[[str, Position, Position], bool]
    ) -> dict[str, tuple[Position, Position]]:
        """Of the planned batch, which must not run meanwhile. Gives what was taken out.

        It does not count as committed: if the shard comes back, a later batch reads it.
        """
        number = self.read().planned_batch or 0
        path = self._path(number)
        lines, before = _lines(path), _lines(self._path(number - 1))
        left: dict[str, tuple[Position, Position]] = {}
        for place, line in enumerate(lines):
            last = from_offset(_json(line)) or {}
            after = from_offset(_json(before[place])) if place < len(before) else None
            ranges = {shard: ((after or {}).get(shard, START), end) for shard, end in last.items()}
            lost = {
                shard: each for shard, each in ranges.items() if each[0] < each[1] and is_lost(shard, *each)
            }
            if lost:
                lines[place] = json.dumps(
                    to_offset({**last, **{shard: each[0] for shard, each in lost.items()}})
                )
                left |= lost
        if left:
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            replace_text(path, "\n".join(lines))
            self._books = QueryPositions(None, {}, None, {})
        return left

    def _end_of(self, batch_id: int) -> dict[str, Position] | None:
        """None: only other sources."""
        lines = _lines(self._path(batch_id))
        offsets = [each for each in (from_offset(_json(line)) for line in lines[2:]) if each is not None]
        return minimum(offsets) if offsets or not lines else None

    def _path(self, batch_id: int) -> Path:
        return self.folder / "offsets" / str(batch_id)

    def _newest(self, log: str, known: int | None) -> int | None:
        folder = self.folder / log
        if known is None:
            try:
                return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=None)
            except FileNotFoundError:
                return None
        while (folder / str(known + 1)).exists():
            known += 1
        return known


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []


def _json(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
