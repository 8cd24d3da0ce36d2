"""Changes of a DynamoDB table as records for a child, in three forms."""

from __future__ import annotations

from enum import Enum

from kcl_daemon.records.payload import Payload


class ChangeForm(Enum):
    """What `data` of a record is; the values are those of `childRecordFormat`."""

    KCL1 = "KCL1"
    """The JSON that the adapter 1.x's StreamsMultiLangDaemon gave: times in milliseconds, without nulls."""
    LAMBDA = "LAMBDA"
    """A record of AWS Lambda's event: as the service gives it, with `eventSourceARN`."""
    PLAIN = "PLAIN"
    """Plain values: see docs/dynamodb-streams.md."""


def changes_of(
    answer: bytes | bytearray, form: ChangeForm, stream_arn: str, since_ms: int | None = None
) -> tuple[Payload, str | None, int]:
    """The records of an answer of GetRecords, its next iterator, and how many changes it had.

    `since_ms`: changes before that time are left out. A partition key is the JSON text of the item's keys.

    Raises:
        ValueError: the answer cannot be understood.
    """
    raise NotImplementedError


def snapshot_record(
    item: bytes, keys: tuple[str, ...], form: ChangeForm, stream_arn: str, *, number: str, at_ms: int
) -> object:
    """An item of a scan (its JSON, as Scan gives it) as a change: INSERT, in `PLAIN` of the kind `snapshot`."""
    raise NotImplementedError
