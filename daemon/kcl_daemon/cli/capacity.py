from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

import anyio
import click
import orjson

from kcl_daemon.admin.server import AdminServer, serve_once, token_of
from kcl_daemon.admin.site import JSON, AdminAccess, AdminRequest, AdminResponse, capacity_json, plain
from kcl_daemon.capacity.figures import Bound, Capacity, StreamCapacity
from kcl_daemon.cli.application import Application, no_log, observer, on_application
from kcl_daemon.cli.common import EXIT_FAILURE, as_json_option, describe, json_text, with_settings
from kcl_daemon.config.metrics_and_page import AdminSettings, is_loopback
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import for_each, raise_first, timings
from kcl_daemon.errors import AwsError, StreamNotFound
from kcl_daemon.fleet.capacity_watch import read_capacity
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.ports import Clock, IteratorKind, ReadFrom
from kcl_daemon.retrieval.source import StartMemory, read_from
from kcl_daemon.telemetry.logs import build_log
from kcl_daemon.text import about, counted, on_one_line, rate, short_shards
from kcl_protocol.sequence import LATEST

_LOOK_EVERY_S: Final = 5.0
# Time for a leader that lives to store something; a lone one does all that every 15 s.
_REPORTS: Final = 3.0
_LATE_S: Final = 20.0
_AT_ONCE: Final = 8
_NOTHING_YET: Final = (
    "nothing is known yet: no leader has said anything. Workers of Java or of an older version say nothing; the leader must be "
    "a kcl-daemon that knows this command"
)
_EPILOG: Final = """\b
Exit codes:
  0  it is known what is wanted
  1  nothing is known yet, or AWS did not answer or refused
  2  wrong command line, properties file or environment
"""


@dataclass(frozen=True, slots=True)
class CapacityNews:
    capacity: Capacity | None
    now_ms: int
    is_last_word: bool = False
    peeked: tuple[int, str] | None = None

    def json(self) -> dict[str, object] | None:
        if self.capacity is None and self.peeked is None:
            return None
        more: dict[str, object] = {"isLastWord": self.is_last_word}
        if self.peeked is not None:
            more |= {"workersWanted": self.peeked[0], "wanted": self.peeked[0], "reason": self.peeked[1]}
        return capacity_json(self.capacity, self.now_ms, **more)


class CapacityReader:
    def __init__(self, application: Application, settings: Settings) -> None:
        self._application = application
        self._settings = settings
        self._pace = timings(settings.leases, settings.balance)
        clock = application.clock
        self._monitor = observer(application.opened.tables, settings, clock=clock, log=no_log(clock))

    async def news(self) -> CapacityNews:
        tables, clock = self._application.opened.tables, self._application.clock
        await self._monitor.poll()
        _, capacity = await read_capacity(tables.coordinator)
        live, now_ms = self._monitor.living_workers(), clock.wall_ms()
        is_last = capacity is not None and self._is_last_word(capacity, live, now_ms)
        peeks = self._settings.capacity.scale_to_zero and not live
        return CapacityNews(capacity, now_ms, is_last, await self._peek() if peeks else None)

    def _is_last_word(self, capacity: Capacity, live: frozenset[WorkerId], now_ms: int) -> bool:
        age_s = (now_ms - capacity.at_ms) / 1000
        return age_s > _LATE_S and (
            capacity.by not in live or age_s > _REPORTS * self._pace.report_s + _LATE_S
        )

    async def _peek(self) -> tuple[int, str]:
        leases = [lease for lease in self._monitor.leases if not lease.is_finished]
        found: list[str] = []

        async def look(lease: Lease) -> None:
            if not found and (why := await self._why_to_read(lease)) is not None:
                found.append(f"no worker runs, and {short_shards([lease.shard_id])} {why}")

        errors = await for_each(leases, look, at_once=_AT_ONCE)
        if found:
            return 1, found[0]
        raise_first(errors)
        return 0, f"no worker runs, and nothing is left to read in {counted(len(leases), 'shard')}"

    async def _why_to_read(self, lease: Lease) -> str | None:
        checkpoint = lease.checkpoint
        if checkpoint == LATEST:
            return "has no checkpoint yet, so nobody knows where to look"
        tracked, kinesis = self._application.streams.of(lease), self._application.kinesis
        start = read_from(checkpoint, StartMemory(), tracked.position.timestamp_s)
        if not checkpoint.is_sentinel:
            start = ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=checkpoint.sequence_number)
        try:
            iterator = await kinesis.get_shard_iterator(tracked.ref, lease.shard_id, start)
            fetched = await kinesis.get_records(tracked.ref, lease.shard_id, iterator, 1)
        except StreamNotFound:
            return None
        if len(fetched.payload) or fetched.millis_behind_latest:
            return "has new records"
        return "has ended" if fetched.next_iterator is None else None


def capacity_lines(news: CapacityNews) -> Iterator[str]:
    capacity = news.capacity
    if capacity is not None:
        yield capacity.sentence
        wanted, reason = news.peeked or (capacity.wanted, capacity.reason)
    elif news.peeked is not None:
        wanted, reason = news.peeked
    else:
        yield _NOTHING_YET
        return
    runs = "" if capacity is None or news.is_last_word else f" ({capacity.workers} now)"
    yield f"{counted(wanted, 'worker')} wanted{runs}: {reason}"
    if capacity is not None:
        yield from _details(capacity)
        yield _said(news, capacity)


