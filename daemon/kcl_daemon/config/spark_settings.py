"""The settings of the Spark engine, part of `settings`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The bundled Spark client. Without a pipeline nothing of it is used.

    Args:
        pipeline: `module:function` whose queries consume the stream; None: children are programs.
        master: where Spark runs.
        packages: Maven coordinates for Spark.
        driver_memory: heap of Spark's driver.
        conf: further settings of Spark, as `sparkConf.NAME` gives them.
        state_dir: Spark's checkpoints; None: a folder named after the application, in the daemon's directory.
        spool_dir: records on their way; None: in the state folder.
        spool_max_bytes: shards wait while so much is on its way.
        trigger: time between two micro-batches, or `availableNow`.
        max_bytes_per_trigger: of one micro-batch.
        checkpoint_interval_ms: least time between two checkpoints of a shard.
        drain_timeout_ms: how long the batches under way may take when the daemon stops.
        on_lost_range: what is done about a planned batch whose records are gone with their lease.
        state_reset: whether new state may begin although there are checkpoints.
        columns: which names the columns have.
    """

    pipeline: str | None = None
    master: str = "local[*]"
    packages: str = ""
    driver_memory: str = "1g"
    conf: tuple[tuple[str, str], ...] = ()
    state_dir: str | None = None
    spool_dir: str | None = None
    spool_max_bytes: int = 1024**3
    trigger: str = "0.2 seconds"
    max_bytes_per_trigger: int = 64 * 1024**2
    checkpoint_interval_ms: int = 5_000
    drain_timeout_ms: int = 60_000
    on_lost_range: str = "fail"
    state_reset: bool = False
    columns: str = "kcl"
