from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import click
from anyio import CancelScope

from kcl_daemon.aws.build import open_kinesis_client
from kcl_daemon.cli.common import run, say
from kcl_daemon.cli.leases.change import position_of
from kcl_daemon.cli.stream.content import Opener, open_opener
from kcl_daemon.cli.stream.follow import Follower
from kcl_daemon.cli.stream.place import StreamPlace, open_place, with_place
from kcl_daemon.cli.stream.show import TERMINAL_CHARACTERS, json_line, text_line
from kcl_daemon.config.kinds import RunUntil
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Kinesis
from kcl_daemon.records.content import SeenRecord
from kcl_daemon.records.event_pattern import PatternError
from kcl_daemon.records.payload import AnyRecord, Payload, UserRecord, raw_record
from kcl_daemon.records.record_filter import ONLY_CHANGES, RecordFilter
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.sources import open_sources
from kcl_daemon.system import ServiceClock, SystemClock
from kcl_daemon.text import counted, short_shards
from kcl_protocol.messages import Record

EPILOG: Final = """\b
TIME is 2026-11-20T12:00:00Z, how long ago (90s, 1h30m, 2d), or epoch seconds.

It reads each shard once a second at most, and a fifth of what the shard can be read with, so that it does not slow down
other readers. It writes nothing: no lease, no table, no consumer.

\b
Exit codes:
  0    --count or --until is reached, or the reader of its output has gone
  1    AWS did not answer, refused, or there is no such stream
  2    wrong command line or properties file
  130  Ctrl-C
"""


@dataclass(frozen=True, slots=True)
class TailForm:
    record_filter: RecordFilter | None
    text: str | None
    keys: frozenset[str]
    as_json: bool
    long: bool
    most: int | None

    def wants(self, seen: SeenRecord) -> bool:
        if self.keys and seen.partition_key not in self.keys:
            return False
        if self.text is not None and self.text.encode() not in seen.data:
            return False
        return self.record_filter is None or bool(self.record_filter.kept(_payload_of(seen)))

    def line(self, seen: SeenRecord) -> str:
        return json_line(seen) if self.as_json else text_line(seen, long=self.long, most=self.most)


def _payload_of(seen: SeenRecord) -> Payload:
    raw = raw_record(Record("", seen.partition_key, seen.sequence_number, seen.arrival_ms))
    record = UserRecord(
        seen.data, raw.partition_key, seen.sequence_number, seen.arrival_ms, seen.sub_sequence_number
    )
    return Payload((record,), 0)


class Screen:
    def __init__(self, form: TailForm, opener: Opener, most: int | None) -> None:
        self._form = form
        self._opener = opener
        self._most = most or sys.maxsize
        self.read = self.shown = 0
        self.full = CancelScope()

    async def show(self, shard_id: ShardId, records: Sequence[AnyRecord]) -> None:
        lines: list[str] = []
        for record in records:
            self.read += 1
            seen = await self._opener.opened(shard_id, record)
            if self._form.wants(seen):
                lines.append(self._form.line(seen))
            if self.shown + len(lines) >= self._most:
                break
        del lines[self._most - self.shown :]  # others showed theirs meanwhile
        self.shown += len(lines)
        try:
            if lines:
                click.echo("\n".join(lines))
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
            self.full.cancel()
        if self.shown >= self._most:
            self.full.cancel()


@asynccontextmanager
async def open_reading(place: StreamPlace, clock: ServiceClock) -> AsyncGenerator[Kinesis, None]:
    async with (
        open_place(place) as clients,
        open_kinesis_client(clients, clock, on_date=clock.learn) as client,
        open_sources(
            place.settings, clients, client, clock, streams=(place.ref,), on_date=clock.learn
        ) as kinesis,
    ):
        yield kinesis


@dataclass(frozen=True, slots=True)
class TailRange:
    start: InitialPosition
    until: RunUntil | None
    shards: tuple[str, ...]
    count: int | None


