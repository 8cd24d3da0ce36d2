"""PURE: what is kept of a record that was set aside, and its form as one line of JSON.

The form is a promise to whoever reads dead letters: keys are added, never changed ([failures](docs/failures.md)).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import orjson

from kcl_protocol.messages import Record, RecordSchema


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that no child could process.

    Args:
        record: as the child was given it; `data` is base64 text.
        application_name: whose.
        stream_name: where it is from.
        stream_arn: the same, where it is known.
        shard_id: of that stream.
        worker_id: who set it aside.
        set_aside_ms: when, in epoch milliseconds by that worker's clock.
        failures: how many children in a row failed at it alone.
        error: how the last of them failed.
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

    @property
    def key(self) -> str:
        """The same for the same record of the same application, whoever sets it aside; at most 128 characters."""
        record = self.record
        place = (
            f"{self.shard_id.removeprefix('shardId-')}-{record.sequence_number}-{record.sub_sequence_number}"
        )
        return place[-128:]

    def line(self) -> bytes:
        """JSON in UTF-8, without the end of the line."""
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
            "data": record.data,
            **_schema_fields(record.schema),
            "setAsideTimestamp": self.set_aside_ms,
            "workerId": self.worker_id,
            "failures": self.failures,
            "error": self.error,
            "stderr": list(self.stderr),
        }
        try:
            return orjson.dumps(fields)
        except (
            orjson.JSONEncodeError
        ):  # a lone surrogate, as in a partition key: it has no UTF-8 form but has an escape
            return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _schema_fields(schema: RecordSchema | None) -> dict[str, str]:
    """Named as the child's fields are; the header that told the version is not in the data any more."""
    if schema is None:
        return {}
    return {
        "schemaName": schema.name,
        "schemaVersionId": schema.version_id,
        "schemaDataFormat": schema.data_format,
        "schemaDefinition": schema.definition,
    }
