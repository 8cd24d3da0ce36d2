"""Figures in words, as every view for people shows them: times, sizes, rates, checkpoints, shards.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NONE: Final = "-"
"""What stands where there is nothing to tell."""
_TIMES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_SIZES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SHARD_PREFIX: Final = "shardId-"
_START, _END = 6, 12  # of a checkpoint's 56 digits: the end is what differs within a shard


def numbered(count: int, what: str) -> str:
    """So many of something: `1 lease`, `2 leases`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def duration(seconds: float) -> str:
    """A time for people: `850 ms`, `12.5 s`, `3 min`, `26 h`, `4 d`."""
    for unit_s, name in _TIMES:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{max(seconds, 0) * 1000:.0f} ms"


def about(seconds: float) -> str:
    """A time that changes all the while: whole seconds, at least."""
    return duration(seconds) if seconds >= 2 * _TIMES[-1][0] else f"{max(seconds, 0):.0f} s"


def size(count: float) -> str:
    """Bytes for people: `512 B`, `1.5 KiB`, `48 MiB`."""
    for unit, name in _SIZES:
        if count >= unit:
            figure = count / unit
            return f"{figure:.1f} {name}" if figure < 10 else f"{figure:.0f} {name}"
    return f"{count:.0f} B"


def rate(bytes_per_s: float) -> str:
    """Bytes a second for people."""
    return f"{size(bytes_per_s)}/s"


def short_number(checkpoint: str) -> str:
    """A checkpoint without the middle of its digits; words such as `TRIM_HORIZON` as they are."""
    if len(checkpoint) <= _START + _END + 3:
        return checkpoint
    return f"{checkpoint[:_START]}...{checkpoint[-_END:]}"


def short_shard(shard_id: str) -> str:
    """A shard id as people say it: `3` for `shardId-000000000003`; one of another form as it is."""
    number = shard_id.removeprefix(_SHARD_PREFIX)
    has_number = number != shard_id and number.isascii() and number.isdigit()
    return number.lstrip("0") or "0" if has_number else shard_id


def short_shards(shard_ids: Sequence[str], *, most: int = 5) -> str:
    """Some shards in a sentence: `shard 3`, `shards 3 and 4`, `shards 0, 1, 2, 3, 4 and 7 more`."""
    names = [short_shard(each) for each in shard_ids]
    if len(names) == 1:
        return f"shard {names[0]}"
    last = names.pop() if len(names) <= most else f"{len(names) - most} more"
    return f"shards {', '.join(names[:most])} and {last}"


def counted(count: int, one: str, several: str = "") -> str:
    """A count with its noun: `1 child`, `2 children`; without `several` the noun takes an s."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"
