"""An upsert over JDBC: a staging table filled by Spark's workers, then one statement in one transaction.

Owns the SQL. Spark itself can only append or replace a whole table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from kcl_spark.batches import Batch


class Upsert:
    """Handles one batch after the other.

    Args:
        url: of the database.
        table: the target.
        keys: its unique columns.
        options: of the connection.
    """

    def __init__(self, url: str, table: str, keys: Sequence[str], options: Mapping[str, str]) -> None:
        if not keys:
            raise ValueError("jdbc_upsert needs at least one key column: without one, a replay inserts twice")
        self._url = url
        self._table = table
        self._keys = list(keys)
        self._options = dict(options)

    def __call__(self, frame: DataFrame, batch: Batch) -> None:
        """Write one batch; the staging table is replaced, so that a batch that broke off leaves nothing."""
        staging = f"{self._table}_kcl_{batch.query}"
        (
            frame.write.mode("overwrite")
            .format("jdbc")
            .options(**self._options)
            .option("url", self._url)
            .option("dbtable", staging)
            .save()
        )
        self._execute(
            frame, [statement(self._table, staging, frame.columns, self._keys), f"DROP TABLE {staging}"]
        )

    def _execute(self, frame: DataFrame, statements: Sequence[str]) -> None:
        jvm: Any = frame.sparkSession.sparkContext._jvm  # noqa: SLF001 - Spark has no call for plain SQL over JDBC
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


def statement(table: str, staging: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """`INSERT ... ON CONFLICT` from the staging table.

    Raises:
        ValueError: a key is no column.
    """
    missing = [key for key in keys if key not in columns]
    if missing:
        raise ValueError(
            f"jdbc_upsert: {', '.join(missing)} is no column of the batch ({', '.join(columns)})"
        )
    names = ", ".join(map(_quoted, columns))
    rest = [column for column in columns if column not in keys]
    updates = ", ".join(f"{_quoted(each)} = EXCLUDED.{_quoted(each)}" for each in rest)
    action = f"DO UPDATE SET {updates}" if rest else "DO NOTHING"
    conflict = ", ".join(map(_quoted, keys))
    # WHERE true: without it SQLite reads ON as the beginning of a join.
    return f"INSERT INTO {table} ({names}) SELECT {names} FROM {staging} WHERE true ON CONFLICT ({conflict}) {action}"  # noqa: S608 - names from the pipeline, quoted


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
