"""Which way requests take to an endpoint: direct or through a proxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from anyio import Semaphore

from kcl_daemon.aws.proxied import ProxiedWire, proxies_for
from kcl_daemon.ports import Clock
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
