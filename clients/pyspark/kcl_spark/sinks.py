"""For `foreachBatch`, safe for replays: the second write of a batch replaces the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from kcl_spark import changes
from kcl_spark.api import Batch, BatchHandler, is_connect
from kcl_spark.outputs import claim_path, files_of

_QUOTE: Final = '"'
_DRIVERS: Final = {"jdbc:postgresql": "org.postgresql.Driver", "jdbc:sqlite": "org.sqlite.JDBC"}
_NEWEST: Final = "_kcl_newest_batch"
_NOT_TOLD = (
    "{} cannot tell which query this is, and so not which batches are done: give it to foreachBatch itself, in a pipeline "
    "that an engine runs"
)
ForeachBatch = Callable[[DataFrame, int], None]
__all__ = [
    "delta",
    "foreach_batch",
    "iceberg_merge",
    "items",
    "jdbc_upsert",
    "merge_items",
    "overwrite_batch",
    "overwrite_items",
]


def _execute(frame: DataFrame, url: str, options: Mapping[str, str], statements: Sequence[str]) -> None:
    jvm: Any = frame.sparkSession.sparkContext._jvm  # noqa: SLF001 - Spark has no call for plain SQL over JDBC
    if "driver" in options:
        jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(options["driver"])
    properties = jvm.java.util.Properties()
    for name, value in options.items():
        properties.setProperty(name, value)
    connection = jvm.java.sql.DriverManager.getConnection(url, properties)
    try:
        connection.setAutoCommit(False)
        for each in statements:
            connection.createStatement().execute(each)
        connection.commit()
    finally:
        connection.close()


def staging_table(table: str, batch: Batch) -> str:
    """For each query and state. PostgreSQL cuts names after 63 bytes."""
    schema, dot, name = table.rpartition(".")
    mark = sha256(f"{batch.state}/{batch.query}".encode()).hexdigest()[:12]
    plain = re.sub(r"\W", "_", name)[:40]
    return f"{schema}{dot}{plain}_kcl_{mark}"


def statement(
    table: str, staging: str, columns: Sequence[str], keys: Sequence[str], newest_by: Sequence[str] = ()
) -> str:
    missing = [each for each in (*keys, *newest_by) if each not in columns]
    if missing:
        raise ValueError(
            f"jdbc_upsert: {', '.join(missing)} is no column of the batch ({', '.join(columns)})"
        )
    names, conflict = _listed(columns), _listed(keys)
    rest = [column for column in columns if column not in keys]
    updates = ", ".join(f"{_quoted(each)} = EXCLUDED.{_quoted(each)}" for each in rest)
    action = f"DO UPDATE SET {updates}" if rest else "DO NOTHING"
    # Without it SQLite parses ON as part of a join.
    source = f"{staging} WHERE true"
    if newest_by:
        newest_first = ", ".join(f"{_quoted(each)} DESC" for each in newest_by)
        place = f"ROW_NUMBER() OVER (PARTITION BY {conflict} ORDER BY {newest_first}) AS kcl_place"
        source = f"(SELECT {names}, {place} FROM {staging}) AS kcl_rows WHERE kcl_place = 1"  # noqa: S608 - as below
        if rest:
            there = ", ".join(f"kcl_target.{_quoted(each)}" for each in newest_by)
            new = ", ".join(f"EXCLUDED.{_quoted(each)}" for each in newest_by)
            action += f" WHERE ({there}) <= ({new})"
    return f"INSERT INTO {table} AS kcl_target ({names}) SELECT {names} FROM {source} ON CONFLICT ({conflict}) {action}"  # noqa: S608 - names from the pipeline, quoted


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names))


def _quoted(name: str) -> str:
    return _QUOTE + name.replace(_QUOTE, _QUOTE * 2) + _QUOTE


def foreach_batch(function: Callable[[DataFrame, Batch], Any]) -> ForeachBatch:
    """For replays (`batch.is_replay`) too."""
    return BatchHandler(function)


def overwrite_batch(path: str, file_format: str = "parquet", **options: str) -> ForeachBatch:
    """Write each batch into its own folder `batch_id=N` below `path`, replacing what is there.

    Read it as one table with the column `batch_id`. The path belongs to one query of one state.
    """
    claimed: set[str] = set()

    def write(frame: DataFrame, batch: Batch) -> None:
        _claim(frame, path, batch, claimed)
        frame.write.mode("overwrite").format(file_format).options(**options).save(
            f"{path}/batch_id={batch.id}"
        )

    return BatchHandler(write)


def _claim(frame: DataFrame, path: str, batch: Batch, claimed: set[str]) -> None:
    if batch.state and batch.state not in claimed:
        is_new = batch.id == 0 and not batch.is_replay
        claim_path(frame.sparkSession, path, state_id=batch.state, query=batch.query, is_new=is_new)
        claimed.add(batch.state)


def delta(path: str, **options: str) -> ForeachBatch:
    """Append each batch to a Delta table exactly once: Delta ignores a transaction that it already has.

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

    return BatchHandler(write)


def iceberg_merge(table: str, keys: list[str], *, newest_by: list[str] | None = None) -> ForeachBatch:
    """Merge each batch into a table of Iceberg, or of any catalog that knows MERGE, by `keys`.

    `table`: `catalog.database.table`; must exist. Of rows with the same keys the newest by the columns `newest_by`
    wins, in the batch and in the table; without it keys must be unique in a batch. Needs Iceberg's package in
    `sparkPackages` and its catalog in `sparkConf.*`.
    """
    if not keys:
        raise ValueError("iceberg_merge needs at least one key column: without one, a replay inserts twice")

    def write(frame: DataFrame, batch: Batch) -> None:
        rows = changes.newest(frame, keys, newest_by or ())
        _merge(rows, batch, merge_statement(table, _view(batch), keys, newest_by or ()))

    return BatchHandler(write)


