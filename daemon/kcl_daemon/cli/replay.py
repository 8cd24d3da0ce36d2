"""A time range once more, as an application of its own (`APPLICATION-replay-NAME`) with one worker and one table.

The run ends at `--to`, and the table is removed; an interrupted run keeps it, and goes on. The worker id is always
the same, so a second replay of a name finds the first one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Final

import anyio
import click

from kcl_daemon import ports
from kcl_daemon.app import Application, streams_of
from kcl_daemon.aws.build import build_tables, delete_lease_table, open_kinesis_client
from kcl_daemon.aws.session import open_clients
from kcl_daemon.children.start import find_program
from kcl_daemon.cli.common import EXIT_FAILURE, load_file, refuse, report_failure, say
from kcl_daemon.cli.replay_settings import ReplayRange, replay_settings, time_of, time_text
from kcl_daemon.cli.run import EXIT_SIGNAL, SupervisedWorker, supervise
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ChildStartFailed, ConfigurationError, WorkerIdTaken, leaves
from kcl_daemon.fleet.streams import SingleStreamTracker
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.leases.row import KEY, Absent
from kcl_daemon.metrics import kcl, own
from kcl_daemon.metrics.metric import Metric
from kcl_daemon.ports import (
    Clock,
    FetchedRecords,
    Kinesis,
    Log,
    NoMeters,
    ReadFrom,
    StreamRef,
    StreamSummary,
    Table,
)
from kcl_daemon.production import real_adapters
from kcl_daemon.shards.lineage import InitialPosition, Shard
from kcl_daemon.sources import open_sources
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.logs import build_log
from kcl_daemon.telemetry.recorder import CountedLog
from kcl_daemon.text import counted, duration, size
from kcl_daemon.worker import Worker

_PLAIN_EVERY_S: Final = 10.0
_BAR_EVERY_S: Final = 0.5
_BAR_STEPS: Final = 1000
_COUNTED: Final = (kcl.PROCESS_RECORDS, kcl.PROCESS_BYTES, own.DEAD_LETTERS, own.CHILDREN_FAILED)
_SIZES: Final = {"": 1, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}
# A read takes what may come in this time: then a rate over many shards is even.
_READ_S: Final = 0.2
_RECORD_BYTES: Final = 25 * 1024
EPILOG: Final = """\b
Exit codes:
  0    every record of the range was processed; the table of the replay is removed
  1    it failed, or another process replays under this name
  2    wrong command line or properties file
  130  interrupted: the same command goes on
