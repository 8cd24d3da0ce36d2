"""Passes records on to the program beside the daemon, in the same task or pod, over HTTP on loopback.

One request for each batch: JSON lines with `partitionKey`, `sequenceNumber` and `data` (base64). The checkpoint follows a
2xx answer. Any other answer, or none, ends this process: the daemon starts it again after a pause that grows, and the
batch comes again.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.request
from collections.abc import Iterable

from kcl_client import Batch, Checkpointer, Record, RecordProcessor, ShardStart, run

URL = os.environ.get("FORWARD_URL", "http://127.0.0.1:8080/records")
TIMEOUT_S = 30


class Forwarder(RecordProcessor):
    """Hands each batch to the program and waits for its answer."""

    def initialize(self, start: ShardStart) -> None:
        """Remember the shard: the program may want to keep shards apart."""
        self._shard_id = start.shard_id

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        """Deliver, then checkpoint."""
        if not URL.startswith(("http://", "https://")):
            raise ValueError(f"FORWARD_URL = {URL}: not a URL of HTTP")
        headers = {"Content-Type": "application/x-ndjson", "Kcl-Shard-Id": self._shard_id}
        request = urllib.request.Request(URL, data=lines(batch), headers=headers, method="POST")  # noqa: S310
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - looked at above
            checkpointer.checkpoint()


def lines(records: Iterable[Record]) -> bytes:
    """The records as JSON lines."""
    return b"".join(
        json.dumps(
            {
                "partitionKey": record.partition_key,
                "sequenceNumber": record.sequence_number,
                "data": base64.b64encode(record.data).decode("ascii"),
            }
        ).encode("ascii")
        + b"\n"
        for record in records
    )


if __name__ == "__main__":
    run(Forwarder())