def merge_items(table: str) -> ForeachBatch:
    """Keep a copy of a DynamoDB table in one that knows MERGE, of Iceberg or Delta.

    For rows of `decode.dynamodb` with a schema. `table` must exist, with its attributes and `position string`.
    """

    def write(frame: DataFrame, batch: Batch) -> None:
        keys = changes.key_columns(frame)
        sql = merge_statement(table, _view(batch), keys, [changes.ORDER], changes.REMOVED)
        _merge(changes.last_states(frame), batch, sql)

    return BatchHandler(write)


def overwrite_items(path: str) -> ForeachBatch:
    """Keep a copy of a small DynamoDB table in Parquet files, for rows of `decode.dynamodb`; `items` reads it.

    Each batch writes the whole table, into one of two folders by turns. The path belongs to one query of one state.
    """
    claimed: set[str] = set()

    def write(frame: DataFrame, batch: Batch) -> None:
        spark, keys = frame.sparkSession, changes.key_columns(frame)
        _claim(frame, path, batch, claimed)
        states = changes.last_states(frame)
        if batch.id:
            before = spark.read.schema(states.schema).parquet(_turn(path, batch.id - 1))
            states = changes.newest(before.unionByName(states), keys, [changes.ORDER])
        states.where(f"NOT {changes.REMOVED}").write.mode("overwrite").parquet(_turn(path, batch.id))
        files_of(spark).write(f"{path}/{_NEWEST}", str(batch.id))

    return BatchHandler(write)


def _turn(path: str, batch_id: int) -> str:
    return f"{path}/turn={batch_id % 2}"


def items(spark: SparkSession, path: str) -> DataFrame:
    """What `overwrite_items` has written last, until the batch after the next."""
    newest = files_of(spark).read(f"{path}/{_NEWEST}")
    if newest is None:
        raise FileNotFoundError(f"{path} has no items yet: no batch of sinks.overwrite_items is done")
    return spark.read.parquet(_turn(path, int(newest))).drop(changes.REMOVED)


def _view(batch: Batch) -> str:
    return f"kcl_batch_{re.sub(r'[^A-Za-z0-9]', '_', batch.query)}"


def _merge(frame: DataFrame, batch: Batch, sql: str) -> None:
    frame.createOrReplaceTempView(_view(batch))
    frame.sparkSession.sql(sql)


def merge_statement(
    table: str, view: str, keys: Sequence[str], newest_by: Sequence[str] = (), removed: str | None = None
) -> str:
    same = " AND ".join(f"old.`{each}` <=> new.`{each}`" for each in keys)
    newer = ""
    if newest_by:
        newer = f" AND ({_of('new', newest_by)}) >= ({_of('old', newest_by)})"
    delete, present = (
        ("", "")
        if removed is None
        else (f"WHEN MATCHED{newer} AND new.`{removed}` THEN DELETE ", f" AND NOT new.`{removed}`")
    )
    return (
        f"MERGE INTO {table} AS old USING {view} AS new ON {same} {delete}"
        f"WHEN MATCHED{newer} THEN UPDATE SET * WHEN NOT MATCHED{present} THEN INSERT *"
    )


def _of(side: str, names: Sequence[str]) -> str:
    return ", ".join(f"{side}.`{each}`" for each in names)


def jdbc_upsert(
    url: str, table: str, keys: list[str], *, newest_by: list[str] | None = None, **options: str
) -> ForeachBatch:
    """Insert the rows of each batch, replacing those with the same keys (`INSERT ... ON CONFLICT`).

    One transaction per batch, through a staging table, for PostgreSQL and SQLite, whose driver belongs in
    `sparkPackages`.

    Args:
        url: `jdbc:postgresql://HOST/DATABASE`.
        table: must exist, with a unique index on the keys.
        keys: columns that identify a row. Without `newest_by` they must be unique in a batch.
        newest_by: columns that order rows with the same keys: the newest wins, whichever host writes last.
        options: `user`, `password`; `driver`, the class, for other databases.
    """
    if not keys:
        raise ValueError("jdbc_upsert needs at least one key column: without one, a replay inserts twice")
    driver = _DRIVERS.get(":".join(url.split(":")[:2]))
    # Java finds no drivers in Spark's packages.
    settings = {"driver": driver, **options} if driver else options
    if url.startswith("jdbc:sqlite"):
        waits = {"transaction_mode": "IMMEDIATE", "busy_timeout": "60000"}
        settings = {"numPartitions": "1", **waits, **settings}

    def write(frame: DataFrame, batch: Batch) -> None:
        if is_connect(frame):
            raise ValueError(
                "jdbc_upsert needs the Spark driver in its own process; with Spark Connect, write rows to the database "
                "from a function for foreachBatch"
            )
        staging = staging_table(table, batch)
        upsert = statement(table, staging, frame.columns, keys, newest_by or ())
        # Without a dialect, as for SQLite, Spark does not see that the table is missing.
        drop = f"DROP TABLE IF EXISTS {staging}"
        likewise = f"SELECT {_listed(frame.columns)} FROM {table} WHERE 1 = 0"  # noqa: S608 - as in `statement`
        _execute(frame, url, settings, [drop, f"CREATE TABLE {staging} AS {likewise}"])
        frame.write.jdbc(url, staging, "append", settings)
        _execute(frame, url, settings, [upsert, drop])

    return BatchHandler(write)
