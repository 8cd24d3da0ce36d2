"""Asking the metadata endpoint of the host: plain HTTP to an address on the same machine. Knows no document.

urllib in a thread, because the AWS library does not speak to this endpoint and one short request a second is not worth
an HTTP client of its own. Proxies and redirects are never followed: the answer must come from this host.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Awaitable, Callable
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError, URLError

import anyio
import anyio.to_thread

from kcl_daemon.errors import CpuUnreadable

HttpGet = Callable[[str], Awaitable[bytes]]
"""The body at a URL; raises CpuUnreadable for everything but an answer of 200."""

_TIMEOUT_S: Final = 2.0
# The metadata of a task with many containers is some 100 KB.
_BODY_BYTES_MAX: Final = 4 * 1024 * 1024


class MetadataClient:
    """Answers `HttpGet`, one request at a time.

    A cancelled request leaves its thread behind until the socket's time-out; the next request waits for it, so that
    there is never more than one.
    """

    def __init__(self, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._one = anyio.CapacityLimiter(1)
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.HTTPHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
        ):
            self._opener.add_handler(handler)

    async def get(self, url: str) -> bytes:
        """The body at a URL."""
        return await anyio.to_thread.run_sync(self._get, url, limiter=self._one, abandon_on_cancel=True)

    def _get(self, url: str) -> bytes:
        try:
            with self._opener.open(url, timeout=self._timeout_s) as answer:
                body: bytes = answer.read(_BODY_BYTES_MAX)
                return body
        except HTTPError as error:
            error.close()
            raise CpuUnreadable(f"status {error.code}") from error
        except URLError as error:
            raise CpuUnreadable(str(error.reason)) from error
        except (OSError, HTTPException, ValueError) as error:
            raise CpuUnreadable(str(error) or type(error).__name__) from error
