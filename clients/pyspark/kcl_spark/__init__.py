"""Kinesis streams as streaming DataFrames of Spark: `@pipeline`, `@batch`, decoders and sinks.

The daemon delivers each shard by itself and wants checkpoints. Spark plans batches over all shards, and must get the
same records when it runs a batch again. The `engine` stands between them, one process on each host. A relay of each
shard hands the conversation with the daemon on to a thread of the engine (`conversation`). Records go to the spool, a
bounded folder of Arrow files (`spool`, `segments`, `stores`). Spark's planner is another process: its data source
reads that folder and decides how far a batch goes (`source`). Spark's own logs say what is planned and what is
committed (`positions`).

- A checkpoint never passes what all queries have committed. So whatever is lost with the spool is delivered again.
- Spark logs the end of a batch before it reads the batch. If records of it are missing, the batch waits until they are
  delivered again. If no lease brings them within a minute, they are taken out of the plan: another host has them.
- Without a lease no new batch takes the records of a shard; a batch that is planned still does.
- Spark drops rows behind its watermark, which follows the newest record of all shards. So no batch takes a record that
  arrived after the horizon, a moment that follows the slowest shard (`alignment`).

`application.run` needs no engine: it runs a pipeline on any cluster, over a landing log. It and `api`, `changes`,
`declared`, `decode`, `outputs` and `sinks` keep to Python 3.9, Spark 3.3 and what is shipped with them. Importing
this package loads no Spark: a relay must stay small.
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