def _details(capacity: Capacity) -> Iterator[str]:
    yield from map(_stream_line, capacity.streams or (capacity.whole,))
    yield from (f"with {counted(each.workers, 'worker')}: {each.words}" for each in capacity.alternatives)
    if capacity.unknown:
        yield f"not known: {capacity.unknown}"


def _stream_line(stream: StreamCapacity) -> str:
    name = "the stream" if stream.stream is None else stream.stream
    behind = "unknown lag" if stream.behind_s is None else f"{about(stream.behind_s)} behind"
    speed = "" if stream.speed is None else f", speed {stream.speed:.1f} x"
    flow = f"{rate(stream.in_bytes)} in, {rate(stream.out_bytes)} out"
    binds = "" if stream.binds is Bound.NOTHING else f"; held back by {stream.binds.value}"
    why = f" ({stream.why})" if stream.why and binds else ""
    hot = f"; behind alone: {short_shards(stream.hot)}" if stream.hot else ""
    return f"{name}: {counted(stream.shards, 'shard')}, {behind}{speed}, {flow}{binds}{why}{hot}"


def _said(news: CapacityNews, capacity: Capacity) -> str:
    age = about(max(0.0, (news.now_ms - capacity.at_ms) / 1000))
    return (
        f"the last word of leader {capacity.by}, {age} old"
        if news.is_last_word
        else f"said {age} ago by worker {capacity.by}"
    )


def _shown(news: CapacityNews, *, as_json: bool) -> str:
    if as_json:
        return json_text(news.json() or {"workersWanted": None, "unknown": _NOTHING_YET})
    return "\n".join(map(on_one_line, capacity_lines(news)))


class CapacityAnswers:
    def __init__(self, reader: CapacityReader, clock: Clock, access: AdminAccess) -> None:
        self._reader = reader
        self._clock = clock
        self._access = access
        self._lock = anyio.Lock()
        self._last: tuple[float, AdminResponse] | None = None

    async def answer(self, request: AdminRequest) -> AdminResponse:
        refusal = self._access.refusal(request)
        if refusal is not None:
            return refusal
        if request.path == "/livez":
            return plain(HTTPStatus.OK, "alive")
        if request.path != "/capacity.json":
            return plain(HTTPStatus.NOT_FOUND, "there is /capacity.json, /livez")
        async with self._lock:
            now_s = self._clock.monotonic()
            if self._last is None or now_s - self._last[0] >= _LOOK_EVERY_S:
                self._last = now_s, await self._read()
            return self._last[1]

    async def _read(self) -> AdminResponse:
        try:
            found = (await self._reader.news()).json()
        except AwsError as error:
            return plain(
                HTTPStatus.SERVICE_UNAVAILABLE, f"the tables or the stream cannot be read: {describe(error)}"
            )
        if found is None:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, _NOTHING_YET)
        return AdminResponse(HTTPStatus.OK, orjson.dumps(found), JSON)


def place_of(value: str, admin: AdminSettings) -> AdminSettings:
    host, colon, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        is_local = is_loopback(host)
        number = int(port)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not HOST:PORT, such as 127.0.0.1:8081", param_hint="--serve"
        ) from None
    if not colon or not 0 <= number <= 65535:
        raise click.BadParameter(f"{value!r} has no port from 0 to 65535", param_hint="--serve")
    if not is_local and admin.token is None and admin.token_file is None:
        raise click.UsageError(
            f"others can reach {host}, so it needs a token: set adminToken or adminTokenFile in the file"
        )
    return replace(admin, address=host, port=number)


async def _serve(application: Application, settings: Settings, where: AdminSettings) -> None:
    access = AdminAccess(where.address, await token_of(where))
    log = build_log(level="info", form="console", stream=sys.stderr, clock=application.clock)
    serving = CapacityAnswers(CapacityReader(application, settings), application.clock, access)
    await serve_once(where, AdminServer(serving.answer, clock=application.clock, log=log), log)


@click.command("capacity", short_help="Show lag, speed and workers wanted.", epilog=_EPILOG)
@with_settings
@as_json_option
@click.option(
    "--watch", is_flag=True, help="Show it again whenever the leader says something new, until Ctrl-C."
)
@click.option(
    "--serve",
    "serve",
    metavar="HOST:PORT",
    help="Answer GET /capacity.json there until Ctrl-C, for an autoscaler while no worker may run. HOST is an IP address.",
)
def capacity(settings: Settings, *, as_json: bool, watch: bool, serve: str | None) -> None:
    """Show how far behind the application is, when it will have caught up, what holds it back and how many workers it wants.

    This is what the leader has stored in the tables, with its age. With scaleToZero=true and no live worker, this command reads
    one record of each shard to see whether a worker is wanted.
    """
    if serve is not None:
        where = place_of(serve, settings.admin)
        on_application(settings, lambda application: _serve(application, settings, where))
        return

    async def show(application: Application) -> CapacityNews:
        reader, shown = CapacityReader(application, settings), None
        while True:
            news = await reader.news()
            if shown is None or news.capacity != shown.capacity or news.peeked != shown.peeked:
                click.echo(_shown(news, as_json=as_json))
            if not watch:
                return news
            shown = news
            await application.clock.sleep(_LOOK_EVERY_S)

    if on_application(settings, show).json() is None:
        sys.exit(EXIT_FAILURE)
