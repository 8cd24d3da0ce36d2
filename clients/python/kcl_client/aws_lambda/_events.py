"""Events of Kinesis and of DynamoDB, and tumbling windows. Pure."""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kcl_client._processor import Record

Event = dict[str, Any]

WINDOW_MOST_S: Final = 900
STATE_MOST_BYTES: Final = 1024 * 1024
_SETTLED_MS: Final = 7_000  # clocks differ, and a record may be seen a little after it arrived
QUIET_MS: Final = 1_000
_PATIENCE_MS: Final = 120_000  # where it is not known whether more records are there
STREAM_ARN: Final = "KCL_STREAM_ARN"
_ARN: Final = re.compile(r"arn:[a-z-]+:(?:kinesis|dynamodb):[a-z0-9-]+:[0-9]{12}:(?:stream|table)/.+")
_UNKNOWN_ACCOUNT: Final = "000000000000"
_UNKNOWN_REGION: Final = "us-east-1"
_STATE: Final = "state"
_FORM: Final = "not a change in the form of Lambda; set childRecordFormat = lambda in the daemon's properties"


@dataclass(frozen=True, slots=True)
class Source:
    """ValueError if `arn` is not that of a stream."""

    arn: str
    function_name: str

    def __post_init__(self) -> None:
        if not _ARN.fullmatch(self.arn):
            raise ValueError(f"not the ARN of a stream of Kinesis or DynamoDB: {self.arn}")

    @classmethod
    def of(cls, environment: Mapping[str, str], function_name: str, stream_arn: str | None = None) -> Source:
        """What is not given comes from the daemon; another daemon may say less."""
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or _UNKNOWN_REGION
        name = environment.get("KCL_STREAM_NAME") or "stream"
        made_up = f"arn:aws:kinesis:{region}:{_UNKNOWN_ACCOUNT}:stream/{name}"
        return cls(stream_arn or environment.get(STREAM_ARN) or made_up, function_name)

    @property
    def region(self) -> str:
        return self.arn.split(":")[3]

    @property
    def is_of_dynamodb(self) -> bool:
        return self.arn.split(":")[2] == "dynamodb"

    @property
    def function_arn(self) -> str:
        _, partition, _, region, account, _ = self.arn.split(":", 5)
        return f"arn:{partition}:lambda:{region}:{account}:function:{self.function_name}"

    @property
    def role_arn(self) -> str:
        """Nobody knows the role; it has the function's name."""
        _, partition, _, _, account, _ = self.arn.split(":", 5)
        return f"arn:{partition}:iam::{account}:role/{self.function_name}"


def arrival_ms(record: Record, now_ms: int) -> int:
    """Unknown only without Kinesis, as with `kcl-daemon run-child`."""
    return now_ms if record.arrival_ms is None else record.arrival_ms


def event_of(records: Sequence[Record], source: Source, shard_id: str, now_ms: int) -> Event:
    """ValueError if a record of DynamoDB has another form than Lambda's."""
    if source.is_of_dynamodb:
        return {"Records": list(map(_change, records))}
    region, role_arn, arn = source.region, source.role_arn, source.arn
    return {
        "Records": [
            {
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": record.partition_key,
                    "sequenceNumber": record.sequence_number,
                    "data": b2a_base64(record.data, newline=False).decode("ascii"),
                    "approximateArrivalTimestamp": arrival_ms(record, now_ms) / 1000,
                },
                "eventSource": "aws:kinesis",
                "eventVersion": "1.0",
                "eventID": f"{shard_id}:{record.sequence_number}",
                "eventName": "aws:kinesis:record",
                "invokeIdentityArn": role_arn,
                "awsRegion": region,
                "eventSourceARN": arn,
            }
            for record in records
        ]
    }


def _change(record: Record) -> Event:
    try:
        change: object = json.loads(record.data)
    except ValueError:
        change = None
    if not isinstance(change, dict) or "eventSourceARN" not in change:
        raise ValueError(f"record {record.position} is {_FORM}")
    return change


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds since 1970; the next window begins at `end_s`."""

    start_s: int
    end_s: int

    @classmethod
    def at(cls, moment_ms: int, length_s: int) -> Window:
        start_s = moment_ms // 1000 // length_s * length_s
        return cls(start_s, start_s + length_s)

    def is_over(self, now_ms: int, behind_ms: int | None) -> bool:
        """Whether no record of it can come any more. `behind_ms`: where an empty batch was read."""
        late_ms = now_ms - self.end_s * 1000
        return late_ms >= _SETTLED_MS if behind_ms == 0 else behind_ms is None and late_ms >= _PATIENCE_MS


def runs_of(
    records: Sequence[Record], length_s: int, not_before_s: int, now_ms: int
) -> Iterator[tuple[Window, list[Record]]]:
    """By window, in order. A record that came too late for its window is in the one that is open then."""
    run: list[Record] = []
    open_window: Window | None = None
    for record in records:
        moment_ms = max(arrival_ms(record, now_ms), not_before_s * 1000)
        window = Window.at(moment_ms, length_s)
        if open_window is not None and window.start_s > open_window.start_s:
            yield open_window, run
            run = []
        if open_window is None or window.start_s > open_window.start_s:
            open_window = window
        run.append(record)
    if open_window is not None:
        yield open_window, run


def windowed(
    event: Event,
    window: Window,
    state: Event,
    *,
    source: Source,
    shard_id: str,
    is_final: bool,
    is_early: bool,
) -> Event:
    return {
        **event,
        "window": {"start": _time(window.start_s), "end": _time(window.end_s)},
        _STATE: state,
        "shardId": shard_id,
        "eventSourceARN": source.arn,
        "isFinalInvokeForWindow": is_final,
        "isWindowTerminatedEarly": is_early,
    }


def _time(moment_s: int) -> str:
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def state_of(result: object) -> tuple[Event, bool]:
    """As JSON keeps it, and whether it is too large to be kept. TypeError: there is none, or it is no JSON."""
    state = result.get(_STATE) if isinstance(result, Mapping) else None
    if not isinstance(state, Mapping):
        raise TypeError(
            f'with --tumbling-window a handler must return {{"state": {{...}}}}, not {result!r:.200}'
        )
    text = json.dumps(state, separators=(",", ":"), ensure_ascii=False)
    kept: Event = json.loads(text)
    return kept, len(text.encode("utf-8", "surrogatepass")) > STATE_MOST_BYTES
