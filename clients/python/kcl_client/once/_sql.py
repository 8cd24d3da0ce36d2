"""The position is a row of the table `kcl_once` beside the program's own tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from kcl_client.once._core import Conflict, Reader, Stored, refusal
from kcl_protocol.sequence import ExtendedSequenceNumber

_TABLE: Final = """CREATE TABLE IF NOT EXISTS kcl_once (
application text, stream text, shard text, token bigint NOT NULL,
sequence_number text NOT NULL, sub_sequence_number bigint NOT NULL,
PRIMARY KEY (application, stream, shard))"""
_EXISTS: Final = "SELECT 1 FROM kcl_once WHERE 1 = 0"
_BEGIN: Final = """INSERT INTO kcl_once VALUES (?, ?, ?, ?, '', 0)
ON CONFLICT (application, stream, shard) DO UPDATE SET token = excluded.token WHERE kcl_once.token <= excluded.token"""
_READ: Final = (
    "SELECT token, sequence_number, sub_sequence_number FROM kcl_once "
    "WHERE application = ? AND stream = ? AND shard = ?"
)
_COMMIT: Final = """UPDATE kcl_once SET token = ?, sequence_number = ?, sub_sequence_number = ?
WHERE application = ? AND stream = ? AND shard = ? AND token <= ? AND sequence_number = ? AND sub_sequence_number = ?"""
# PostgreSQL's names for: could not serialize, deadlock.
_CONFLICTS: Final = frozenset({"40001", "40P01"})


class Cursor(Protocol):
    """Of `sqlite3` or `psycopg`. Do not commit: that is done for you."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, sql: Any, parameters: Any = ..., /) -> Any: ...

    def executemany(self, sql: Any, parameters: Any, /) -> Any: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class _SqlStore:
    def __init__(self, application: str, stream: str, connect: Callable[[], Any], mark: str) -> None:
        self.application = application
        self.stream = stream
        self._connect = connect
        self._mark = mark
        self._connection: Any = None

    def begin(self, reader: Reader) -> ExtendedSequenceNumber | None:
        self.close()
        self._connection = self._connect()
        self._create_table()
        cursor = self._cursor()
        self._execute(cursor, _BEGIN, (*_key(reader), reader.token))
        stored = self._read(cursor, reader)
        self._connection.commit()
        if stored is None or stored.token > reader.token:
            raise refusal(reader, None, stored)
        return stored.position

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def commit(
        self,
        reader: Reader,
        before: ExtendedSequenceNumber | None,
        after: ExtendedSequenceNumber,
        work: Callable[[Cursor], object],
    ) -> None:
        """The position comes last: who is stopped in the middle holds up no other reader."""
        try:
            self._write(reader, before, after, work)
        except BaseException as error:
            self._roll_back()
            if getattr(error, "sqlstate", None) in _CONFLICTS:
                raise Conflict(str(error)) from error
            raise

    def _write(
        self,
        reader: Reader,
        before: ExtendedSequenceNumber | None,
        after: ExtendedSequenceNumber,
        work: Callable[[Cursor], object],
    ) -> None:
        cursor = self._cursor()
        work(cursor)
        values = (reader.token, *_row(after), *_key(reader), reader.token, *_row(before))
        self._execute(cursor, _COMMIT, values)
        if cursor.rowcount != 1:
            raise refusal(reader, before, self._read(cursor, reader))
        self._connection.commit()

    def _create_table(self) -> None:
        """Where it is there, no right to create it is needed; another child may create it at the same time."""
        for sql in (_EXISTS, _TABLE, _EXISTS):
            try:
                self._execute(self._cursor(), sql)
            except self._connection.Error:
                self._connection.rollback()
            else:
                self._connection.commit()
                return
        self._execute(self._cursor(), _TABLE)

    def _roll_back(self) -> None:
        self._connection.rollback()

    def _cursor(self) -> Cursor:
        cursor: Cursor = self._connection.cursor()
        return cursor

    def _execute(self, cursor: Cursor, sql: str, values: Sequence[str | int] = ()) -> None:
        cursor.execute(sql.replace("?", self._mark), values)

    def _read(self, cursor: Cursor, reader: Reader) -> Stored | None:
        self._execute(cursor, _READ, _key(reader))
        row = cursor.fetchone()
        if row is None:
            return None
        token, number, sub_number = row
        return Stored(int(token), ExtendedSequenceNumber(number, sub_number) if number else None)


def _key(reader: Reader) -> tuple[str, str, str]:
    return reader.application, reader.stream, reader.shard


def _row(position: ExtendedSequenceNumber | None) -> tuple[str, int]:
    return ("", 0) if position is None else (str(position.sequence_number), position.sub_sequence_number)


class SqliteStore(_SqlStore):
    """A database in a file, for all children of one host. The transaction is a `sqlite3.Cursor`.

    Args:
        path: of the file; it is created.
        application, stream: as of `DynamoDbStore`.
        wait_s: how long to wait for the transactions of other children.
    """

    def __init__(self, path: str | Path, *, application: str, stream: str = "", wait_s: float = 60.0) -> None:
        def connect() -> sqlite3.Connection:
            return sqlite3.connect(path, timeout=wait_s, isolation_level=None)

        super().__init__(application, stream, connect, "?")

    def _cursor(self) -> Cursor:
        cursor = super()._cursor()
        cursor.execute("BEGIN IMMEDIATE")
        return cursor


class PostgresStore(_SqlStore):
    """The transaction is a `psycopg.Cursor` (psycopg 3).

    Args:
        conninfo: as of `psycopg.connect`.
        application, stream: as of `DynamoDbStore`.
        idle_s: the server ends a transaction of a process that has been stopped for so long, with its locks.
    """

    def __init__(self, conninfo: str, *, application: str, stream: str = "", idle_s: float = 60.0) -> None:
        def connect() -> Any:
            connection = import_module("psycopg").connect(conninfo)
            connection.execute(f"SET idle_in_transaction_session_timeout = {round(idle_s * 1000)}")
            connection.commit()
            return connection

        super().__init__(application, stream, connect, "%s")

    def _roll_back(self) -> None:
        if not self._connection.closed:
            super()._roll_back()
