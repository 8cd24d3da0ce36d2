"""What a properties file says about the status page. Pure values, part of `Settings`."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The status page, the probes and `/metrics`, over HTTP.

    Args:
        port: where they are served; 0: a free port, which the log tells; None: nowhere.
        address: of the interface that they are served on.
        token: what callers must show; None: `token_file` has it, or nobody is asked.
        token_file: the file that holds the token.
    """

    port: int | None = None
    address: str = LOOPBACK
    token: str | None = None
    token_file: str | None = None


def asked_at(address: str) -> str:
    """The IP address at which a program on this machine finds what is served on an address.

    Raises:
        ValueError: it is no IP address.
    """
    where = ip_address(address)
    # `::` is served on IPv4 as well, and a container may have no IPv6 on its loopback.
    return LOOPBACK if where.is_unspecified else str(where)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an IP address."""
    return ip_address(address).is_loopback
