"""`kcl-daemon watch`: whether every shard is read, seen from outside; to be alerted on, because it lives when the workers do not."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import anyio
import click
import orjson

from kcl_daemon.admin.server import AdminServer, serve_once, token_of
from kcl_daemon.admin.site import JSON, AdminAccess, AdminRequest, AdminResponse, capacity_json, plain
from kcl_daemon.aws.cloudwatch import open_cloudwatch
from kcl_daemon.cli.application import Application, on_application
from kcl_daemon.cli.capacity import CapacityAnswers, CapacityReader, place_of
from kcl_daemon.cli.common import EXIT_FAILURE, EXIT_UNREAD, as_json_option, json_text, with_settings
from kcl_daemon.cli.watch.look import Watched, Watcher
from kcl_daemon.config.metrics_and_page import AdminSettings, MetricsLevel
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import timings
from kcl_daemon.coverage import unread_lines
from kcl_daemon.fleet.coverage_watch import UnreadFigures
from kcl_daemon.metrics import own
from kcl_daemon.metrics.metric import MetricLevel
from kcl_daemon.ports import Log, Meters
from kcl_daemon.telemetry.cloudwatch import CloudWatchExporter, CloudWatchOptions, StatisticSets
from kcl_daemon.telemetry.logs import build_log
from kcl_daemon.telemetry.prometheus import PrometheusExposition, Totals
from kcl_daemon.telemetry.recorder import MetricsRecorder
from kcl_daemon.text import about, counted, on_one_line, short_shards

_PATHS: Final = "there is /livez, /readyz, /metrics, /watch.json, /capacity.json"
_EPILOG: Final = """\b
Exit codes with --once:
  0  every open shard is read
  1  AWS did not answer or refused: nothing is known
  2  wrong command line, properties file or environment
  3  a shard was unread for longer than --after, or something could not be looked at
"""


def watch_json(seen: Watched, after_s: float) -> dict[str, object]:
    """What is not known is null."""
    oldest, known = seen.oldest, seen.seen_s is not None
    return {
        "ready": not seen.reasons(after_s) and seen.settled,
        "reasons": list(seen.reasons(after_s)),
        "settled": seen.settled,
        "lookAgeSeconds": None if seen.seen_s is None else round(seen.now_s - seen.seen_s, 1),
        "shards": len(seen.log.covered) if known else None,
        "shardsAreListed": seen.complete,
        "unread": [
            {
                "lease": each.key,
                "cause": each.cause,
                "why": each.why,
                "owner": each.owner,
                "waitsFor": each.waits_for,
                "seconds": round(each.seconds, 1),
            }
            for each in seen.unread
        ],
        "workers": seen.workers,
        "oldestUnreadSeconds": None if oldest is None else oldest[1],
        "oldestUnreadLease": None if oldest is None else oldest[0],
        "unknownAges": seen.unknown_lags,
        "withoutCheckpointSeconds": seen.still_s,
        "wentBack": seen.went_back,
        "capacity": None if seen.capacity is None else capacity_json(seen.capacity, seen.now_ms),
    }


def watch_lines(seen: Watched) -> Iterator[str]:
    if seen.seen_s is None or seen.seen_s < seen.now_s:
        age = "never" if seen.seen_s is None else f"{about(seen.now_s - seen.seen_s)} ago"
        yield f"last seen: {age}; what follows is from then"
    yield from seen.troubles
    unread, shards = seen.unread, len(seen.log.covered)
    workers = "an unknown number of workers" if seen.workers is None else counted(seen.workers, "worker")
    if unread:
        yield f"{len(unread)} of {counted(shards, 'open shard')} {'is' if len(unread) == 1 else 'are'} read by nobody; {workers} live"
        yield from (f"  {line}" for line in unread_lines(unread))
    elif shards:
        sure = "" if seen.settled else "; not watched for long enough to know who renews"
        yield f"{'the only open shard is' if shards == 1 else f'all {shards} open shards are'} read; {workers} live{sure}"
    if back := seen.went_back:
        yield f"checkpoints went back in the last 15 min: {short_shards(back)}: restored or reset; records come again"
    if oldest := seen.oldest:
        yield f"oldest unread record: {about(oldest[1])} old, in {short_shards([oldest[0]])}"
    if seen.unknown_lags:
        yield f"age of unread records not known: {counted(seen.unknown_lags, 'shard')}"
    if seen.capacity is not None:
        yield f"capacity: {seen.capacity.sentence}"


class WatchFigures:
    """The figures of a look, for Prometheus and CloudWatch. What is not known has no value: only the age of the last look grows."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._of_unread = UnreadFigures(meters)
        self._began_s: float | None = None

    def take(self, seen: Watched) -> None:
        add = self._meters.add
        add(own.WATCH_LOOK_FAILED, bool(seen.troubles))
        self._began_s = seen.now_s if self._began_s is None else self._began_s
        add(own.WATCH_AGE, seen.now_s - (self._began_s if seen.seen_s is None else seen.seen_s))
        if seen.seen_s is None or seen.seen_s < seen.now_s:
            return
        self._of_unread.take(seen.unread)
        add(own.WATCH_SHARDS, len(seen.log.covered))
        add(own.WATCH_UNKNOWN, seen.unknown_lags)
        add(own.WATCH_BACK, len(seen.went_back))
        if seen.workers is not None:
            add(own.WATCH_WORKERS, seen.workers)
        if seen.oldest is not None:
            add(own.OLDEST_UNREAD, seen.oldest[1])
        if seen.still_s is not None:
            add(own.WATCH_STILL, seen.still_s)
        if seen.capacity is not None:
            add(own.WATCH_WANTED, seen.capacity.wanted)


