"""The properties of the status page, and what they must agree on. Pure, part of the table in `keys`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Final

from kcl_daemon.config.admin_settings import LOOPBACK, is_loopback
from kcl_daemon.config.key import Key
from kcl_daemon.config.kinds import Kind, Refused, trimmed, whole_number
from kcl_daemon.config.notices import Problem

_PORT_MAX: Final = 65_535
_TOKEN: Final = re.compile(r"[!-~]{16,256}")
FIT_FOR_A_HEADER: Final = "16 to 256 printable ASCII characters, no spaces"


def is_token(text: str) -> bool:
    """Whether a text can be a token: long enough not to be guessed, and fit for a header."""
    return _TOKEN.fullmatch(text) is not None


def token() -> Kind:
    """A token. What is refused is not repeated in the message."""

    def read(text: str) -> str:
        word = trimmed(text)
        if not is_token(word):
            raise Refused("not a token")
        return word

    return Kind(read, FIT_FOR_A_HEADER)


def address() -> Kind:
    """An IP address of this machine."""

    def read(text: str) -> str:
        try:
            return str(ip_address(trimmed(text)))
        except ValueError:
            raise Refused("not an IP address") from None

    return Kind(read, "an IP address of this machine; 0.0.0.0 is all of IPv4, :: is all of IPv4 and IPv6")


def file() -> Kind:
    """The path of a file; whether it is there is seen at the start."""

    def read(text: str) -> str:
        word = trimmed(text)
        if not word or "\0" in word:
            raise Refused("not a path")
        return word

    return Kind(read, "a path")


ADMIN_PORT: Final = Key(
    "adminPort",
    whole_number(0, _PORT_MAX),
    "admin.port",
    "Port of the status page, the probes and `/metrics` ([status page](status-page.md)). 0: a free "
    "port, which the log shows.",
    default="none: no status page",
    extension=True,
)
ADMIN_ADDRESS: Final = Key(
    "adminAddress",
    address(),
    "admin.address",
    "Address of the status page. Any address except a loopback one needs a token.",
    extension=True,
)
ADMIN_TOKEN: Final = Key(
    "adminToken",
    token(),
    "admin.token",
    "Token for all pages except `/livez` and `/readyz`: as bearer token, or as password with any user name.",
    default="none: no token is needed",
    extension=True,
)
ADMIN_TOKEN_FILE: Final = Key(
    "adminTokenFile",
    file(),
    "admin.token_file",
    "File with the token, read at start. Spaces around the token are ignored.",
    default="none",
    extension=True,
)
ADMIN_KEYS: Final[tuple[Key, ...]] = (ADMIN_PORT, ADMIN_ADDRESS, ADMIN_TOKEN, ADMIN_TOKEN_FILE)


def check_admin(values: Mapping[str, object], lines: Mapping[str, int]) -> Iterator[Problem]:
    """What the properties of the status page contradict each other in.

    Args:
        values: by key name, good ones only.
        lines: where each key stands, also of those whose values are no good.
    """
    given = [key for key in (ADMIN_TOKEN, ADMIN_TOKEN_FILE) if key.name in lines]
    if len(given) > 1:
        reason = f"and {ADMIN_TOKEN.name} are both set; keep one"
        yield Problem(reason, ADMIN_TOKEN_FILE.name, None, lines[ADMIN_TOKEN_FILE.name])
    where = values.get(ADMIN_ADDRESS.name, LOOPBACK)
    assert isinstance(where, str), "an address is text"
    if ADMIN_PORT.name in values and not given and not is_loopback(where):
        reason = (
            f"other hosts can reach this address, so it needs {ADMIN_TOKEN.name} or {ADMIN_TOKEN_FILE.name}"
        )
        yield Problem(reason, ADMIN_ADDRESS.name, where, lines[ADMIN_ADDRESS.name])
