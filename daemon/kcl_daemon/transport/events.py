"""PURE: events of SubscribeToShard, read as far as the daemon needs them; records stay undecoded.

Owns the names and types of the wire. What is no such event is Unavailable: the subscription is made anew.
"""

from __future__ import annotations

import json
from typing import Final, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from kcl_daemon.aws import shapes
from kcl_daemon.ports_fan_out import Pushed
from kcl_daemon.transport.answers import WireRecord, child_shards, payload

EVENT: Final = "SubscribeToShardEvent"
OPERATION: Final = "SubscribeToShard"
_NULL: Final = Raw(b"null")


class _Event(Struct, gc=False, rename="pascal"):
    """SubscribeToShardEvent."""

    records: list[WireRecord]
    continuation_sequence_number: str | None = None
    millis_behind_latest: int | None = None
    child_shards: Raw = _NULL


_events: Final = Decoder(_Event)


def pushed(body: bytes) -> Pushed:
    """The event; Unavailable where it is none. Its records keep hold of the body."""
    with shapes.understanding(OPERATION):
        try:
            event = _events.decode(body)
        except msgspec.DecodeError:
            return _loosely(body)
        return Pushed(
            payload=payload(event.records, len(body)),
            continuation=event.continuation_sequence_number or None,
            millis_behind_latest=event.millis_behind_latest,
            child_shards=child_shards(event.child_shards),
        )


def pushed_shape(told: dict[str, object]) -> Pushed:
    """An event that has been decoded already, as those of a Kinesis in memory."""
    fetched = shapes.fetched(cast("shapes.RecordsShape", told))
    return Pushed(
        payload=fetched.payload,
        continuation=shapes.text(told.get("ContinuationSequenceNumber") or "") or None,
        millis_behind_latest=fetched.millis_behind_latest,
        child_shards=fetched.child_shards,
    )


def _loosely(body: bytes) -> Pushed:
    """What the strict reader refused, with what is no UTF-8 replaced: one odd key must not stop a shard."""
    return pushed_shape(cast("dict[str, object]", json.loads(body.decode("utf-8", "replace"))))