async def follow(place: StreamPlace, wanted: TailRange, form: TailForm) -> None:
    clock = ServiceClock()
    async with (
        open_reading(place, clock) as kinesis,
        open_opener(place.settings.endpoints, clock, say) as opener,
    ):
        screen = Screen(form, opener, wanted.count)
        start = wanted.start
        follower = Follower(kinesis, place.ref, start, wanted.until, wanted.shards, clock, screen.show, say)
        with screen.full:
            followed = await follower.shards()
            if sys.stderr.isatty():
                names = short_shards([shard.shard_id for shard in followed]) if followed else "no shard"
                say(f"{place.ref.name}: {names}, from {start.at.value}; Ctrl-C ends")
            await follower.run(followed)
        if follower.aggregates > 1:
            say(f"{counted(follower.left_out, 'record')} left out in all: their keys belong to other shards")
        if form.record_filter is not None or form.keys or form.text is not None:
            say(f"{counted(screen.shown, 'record')} of {screen.read} shown")


def _until(text: str) -> RunUntil:
    if text.strip().lower() == "tip":
        return RunUntil(None)
    at_s = position_of(text).timestamp_s
    if at_s is None:
        raise click.BadParameter(f"{text!r} is neither tip nor a time such as 2026-11-20T12:00:00Z or 1h")
    return RunUntil(round(at_s * 1000))


def _filter(text: str) -> RecordFilter:
    try:
        return RecordFilter.of(text)
    except PatternError as wrong:
        raise click.BadParameter(str(wrong)) from None


@click.command("tail", short_help="Follow a stream and show its records.", epilog=EPILOG)
@with_place
@click.option(
    "--from",
    "--since",
    "start",
    metavar="LATEST|TRIM_HORIZON|TIME",
    type=position_of,
    default="LATEST",
    help="Where to begin: what comes from now on (LATEST, the default), the oldest record (TRIM_HORIZON), or a time.",
)
@click.option("--until", metavar="tip|TIME", type=_until, help="End at the newest record, or at a time.")
@click.option("-n", "--count", metavar="N", type=click.IntRange(1), help="End after so many records.")
@click.option(
    "--shard",
    "shards",
    metavar="ID",
    multiple=True,
    help="Only this shard and what comes after it, such as 3; can be repeated.",
)
@click.option(
    "--filter",
    "record_filter",
    metavar="PATTERN",
    type=_filter,
    help='Only records that match, as with recordFilter: {"data": {"type": ["paid"]}}.',
)
@click.option("--grep", "text", metavar="TEXT", help="Only records with this text in their data.")
@click.option(
    "--key", "keys", metavar="KEY", multiple=True, help="Only with this partition key; can be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for jq.")
@click.option("-l", "--long", is_flag=True, help="Show sequence numbers and schemas too.")
def tail(
    *,
    place: StreamPlace,
    start: InitialPosition,
    until: RunUntil | None,
    count: int | None,
    shards: tuple[str, ...],
    record_filter: RecordFilter | None,
    text: str | None,
    keys: tuple[str, ...],
    as_json: bool,
    long: bool,
) -> None:
    """Follow STREAM, a name or an ARN, and show its records with their content.

    Aggregates of the KPL are taken apart, gzip and zlib are unpacked, and records with a schema of the Glue registry are
    decoded.
    """
    if start.at is StartAt.TIMESTAMP and (start.timestamp_s or 0) > SystemClock().wall_ms() / 1000:
        raise click.BadParameter("it is in the future", param_hint="--from")
    if record_filter is not None and record_filter.of_changes and not place.ref.source.has_tables:
        raise click.BadParameter(ONLY_CHANGES, param_hint="--filter")
    most = TERMINAL_CHARACTERS if sys.stdout.isatty() else None
    form = TailForm(record_filter, text, frozenset(keys), as_json, long, most)
    run(partial(follow, place, TailRange(start, until, shards, count), form))
