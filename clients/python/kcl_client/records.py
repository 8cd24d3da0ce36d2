"""What a record processor is handed: records, batches of them, and where its shard starts.

Owns the friendly view of the protocol's values: bytes for base64, aware times for epoch milliseconds. Knows nothing of
how the values arrive (`dialogue`) or of checkpoints (`checkpointer`).
"""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, cast

from kcl_protocol import messages
from kcl_protocol.messages import RecordSchema
from kcl_protocol.sequence import ExtendedSequenceNumber

Scalar = str | int | float | bool | None
JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | Scalar

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: Final[Mapping[str, Scalar]] = MappingProxyType({})


class Record:
    """One user record. Its payload is decoded at the first look at `data`, so that skipping a record costs little."""

    __slots__ = ("_data", "_wire")

    def __init__(self, wire: messages.Record) -> None:
        self._wire = wire
        self._data: bytes | None = None

    def __repr__(self) -> str:
        return f"Record(position={self.position}, partition_key={self.partition_key!r})"

    @property
    def data(self) -> bytes:
        """The payload as the producer put it.

        Raises:
            ValueError: what arrived is not base64 (binascii.Error).
        """
        if self._data is None:
            self._data = a2b_base64(self._wire.data, strict_mode=True)
        return self._data

    def text(self, encoding: str = "utf-8") -> str:
        """The payload as text.

        Raises:
            UnicodeDecodeError: it is not text of that encoding.
        """
        return self.data.decode(encoding)

    def json(self) -> JsonValue:
        """The payload as JSON.

        Raises:
            ValueError: it is not JSON (json.JSONDecodeError).
        """
        return cast("JsonValue", json.loads(self.data))

    @property
    def partition_key(self) -> str:
        """The key that chose the shard."""
        return self._wire.partition_key

    @property
    def sequence_number(self) -> str:
        """Decimal digits; shared by all user records of one KPL aggregate."""
        return self._wire.sequence_number

    @property
    def sub_sequence_number(self) -> int:
        """The place inside a KPL aggregate, 0 for a plain record."""
        return self._wire.sub_sequence_number

    @property
    def position(self) -> ExtendedSequenceNumber:
        """Both numbers together: what a checkpoint takes, and what sorts records of one shard."""
        return ExtendedSequenceNumber(self._wire.sequence_number, self._wire.sub_sequence_number)

    @property
    def schema(self) -> RecordSchema | None:
        """The schema that it was written with, where the daemon asks a registry; `kcl_client.schemas` decodes by it."""
        return self._wire.schema

    @property
    def arrival_ms(self) -> int | None:
        """When the stream took the record, in epoch milliseconds; approximate, and None where it was not told."""
        return self._wire.approximate_arrival_timestamp

    @property
    def arrival(self) -> datetime | None:
        """`arrival_ms` as a time in UTC."""
        moment_ms = self.arrival_ms
        return None if moment_ms is None else _EPOCH + timedelta(milliseconds=moment_ms)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records in the order of their shard; iterating over the batch is iterating over them.

    Args:
        records: may be empty where the daemon is set to call for empty batches.
        millis_behind_latest: how far behind the tip of the shard Kinesis saw this batch; None where not told.
    """

    records: tuple[Record, ...]
    millis_behind_latest: int | None = None

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True, slots=True)
class ShardStart:
    """Which shard this process is for, and where its records will start.

    Args:
        shard_id: such as `shardId-000000000007`.
        sequence_number: the lease's checkpoint: records up to and including it are done. A sentinel such as
            TRIM_HORIZON on a shard that was never checkpointed; None where the daemon had nothing to tell.
        extra: further scalar fields of the daemon's `initialize`, by their wire names.
    """

    shard_id: str
    sequence_number: ExtendedSequenceNumber | None
    extra: Mapping[str, Scalar] = field(default_factory=lambda: _NOTHING)
