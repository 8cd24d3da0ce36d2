"""Access rules of the status page, checked before anything is read."""

from __future__ import annotations

import hmac
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

from kcl_daemon.config.metrics_and_page import is_loopback

TEXT: Final = "text/plain; charset=utf-8"
OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})
"""These paths need no token; they answer only yes or no."""


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """`path` has no query; a header is empty if it was not sent."""

    method: str
    path: str
    host: str = ""
    authorization: str = ""
    accept: str = ""


@dataclass(frozen=True, slots=True)
class AdminResponse:
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def plain(status: HTTPStatus, words: str, **headers: str) -> AdminResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return AdminResponse(status, f"{words}\n".encode(), headers=named)


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Callers need no token if `token` is None."""

    address: str
    token: str | None = None

    def refusal(self, request: AdminRequest) -> AdminResponse | None:
        """Returns None if the request is allowed."""
        if request.method not in {"GET", "HEAD"}:
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed", Allow="GET, HEAD")
        if not self._is_our_name(request.host):
            words = "this page can be opened only by IP address or as localhost"
            return plain(HTTPStatus.MISDIRECTED_REQUEST, words)
        if request.path not in OPEN_PATHS and not self.is_trusted(request):
            words = "a token is required: as bearer token, or as password with any user name"
            challenge = 'Basic realm="kcl-daemon", charset="UTF-8"'
            return plain(HTTPStatus.UNAUTHORIZED, words, WWW_Authenticate=challenge)
        return None

    def is_trusted(self, request: AdminRequest) -> bool:
        if self.token is None:
            return True
        shown = _shown_token(request.authorization)
        return hmac.compare_digest(shown.encode("utf-8", "replace"), self.token.encode())

    def _is_our_name(self, host: str) -> bool:
        """A foreign page could point its own name at this machine (DNS rebinding).

        It does not know the token, so with a token any name is safe.
        """
        if self.token is not None:
            return True
        name = host_name(host)
        if name in {"localhost", self.address}:
            return True
        try:
            return is_loopback(name)
        except ValueError:
            return False


def host_name(host: str) -> str:
    """Returns an empty name for an invalid header."""
    if host.startswith("["):
        inside, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not _is_port(rest)):
            return ""
        try:
            return str(ip_address(inside))
        except ValueError:
            return ""
    name, colon, port = host.partition(":")
    return "" if colon and not _is_port(f":{port}") else name.lower().removesuffix(".")


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdecimal()


def _shown_token(authorization: str) -> str:
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip()
        case "basic":
            try:
                user_and_password = b64decode(value.strip(), validate=True).decode()
            except (Base64Error, UnicodeDecodeError):
                return ""
            return user_and_password.partition(":")[2]
        case _:
            return ""
