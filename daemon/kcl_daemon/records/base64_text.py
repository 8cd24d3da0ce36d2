"""Data of records as base64 text, read and written in C; `pybase64`, where it is, is faster."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import chain, repeat
from operator import getitem
from typing import Final, cast

from msgspec import DecodeError, Raw
from msgspec.json import Decoder, Encoder

HAS_FAST: Final = find_spec("pybase64") is not None
FAST_FROM_BYTES: Final = 512
_UNQUOTED: Final = slice(1, -1)
_view: Final = cast("Callable[[Raw], memoryview]", memoryview)
_cut: Final = cast("Callable[[memoryview, slice], memoryview]", getitem)
_decoder: Final = Decoder(bytes)
_encode: Final[Callable[[bytes | Sequence[Raw]], bytes]] = Encoder().encode
# At -3: what may be padding, before the quote.
_padding_at: Final = struct.Struct("BB").unpack_from
_COPIED_TOGETHER: Final = 256


class Base64Text:
    def __init__(self, *, fast: bool = HAS_FAST) -> None:
        self._fast_decode: Callable[[memoryview, None, bool], bytes] | None = None
        self.fast_encode: Callable[[bytes], bytes] | None = None
        if fast:
            import pybase64  # an optional extra

            self._fast_decode = pybase64.b64decode
            self.fast_encode = pybase64.b64encode

    def decoded(self, text: Raw) -> bytes:
        """ValueError if the text is not base64."""
        view = memoryview(text)
        if self._fast_decode is not None and len(view) >= FAST_FROM_BYTES:
            try:
                return self._fast_decode(view[1:-1], None, True)
            except ValueError:
                pass  # an escaped slash, which msgspec accepts
        try:
            return _decoder.decode(view)
        except DecodeError as error:
            raise ValueError(str(error)) from error

    def all_decoded(self, texts: Sequence[Raw]) -> list[bytes]:
        if self._fast_decode is not None and sum(map(len, texts)) >= FAST_FROM_BYTES * len(texts):
            try:
                views = map(_cut, map(_view, texts), repeat(_UNQUOTED))
                # Keywords would cost as much as a small record.
                return list(map(self._fast_decode, views, repeat(None), repeat(True)))
            except ValueError:
                pass
        return list(map(_decoder.decode, texts))

    def encoded(self, data: bytes) -> Raw:
        if self.fast_encode is not None and len(data) >= FAST_FROM_BYTES:
            return Raw(b'"%b"' % self.fast_encode(data))
        return Raw(_encode(data))


BASE64: Final = Base64Text()


def bytes_of(text: Raw) -> int:
    text_bytes = len(text) - 2
    return text_bytes * 3 // 4 - bytes(_padding_at(text, -3)).count(b"=") if text_bytes else 0


def bytes_of_long(texts: Sequence[Raw]) -> int:
    try:
        padding = bytes(chain.from_iterable(map(_padding_at, texts, repeat(-3)))).count(b"=")
    except struct.error:
        return sum(map(bytes_of, texts))
    return (sum(map(len, texts)) - 2 * len(texts)) * 3 // 4 - padding


def bytes_of_short(texts: Sequence[Raw]) -> int:
    letters = padding = 0
    for begin in range(0, len(texts), _COPIED_TOGETHER):
        together = _encode(texts[begin : begin + _COPIED_TOGETHER])
        letters += len(together) - 1
        padding += len(together) - len(together.replace(b"=", b""))
    return (letters - 3 * len(texts)) * 3 // 4 - padding  # without quotes and commas
