"""Record processors for the real amazon_kclpy, one for each generation of its interface.

`kclpy.py FOLDER v1|v2|v3`: FOLDER is where `amazon_kclpy` is. Keep a ledger where the environment names one, tell on
stderr what they were told, checkpoint each batch.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import Any  # Any: the library has no types

from kcl_local.demo.check import DIRECTORY_VARIABLE, CountedRecord, EntryKind, LedgerWriter, monotonic_s

FOLDER, GENERATION = sys.argv[1:3]
sys.path.insert(0, FOLDER)
KCL: Any = importlib.import_module("amazon_kclpy.kcl")


def module(name: str) -> Any:
    """A part that older versions lack; anything in its place there."""
    found = importlib.util.find_spec("amazon_kclpy." + name.partition(".")[0])
    return KCL if found is None else importlib.import_module(f"amazon_kclpy.{name}")


V2: Any = module("v2.processor")
V3: Any = module("v3.processor")


class Notes:
    """What a processor notes down, and how it checkpoints."""

    def __init__(self) -> None:
        self._ledger: LedgerWriter | None = None

    def begin(self, shard_id: str) -> None:
        if DIRECTORY_VARIABLE in os.environ:
            self._ledger = LedgerWriter(Path(os.environ[DIRECTORY_VARIABLE]), shard_id)
        self.note("start")

    def note(self, kind: EntryKind) -> None:
        if self._ledger is not None:
            self._ledger.note(kind)

    def process(self, records: Iterable[Any], checkpointer: Any) -> None:
        if self._ledger is not None:
            numbers = [CountedRecord(record.get("sequenceNumber"), {}) for record in records]
            self._ledger.records(monotonic_s(), numbers)
        for record in records:
            size = len(b64decode(record.get("data"), validate=True))
            report(f"record {record.get('partitionKey')!a} {size} {record.get('subSequenceNumber')}")
        if self.checkpoint(checkpointer):
            self.note("checkpoint")

    def checkpoint(self, checkpointer: Any) -> bool:
        try:
            checkpointer.checkpoint()
        except KCL.CheckpointError as error:
            report(f"told {error.value}")
            return False
        return True

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


def report(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


NOTES = Notes()


class ProcessorV1(KCL.RecordProcessorBase):  # type: ignore[misc]  # the library has no types
    """The interface of 2014: shutdown with a reason."""

    version = 1

    def initialize(self, shard_id: str) -> None:
        NOTES.begin(shard_id)

    def process_records(self, records: Any, checkpointer: Any) -> None:
        NOTES.process(records, checkpointer)

    def shutdown(self, checkpointer: Any, reason: str) -> None:
        if reason == "TERMINATE":
            NOTES.note("ended")
            NOTES.checkpoint(checkpointer)
        else:
            NOTES.note("lost")

    def shutdown_requested(self, checkpointer: Any) -> None:
        NOTES.note("stopping")
        NOTES.checkpoint(checkpointer)


class ProcessorV2(V2.RecordProcessorBase):  # type: ignore[misc]  # the library has no types
    """The interface of 2017: one input object for each method."""

    version = 2

    def initialize(self, initialize_input: Any) -> None:
        NOTES.begin(initialize_input.shard_id)

    def process_records(self, process_records_input: Any) -> None:
        NOTES.process(process_records_input.records, process_records_input.checkpointer)

    def shutdown(self, shutdown_input: Any) -> None:
        if shutdown_input.reason == "TERMINATE":
            NOTES.note("ended")
            NOTES.checkpoint(shutdown_input.checkpointer)
        else:
            NOTES.note("lost")

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        NOTES.note("stopping")
        NOTES.checkpoint(shutdown_requested_input.checkpointer)


class ProcessorV3(V3.RecordProcessorBase):  # type: ignore[misc]  # the library has no types
    """The interface of 2019: a lost lease and an ended shard are two things."""

    version = 3

    def initialize(self, initialize_input: Any) -> None:
        NOTES.begin(initialize_input.shard_id)

    def process_records(self, process_records_input: Any) -> None:
        NOTES.process(process_records_input.records, process_records_input.checkpointer)

    def lease_lost(self, lease_lost_input: Any) -> None:
        NOTES.note("lost")

    def shard_ended(self, shard_ended_input: Any) -> None:
        NOTES.note("ended")
        NOTES.checkpoint(shard_ended_input.checkpointer)

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        NOTES.note("stopping")
        NOTES.checkpoint(shutdown_requested_input.checkpointer)


if __name__ == "__main__":
    PROCESSORS: dict[str, Any] = {"v1": ProcessorV1, "v2": ProcessorV2, "v3": ProcessorV3}
    try:
        KCL.KCLProcess(PROCESSORS[GENERATION]()).run()
    finally:
        NOTES.close()
