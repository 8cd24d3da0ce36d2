"""What an engine is told at its start: one JSON object, the first line on its stdin.

Owns the fields and their defaults. The daemon writes it from the properties file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import orjson

AVAILABLE_NOW: Final = "availableNow"
SHARED: Final = "shared"
INLINE: Final = "inline"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """One engine.

    Args:
        pipeline: `module:function`.
        application: its name.
        stream: name of the stream.
        socket: where relays connect.
        state_dir: Spark's checkpoints and what belongs to them. Survives.
        spool_dir: the cache of records on their way; empty: in the state folder.
        spool_max_bytes: how much may be on its way.
        master: of Spark.
        remote: a server of Spark Connect, `sc://...`, instead.
        transport: how records reach Spark's workers: `local`, `shared` or `inline`.
        listen: `host:port` where relays of other hosts are taken in, too; empty: nowhere.
        certificate: for that, a file: the chain of certificates.
        key: and its private key.
        token_file: and the secret that those who come must know.
        conf: further settings of Spark.
        packages: Maven coordinates, separated by commas.
        driver_memory: heap of the driver, as Spark writes sizes.
        trigger: time between two batches, as Spark writes intervals, or `availableNow`.
        max_bytes_per_trigger: of one batch.
        max_skew_ms: so much later than the records of the shard furthest behind those of others in a batch may be.
        max_skew_wait_ms: how long a shard that delivers nothing holds the others; 0: nobody waits for anybody.
        checkpoint_interval_ms: least time between two checkpoints of a shard.
        drain_timeout_ms: how long the batches under way may take when the daemon stops.
        on_lost_range: `fail` or `skip`.
        state_reset: whether new state may begin although there are checkpoints.
        columns: names of the columns, `kcl` or `aws`.
        query_retries: how often a failed query is started again before the engine gives up.
    """

    pipeline: str
    application: str
    stream: str
    socket: str
    state_dir: str
    spool_dir: str = ""
    spool_max_bytes: int = 1024**3
    master: str = "local[*]"
    remote: str = ""
    transport: str = "local"
    listen: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""
    conf: dict[str, str] = field(default_factory=dict[str, str])
    packages: str = ""
    driver_memory: str = "1g"
    trigger: str = "0.2 seconds"
    max_bytes_per_trigger: int = 64 * 1024**2
    max_skew_ms: int = 0
    max_skew_wait_ms: int = 60_000
    checkpoint_interval_ms: int = 5_000
    drain_timeout_ms: int = 60_000
    on_lost_range: str = "fail"
    state_reset: bool = False
    columns: str = "kcl"
    query_retries: int = 5

    @property
    def state(self) -> Path:
        """The state folder, absolute."""
        return Path(self.state_dir).absolute()

    def store(self, state_id: str) -> str:
        """Where the spool is: a path of this machine, or where it is shared a URI, with a folder for this state alone."""
        folder = self.spool_dir or str(self.state / "spool")
        if self.transport != SHARED:
            return str(Path(folder).absolute())
        uri = folder if "://" in folder else Path(folder).absolute().as_uri()
        return f"{uri.rstrip('/')}/{state_id}"

    @property
    def is_local(self) -> bool:
        """Whether Spark's workers are threads of the engine's own JVM."""
        return not self.remote and self.master.startswith("local")

    @property
    def is_available_now(self) -> bool:
        """Whether the engine ends when everything has been read."""
        return self.trigger == AVAILABLE_NOW


def parse(line: bytes) -> EngineOptions:
    """The options of a line; unknown fields are an error, so that daemon and engine of different versions notice."""
    reported: dict[str, Any] = orjson.loads(line)
    unknown = sorted(set(reported) - {each.name for each in fields(EngineOptions)})
    if unknown:
        raise ValueError(f"unknown options of the engine: {', '.join(unknown)}")
    return EngineOptions(**reported)
