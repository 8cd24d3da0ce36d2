"""One line of JSON for a record that was set aside.

The format is public: keys may be added but never changed ([failures](docs/failures.md)).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import orjson

from kcl_protocol.messages import Record, RecordSchema


class LetterCause(StrEnum):
    """The values are in letters and metrics."""

    FAILED = "failed"
    ATTEMPTS = "attempts"  # maxRecordAttempts
    REJECTED = "rejected"
    EXPIRED = "expired"  # maxRecordAgeMillis


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record.

    Args:
    record: as given to the child.
    set_aside_ms: epoch milliseconds.
    failures: how many children in a row failed at this record alone.
    error: of the last child, or why it rejected the record.
    stderr: its last lines, oldest first.
    """

    record: Record
    application_name: str
    stream_name: str
    stream_arn: str | None
    shard_id: str
    worker_id: str
    set_aside_ms: int
    failures: int
    error: str
    stderr: tuple[str, ...]
    cause: LetterCause = LetterCause.FAILED

    @property
    def key(self) -> str:
        """The same on every worker; at most 128 characters."""
        record = self.record
        place = (
            f"{self.shard_id.removeprefix('shardId-')}-{record.sequence_number}-{record.sub_sequence_number}"
        )
        return place[-128:]

    def line(self, data: Mapping[str, object] | None = None) -> bytes:
        """Without a line end; `data` replaces the record's data."""
        record = self.record
        arn = {} if self.stream_arn is None else {"streamArn": self.stream_arn}
        fields = {
            "applicationName": self.application_name,
            "streamName": self.stream_name,
            **arn,
            "shardId": self.shard_id,
            "sequenceNumber": record.sequence_number,
            "subSequenceNumber": record.sub_sequence_number,
            "partitionKey": record.partition_key,
            "approximateArrivalTimestamp": record.approximate_arrival_timestamp,
            **({"data": record.data} if data is None else data),
            **_schema_fields(record.schema),
            "setAsideTimestamp": self.set_aside_ms,
            "workerId": self.worker_id,
            "cause": self.cause.value,
            "failures": self.failures,
            "error": self.error,
            "stderr": list(self.stderr),
        }
        try:
            return orjson.dumps(fields)
        except orjson.JSONEncodeError:  # a lone surrogate has no UTF-8 form, but an escape
            return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _schema_fields(schema: RecordSchema | None) -> dict[str, str]:
    if schema is None:
        return {}
    return {
        "schemaName": schema.name,
        "schemaVersionId": schema.version_id,
        "schemaDataFormat": schema.data_format,
        "schemaDefinition": schema.definition,
    }
