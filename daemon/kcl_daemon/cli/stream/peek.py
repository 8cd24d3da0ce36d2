from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from kcl_daemon.cli.application import Application, leases_of, on_application, stream_option
from kcl_daemon.cli.common import EPILOG, as_json_option, json_text, say, shards_option, with_settings
from kcl_daemon.cli.leases.change import all_leases, chosen_leases
from kcl_daemon.cli.stream.content import Opener, open_opener
from kcl_daemon.cli.stream.place import use_local
from kcl_daemon.cli.stream.show import TERMINAL_CHARACTERS, json_fields, text_line
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import for_each, raise_first
from kcl_daemon.errors import AccessDenied, AwsError
from kcl_daemon.fleet.streams import TrackedStream
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Clock, FetchedRecords, Kinesis, ReadFrom
from kcl_daemon.records.content import SeenRecord
from kcl_daemon.retrieval.distribution import Distribution, user_records
from kcl_daemon.retrieval.fair_share import FairShare
from kcl_daemon.retrieval.source import StartMemory, has_been_trimmed, read_from
from kcl_daemon.shards.lineage import NO_HASH_KEYS, segment_of
from kcl_daemon.system import SystemClock
from kcl_daemon.text import duration, on_one_line, short_shard
from kcl_protocol.sequence import LATEST

_AT_ONCE: Final = 8
# Empty answers may come before a record; the workers need the five reads a second.
_READS_MOST: Final = 8
_COUNT_MOST: Final = 1_000


@dataclass(frozen=True, slots=True)
class Peeked:
    """`note` says why something is missing."""

    lease: Lease
    at: SeenRecord | None = None
    following: tuple[SeenRecord, ...] = ()
    note: str = ""
    behind_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Peek:
    kinesis: Kinesis
    opener: Opener
    clock: Clock
    count: int


async def look_at(peek_: Peek, lease: Lease, of: TrackedStream) -> Peeked:
    """Raises AccessDenied; other errors are notes."""
    if lease.is_finished:
        return Peeked(lease, note="finished: every record of this shard was processed")
    if segment_of(lease.shard_id) is not None:
        return Peeked(lease, note="a segment of the snapshot; its items are in the table")
    if lease.checkpoint == LATEST:
        return Peeked(lease, note="no checkpoint yet: it began at LATEST, and its first record is not known")
    where = read_from(lease.checkpoint, StartMemory(), of.position.timestamp_s)
    try:
        return await _read(peek_, lease, of, where)
    except AccessDenied:
        raise
    except AwsError as error:
        return Peeked(lease, note=f"not read: {error}")


async def _read(peek_: Peek, lease: Lease, of: TrackedStream, where: ReadFrom) -> Peeked:
    kinesis, share, seen = peek_.kinesis, FairShare(limit=peek_.count + 1), Peeked(lease)
    iterator: str | None = await kinesis.get_shard_iterator(of.ref, lease.shard_id, where)
    distribution, first = Distribution(kinesis, of.ref, peek_.clock), True
    for _ in range(_READS_MOST):
        assert iterator is not None
        fetched = await kinesis.get_records(of.ref, lease.shard_id, iterator, share.limit)
        payload, iterator = fetched.payload, fetched.next_iterator
        if first and payload:
            first = False
            if has_been_trimmed(lease.checkpoint, payload.first.sequence_number):
                seen = replace(seen, note="its checkpoint is trimmed; the oldest record left comes next")
        seen = await _more(peek_, seen, fetched, distribution)
        if len(seen.following) >= peek_.count or iterator is None or not seen.behind_ms:
            return replace(seen, note=seen.note or _end_note(seen, at_end=iterator is None))
        share = share.answered(len(payload), payload.data_bytes)
        await peek_.clock.sleep(share.pause_s)
    return replace(seen, note=seen.note or f"not more found within {_READS_MOST} reads")


async def _more(peek_: Peek, seen: Peeked, fetched: FetchedRecords, distribution: Distribution) -> Peeked:
    lease, opener = seen.lease, peek_.opener
    at, following = seen.at, list(seen.following)
    hash_range = None if lease.hash_range == NO_HASH_KEYS else lease.hash_range
    async for record in user_records(fetched.payload, hash_range, distribution, peek_.clock):
        is_after = lease.checkpoint.is_sentinel or record.position > lease.checkpoint
        if is_after and len(following) < peek_.count:
            following.append(await opener.opened(lease.shard_id, record))
        elif record.position == lease.checkpoint:
            at = await opener.opened(lease.shard_id, record)
    return replace(seen, at=at, following=tuple(following), behind_ms=fetched.millis_behind_latest)


