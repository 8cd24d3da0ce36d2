"""The status page of a worker that stands still, on a real port, in a thread of the test."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from urllib.parse import urlsplit

from anyio.from_thread import start_blocking_portal

from kcl_daemon.admin.server import served
from kcl_daemon.admin.site import MetricsRenderer
from kcl_daemon.config.metrics_and_page import AdminSettings
from kcl_daemon.system import SystemClock
from tests.unit.admin.stage import Standing
from tests.unit.fakes import MemoryLog


@dataclass
class Served:
    """A page that is served.

    Attributes:
        url: where.
        log: what was logged.
    """

    log: MemoryLog = field(default_factory=MemoryLog)

    @property
    def url(self) -> str:
        return next(
            str(fields["url"]) for _, event, fields in self.log.lines if event == "status_page_served"
        )

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        parts = urlsplit(self.url)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=90)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


@contextmanager
def serving(
    source: Standing, settings: AdminSettings | None = None, *, metrics: MetricsRenderer | None = None
) -> Generator[Served]:
    """The page while the block lasts; on a free port unless the settings have one."""
    chosen = settings or AdminSettings()
    if chosen.port is None:
        chosen = replace(chosen, port=0)
    made = Served()
    page = served(chosen, source, clock=SystemClock(), log=made.log, metrics=metrics)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(page):
        portal.call(_until_told, made.log)
        yield made


async def _until_told(log: MemoryLog) -> None:
    clock = SystemClock()
    while "status_page_served" not in log.events():
        await clock.sleep(0.005)
