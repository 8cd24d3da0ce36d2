"""What AWS documents of the events that Lambda makes of Kinesis: each field, its type and its form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_REGION: Final = r"[a-z]{2}-[a-z]+-[0-9]"
_ACCOUNT: Final = r"[0-9]{12}"
_BASE64: Final = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_NUMBER: Final = r"[0-9]+"
_SHARD: Final = r"shardId-[0-9]{12}"
_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
_STREAM: Final = rf"arn:aws:kinesis:{_REGION}:{_ACCOUNT}:stream/[A-Za-z0-9_.-]+"

RECORD: Final[Mapping[str, str | type]] = {
    "kinesis.kinesisSchemaVersion": r"1\.0",
    "kinesis.partitionKey": r".+",
    "kinesis.sequenceNumber": _NUMBER,
    "kinesis.data": _BASE64,
    "kinesis.approximateArrivalTimestamp": float,  # seconds since 1970, milliseconds after the point
    "eventSource": r"aws:kinesis",
    "eventVersion": r"1\.0",
    "eventID": rf"{_SHARD}:{_NUMBER}",
    "eventName": r"aws:kinesis:record",
    "invokeIdentityArn": rf"arn:aws:iam::{_ACCOUNT}:role/.+",
    "awsRegion": _REGION,
    "eventSourceARN": _STREAM,
}
MAY_BE_NULL: Final = frozenset({"kinesis.partitionKey"})  # "for records written without a partition key"
WINDOW: Final[Mapping[str, str | type]] = {
    "window.start": _TIME,
    "window.end": _TIME,
    "state": dict,
    "shardId": _SHARD,
    "eventSourceARN": _STREAM,
    "isFinalInvokeForWindow": bool,
    "isWindowTerminatedEarly": bool,
}
VARIABLES: Final[Mapping[str, str]] = {
    "AWS_LAMBDA_FUNCTION_NAME": r".+",
    "AWS_LAMBDA_FUNCTION_VERSION": r"\$LATEST",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": _NUMBER,
    "AWS_LAMBDA_INITIALIZATION_TYPE": r"on-demand",
    "AWS_LAMBDA_LOG_GROUP_NAME": r"/aws/lambda/.+",
    "AWS_LAMBDA_LOG_STREAM_NAME": r"[0-9]{4}/[0-9]{2}/[0-9]{2}/\[\$LATEST\][0-9a-f]{32}",
    "AWS_REGION": _REGION,
    "AWS_DEFAULT_REGION": _REGION,
    "AWS_EXECUTION_ENV": r"AWS_Lambda_(python3\.[0-9]+|nodejs[0-9]+\.x)",
    "LAMBDA_TASK_ROOT": r"/.+",
    "LAMBDA_RUNTIME_DIR": r"/.+",
    "_HANDLER": r".+\..+",
    "TZ": r":UTC",
}


def flat(shape: Mapping[str, Any], *, kept: tuple[str, ...] = ("state", "Records")) -> dict[str, Any]:
    """Fields by their path; those in `kept` stay what they are."""
    found: dict[str, Any] = {}
    for name, value in shape.items():
        if isinstance(value, Mapping) and name not in kept:
            found |= {f"{name}.{inner}": each for inner, each in flat(value).items()}
        else:
            found[name] = value
    return found


def assert_documented(shape: Mapping[str, Any], facts: Mapping[str, str | type]) -> None:
    """It has these fields, no others, each of its type and form."""
    fields = flat(shape)
    assert fields.keys() == facts.keys()
    for name, wanted in facts.items():
        value = fields[name]
        if value is None and name in MAY_BE_NULL:
            continue
        if isinstance(wanted, str):
            assert isinstance(value, str) and re.fullmatch(wanted, value), (name, value)
        elif wanted is float:
            assert isinstance(value, float | int) and not isinstance(value, bool), (name, value)
        else:
            assert isinstance(value, wanted), (name, value)


def assert_event(event: Mapping[str, Any], *, is_windowed: bool = False) -> None:
    """As documented, with all of its records."""
    if is_windowed:
        assert_documented({name: value for name, value in event.items() if name != "Records"}, WINDOW)
    else:
        assert event.keys() == {"Records"}
    for record in event["Records"]:
        assert_documented(record, RECORD)
        assert record["eventID"].endswith(f":{record['kinesis']['sequenceNumber']}")
