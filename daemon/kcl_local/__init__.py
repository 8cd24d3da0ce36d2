"""Endpoints of AWS on loopback, for development and tests, and the demo that runs on them.

Kinesis (`kinesis`) and DynamoDB Streams (`changes`) are ours, with lineage of shards, expired iterators, limits,
subscriptions and trimmed records. Each is a model in memory, deterministic, without I/O and threads, which is told the
time: a simulator can run on it. If its clock goes back, its time stays.

All else is moto's (`dynamodb.py`). moto checks a condition and writes in two steps, so two threads could both win a
conditional write: it handles one request at a time, in a thread of its own.

Tests order failures over HTTP or in the process (`faults.py`, `serving.py`). No signature and no key is checked. While
`kcl-daemon local` (`server.py`) runs, a small file says where its endpoints are (`place.py`), and `--local` of other
commands finds them.
"""

from __future__ import annotations

import sys
from typing import Final

if sys.platform == "win32":  # before anything is imported that Windows does not have
    sys.stderr.write("kcl-daemon runs on Linux and macOS; on Windows use WSL\n")
    raise SystemExit(2)

REGION: Final = "us-east-1"
ACCESS: Final = {
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_EC2_METADATA_DISABLED": "true",
}
