"""What is known of records that were lost because they were older than their stream keeps them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from kcl_daemon.leases.lease import ShardId
from kcl_daemon.shards.lineage import created_ms

_MS: Final = 1000


def lost_words(
    shard_id: ShardId, after: str, oldest_ms: int | None, now_ms: int, *, nothing_left: bool = False
) -> str:
    """How much was lost at most, after the position `after`; how many records these were, nobody can tell.

    `oldest_ms`: arrival of the oldest record that is left; None: not known.
    """
    begun_ms = created_ms(shard_id)
    begun = "" if begun_ms is None else f"; this shard began at {_shown(begun_ms, now_ms)}"
    if nothing_left:
        return f"all records after {after} that were not read: this shard has none left{begun}"
    if oldest_ms is None:
        return f"records after {after}; which is the oldest one left is not known{begun}"
    return (
        f"records after {after} that are older than {_shown(oldest_ms, now_ms)}, the oldest one left{begun}"
    )


def _shown(time_ms: int, now_ms: int) -> str:
    at = datetime.fromtimestamp(time_ms / _MS, UTC)
    minutes = (now_ms - time_ms) / _MS / 60
    age = f"{minutes / 60:.1f} h" if minutes >= 60 else f"{minutes:.0f} min"
    return f"{at:%Y-%m-%dT%H:%M:%SZ} ({age} ago)"
