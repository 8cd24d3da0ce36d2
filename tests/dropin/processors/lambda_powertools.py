"""A handler with AWS's Powertools: what it does not process, their processor names in its answer."""

from pathlib import Path
from typing import Any

from aws_lambda_powertools.utilities.batch import (  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
    BatchProcessor,
    EventType,
    process_partial_response,
)

processor = BatchProcessor(event_type=EventType.KinesisDataStreams)


def process(record: Any) -> None:
    text = record.kinesis.data_as_text()
    if text.startswith("poison"):
        raise ValueError(f"cannot read {text!r}")
    with Path("processed.txt").open("a", encoding="utf-8") as file:
        file.write(f"{record.kinesis.sequence_number}\n")


def handler(event: Any, context: Any) -> Any:
    return process_partial_response(event=event, record_handler=process, processor=processor, context=context)