class WatchSite:
    def __init__(
        self,
        access: AdminAccess,
        exposition: PrometheusExposition,
        after_s: float,
        capacity: Callable[[AdminRequest], Awaitable[AdminResponse]],
    ) -> None:
        self._access = access
        self._exposition = exposition
        self._after_s = after_s
        self._capacity = capacity
        self.seen: Watched | None = None

    async def answer(self, request: AdminRequest) -> AdminResponse:
        return self._access.refusal(request) or await self._answer(request)

    async def _answer(self, request: AdminRequest) -> AdminResponse:
        if request.path == "/livez":
            return plain(HTTPStatus.OK, "alive")
        if request.path == "/metrics":
            rendered = await self._exposition.render(request.accept)
            return AdminResponse(HTTPStatus.OK, rendered.body, rendered.content_type)
        if request.path == "/capacity.json":
            return await self._capacity(request)
        answer = {"/readyz": self._ready, "/watch.json": self._json}.get(request.path)
        if answer is None:
            return plain(HTTPStatus.NOT_FOUND, _PATHS)
        if self.seen is None:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "nothing was seen yet")
        return answer(self.seen, request)

    def _ready(self, seen: Watched, request: AdminRequest) -> AdminResponse:
        reasons = seen.reasons(self._after_s)
        if not reasons:
            return plain(HTTPStatus.OK, "ready" if seen.settled else "ready, but not watched for long")
        told = map(on_one_line, reasons) if self._access.is_trusted(request) else ()
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(["not ready", *told]))

    def _json(self, seen: Watched, _: AdminRequest) -> AdminResponse:
        return AdminResponse(HTTPStatus.OK, orjson.dumps(watch_json(seen, self._after_s)), JSON)


class _Watch:
    def __init__(self, application: Application, settings: Settings, after_s: float) -> None:
        self.watcher = Watcher(application, settings)
        self._clock = application.clock
        self.after_s = after_s
        self.totals = Totals()
        options = CloudWatchOptions(MetricLevel.SUMMARY, None, "watch", settings.metrics.queue_most)
        self.statistics = StatisticSets(options)
        self.recorder = MetricsRecorder(self._clock.monotonic, self.statistics, self.totals)
        self._figures = WatchFigures(self.recorder)
        self._told: object = None

    async def look(self, *, as_json: bool) -> Watched:
        """Prints it if something is different but times."""
        seen = await self.watcher.look()
        self._figures.take(seen)
        news = [(each.key, each.cause) for each in seen.unread], seen.troubles, seen.workers, seen.settled
        if news != self._told:
            self._told = news
            self._print(seen, as_json=as_json)
        return seen

    async def once(self, poll_s: float, *, as_json: bool) -> int:
        """Looks until it is certain: settled and all read, or unread for too long."""
        while True:
            seen = await self.watcher.look()
            is_sure = bool(seen.troubles) or (seen.settled and not seen.unread)
            if is_sure or any(each.seconds > self.after_s for each in seen.unread):
                break
            await self._clock.sleep(poll_s)
        self._figures.take(seen)
        self._print(seen, as_json=as_json)
        if seen.seen_s is None:
            return EXIT_FAILURE
        return EXIT_UNREAD if seen.reasons(self.after_s) else 0

    def _print(self, seen: Watched, *, as_json: bool) -> None:
        lines = map(on_one_line, watch_lines(seen))
        click.echo(json_text(watch_json(seen, self.after_s)) if as_json else "\n".join(lines))


