"""An upsert over JDBC: a staging table filled by Spark's workers, then one statement in one transaction.

Owns the SQL. Spark itself can only append or replace a whole table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from pyspark.sql import DataFrame

from kcl_spark.batches import Batch, is_connect

_QUOTE: Final = '"'
_DRIVERS: Final = {"jdbc:postgresql": "org.postgresql.Driver", "jdbc:sqlite": "org.sqlite.JDBC"}


class Upsert:
    """Handles one batch after the other.

    Args:
        url: of the database.
        table: the target.
        keys: its unique columns.
        newest_by: columns by which the newer of two rows is told.
        options: of the connection.
    """

    def __init__(
        self,
        url: str,
        table: str,
        keys: Sequence[str],
        options: Mapping[str, str],
        newest_by: Sequence[str] = (),
    ) -> None:
        if not keys:
            raise ValueError("jdbc_upsert needs at least one key column: without one, a replay inserts twice")
        driver = _DRIVERS.get(":".join(url.split(":")[:2]))
        self._url = url
        self._table = table
        self._keys = list(keys)
        self._newest_by = list(newest_by)
        # Named, as Java looks for drivers by itself only where Spark's packages are not.
        self._options = {**({"driver": driver} if driver else {}), **options}

    def __call__(self, frame: DataFrame, batch: Batch) -> None:
        """Write one batch; the staging table is replaced, so that a batch that broke off leaves nothing.

        Raises:
            ValueError: a key is no column, or this is no place for it.
        """
        if is_connect(frame):
            raise ValueError(
                "jdbc_upsert needs the driver in the engine (sparkMaster); with sparkRemote, write rows to the database "
                "from a function for foreachBatch"
            )
        staging = staging_table(self._table, batch)
        upsert = statement(self._table, staging, frame.columns, self._keys, self._newest_by)
        (
            frame.write.mode("overwrite")
            .format("jdbc")
            .options(**self._options)
            .option("url", self._url)
            .option("dbtable", staging)
            .save()
        )
        self._execute(frame, [upsert, f"DROP TABLE {staging}"])

    def _execute(self, frame: DataFrame, statements: Sequence[str]) -> None:
        jvm: Any = frame.sparkSession.sparkContext._jvm  # noqa: SLF001 - Spark has no call for plain SQL over JDBC
        if "driver" in self._options:
            registry = jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry
            registry.register(self._options["driver"])
        properties = jvm.java.util.Properties()
        for name, value in self._options.items():
            properties.setProperty(name, value)
        connection = jvm.java.sql.DriverManager.getConnection(self._url, properties)
        try:
            connection.setAutoCommit(False)
            for each in statements:
                connection.createStatement().execute(each)
            connection.commit()
        finally:
            connection.close()


def staging_table(table: str, batch: Batch) -> str:
    """A table beside the target for one query of one engine: several hosts may write to one table.

    Short, as PostgreSQL cuts names after 63 bytes without a word.
    """
    schema, dot, name = table.rpartition(".")
    mark = sha256(f"{batch.state}/{batch.query}".encode()).hexdigest()[:12]
    plain = re.sub(r"\W", "_", name)[:40]
    return f"{schema}{dot}{plain}_kcl_{mark}"


def statement(
    table: str, staging: str, columns: Sequence[str], keys: Sequence[str], newest_by: Sequence[str] = ()
) -> str:
    """`INSERT ... ON CONFLICT` from the staging table.

    With `newest_by` only the newest row of each key is taken, and it replaces no newer one.

    Raises:
        ValueError: a key is no column.
    """
    missing = [each for each in (*keys, *newest_by) if each not in columns]
    if missing:
        raise ValueError(
            f"jdbc_upsert: {', '.join(missing)} is no column of the batch ({', '.join(columns)})"
        )
    names, conflict = _listed(columns), _listed(keys)
    rest = [column for column in columns if column not in keys]
    updates = ", ".join(f"{_quoted(each)} = EXCLUDED.{_quoted(each)}" for each in rest)
    action = f"DO UPDATE SET {updates}" if rest else "DO NOTHING"
    # WHERE true: without it SQLite reads ON as the beginning of a join.
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
