"""PURE: bytes to base64 as JSON text with its quotes, and back.

msgspec does it everywhere; `pybase64`, where it is installed, does it several times as fast from a kilobyte on.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

from msgspec import DecodeError, Raw
from msgspec.json import Decoder, Encoder

HAS_FAST: Final = find_spec("pybase64") is not None  # an optional extra
# Below this msgspec's single call is the shorter way.
_FAST_FROM_BYTES: Final = 512
_decoder: Final = Decoder(bytes)
_encode: Final[Callable[[bytes], bytes]] = Encoder().encode


class Base64Text:
    """The two ways.

    Args:
        fast: whether pybase64 is used, which must be there then.
    """

    def __init__(self, *, fast: bool = HAS_FAST) -> None:
        self._fast_decode: Callable[[memoryview], bytes] | None = None
        self._fast_encode: Callable[[bytes], bytes] | None = None
        if fast:
            import pybase64  # noqa: PLC0415 - an optional extra

            self._fast_decode = lambda text: pybase64.b64decode(text, validate=True)
            self._fast_encode = pybase64.b64encode

    def decoded(self, text: Raw) -> bytes:
        """The bytes that a quoted text stands for; ValueError where it is none."""
        view = memoryview(text)
        if self._fast_decode is not None and len(view) >= _FAST_FROM_BYTES:
            try:
                return self._fast_decode(view[1:-1])
            except ValueError:
                pass  # JSON may write a slash with a backslash before it; the other reader knows that
        try:
            return _decoder.decode(view)
        except DecodeError as error:
            raise ValueError(str(error)) from error

    def encoded(self, data: bytes) -> Raw:
        """Bytes as a quoted text."""
        if self._fast_encode is not None and len(data) >= _FAST_FROM_BYTES:
            return Raw(b'"%b"' % self._fast_encode(data))
        return Raw(_encode(data))


BASE64: Final = Base64Text()
