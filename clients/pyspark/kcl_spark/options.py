"""The engine's options: one JSON object, the first line on its stdin."""

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
    """Options of one engine.

    Args:
        state_dir: Spark's checkpoints; must survive restarts.
        spool_dir: empty: in the state folder.
        spool_max_bytes: size at which shards must wait.
        remote: a Spark Connect server instead of `master`.
        transport: how records reach Spark's workers: `local`, `shared` or `inline`.
        listen: `host:port` for relays of other hosts; empty: none.
        trigger: time between batches in Spark's notation, or `availableNow`.
        max_skew_ms: how much later a shard's records may be than those of the slowest shard.
        max_skew_wait_ms: how long a silent shard holds the others; 0: no shard waits.
        state_reset: allow new state although there are checkpoints.
        query_retries: within one batch.
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
        return Path(self.state_dir).absolute()

    def store(self, state_id: str) -> str:
        """Path of the spool; for `shared`, a URI with a folder for this state alone."""
        folder = self.spool_dir or str(self.state / "spool")
        if self.transport != SHARED:
            return str(Path(folder).absolute())
        uri = folder if "://" in folder else Path(folder).absolute().as_uri()
        return f"{uri.rstrip('/')}/{state_id}"

    @property
    def is_local(self) -> bool:
        return not self.remote and self.master.startswith("local")

    @property
    def is_available_now(self) -> bool:
        return self.trigger == AVAILABLE_NOW


def parse(line: bytes) -> EngineOptions:
    """Unknown fields raise ValueError: daemon and engine are of different versions."""
    reported: dict[str, Any] = orjson.loads(line)
    unknown = sorted(set(reported) - {each.name for each in fields(EngineOptions)})
    if unknown:
        raise ValueError(f"unknown options of the engine: {', '.join(unknown)}")
    return EngineOptions(**reported)
