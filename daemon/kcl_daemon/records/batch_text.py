"""Finds one record in the line or frame of a batch, without opening the others."""

from __future__ import annotations

import re
from typing import Final

from kcl_daemon.records.payload import Payload
from kcl_protocol.codec import FRAME_START
from kcl_protocol.frames import FrameIndex
from kcl_protocol.messages import Record

# Texts inside of strings cannot look like these: their quotes are escaped.
_BEGIN: Final = b'{"data":'
_NEXT: Final = b'},{"data":'
_END: Final = b'}],"millisBehindLatest":'
_NUMBERS: Final = re.compile(
    rb'"sequenceNumber":"\d+","approximateArrivalTimestamp":(?:-?\d+|null),"subSequenceNumber":(\d+)'
)


class BatchText:
    """`text` as written by `Payload.line` or `Payload.frame`."""

    __slots__ = ("_frame", "_last_at", "_text")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._frame: FrameIndex | None = None
        self._last_at = 0

    def find(self, sequence_number: str, sub_sequence_number: int) -> Record | None:
        """Fastest in the order of the batch."""
        if not (sequence_number.isascii() and sequence_number.isdigit()):
            return None
        if self._text.startswith(FRAME_START):
            self._frame = self._frame or FrameIndex(self._text)
            return self._frame.find(sequence_number, sub_sequence_number)
        needle = b'"sequenceNumber":"%b"' % sequence_number.encode()
        return self._find(needle, sub_sequence_number, self._last_at) or (
            self._find(needle, sub_sequence_number, 0) if self._last_at else None
        )

    def _find(self, needle: bytes, sub_sequence_number: int, start: int) -> Record | None:
        at = self._text.find(needle, start)
        while at >= 0:
            numbers = _NUMBERS.match(self._text, at)
            if numbers is not None and int(numbers[1]) == sub_sequence_number:
                self._last_at = at
                return self._record(at)
            at = self._text.find(needle, at + 1)
        return None

    def _record(self, at: int) -> Record:
        end = self._text.find(_NEXT, at)
        if end < 0:
            end = self._text.rfind(_END)
        one = self._text[self._text.rfind(_BEGIN, 0, at) : end + 1]
        line = b'{"action":"processRecords","records":[%b],"millisBehindLatest":null}' % one
        return Payload.of_line(line)[0].decoded()[0]
