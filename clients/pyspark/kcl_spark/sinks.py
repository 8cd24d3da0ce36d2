"""Functions for `foreachBatch` that do no harm when a batch is handled a second time.

After a crash Spark runs the batch in hand again, with the same number and the same records. Each of these writes so that
the second time replaces the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from kcl_spark.batches import Batch, with_batch
from kcl_spark.guards import claim_path
from kcl_spark.jdbc import Upsert

__all__ = ["delta", "foreach_batch", "jdbc_upsert", "overwrite_batch"]

_NOT_TOLD = (
    "{} cannot tell which query this is, and so not which batches are done: give it to foreachBatch itself, in a pipeline "
    "that an engine runs"
)
ForeachBatch = Callable[[DataFrame, int], None]


def foreach_batch(function: Callable[[DataFrame, Batch], Any]) -> ForeachBatch:
    """Call `function(df, batch)` for each batch; `batch.is_replay` says whether it may have been handled before."""
    return with_batch(function)


def overwrite_batch(path: str, file_format: str = "parquet", **options: str) -> ForeachBatch:
    """Write each batch into its own folder `batch_id=N` below `path`, replacing what is there.

    Read it as one table with the column `batch_id`. The path belongs to one query of one state.

    Args:
        path: on any file system that Spark knows.
        file_format: `parquet`, `json`, `csv`, `orc`, ...
        options: of the format.
    """
    claimed: set[str] = set()

    def write(frame: DataFrame, batch: Batch) -> None:
        if batch.state and batch.state not in claimed:
            claim_path(frame.sparkSession, path, state_id=batch.state, query=batch.query, is_new=False)
            claimed.add(batch.state)
        frame.write.mode("overwrite").format(file_format).options(**options).save(
            f"{path}/batch_id={batch.id}"
        )

    return with_batch(write)


def delta(path: str, **options: str) -> ForeachBatch:
    """Append each batch to a Delta table, once: Delta drops a transaction of this application that it has.

    Needs Delta's packages in `sparkPackages` and its settings in `sparkConf.*`.
    """

    def write(frame: DataFrame, batch: Batch) -> None:
        if not batch.state:
            raise ValueError(_NOT_TOLD.format("sinks.delta"))
        (
            frame.write.mode("append")
            .format("delta")
            .option("txnAppId", f"{batch.state}/{batch.query}")
            .option("txnVersion", str(batch.id))
            .options(**options)
            .save(path)
        )

    return with_batch(write)


def jdbc_upsert(
    url: str, table: str, keys: list[str], *, newest_by: list[str] | None = None, **options: str
) -> ForeachBatch:
    """Insert the rows of each batch into a table, replacing those with the same keys (`INSERT ... ON CONFLICT`).

    A batch goes in one transaction: first into a staging table of its own, then over. For PostgreSQL and SQLite's
    dialect; the driver's package belongs into `sparkPackages`. Several hosts may write to one table.

    Args:
        url: `jdbc:postgresql://HOST/DATABASE`.
        table: exists, with a unique index on the keys.
        keys: columns that name a row. Without `newest_by` they must be unique in a batch, or the database refuses it.
        newest_by: columns, such as a time, by which the newer of two rows with the same keys is told: it wins within a
            batch, and no row replaces a newer one in the table, whichever host writes last.
        options: `user`, `password`; `driver`, the class, for other databases than these two.
    """
    return with_batch(Upsert(url, table, keys, options, newest_by or ()))
