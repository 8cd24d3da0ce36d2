"""Every child imports it: keep it light."""

from __future__ import annotations

import json
import time
import zlib


def numbered_data(run_id: str, number: int, key: str, size_bytes: int = 0) -> bytes:
    at_ms = time.time_ns() // 1_000_000  # for people who look into the stream
    told = {"number": number, "run": run_id, "key": key, "put_ms": at_ms, "fill": ""}
    head = json.dumps(told).encode()
    return head[:-2] + b"x" * (size_bytes - len(head)) + head[-2:]


def word_of(data: bytes, schema: str = "") -> str:
    """The number, and what shows that nothing of the record has changed."""
    number: int = json.loads(data)["number"]
    return f"{number}:{zlib.crc32(data):08x}:{schema}"
