"""What the transport is told from outside: where the service is, and as whom we speak to it.

Knows no SDK; `kcl_daemon.aws.access` finds all this out with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import Protocol
from urllib.parse import urlsplit

Parameters = Mapping[str, object]
"""The members of a request, as the service's JSON has them."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials as they are now. Their secret parts are in no `repr`.

    Args:
        access_key: shown in signatures.
        secret_key: signs.
        token: of temporary credentials.
    """

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Keys({self.access_key!r})"


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests of one kind go, and what their signatures are made for.

    Args:
        url: of the endpoint, with scheme; a path in it is kept.
        region: signing region.
        service: signing name, such as `kinesis`.
    """

    url: str
    region: str
    service: str

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.url.lower().startswith("https:")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to; ValueError where the URL has none."""
        parts = urlsplit(self.url)
        if not parts.hostname:
            raise ValueError(f"no host in endpoint {self.url!r}")
        return parts.hostname, parts.port or (443 if self.is_tls else 80)

    @property
    def host(self) -> str:
        """The Host header: the port only where it is not the scheme's own."""
        name, port = self.address
        shown = f"[{name}]" if ":" in name else name
        return shown if port == (443 if self.is_tls else 80) else f"{shown}:{port}"

    @property
    def path(self) -> str:
        """The path of the request line."""
        return urlsplit(self.url).path or "/"


class Access(Protocol):
    """Finds endpoints and credentials; may take a moment the first time and when credentials are renewed."""

    async def target(self, operation: str, parameters: Parameters) -> Target:
        """Where such a request goes.

        It depends on region, configured endpoints, FIPS and dual-stack settings and on the account of an ARN.

        Raises:
            AwsError: there is no such endpoint, or the parameters fit none.
        """
        ...

    async def keys(self) -> Keys:
        """Credentials that are valid now; AccessDenied where there are none."""
        ...

    def tls(self) -> SSLContext:
        """What connections are verified against."""
        ...
