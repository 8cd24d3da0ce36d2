"""The settings of the Spark engine, part of `settings`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The bundled Spark client. Without a pipeline nothing of it is used.

    Args:
        pipeline: `module:function` whose queries consume the stream; None: children are programs.
        master: where Spark runs: a master of Spark; the engine is its driver.
        remote: a server of Spark Connect that is the driver instead.
        transport: how records reach Spark's workers; None: `local` on this machine, `shared` for a server of Spark
            Connect, else `inline`.
        engine: the engine of another host that this one feeds, `host:port`; None: one of its own.
        engine_listen: where the engine takes in other hosts; None: nowhere.
        engine_token_file: a file with the secret that both sides know.
        engine_certificate: of the engine that listens.
        engine_key: of that certificate; None: in the same file.
        engine_authority: who vouches for the engine that is fed; None: whom the system trusts.
        packages: Maven coordinates for Spark.
        driver_memory: heap of Spark's driver.
        conf: further settings of Spark, as `sparkConf.NAME` gives them.
        state_dir: Spark's checkpoints; None: a folder named after the application, in the daemon's directory.
        spool_dir: records on their way; None: in the state folder.
        spool_max_bytes: shards wait while so much is on its way.
        trigger: time between two micro-batches, or `availableNow`.
        max_bytes_per_trigger: of one micro-batch.
        max_skew_ms: how much later than the records of the shard furthest behind others' in a micro-batch may have arrived.
        max_skew_wait_ms: how long a shard that delivers nothing holds the others; 0: they do not wait.
        checkpoint_interval_ms: least time between two checkpoints of a shard.
        drain_timeout_ms: how long the batches under way may take when the daemon stops.
        on_lost_range: what is done about a planned batch whose records are gone with their lease.
        state_reset: whether new state may begin although there are checkpoints.
        columns: which names the columns have.
    """

    pipeline: str | None = None
    master: str = "local[*]"
    remote: str | None = None
    transport: str | None = None
    engine: str | None = None
    engine_listen: str | None = None
    engine_token_file: str | None = None
    engine_certificate: str | None = None
    engine_key: str | None = None
    engine_authority: str | None = None
    packages: str = ""
    driver_memory: str = "1g"
    conf: tuple[tuple[str, str], ...] = ()
    state_dir: str | None = None
    spool_dir: str | None = None
    spool_max_bytes: int = 1024**3
    trigger: str = "0.2 seconds"
    max_bytes_per_trigger: int = 64 * 1024**2
    max_skew_ms: int = 0
    max_skew_wait_ms: int = 60_000
    checkpoint_interval_ms: int = 5_000
    drain_timeout_ms: int = 60_000
    on_lost_range: str = "fail"
    state_reset: bool = False
    columns: str = "kcl"

    @property
    def used_transport(self) -> str:
        """The transport that was asked for, or the one that fits where Spark runs."""
        if self.transport is not None:
            return self.transport
        if self.remote is not None:
            return "shared"
        return "local" if self.master.startswith("local") else "inline"
