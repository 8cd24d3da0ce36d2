"""Settings of DynamoDB streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.kinds import choice, member, name, ours, truth, whole_number
from kcl_daemon.records.changes import ChangeForm

_TABLE: Final = name(r"[A-Za-z0-9_.-]{3,255}", "3 to 255 letters, digits, dots, dashes and underscores")


@dataclass(frozen=True, slots=True)
class ChangesSettings:
    table: str | None = ours("tableName.source", _TABLE, None, blank_is_absent=True)
    """A DynamoDB table whose changes are read. Its stream is found; if the stream is switched off and on again, the
    old one is read to its end, then the new one. Replaces `streamName` and `streamArn`. See
    [DynamoDB Streams](dynamodb-streams.md)."""
    form: ChangeForm = ours("childRecordFormat", member(ChangeForm), ChangeForm.KCL1)
    """What a record of a DynamoDB stream is for the child: `kcl1`, the JSON that the StreamsMultiLangDaemon of KCL 1.x
    gave; `lambda`, a record of the event of AWS Lambda; `plain`, JSON with plain values."""
    continues_trimmed: bool | None = ours(
        "onTrimmed",
        choice({"CONTINUE": True, "STOP": False}),
        None,
        shown="`stop` for DynamoDB, else `continue`",
    )
    """What follows when records were lost because they were older than the stream keeps: `stop` that shard with an
    ERROR, or `continue` with the oldest record."""
    snapshot: bool = ours("snapshot", truth(), default=False)
    """Whether all items of the table are read first, then its stream: for each item the last image delivered is the
    table's."""
    segments: int | None = ours(
        "snapshotSegments", whole_number(1, 4096, "segments"), None, shown="by the size of the table"
    )
    """In how many parts the table is scanned at the same time."""
    read_units: int = ours("snapshotReadUnits", whole_number(1, 10**9, "read units"), 500)
    """How many read units a second all segments may use together."""
