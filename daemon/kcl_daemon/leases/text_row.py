"""Rows of ours among the coordinator rows: a key and one text.

They look like rows of a stream, which KCL 3.4 and later leave alone; an unknown kind would be taken for a lease. KCL
keeps only the text when it moves them to another table. No stream and no worker has a name with a slash, as the keys
have.
"""

from __future__ import annotations

from typing import Final

from msgspec import DecodeError, Struct
from msgspec.json import decode, encode

from kcl_daemon.leases.lease import TableStream
from kcl_daemon.leases.row import Absent, Conditions, Equals, Row, RowPut, RowUpdate

CAPACITY_KEY: Final = "daemon/capacity"
STREAM_KEY: Final = "daemon/stream"
_VERSION: Final = 1
_END_OF_TIME_S: Final = 253_402_300_800
TEXT: Final = "streamId"
_KIND: Final = {"entityType": "STREAM"}


def text_of(row: Row) -> str:
    return str(row.get(TEXT, ""))


def text_unchanged(row: Row) -> Conditions:
    return (Equals(TEXT, row.get(TEXT, "")),)


def text_write(key: str, before: Row | None, text: str, *, key_attribute: str) -> RowPut | RowUpdate:
    """Refused if the row is not as it was read: it must never stand in two tables while they are moved."""
    if before is None:
        return RowPut({key_attribute: key, **_KIND, TEXT: text}, (Absent(key_attribute),))
    return RowUpdate(key, put={TEXT: text}, require=text_unchanged(before))


class OwnStream(Struct, frozen=True, kw_only=True, rename="camel"):
    """Of all leases of an application; for DynamoDB the table, without a time."""

    arn: str
    created_s: int | None
    version: int = _VERSION

    @staticmethod
    def of(arn: str, created_s: float) -> OwnStream:
        if TableStream.of(arn) is not None:
            return OwnStream(arn=arn.partition("/stream/")[0], created_s=None)
        return OwnStream(arn=arn, created_s=int(created_s))

    @property
    def text(self) -> str:
        return encode(self).decode()

    @staticmethod
    def from_text(text: str) -> OwnStream | None:
        """None: it is of another version, or somebody else wrote it."""
        try:
            found = decode(text, type=OwnStream)
        except (DecodeError, RecursionError):
            return None
        is_time = found.created_s is None or 0 <= found.created_s < _END_OF_TIME_S
        return found if found.version == _VERSION and is_time else None
