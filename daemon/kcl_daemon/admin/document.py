"""`/status.json`: a snapshot and its sparklines as one JSON document, and the way back for the commands that show it.

Pure. The document is the API for scripts: fields are only ever added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final

import msgspec
import orjson

from kcl_daemon.admin.history import History
from kcl_daemon.observe.redact import encodable
from kcl_daemon.observe.snapshot import Snapshot

FORMAT: Final = 1
_LONG: Final = ("shards", "fleet")
_AT_ONCE: Final = 32


class NoStatus(ValueError):
    """Raised when a document is not what `/status.json` answers with."""


@dataclass(frozen=True, slots=True)
class Status:
    """The document.

    Args:
        format: raised when a field changes its meaning or goes.
        snapshot: of the worker.
        throughput: of each lease that it holds, the oldest first: how many seconds ago, and bytes a second.
    """

    format: int
    snapshot: Snapshot
    throughput: dict[str, list[tuple[float, float]]] = field(
        default_factory=dict[str, list[tuple[float, float]]]
    )


def document(snapshot: Snapshot, history: History, *, now_s: float) -> Iterator[bytes]:
    """The document in pieces.

    Args:
        snapshot: what to tell.
        history: of its shards.
        now_s: by the clock of the history.
    """
    short = {each.name: getattr(snapshot, each.name) for each in fields(snapshot) if each.name not in _LONG}
    yield b'{"format":%d,"snapshot":%s' % (FORMAT, _dumped(short)[:-1])
    for name in _LONG:
        values = getattr(snapshot, name)
        yield b',"%s":[' % name.encode()
        for start in range(0, len(values), _AT_ONCE):
            some = values[start : start + _AT_ONCE]
            yield (b"," if start else b"") + _dumped(some)[1:-1]
        yield b"]"
    yield b'},"throughput":{'
    for number, shard in enumerate(snapshot.shards):
        samples = [(round(ago_s, 1), round(value, 1)) for ago_s, value in history.of(shard.key, now_s)]
        yield (b"," if number else b"") + _dumped(encodable(shard.key)) + b":" + _dumped(samples)
    yield b"}}"


def _dumped(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except (
        orjson.JSONEncodeError
    ):  # half a character, from a table or an error; nothing else is in a snapshot
        plain = msgspec.to_builtins(value)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def status_from(data: bytes) -> Status:
    """What a document says; fields that this version does not know are passed over.

    Raises:
        NoStatus: it is no such document, or one of a later format.
    """
    try:
        status = msgspec.json.decode(data, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NoStatus(str(error)) from None
    if status.format != FORMAT:
        raise NoStatus(f"it has format {status.format}, this version reads {FORMAT}")
    return status
