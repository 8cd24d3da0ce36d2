"""The daemon's end of one shard's relay, for tests of the lander: it gives records, and keeps checkpoints."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kcl_landing.control import monotonic_s, pause
from kcl_landing.positions import START, Position, position
from kcl_protocol.frames import Columns, encode_frame

SHARD = "shardId-000000000000"
BASE_MS = 1_795_190_407_000
WITHIN_S = 30.0


@dataclass(frozen=True)
class Given:
    """A record."""

    number: int
    data: bytes = b"x"
    sub: int = 0
    arrival_ms: int | None = BASE_MS
    key: str = "key"

    @property
    def where(self) -> Position:
        return self.number, self.sub


def given(first: int, last: int, *, step_ms: int = 1, data: bytes = b"x") -> list[Given]:
    return [Given(number, data, arrival_ms=BASE_MS + number * step_ms) for number in range(first, last + 1)]


def line_of(records: Sequence[Given], behind_ms: int | None, complete_ms: int | None = None) -> bytes:
    each = [
        {
            "action": "record",
            "data": base64.b64encode(record.data).decode(),
            "partitionKey": record.key,
            "sequenceNumber": str(record.number),
            "subSequenceNumber": record.sub,
            "approximateArrivalTimestamp": record.arrival_ms,
        }
        for record in records
    ]
    fields = {"action": "processRecords", "records": each, "millisBehindLatest": behind_ms}
    fields |= {} if complete_ms is None else {"completeMillis": complete_ms}
    return json.dumps(fields).encode() + b"\n"


def frame_of(records: Sequence[Given], behind_ms: int | None, complete_ms: int | None = None) -> bytes:
    columns = Columns(
        [each.data for each in records],
        [each.key.encode() for each in records],
        [str(each.number) for each in records],
        [each.arrival_ms for each in records],
        [each.sub for each in records],
    )
    return encode_frame(columns, behind_ms, complete_ms)


class Refused(Exception):
    """Raised when the lander closed the connection."""


class ShardOfDaemon:
    """`checkpoint` is the lease's. `errors`: what the next checkpoints are answered with."""

    def __init__(
        self, path: Path, shard: str = SHARD, *, checkpoint: Position | None = None, token: int | None = 1
    ) -> None:
        self.shard = shard
        self.checkpoint = checkpoint or START
        self.is_finished = False
        self.checkpoints: list[Position] = []
        self.errors: list[str | None] = []
        self._token = token
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(WITHIN_S)
        self._connect(path)
        self._rest = b""

    def _connect(self, path: Path) -> None:
        until_s = monotonic_s() + WITHIN_S
        while True:
            try:
                self._socket.connect(str(path))
            except OSError:
                if monotonic_s() > until_s:
                    raise
                pause(0.02)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def initialize(self, **more: Any) -> Position:
        """The position that the lander says it has; START: none."""
        sequence = "TRIM_HORIZON" if self.checkpoint == START else str(self.checkpoint[0])
        fields = {"shardId": self.shard, "sequenceNumber": sequence, "subSequenceNumber": self.checkpoint[1]}
        token = {} if self._token is None else {"fencingToken": self._token}
        status = self.act({"action": "initialize", **fields, **token, **more})
        assert status["frames"] == 1
        return position(status.get("sequenceNumber"), status.get("subSequenceNumber"))

    def give(
        self,
        records: Sequence[Given],
        *,
        behind_ms: int | None = 0,
        frame: bool = True,
        complete_ms: int | None = None,
    ) -> dict[str, Any]:
        self.send((frame_of if frame else line_of)(records, behind_ms, complete_ms))
        return self.until_status("processRecords")

    def act(self, message: dict[str, Any]) -> dict[str, Any]:
        self.send(json.dumps(message).encode() + b"\n")
        return self.until_status(message["action"])

    def end(self, children: Sequence[str] | None = None) -> None:
        more = {} if children is None else {"childShards": list(children)}
        self.act({"action": "shardEnded", **more})

    def shut_down(self) -> None:
        self.act({"action": "shutdownRequested"})

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Refused from error

    def until_status(self, action: str) -> dict[str, Any]:
        while True:
            said = self.hear()
            if said["action"] == "status":
                assert said["responseFor"] == action
                return said

    def hear(self) -> dict[str, Any]:
        """What the lander says next; its checkpoints are answered."""
        while b"\n" not in self._rest.lstrip(b"\n"):
            try:
                data = self._socket.recv(65536)
            except ConnectionError as error:
                raise Refused from error
            if not data:
                raise Refused
            self._rest += data
        line, _, self._rest = self._rest.lstrip(b"\n").partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if said["action"] == "checkpoint":
            self._answer(said)
        return said

    def listen(self, seconds: float) -> list[dict[str, Any]]:
        """What it says by itself in this time."""
        self._socket.settimeout(seconds)
        try:
            return [self.hear()]
        except TimeoutError:
            return []
        finally:
            self._socket.settimeout(WITHIN_S)

    def _answer(self, request: dict[str, Any]) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is None and request["sequenceNumber"] is None:
            self.is_finished = True
        elif error is None:
            self.checkpoint = position(request["sequenceNumber"], request["subSequenceNumber"])
            self.checkpoints.append(self.checkpoint)
        self.send(json.dumps({**request, "error": error}).encode() + b"\n")
