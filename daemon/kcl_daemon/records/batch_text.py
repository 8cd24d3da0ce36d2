"""A batch as bytes for its child: its forms, and one record of it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from kcl_daemon.records.batch import Batch
from kcl_daemon.records.payload import Payload
from kcl_protocol.codec import FRAME_START
from kcl_protocol.messages import FRAMES_VERSION, Record

if TYPE_CHECKING:
    from kcl_protocol.frames import FrameIndex

# Texts inside of strings cannot look like these: their quotes are escaped.
_BEGIN: Final = b'{"data":'
_NEXT: Final = b'},{"data":'
_END: Final = b'}],"millisBehindLatest":'
_NUMBERS: Final = re.compile(
    rb'"sequenceNumber":"\d+","approximateArrivalTimestamp":(?:-?\d+|null),"subSequenceNumber":(\d+)'
)


class BatchText:
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
            if self._frame is None:
                from kcl_protocol.frames import FrameIndex

                self._frame = FrameIndex(self._text)
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


Find = Callable[[str, int], Record | None]


class Framing(ABC):
    """A form of batches; `decode` reads what `encode` made.

    `version`: what a child announces that takes it; all take lines. `ahead`: a batch is encoded as soon as it is read,
    which takes less memory, and no child waits for it.
    """

    version: int | None = None
    ahead = True

    @abstractmethod
    def encode(self, batch: Batch) -> bytes: ...

    @abstractmethod
    def decode(self, data: bytes) -> Payload: ...

    def finder(self, data: bytes) -> Find:
        text = cache(lambda: BatchText(self.decode(data).line(None)))
        return lambda number, sub_number: text().find(number, sub_number)


class Lines(Framing):
    def encode(self, batch: Batch) -> bytes:
        return batch.payload.line(batch.behind_ms, batch.complete_ms)

    def decode(self, data: bytes) -> Payload:
        return Payload.of_line(data)[0]

    def finder(self, data: bytes) -> Find:
        return BatchText(data).find


class Frames(Lines):
    version = FRAMES_VERSION

    def encode(self, batch: Batch) -> bytes:
        return batch.payload.frame(batch.behind_ms, batch.complete_ms)


LINES: Final = Lines()
FRAMINGS: Final[dict[int | None, Framing]] = {each.version: each for each in (LINES, Frames())}


@cache
def framing_of(version: int | None) -> Framing | str:
    """Or why there is none."""
    if version in FRAMINGS:
        return FRAMINGS[version]
    from importlib.metadata import entry_points

    for point in entry_points(group="kcl_daemon.framings", name=str(version)):
        try:
            found = point.load()()
        except Exception as error:  # noqa: BLE001 - of a package that nobody knows
            return f"{point.value} cannot be used: {type(error).__name__}: {error}"
        return found if isinstance(found, Framing) else f"{point.value} makes no Framing"
    return "no installed package has it"


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch as bytes; `end` has what they do not say of it."""

    data: bytes
    framing: Framing
    end: Batch

    def decoded(self) -> Batch:
        return self.end.holding(self.framing.decode(self.data))


@dataclass(slots=True)
class BatchEncoder:
    """`framing` None: the child has not answered `initialize` yet."""

    framing: Framing | None = None

    def encode(self, batch: Batch) -> EncodedBatch:
        framing = self.framing or LINES
        return EncodedBatch(framing.encode(batch), framing, batch.end)

    def ahead(self, batch: Batch) -> EncodedBatch | None:
        framing = self.framing
        return self.encode(batch) if framing is not None and framing.ahead else None
