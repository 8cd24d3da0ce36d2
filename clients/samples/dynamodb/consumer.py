"""Follows the changes of a DynamoDB table with amazon_kclpy: each becomes a line in out/SHARD.jsonl."""

# pyright: basic, reportMissingImports=false
import base64
import json
import sys
import time
from pathlib import Path

from amazon_kclpy import kcl
from amazon_kclpy.v2 import processor

TRIES = 5
PAUSE_S = 1


class Changes(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        folder = Path("out")
        folder.mkdir(exist_ok=True)
        self.file = (folder / f"{initialize_input.shard_id}.jsonl").open("a", encoding="utf-8")

    def process_records(self, process_records_input):
        for record in process_records_input.records:
            change = json.loads(base64.b64decode(record.get("data")))
            self.write(change["eventName"], change["dynamodb"])
        self.file.flush()
        self.checkpoint(process_records_input.checkpointer)

    def shutdown(self, shutdown_input):
        if shutdown_input.reason == "TERMINATE":  # the end of the shard
            self.checkpoint(shutdown_input.checkpointer)
        self.file.close()

    def shutdown_requested(self, shutdown_requested_input):
        self.checkpoint(shutdown_requested_input.checkpointer)

    def write(self, name, change):
        line = {
            "name": name,
            "at": change["ApproximateCreationDateTime"],  # milliseconds
            "keys": change["Keys"],
            "new": change.get("NewImage"),
            "old": change.get("OldImage"),
            "sequenceNumber": change["SequenceNumber"],
        }
        self.file.write(json.dumps(line) + "\n")

    def checkpoint(self, checkpointer):
        for left in reversed(range(TRIES)):
            try:
                checkpointer.checkpoint()
                return
            except kcl.CheckpointError as error:
                if error.value not in {"ThrottlingException", "InvalidStateException"} or not left:
                    print(f"no checkpoint: {error.value}", file=sys.stderr)
                    return
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    kcl.KCLProcess(Changes()).run()