async def _run(
    application: Application,
    settings: Settings,
    *,
    every_s: float,
    after_s: float,
    once: bool,
    as_json: bool,
    where: AdminSettings | None,
) -> int:
    watch, clock = _Watch(application, settings, after_s), application.clock
    log = build_log(level="info", form="console", stream=sys.stderr, clock=clock)
    async with _published(application, settings, watch, log), anyio.create_task_group() as group:
        if once:
            return await watch.once(timings(settings.leases, settings.balance).poll_s, as_json=as_json)
        site = None
        if where is not None:
            access = AdminAccess(where.address, await token_of(where))
            capacity = CapacityAnswers(CapacityReader(application, settings), clock, access)
            site = WatchSite(access, PrometheusExposition(watch.totals), after_s, capacity.answer)
            group.start_soon(serve_once, where, AdminServer(site.answer, clock=clock, log=log), log)
        while True:
            seen = await watch.look(as_json=as_json)
            if site is not None:
                site.seen = seen
            watch.recorder.sweep()
            await clock.sleep(every_s)
    raise AssertionError("it watches until it is stopped")


@asynccontextmanager
async def _published(
    application: Application, settings: Settings, watch: _Watch, log: Log
) -> AsyncGenerator[None, None]:
    """Figures go to CloudWatch as those of a worker do."""
    clients = application.clients
    if clients is None or settings.metrics.level is MetricsLevel.NONE:
        yield
        return
    async with open_cloudwatch(settings, clients, application.clock, log) as cloudwatch:
        if cloudwatch is None:
            yield
            return
        exporter = CloudWatchExporter(
            watch.statistics,
            cloudwatch=cloudwatch,
            namespace=settings.metrics.namespace or settings.application_name,
            buffer_s=settings.metrics.buffer_ms / 1000,
            meters=watch.recorder,
            clock=application.clock,
            log=log,
        )
        async with anyio.create_task_group() as group:
            group.start_soon(exporter.run)
            try:
                yield
            finally:
                await exporter.shutdown()
                group.cancel_scope.cancel()


@click.command("watch", short_help="Watch from outside whether every shard is read.", epilog=_EPILOG)
@with_settings
@as_json_option
@click.option(
    "--once",
    is_flag=True,
    help="Look until it is certain, print it, and end with an exit code: for a schedule.",
)
@click.option(
    "--every",
    "every_s",
    metavar="SECONDS",
    type=click.FloatRange(1, 3600),
    default=15.0,
    show_default=True,
    help="How often the tables are read. Shards and ages of records are asked for once a minute.",
)
@click.option(
    "--after",
    "after_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 86400),
    default=60.0,
    show_default=True,
    help="How long a shard may be unread: deploys, reshards and fail-overs take some seconds.",
)
@click.option(
    "--serve",
    "serve",
    metavar="HOST:PORT",
    help="Also answer GET /readyz, /metrics, /watch.json and /capacity.json there. HOST is an IP address.",
)
def watch(
    settings: Settings, *, as_json: bool, once: bool, every_s: float, after_s: float, serve: str | None
) -> None:
    """Watch from outside whether every open shard is read, by whom, and how old the oldest unread record is.

    It takes no lease and starts no child: it reads the tables and the stream, of Java workers too. Run it where the workers do
    not run, and alert on it: it also speaks when they are all gone.
    """
    if once and serve is not None:
        raise click.UsageError("use either --once or --serve")
    where = None if serve is None else place_of(serve, settings.admin)
    ended = on_application(
        settings,
        lambda application: _run(
            application, settings, every_s=every_s, after_s=after_s, once=once, as_json=as_json, where=where
        ),
    )
    sys.exit(ended)