"""


@dataclass(frozen=True, slots=True)
class Limit:
    per_s: float
    bytes: bool = False

    @staticmethod
    def parse(text: str) -> Limit:
        """ValueError unless it is like 500/s or 2MiB/s."""
        amount, _, unit = text.strip().partition("/")
        digits = amount.rstrip("kKmMgGiIbB")
        word = amount[len(digits) :].upper()
        if unit != "s" or word not in (*_SIZES, "B") or not float(digits) > 0:
            raise ValueError(text)
        return Limit(float(digits) * _SIZES.get(word, 1), bytes=bool(word))


class LimitedKinesis:
    """What a read will cost is estimated first."""

    def __init__(self, kinesis: Kinesis, limit: Limit, clock: Clock) -> None:
        self._kinesis = kinesis
        self._limit = limit
        self._clock = clock
        self._free_s = clock.monotonic()
        self._cost_each = float(_RECORD_BYTES) if limit.bytes else 1.0

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        return await self._kinesis.describe_stream(stream)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        return await self._kinesis.list_streams()

    async def streams_of(self, table: str) -> tuple[StreamSummary, ...]:
        return await ports.streams_of(self._kinesis, table)

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        return await self._kinesis.list_shards(stream, start)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        return await self._kinesis.get_shard_iterator(stream, shard_id, read_from)

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        """The wait comes first, so that the answer is fresh."""
        rate = self._limit.per_s
        most = max(1, min(limit, int(rate * _READ_S / self._cost_each)))
        estimated = most * self._cost_each
        now_s = self._clock.monotonic()
        at_s = max(self._free_s, now_s)
        self._free_s = at_s + estimated / rate
        await self._clock.sleep(at_s - now_s)
        spent = 0.0
        try:
            fetched = await self._kinesis.get_records(stream, shard_id, iterator, most)
            spent = float(fetched.payload.data_bytes if self._limit.bytes else len(fetched.payload))
            if spent and self._limit.bytes:
                self._cost_each = max(1.0, spent / len(fetched.payload))
        finally:
            self._free_s += (spent - estimated) / rate
        return fetched


def _shown(text: str | None) -> str | None:
    return text


class ReplayFigures(NoMeters):
    def __init__(self) -> None:
        self.counts: dict[str, float] = {}

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:  # noqa: ARG002 - of the port
        if metric in _COUNTED:
            self.counts[metric.name] = self.counts.get(metric.name, 0) + value

    def of(self, metric: Metric) -> int:
        return int(self.counts.get(metric.name, 0))


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    settings: Settings
    name: str
    asked: ReplayRange
    program: tuple[str, ...]
    consumer: str | None
    limit: Limit | None
    anew: bool


class Replay:
    def __init__(self, request: ReplayRequest, clock: Clock, log: Log) -> None:
        self._request = request
        self._clock = clock
        self._log = log
        self._began_s = clock.monotonic()
        self._done = 0.0
        self._worker: Worker | None = None
        self.figures = ReplayFigures()
        self.signal: Signals | None = None
        self.span = request.asked
        self.settings = self._settings_of(self.span)

    def _settings_of(self, span: ReplayRange) -> Settings:
        request = self._request
        return replay_settings(request.settings, request.name, span, request.program, request.consumer)

    async def run(self) -> bool:
        """Whether it came to its end."""
        await self._prepare()
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as received:
            code = await supervise(self._open_worker, self._noted(received), self._log)
        if code > EXIT_SIGNAL:
            say(self.how_to_go_on)
            sys.stderr.flush()
            os._exit(code)  # a normal exit waits for threads in AWS SDK calls
        run_end = None if self._worker is None else self._worker.run_end
        ended = run_end is not None and run_end.reached
        if ended:
            async with open_clients(self.settings.endpoints) as clients:
                await delete_lease_table(self.settings, clients)
        return ended

    async def _noted(self, received: AsyncIterator[Signals]) -> AsyncGenerator[Signals, None]:
        async for number in received:
            self.signal = self.signal or number
            yield number

    async def _prepare(self) -> None:
        settings, asked = self.settings, self._request.asked
        async with open_clients(settings.endpoints) as clients:
            table = build_tables(settings, clients, self._clock).leases
            if await table.describe() is not None:
                await self._refuse_if_foreign(table)
                if self._request.anew:
                    await self._refuse_if_alive(table)
                    await delete_lease_table(settings, clients)
            await self._look_at_streams()
            await table.ensure()
            written = await table.put(asked.row(), (Absent(KEY),))
        if written.applied or written.row is None:
            return
        found = ReplayRange.of(written.row)
        if not found.is_asked_by(asked):
            raise ConfigurationError(
                f"a replay with the name {self._request.name} was begun and is not finished: {found}"
                f"{', shards ' + ', '.join(sorted(found.shards)) if found.shards else ''}. Give the same times and shards "
                "to go on, --name for another one, or --anew to forget it"
            )
        self.span, self.settings = found, self._settings_of(found)
        say(f"goes on: {found}")

    async def _refuse_if_foreign(self, table: Table) -> None:
        """A table of somebody else would be removed at the end."""
        if await table.get(ReplayRange.ROW) is None and await table.scan():
            raise ConfigurationError(
                f"the table {table.name} has rows and is not that of a replay; choose another --name"
            )

    async def _refuse_if_alive(self, table: Table) -> None:
        before = {row[KEY]: row for row in await table.scan()}
        await self._clock.sleep(self.settings.leases.failover_time_ms / 1000)
        if before != {row[KEY]: row for row in await table.scan()}:
            raise WorkerIdTaken(f"{self.settings.worker_id} is at work")

    async def _look_at_streams(self) -> None:
        settings, only = self.settings, self._request.asked.shards
        async with (
            open_clients(settings.endpoints, changes=settings.reads_changes) as clients,
            open_kinesis_client(clients, self._clock) as client,
            open_sources(settings, clients, client, self._clock) as kinesis,
        ):
            table = build_tables(settings, clients, self._clock).leases
            tracker = streams_of(settings, kinesis, self._clock, self._log, table=table)
            if not isinstance(tracker, SingleStreamTracker):
                return
            ref = tracker.stream.ref
            summary = await kinesis.describe_stream(ref)
            if summary.retention_s is not None:
                oldest_s = self._clock.wall_ms() / 1000 - summary.retention_s
                if self._request.asked.from_s < max(oldest_s, summary.creation_time_s) - 1:
                    say(
                        f"the stream keeps records for {summary.retention_s / 3600:g} hours and was created at "
                        f"{time_text(summary.creation_time_s)}: what arrived before "
                        f"{time_text(max(oldest_s, summary.creation_time_s))} is gone, it begins with the oldest record"
                    )
            known = {shard.shard_id for shard in await kinesis.list_shards(ref)}
            if unknown := sorted(only - known):
                raise ConfigurationError(f"--shard: the stream has no {', '.join(unknown)}")

    @asynccontextmanager
    async def _open_worker(self) -> AsyncGenerator[SupervisedWorker, None]:
        request = self._request
        async with real_adapters(self.settings, self._log) as adapters:
            kinesis: Kinesis = adapters.kinesis
            if request.limit is not None:
                kinesis = LimitedKinesis(kinesis, request.limit, adapters.clock)
            log = CountedLog(adapters.log, self.figures)
            counted_adapters = replace(adapters, kinesis=kinesis, meters=self.figures, log=log)
            self._worker = Application(self.settings, counted_adapters).worker
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._show_progress)
                yield self._worker
                tasks.cancel_scope.cancel()

    @property
    def done(self) -> float:
        """From 0 to 1, never less than before."""
        worker = self._worker
        shards = [] if worker is None else list(worker.renewer.held.values())
        parts = list[float]()
        until_ms, now_s = round(self.span.to_s * 1000), self._clock.wall_ms() / 1000
        for held in shards:
            fetch = held.progress.last_fetch
            at_s = now_s - (fetch.behind_ms or 0) / 1000 if fetch.answered_s > 0 else self.span.from_s
            part = (at_s - self.span.from_s) / max(self.span.to_s - self.span.from_s, 0.001)
            parts.append(1.0 if held.lease.is_at(until_ms) else min(max(part, 0.0), 0.99))
        if parts:
            self._done = max(self._done, sum(parts) / len(parts))
        return self._done

    async def _show_progress(self) -> None:
        if not sys.stderr.isatty():
            while True:
                await self._clock.sleep(_PLAIN_EVERY_S)
                say(f"{self.done:.0%}: {self._given()}")
        with click.progressbar(length=_BAR_STEPS, file=sys.stderr, item_show_func=_shown) as bar:
            shown = 0
            while True:
                await self._clock.sleep(_BAR_EVERY_S)
                now = round(self.done * _BAR_STEPS)
                bar.update(now - shown, self._given())
                shown = now

    def _given(self) -> str:
        figures = self.figures
        return f"{counted(figures.of(kcl.PROCESS_RECORDS), 'record')}, {size(figures.of(kcl.PROCESS_BYTES))}"

    @property
    def how_to_go_on(self) -> str:
        return f"interrupted; the same command goes on. Its leases are kept in the table {self.settings.lease_table}"

    def summary(self) -> str:
        figures, run_end = self.figures, None if self._worker is None else self._worker.run_end
        shards = 0 if run_end is None else run_end.leases_seen
        words = [self._given(), *([counted(shards, "shard")] if shards else [])]
        if letters := figures.of(own.DEAD_LETTERS):
            words.append(counted(letters, "dead letter"))
        if failures := figures.of(own.CHILDREN_FAILED):
            words.append(f"children failed {counted(failures, 'time')}")
        return f"{', '.join(words)}, in {duration(self._clock.monotonic() - self._began_s)}"


@click.command(
    "replay", short_help="Read a time range once more, beside the live application.", epilog=EPILOG
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--from", "start", metavar="TIME", required=True, help="First record: a time, or an age such as -2h."
)
@click.option(
    "--to", "end", metavar="TIME", required=True, help="Where it ends; a time to come is waited for."
)
@click.option(
    "--shard", "shards", metavar="ID", multiple=True, help="Only these; child shards too must be named."
)
@click.option(
    "--name", default="default", show_default=True, help="Part of its table's name: APPLICATION-replay-NAME."
)
@click.option(
    "--limit", metavar="RATE", help="At most so much, such as 500/s (records of the stream) or 2MiB/s."
)
@click.option(
    "--consumer", metavar="NAME", help="Read by enhanced fan-out with this consumer. Default: polling."
)
@click.option("--anew", is_flag=True, help="Forget an unfinished replay of this name.")
def replay(
    *,
    file: Path,
    program: tuple[str, ...],
    start: str,
    end: str,
    shards: tuple[str, ...],
    name: str,
    limit: str | None,
    consumer: str | None,
    anew: bool,
) -> None:
    """Give the records of a time range to PROGRAM, or to the application's own program, while the application runs on.

    It has leases of its own, in a table of its own. An interrupted replay goes on where it was.
    """
    try:
        settings = load_file(file).settings
        find_program((program or settings.child.command)[0])
    except ConfigurationError as error:
        refuse(error)
    except ChildStartFailed as error:
        raise click.BadParameter(str(error), param_hint="PROGRAM") from None
    asked = ReplayRange((start, end), time_of(start), time_of(end), frozenset(shards))
    _check(settings, asked, name, limit, consumer)
    request = ReplayRequest(
        settings, name, asked, program, consumer, None if limit is None else Limit.parse(limit), anew
    )
    clock = SystemClock()
    log = build_log(
        level="warning", form="console" if sys.stderr.isatty() else "json", stream=sys.stderr, clock=clock
    )
    sys.exit(_run(Replay(request, clock, log), log))


def _check(
    settings: Settings, asked: ReplayRange, name: str, limit: str | None, consumer: str | None
) -> None:
    if asked.from_s >= asked.to_s:
        raise click.BadParameter(f"--from must be before --to, they are {asked}")
    if (
        not name
        or not all(each.isascii() and (each.isalnum() or each in "_.-") for each in name)
        or len(name) > 64
    ):
        raise click.BadParameter("1 to 64 letters, digits, dots, dashes and underscores", param_hint="--name")
    if consumer is not None and consumer == (settings.fan_out.consumer_name or settings.application_name):
        raise click.BadParameter("that is the consumer of the live application", param_hint="--consumer")
    if consumer is not None and limit is not None:
        raise click.BadParameter("a limit needs polling: leave --consumer out", param_hint="--limit")
    if settings.bundled is not None:
        raise click.UsageError(
            f"{settings.bundled} cannot be replayed; a reader of its records reads them again"
        )
    if limit is not None:
        try:
            Limit.parse(limit)
        except ValueError:
            raise click.BadParameter("not a rate such as 500/s or 2MiB/s", param_hint="--limit") from None


def _run(replayed: Replay, log: Log) -> int:
    try:
        ended = anyio.run(replayed.run)
    except Exception as error:  # noqa: BLE001 - the last place where an error can be reported
        first = next(iter(leaves(error)))
        if isinstance(first, WorkerIdTaken):
            say("another process replays under this name; wait for it, or choose another --name")
            return EXIT_FAILURE
        return report_failure(error, log)
    say(replayed.summary())
    if ended:
        return 0
    say(replayed.how_to_go_on)
    return EXIT_SIGNAL + (replayed.signal or signal.SIGINT)
