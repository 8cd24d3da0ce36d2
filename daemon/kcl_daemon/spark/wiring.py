"""What a Spark pipeline makes of the settings: the engine's options, and children that are relays to it.

Pure. Owns the names of the engine's options; knows nothing of processes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from kcl_daemon.config.settings import Settings

# After the drain, for the last checkpoints and statuses.
_LAST_WORDS_MS: Final = 5_000


def engine_options(settings: Settings, socket: Path) -> bytes:
    """The line that the engine reads first.

    Args:
        settings: with a pipeline.
        socket: where it is to listen.
    """
    spark = settings.spark
    options: Mapping[str, object] = {
        "pipeline": spark.pipeline,
        "application": settings.application_name,
        "stream": settings.stream_name,
        "socket": str(socket),
        "state_dir": spark.state_dir or f"{settings.application_name}-spark",
        "spool_dir": spark.spool_dir or "",
        "spool_max_bytes": spark.spool_max_bytes,
        "master": spark.master,
        "remote": spark.remote or "",
        "transport": spark.used_transport,
        "listen": spark.engine_listen or "",
        "certificate": spark.engine_certificate or "",
        "key": spark.engine_key or "",
        "token_file": spark.engine_token_file or "",
        "conf": dict(spark.conf),
        "packages": spark.packages,
        "driver_memory": spark.driver_memory,
        "trigger": spark.trigger,
        "max_bytes_per_trigger": spark.max_bytes_per_trigger,
        "max_skew_ms": spark.max_skew_ms,
        "max_skew_wait_ms": spark.max_skew_wait_ms,
        "checkpoint_interval_ms": spark.checkpoint_interval_ms,
        "drain_timeout_ms": spark.drain_timeout_ms,
        "on_lost_range": spark.on_lost_range,
        "state_reset": spark.state_reset,
        "columns": spark.columns,
    }
    return orjson.dumps(options, option=orjson.OPT_APPEND_NEWLINE)


def uplink_options(settings: Settings, socket: Path) -> bytes:
    """The line that the uplink reads first, which stands in for the engine where that is another host's.

    Args:
        settings: with a pipeline, and an engine to feed.
        socket: where it is to listen.
    """
    spark = settings.spark
    options: Mapping[str, object] = {
        "engine": spark.engine,
        "authority": spark.engine_authority or "",
        "token_file": spark.engine_token_file,
        "application": settings.application_name,
        "stream": settings.stream_name,
        "socket": str(socket),
    }
    return orjson.dumps(options, option=orjson.OPT_APPEND_NEWLINE)


def with_relays(settings: Settings, *, relay: Path, socket: Path) -> Settings:
    """The settings under which the worker's children are relays.

    No answer of theirs is timed: while Spark is behind, they hold it back. They are given empty batches too, so that what Spark commits while the stream is idle is checkpointed; and at a stop
    they have the time that the batches under way may take.

    Args:
        settings: with a pipeline.
        relay: its file. Run as one, without the site's packages: a process for each shard must be small.
        socket: of the engine.
    """
    child = replace(
        settings.child,
        command=(sys.executable, "-I", "-S", str(relay), str(socket)),
        call_for_empty=True,
        stuck_timeout_ms=None,
        timeout_s=None,  # an answer that does not come is how Spark holds a shard back
        shutdown_grace_ms=max(
            settings.child.shutdown_grace_ms, settings.spark.drain_timeout_ms + _LAST_WORDS_MS
        ),
    )
    return replace(settings, child=child)
