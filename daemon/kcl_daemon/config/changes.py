from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.kinds import StreamArn, choice, is_of_dynamodb, member, name, ours, truth, whole_number
from kcl_daemon.config.properties import Notice
from kcl_daemon.config.retrieval import RetrievalMode, SchemaRegistry
from kcl_daemon.config.streams import many_of
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.ports import Log, StreamSummary
from kcl_daemon.records.forms import ChangeForm

_TABLE: Final = name(r"[A-Za-z0-9_.-]{3,255}", "3 to 255 letters, digits, dots, dashes and underscores")
SOURCE: Final = "tableName.source"
LOCAL_REGION: Final = "ddblocal"
"""Only in ARNs; requests have another one."""
_OF_SNAPSHOT: Final = ("snapshotSegments", "snapshotReadUnits")


@dataclass(frozen=True, slots=True)
class ChangesSettings:
    table: str | None = ours("tableName.source", _TABLE, None, blank_is_absent=True)
    """A DynamoDB table whose changes are read. Its stream is found; if the stream is switched off and on again, the
    old one is read to its end, then the new one. Replaces `streamName` and `streamArn`; beside `streamArns`,
    `streamNames` or `streamFilter` it is one of the many. See [DynamoDB Streams](dynamodb-streams.md)."""
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

    def lacking(self, summary: StreamSummary) -> str | None:
        is_asked = self.snapshot or self.form is ChangeForm.PLAIN
        if not is_asked or summary.view_type not in {"KEYS_ONLY", "OLD_IMAGE"}:
            return None
        return (
            f"the stream {summary.arn} has {summary.view_type}, so records have no new image of the item; switch it off "
            "and on again with StreamViewType=NEW_AND_OLD_IMAGES"
        )

    def check_images(self, summary: StreamSummary, log: Log) -> None:
        why = self.lacking(summary)
        if why is not None and self.snapshot:
            raise ConfigurationError(f"snapshot = true needs the new images of items: {why}")
        if why is not None:
            log.warning("stream_without_new_images", stream=summary.arn, why=why)


def reads_changes(values: Mapping[str, object]) -> bool:
    return SOURCE in values or _of_dynamodb(values) > 0


def _arns(values: Mapping[str, object]) -> list[str]:
    one, listed = values.get("streamArn"), values.get("streamArns", ())
    assert isinstance(listed, tuple), "streamArns is a list"
    return [*([one.arn] if isinstance(one, StreamArn) else []), *(each.arn for each in listed)]


def _of_dynamodb(values: Mapping[str, object]) -> int:
    return sum(is_of_dynamodb(arn) for arn in _arns(values))


def _reads_kinesis(values: Mapping[str, object]) -> bool:
    by_name = any(name in values for name in ("streamNames", "streamFilter"))
    return by_name or len(_arns(values)) > _of_dynamodb(values)


def not_of_changes(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    if many_of(values) is None:
        for key in ("streamName", "streamArn"):
            if key in values and SOURCE in values:
                yield key, f"names a stream, {SOURCE} a table; keep one"
    yield from _filter(values)
    if not reads_changes(values):
        if values.get("snapshot"):
            yield "snapshot", f"only a DynamoDB table has one; name it with {SOURCE} or by streamArn"
        return
    yield from _other_regions(values)
    if values.get("snapshot") and "runUntil" in values:
        yield "runUntil", "items of a snapshot have no time; remove this line, or snapshot"
    if values.get("retrievalMode") is RetrievalMode.FANOUT:
        yield (
            "retrievalMode",
            "DynamoDB streams have no fan-out; use POLLING, or a daemon of its own for Kinesis",
        )
    if values.get("schemaRegistry") is SchemaRegistry.DECODE and not _reads_kinesis(values):
        yield "schemaRegistry", "changes of a DynamoDB table have no schema of a registry; remove this line"


def _filter(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    if (given := values.get("recordFilter")) is None:
        return
    from kcl_daemon.records.record_filter import ONLY_CHANGES, RecordFilter

    if not isinstance(given, RecordFilter) or not given.of_changes:
        return
    if not reads_changes(values):
        yield "recordFilter", ONLY_CHANGES
    elif values.get("childRecordFormat") is ChangeForm.PLAIN:
        reason = (
            'a plain record has no such fields; name those that it has, as {"data": {"kind": ["insert"]}}'
        )
        yield "recordFilter", reason


def _other_regions(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The name of such a stream says nothing without its ARN, so the ARN must fit."""
    setting = "kinesisClient.region" if "kinesisClient.region" in values else "regionName"
    arn = values.get("streamArn")
    if isinstance(arn, StreamArn) and arn.is_of_dynamodb and arn.region_name != LOCAL_REGION:
        given = values.get(setting, arn.region_name)
        if given != arn.region_name:
            yield "streamArn", f"it names {arn.region_name} and {setting} is {given}; correct one of them"


def change_notices(values: Mapping[str, object], lines: Mapping[str, int]) -> Iterator[Notice]:
    without = {key: "snapshot = true" for key in _OF_SNAPSHOT if not values.get("snapshot")}
    without |= {} if reads_changes(values) else {"childRecordFormat": "a DynamoDB stream"}
    for key, needed in without.items():
        if key in values:
            yield Notice("property_has_no_effect", key, lines[key], {"why": f"this needs {needed}"})
