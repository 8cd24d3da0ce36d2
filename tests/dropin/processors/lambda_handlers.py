"""Handlers as they are written for AWS Lambda; what they see they write down beside themselves."""

import base64
import json
import logging
import os
from pathlib import Path
from typing import Any

print("Loading function")  # noqa: T201 - as users do

Event = dict[str, Any]
FOLDER = Path(os.environ["LAMBDA_TASK_ROOT"])
VARIABLES = ("AWS_", "LAMBDA_", "_HANDLER", "TZ")
ARGUMENTS = (
    "function_name",
    "function_version",
    "invoked_function_arn",
    "memory_limit_in_mb",
    "log_group_name",
)

logger = logging.getLogger()
logger.setLevel(logging.INFO)


def texts(event: Event) -> list[str]:
    return [base64.b64decode(each["kinesis"]["data"]).decode() for each in event["Records"]]


def note(event: Event, more: Event) -> None:
    records = event["Records"]
    shard_id = records[0]["eventID"].partition(":")[0] if records else event["shardId"]
    with (FOLDER / f"{shard_id}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, **more}) + "\n")


def seen(event: Event, context: Any) -> str:
    given = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    known = {name: getattr(context, name) for name in ARGUMENTS}
    note(event, {"context": known, "variables": given, "left_ms": context.get_remaining_time_in_millis()})
    logger.info("seen %d", len(event["Records"]))
    return f"Successfully processed {len(event['Records'])} records."


def partial(event: Event, context: Any) -> Event:
    note(event, {})
    numbers = [each["kinesis"]["sequenceNumber"] for each in event["Records"]]
    named = zip(numbers, texts(event), strict=True)
    return {
        "batchItemFailures": [{"itemIdentifier": each} for each, text in named if text.startswith("poison")]
    }


def first(event: Event, context: Any) -> Event:
    """As AWS's documentation has it: the first failure ends the batch."""
    for each, text in zip(event["Records"], texts(event), strict=True):
        number = each["kinesis"]["sequenceNumber"]
        try:
            assert not text.startswith("poison")
            with (FOLDER / "processed.txt").open("a", encoding="utf-8") as file:
                file.write(f"{number}\n")
        except AssertionError:
            return {"batchItemFailures": [{"itemIdentifier": number}]}
    return {"batchItemFailures": []}


def raising(event: Event, context: Any) -> None:
    note(event, {})
    for text in texts(event):
        if text.startswith("poison"):
            raise ValueError(f"cannot read {text!r}")


def window(event: Event, context: Any) -> Event:
    note(event, {})
    state = event["state"]
    state["count"] = state.get("count", 0) + len(event["Records"])
    state["text"] = state.get("text", "") + "".join(texts(event))
    return {"state": state}


def changes(event: Event, context: Any) -> None:
    with (FOLDER / "changes.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in event["Records"])
