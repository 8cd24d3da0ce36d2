"""Which way requests take to an endpoint: direct or through a proxy, by HTTP/1.1 or, for event streams, by HTTP/2."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Final

from anyio import Semaphore

from kcl_daemon.aws.proxied import ProxiedWire, proxies_for
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.ports import Clock, Log
from kcl_daemon.transport.dial import Pool
from kcl_daemon.transport.values import Access, Target
from kcl_daemon.transport.wire import LARGE_AT_ONCE, DirectWire, Wire

# How long a service may say nothing in the middle of a call, as for the SDK's calls.
_SILENCE_S: Final = 10.0


def plain_wires(access: Access, *, ca_bundle: str | None, clock: Clock) -> Callable[[Target], Wire]:
    """HTTP/1.1, direct or through the proxy that the environment names for an endpoint."""
    large = Semaphore(LARGE_AT_ONCE)

    def wire(target: Target) -> Wire:
        """Touches nothing yet."""
        proxies = proxies_for(target)
        if proxies:
            return ProxiedWire(target, proxies, ca_bundle=ca_bundle, silence_s=_SILENCE_S)
        return DirectWire(Pool(target, access.tls, silence_s=_SILENCE_S, now_s=clock.monotonic), large)

    return wire


def http2_wires(plain: Callable[[Target], Wire], access: Access, log: Log) -> Callable[[Target], Wire]:
    """The same, and HTTP/2 for event streams where it can be had; a warning where not.

    Args:
        plain: for calls, and instead.
        access: what connections are verified against.
        log: for the warning.

    Raises:
        ConfigurationError: what it needs is not installed.
    """
    if find_spec("h2") is None:
        raise ConfigurationError(
            "fanoutHttpVersion is 2 but h2 is not installed: pip install 'kcl-daemon[h2]', or remove "
            "the property"
        )
    # Here, so that a daemon without it needs no library for it and starts as fast as before.
    from kcl_daemon.transport.http2_wire import Http2Wire  # noqa: PLC0415

    def wire(target: Target) -> Wire:
        """Touches nothing yet."""

        def tell(why: str) -> None:
            """Once for each endpoint."""
            log.warning("fan_out_without_http2", endpoint=target.host, reason=why)

        return Http2Wire(
            target,
            plain(target),
            tls=lambda: access.tls(http2=True),
            tell=tell,
            why_not=_why_not(target),
        )

    return wire


def _why_not(target: Target) -> str | None:
    """Why event streams from an endpoint come by HTTP/1.1; None: HTTP/2 is tried."""
    if proxies_for(target):
        return "a proxy is set for it (HTTPS_PROXY, HTTP_PROXY)"
    if not target.is_tls and not _is_loopback(target):
        return "its address starts with http:// and is not on this machine"
    return None


def _is_loopback(target: Target) -> bool:
    host, _ = target.address
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
