"""PURE: signature version 4 for the one form of request that we send, at a tenth of the SDK's CPU.

Owns the head of a request. The signing key of a day is kept. Knows no clock and no connection.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from time import gmtime, strftime
from typing import Final
from urllib.parse import quote

from kcl_daemon.transport.values import Keys, Target

CONTENT_TYPE: Final = "application/x-amz-json-1.1"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_PATH_SAFE: Final = "/~"


class Signer:
    """Writes signed heads for one endpoint.

    Args:
        target: the endpoint.
        prefix: before the operation's name in `X-Amz-Target`.
        user_agent: who we say we are; not signed.
        content_type: of the bodies.
    """

    def __init__(
        self, target: Target, *, prefix: str, user_agent: str, content_type: str = CONTENT_TYPE
    ) -> None:
        self._target = target
        self._prefix = prefix
        self._content_type = content_type
        self._canonical_path = quote(target.path, safe=_PATH_SAFE)
        self._host = target.host
        self._start = (
            f"POST {target.path} HTTP/1.1\r\nHost: {self._host}\r\nUser-Agent: {user_agent}\r\n"
            f"Content-Type: {content_type}\r\n"
        )
        self._day_key: tuple[str, str, bytes] | None = None

    def head(
        self, operation: str, body: bytes, keys: Keys, *, epoch_s: float, encoding: str | None = None
    ) -> bytes:
        """Request line and headers, with the empty line after them.

        Args:
            operation: such as `GetRecords`.
            body: what will follow.
            keys: who signs.
            epoch_s: the service's time; it refuses signatures that are some minutes off.
            encoding: of the body, such as `gzip`; not signed, as the body is.
        """
        date = strftime("%Y%m%dT%H%M%SZ", gmtime(epoch_s))
        api = f"{self._prefix}{operation}"
        names, signature = self._signature(api, body, keys, date)
        scope = self._scope(date)
        token = f"X-Amz-Security-Token: {keys.token}\r\n" if keys.token else ""
        encoded = f"Content-Encoding: {encoding}\r\n" if encoding else ""
        return (
            f"{self._start}X-Amz-Target: {api}\r\nX-Amz-Date: {date}\r\n{token}{encoded}"
            f"Authorization: {_ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1")

    def _signature(self, api: str, body: bytes, keys: Keys, date: str) -> tuple[str, str]:
        """Names of the signed headers, and the signature."""
        token, token_name = "", ""
        if keys.token:
            token, token_name = f"x-amz-security-token:{keys.token}\n", "x-amz-security-token;"
        names = f"content-type;host;x-amz-date;{token_name}x-amz-target"
        canonical = (
            f"POST\n{self._canonical_path}\n\ncontent-type:{self._content_type}\nhost:{self._host}\n"
            f"x-amz-date:{date}\n{token}x-amz-target:{api}\n\n{names}\n{sha256(body).hexdigest()}"
        )
        digest = sha256(canonical.encode()).hexdigest()
        text = f"{_ALGORITHM}\n{date}\n{self._scope(date)}\n{digest}"
        return names, hmac.digest(self._key(keys, date[:8]), text.encode(), "sha256").hex()

    def _scope(self, date: str) -> str:
        return f"{date[:8]}/{self._target.region}/{self._target.service}/aws4_request"

    def _key(self, keys: Keys, day: str) -> bytes:
        if self._day_key is None or self._day_key[:2] != (day, keys.secret_key):
            key = f"AWS4{keys.secret_key}".encode()
            for part in (day, self._target.region, self._target.service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day_key = (day, keys.secret_key, key)
        return self._day_key[2]
