"""Kinesis streams as streaming DataFrames: `@pipeline`, `@batch`, helpers for sinks and decoders.

Importing this package loads no Spark: the relay, one process per shard, must stay small.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcl_spark import decode, sinks
    from kcl_spark.api import Batch, batch, pipeline
    from kcl_spark.application import run

__all__ = ["Batch", "batch", "decode", "pipeline", "run", "sinks"]


def __getattr__(name: str) -> object:
    if name in {"decode", "sinks"}:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        return getattr(import_module(f"{__name__}.{'application' if name == 'run' else 'api'}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
