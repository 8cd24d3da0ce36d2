"""What the Spark engine of this host is doing, at one moment: a part of the snapshot.

Owns the shape only; durations are seconds at the moment of the snapshot. What is counted is counted from the start of
the engine's process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SparkQueryView:
    """One streaming query.

    Args:
        name: of it.
        running: whether it runs; one that failed waits to be started again.
        failures: counted.
        batch: the newest that it has committed; None: none yet.
        since_commit_s: since its last commit; since the engine saw it first where there was none.
        input_rows_per_s: that came in, as Spark told last; None: not yet.
        processed_rows_per_s: that it worked through, likewise.
        batch_s: how long its last batch with records took, likewise.
        state_rows: rows in the state of its windows and joins; None: it keeps none.
        late_rows: that Spark has dropped as later than the watermark, counted; None: it keeps no state.
    """

    name: str
    running: bool
    failures: int
    batch: int | None
    since_commit_s: float
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    batch_s: float | None
    state_rows: int | None
    late_rows: int | None


@dataclass(frozen=True, slots=True)
class SparkShardView:
    """One shard that the engine is fed, by this host or another.

    Args:
        shard_id: of it.
        behind_ms: behind the tip, as its daemon told last; None: not yet.
        rows: written to the spool, counted.
        data_bytes: of their files, counted.
        committed: rows that all queries have committed, counted.
        redelivered: rows that came once more and were dropped, counted since its relay came.
        waiting: rows that are there and that some query has not committed yet.
        lag_s: since the oldest of these came; 0: there is none.
        spooled_bytes: what the spool holds of it.
    """

    shard_id: str
    behind_ms: int | None
    rows: int
    data_bytes: int
    committed: int
    redelivered: int
    waiting: int
    lag_s: float
    spooled_bytes: int


@dataclass(frozen=True, slots=True)
class SparkView:
    """The engine.

    Args:
        ui: where Spark shows more; None: nowhere.
        queries: by name.
        shards: by id.
    """

    ui: str | None
    queries: tuple[SparkQueryView, ...]
    shards: tuple[SparkShardView, ...]


SparkSource: TypeAlias = Callable[[], SparkView | None]
"""How the engine is now; None: there is none on this host, or it has not been heard of lately."""


def no_spark() -> SparkView | None:
    """Where there is no engine."""
    return None
