"""What an answer that is no success says: the service's code and words, and whether our time was wrong.

Pure: the meaning of codes is `kcl_daemon.aws.codes`'.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from kcl_daemon.transport.head import Head

OK: Final = 200
# A signature may be five minutes off; less than this is not what a refusal was for.
_SKEW_S: Final = 60.0
_TIME_CODES: Final = frozenset({
    "AuthFailure", "InvalidSignatureException", "RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
})  # fmt: skip


class Refusal(Exception):
    """Raised when the service answered with an error.

    Attributes:
        code: its error code without namespace; the HTTP status where it gave none.
        message: its words.
        status: HTTP status.
        body: all that it said.
    """

    def __init__(self, code: str, message: str, status: int, body: bytes = b"") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.body = body


class TimeRefused(Refusal):
    """Raised when the signature had another time than the service's.

    Attributes:
        server_s: its time, epoch seconds.
    """

    def __init__(self, refused: Refusal, server_s: float) -> None:
        super().__init__(refused.code, refused.message, refused.status, refused.body)
        self.server_s = server_s


class _Told(msgspec.Struct):
    """The body of an error of a JSON service."""

    type: str = msgspec.field(name="__type", default="")
    code: str = ""
    message: str | None = None
    Message: str | None = None


def refusal(head: Head, body: bytes | bytearray, *, signed_s: float) -> Refusal:
    """The refusal that an answer is; a body that nobody understands is shown in part.

    Args:
        head: of the answer, not 200.
        body: of the answer, or its beginning.
        signed_s: the time of our signature, epoch seconds.
    """
    try:
        told = msgspec.json.decode(body, type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        told = _Told(message=bytes(body[:200]).decode("latin-1"))
    code = told.type or told.code or head.headers.get("x-amzn-errortype", "")
    code = code.rpartition("#")[2].partition(":")[0] or str(head.status)
    refused = Refusal(code, told.message or told.Message or "", head.status, bytes(body))
    server_s = date_of(head)
    if code in _TIME_CODES and server_s is not None and abs(server_s - signed_s) > _SKEW_S:
        return TimeRefused(refused, server_s)
    return refused


def date_of(head: Head) -> float | None:
    """The service's time as an answer tells it, epoch seconds."""
    try:
        return parsedate_to_datetime(head.headers.get("date", "")).timestamp()
    except (ValueError, OverflowError):
        return None
