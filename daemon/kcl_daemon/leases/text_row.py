"""Rows of ours among the coordinator rows: a key and one text.

Such a row looks like a row of a stream, which KCL 3.4 and later leave alone in every layout of the tables; an unknown kind
would be taken for a lease. KCL keeps only the text of such a row when it moves it to another table, so everything is in that
text. No stream and no worker has a name with a slash, as the keys have.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.leases.row import Absent, Conditions, Equals, Row, RowPut, RowUpdate

CAPACITY_KEY: Final = "daemon/capacity"
TEXT: Final = "streamId"
_KIND: Final = {"entityType": "STREAM"}


def text_of(row: Row) -> str:
    return str(row.get(TEXT, ""))


def text_unchanged(row: Row) -> Conditions:
    return (Equals(TEXT, row.get(TEXT, "")),)


def text_write(key: str, before: Row | None, text: str, *, key_attribute: str) -> RowPut | RowUpdate:
    """Refused if the row is no longer as it was read, so that it never stands in two tables while they are moved."""
    if before is None:
        return RowPut({key_attribute: key, **_KIND, TEXT: text}, (Absent(key_attribute),))
    return RowUpdate(key, put={TEXT: text}, require=text_unchanged(before))