def _end_note(seen: Peeked, *, at_end: bool) -> str:
    if seen.following:
        return ""
    if at_end:
        return "nothing is left: the shard has ended, and its last record is checkpointed"
    return "nothing is left: every record up to now is checkpointed"


def lines_of(peeked: Sequence[Peeked], now_ms: int, most: int | None) -> Iterator[str]:
    for each in peeked:
        lease = each.lease
        stream = "" if lease.stream is None else f" of {lease.stream.name}"
        owner = "no owner" if lease.lease_owner is None else f"owner {lease.lease_owner}"
        yield on_one_line(
            f"shard {short_shard(lease.shard_id)}{stream}: checkpoint {lease.checkpoint}, {owner}"
        )
        if each.at is not None:
            yield f"  done  {text_line(each.at, long=False, most=most)}"
        for record in each.following:
            waits = "" if record.arrival_ms is None else duration((now_ms - record.arrival_ms) / 1000)
            yield f"  next  {text_line(record, long=True, most=most)}  {click.style(f'(here for {waits})', dim=True)}"
        if each.note:
            yield f"  {on_one_line(each.note)}"


def json_of(peeked: Sequence[Peeked], settings: Settings) -> Mapping[str, Any]:
    return {
        "application": settings.application_name,
        "leases": [
            {
                "shard": each.lease.shard_id,
                **({} if each.lease.stream is None else {"stream": str(each.lease.stream)}),
                "checkpoint": each.lease.checkpoint.sequence_number,
                "checkpoint_sub_sequence_number": each.lease.checkpoint.sub_sequence_number,
                "owner": each.lease.lease_owner,
                "finished": each.lease.is_finished,
                "behind_ms": each.behind_ms,
                "at": None if each.at is None else json_fields(each.at),
                "next": [json_fields(record) for record in each.following],
                "note": each.note or None,
            }
            for each in peeked
        ],
    }


@click.command("peek", short_help="Show the record that an application gets next.", epilog=EPILOG)
@with_settings
@as_json_option
@shards_option
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1, _COUNT_MOST),
    default=1,
    show_default=True,
    help="Records after the checkpoint.",
)
@stream_option
@click.option("--local", is_flag=True, help="Of `kcl-daemon local` or `run --local`.")
def peek(
    settings: Settings, *, as_json: bool, shards: tuple[str, ...], count: int, stream: str | None, local: bool
) -> None:
    """Show the record at each checkpoint and the one after it: what the application did last, and gets next.

    Changes nothing. Each shard is read once, or a few times where answers are empty.
    """
    if local:
        use_local()

    async def look(application: Application) -> list[Peeked]:
        leases = leases_of(await all_leases(application.table), stream, settings)
        if shards:
            leases = chosen_leases(leases, [_full(name, leases) for name in shards])
        if settings.delivery.keeps_other_shards:
            leases = tuple(replace(lease, hash_range=None) for lease in leases)
        async with open_opener(settings.endpoints, application.clock, say) as opener:
            return await _all(
                Peek(application.kinesis, opener, application.clock, count), leases, application
            )

    peeked = on_application(settings, look)
    if as_json:
        click.echo(json_text(json_of(peeked, settings)))
    else:
        lines = list(lines_of(peeked, SystemClock().wall_ms(), TERMINAL_CHARACTERS))
        click.echo("\n".join(lines) if lines else "this application has no leases yet")


def _full(name: str, leases: Sequence[Lease]) -> str:
    return next((lease.shard_id for lease in leases if short_shard(lease.shard_id) == name), name)


async def _all(peek_: Peek, leases: Sequence[Lease], application: Application) -> list[Peeked]:
    found: dict[str, Peeked] = {}

    async def one(lease: Lease) -> None:
        found[lease.lease_key] = await look_at(peek_, lease, application.streams.of(lease))

    raise_first(await for_each(leases, one, at_once=_AT_ONCE, to_the_end=False))
    return [found[lease.lease_key] for lease in leases]
