"""What settings say about records, for those who do not load what acts on it."""

from __future__ import annotations

from enum import Enum


class ShardOrder(Enum):
    KEY = "KEY"
    NONE = "NONE"


class ChangeForm(Enum):
    """What `data` of a record is; the values are those of `childRecordFormat`."""

    KCL1 = "KCL1"
    """The JSON that the adapter 1.x's StreamsMultiLangDaemon gave: times in milliseconds, without nulls."""
    LAMBDA = "LAMBDA"
    """A record of AWS Lambda's event: as the service gives it, with `eventSourceARN`."""
    PLAIN = "PLAIN"
    """Plain values: see docs/dynamodb-streams.md."""
