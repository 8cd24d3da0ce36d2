"""`kcl-daemon leases reset`, `skip`, `release` and `delete`: change leases, also while workers run.

It asks for confirmation; `change` writes.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
import click

from kcl_daemon.aws.build import build_kinesis, build_tables
from kcl_daemon.aws.session import open_clients
from kcl_daemon.cli.common import (
    EPILOG,
    NotChanged,
    chosen_stream,
    leases_of,
    run,
    settings_of,
    stream_option,
    with_file,
)
from kcl_daemon.cli.leases.change import (
    ChangeResult,
    PositionType,
    RecordTarget,
    RecordType,
    SkippedRange,
    all_leases,
    carry_out_all,
    chosen_leases,
    just_before,
    move_past,
    next_records,
    release_all,
)
from kcl_daemon.cli.leases.show import shortened
from kcl_daemon.config.settings import Settings
from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.migrations.tables import open_existing
from kcl_daemon.ports import Kinesis, StreamRef, Table
from kcl_daemon.records.payload import Payload
from kcl_daemon.shards.lineage import InitialPosition, Shard
from kcl_daemon.shards.sync import LeaseChange, ResetKind, reset_shards, reset_stream
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.logs import build_log
from kcl_daemon.text import numbered, on_one_line
from kcl_protocol.sequence import ExtendedSequenceNumber

_Result = TypeVar("_Result")

_COMMAND: Final = "kcl-daemon leases"
_SEARCHES_AT_ONCE: Final = 8
_SHOWN_MOST: Final = 160

_yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
_dry_run = click.option("--dry-run", is_flag=True, help="Show the changes, but write nothing.")


@click.command("reset", short_help="Move checkpoints: replay or skip.", epilog=EPILOG)
@with_file
@click.option(
    "--to",
    "position",
    metavar="TRIM_HORIZON|LATEST|TIME",
    type=PositionType(),
    required=True,
    help="New position: the oldest record (TRIM_HORIZON), the newest (LATEST), or a time: "
    "2026-11-20T12:00:00Z, how long ago (90s, 1h30m, 2d), or epoch seconds.",
)
@click.option("--shard", "shards", metavar="ID", multiple=True, help="Only this shard; can be repeated.")
@stream_option
@_dry_run
@_yes
def reset(
    *,
    file: Path | None,
    properties_file: Path | None,
    position: InitialPosition,
    shards: tuple[str, ...],
    stream: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move checkpoints to another position: replay or skip. Workers can keep running.

    Workers lose these leases, and the leader assigns them again within seconds. Without --shard, the leases become
    those of a new application that starts at this position. Records are processed again or skipped, as you choose.
    """
    settings = settings_of(file, properties_file, command=f"{_COMMAND} reset")
    changes = _run(partial(_plan_reset, settings, position, shards, stream))
    click.echo("\n".join(_change_lines(changes)))
    if dry_run or not _is_wanted(
        f"reset {numbered(len(changes), 'lease')} of {settings.application_name}?", yes=yes
    ):
        return
    _run(partial(_carry_out, settings, changes))


@click.command("skip", short_help="Skip a record that blocks its shard.", epilog=EPILOG)
@with_file
@click.option("--shard", "shard", metavar="ID", required=True, help="Shard to change.")
@click.option(
    "--record",
    "record",
    metavar="NUMBER[/SUB]",
    type=RecordType(),
    help="Skip up to and including this record; its sequence number is in the log of the processor or the "
    "daemon. Records between the checkpoint and this one are skipped too. Default: the first record "
    "after the checkpoint.",
)
@stream_option
@_dry_run
@_yes
def skip(
    *,
    file: Path | None,
    properties_file: Path | None,
    shard: str,
    record: RecordTarget | None,
    stream: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move the checkpoint of a shard past a record that its processor cannot process. Workers can keep running.

    Shows the record first. If the processor checkpoints rarely, it may already have processed the first record after the
    checkpoint: find the failing record in its log, and name it with --record.
    """
    settings = settings_of(file, properties_file, command=f"{_COMMAND} skip")
    lease, skipped = _run(partial(_plan_skip, settings, shard, record, stream))
    click.echo("\n".join(_skip_lines(lease, skipped)))
    many = "this record" if skipped.count == 1 else f"these {skipped.count} records"
    if dry_run or not _is_wanted(f"skip {many}? No child will get them again.", yes=yes):
        return
    _run(partial(_skip, settings, lease, skipped))


@click.command("release", short_help="Take leases away from their owners.", epilog=EPILOG)
@with_file
@click.option(
    "--shard", "shards", metavar="ID", multiple=True, help="The lease of this shard; can be repeated."
)
@click.option("--worker", metavar="ID", help="All leases of this worker.")
@stream_option
@_dry_run
@_yes
def release(
    *,
    file: Path | None,
    properties_file: Path | None,
    shards: tuple[str, ...],
    worker: str | None,
    stream: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Take leases from their owners at once, without a last checkpoint. The leader assigns them again.

    Use it for a worker that hangs. If a worker still works, stop it instead, so that it can finish.
    """
    if bool(shards) == (worker is not None):
        raise click.UsageError("use either --shard (once or more) or --worker")
    settings = settings_of(file, properties_file, command=f"{_COMMAND} release")
    chosen = _run(partial(_owned, settings, shards, worker, stream))
    for lease in chosen:
        click.echo(f"release {lease.lease_key} from {lease.actual_owner}")
    if not chosen:
        click.echo("nothing to release: these leases have no owner")
        return
    if dry_run or not _is_wanted(f"release {numbered(len(chosen), 'lease')}?", yes=yes):
        return
    _run(partial(_release, settings, chosen))


@click.command("delete", short_help="Delete leases.", epilog=EPILOG)
@with_file
@click.option(
    "--shard",
    "shards",
    metavar="ID",
    multiple=True,
    required=True,
    help="The leases of this shard; can be repeated.",
)
@stream_option
@_dry_run
@_yes
def delete(
    *,
    file: Path | None,
    properties_file: Path | None,
    shards: tuple[str, ...],
    stream: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete the leases of shards, with their checkpoints.

    If the shard is open, the leader creates its lease again, at the initial position of its properties file. To start
    at another position, use `reset`.
    """
    settings = settings_of(file, properties_file, command=f"{_COMMAND} delete")
    changes = _run(partial(_plan_deletion, settings, shards, stream))
    click.echo("\n".join(_change_lines(changes)))
    if dry_run or not _is_wanted(
        f"delete {numbered(len(changes), 'lease')} with their checkpoints?", yes=yes
    ):
        return
    _run(partial(_carry_out, settings, changes))


@dataclass(frozen=True, slots=True)
class _StreamTarget:
    table: Table
    kinesis: Kinesis
    stream: StreamRef


async def _plan_reset(
    settings: Settings, position: InitialPosition, names: Sequence[str], name: str | None
) -> tuple[LeaseChange, ...]:
    clock = SystemClock()
    async with open_clients(settings.endpoints) as clients:
        opened = await open_existing(build_tables(settings, clients, clock), settings)
        kinesis = build_kinesis(clients)
        log = build_log(level="error", form="console", stream=sys.stderr, clock=clock)
        chosen = await chosen_stream(
            settings, name, kinesis, table=opened.tables.leases, clock=clock, log=log
        )
        place = _StreamTarget(opened.tables.leases, kinesis, chosen.ref)
        leases = [lease for lease in await all_leases(place.table) if chosen.owns(lease)]
        shards = await _shards(place, position, names)
        positions = await _positions(place, shards, position)
    decide = reset_shards if names else reset_stream
    return decide(shards, leases, positions, chosen.ref.identity)


async def _shards(place: _StreamTarget, position: InitialPosition, names: Sequence[str]) -> tuple[Shard, ...]:
    if not names:
        return await place.kinesis.list_shards(place.stream, position)
    listed = {str(shard.shard_id): shard for shard in await place.kinesis.list_shards(place.stream)}
    missing = sorted(set(names) - listed.keys())
    if missing:
        raise NotChanged(f"the stream {place.stream.name} has no shard {', '.join(missing)}")
    return tuple(listed[name] for name in dict.fromkeys(names))


async def _positions(
    place: _StreamTarget, shards: Iterable[Shard], position: InitialPosition
) -> Mapping[ShardId, ExtendedSequenceNumber]:
    at_s = position.timestamp_s
    if at_s is None:
        return {shard.shard_id: position.checkpoint for shard in shards}
    found: dict[ShardId, ExtendedSequenceNumber] = {}
    limiter = anyio.CapacityLimiter(_SEARCHES_AT_ONCE)

    async def search(shard: Shard) -> None:
        async with limiter:
            found[shard.shard_id] = await just_before(
                place.kinesis, place.stream, shard.shard_id, at_s, clock=SystemClock()
            )

    async with anyio.create_task_group() as searches:
        for shard in shards:
            searches.start_soon(search, shard)
    return found


async def _plan_skip(
    settings: Settings, shard: str, record: RecordTarget | None, name: str | None
) -> tuple[Lease, SkippedRange]:
    clock = SystemClock()
    async with open_clients(settings.endpoints) as clients:
        opened = await open_existing(build_tables(settings, clients, clock), settings)
        kinesis = build_kinesis(clients)
        log = build_log(level="error", form="console", stream=sys.stderr, clock=clock)
        table = opened.tables.leases
        chosen = await chosen_stream(settings, name, kinesis, table=table, clock=clock, log=log)
        leases = [lease for lease in await all_leases(opened.tables.leases) if chosen.owns(lease)]
        (lease,) = chosen_leases(leases, [shard])
        start_s = settings.initial_position.timestamp_s
        return lease, await next_records(kinesis, chosen.ref, lease, record, start_s=start_s, clock=clock)


async def _skip(settings: Settings, lease: Lease, skipped: SkippedRange) -> None:
    async with open_clients(settings.endpoints) as clients:
        opened = await open_existing(build_tables(settings, clients, SystemClock()), settings)
        outcome = await move_past(opened.tables.leases, lease, skipped.last.position)
    if outcome.done is not ChangeResult.WRITTEN:
        raise NotChanged(f"{lease.lease_key}: {outcome.done.value}")
    click.echo("done: reading continues after this record within seconds")


async def _plan_deletion(
    settings: Settings, names: Sequence[str], stream: str | None
) -> tuple[LeaseChange, ...]:
    leases = await _all(settings, stream)
    return tuple(
        LeaseChange(ResetKind.DELETE, lease, None, f"owner {lease.actual_owner or 'nobody'}")
        for lease in chosen_leases(leases, names)
    )


async def _owned(
    settings: Settings, names: Sequence[str], worker: str | None, stream: str | None
) -> tuple[Lease, ...]:
    leases = await _all(settings, stream)
    chosen = chosen_leases(leases, names) if worker is None else leases
    return tuple(
        lease
        for lease in chosen
        if lease.lease_owner is not None
        and (worker is None or worker in (lease.lease_owner, lease.actual_owner))
    )


async def _all(settings: Settings, stream: str | None) -> tuple[Lease, ...]:
    async with open_clients(settings.endpoints) as clients:
        opened = await open_existing(build_tables(settings, clients, SystemClock()), settings)
        return leases_of(await all_leases(opened.tables.leases), stream, settings)


async def _carry_out(settings: Settings, changes: Sequence[LeaseChange]) -> None:
    async with open_clients(settings.endpoints) as clients:
        opened = await open_existing(build_tables(settings, clients, SystemClock()), settings)
        written = await carry_out_all(opened.tables.leases, changes, report=click.echo)
    click.echo(_done(written, "workers follow within seconds"))


async def _release(settings: Settings, chosen: Sequence[Lease]) -> None:
    async with open_clients(settings.endpoints) as clients:
        opened = await open_existing(build_tables(settings, clients, SystemClock()), settings)
        keys = [lease.lease_key for lease in chosen]
        written = await release_all(opened.tables.leases, keys, report=click.echo)
    click.echo(_done(written, "the leader assigns them again shortly"))


def _done(written: int, following: str) -> str:
    return f"done: {numbered(written, 'lease')}" + (f"; {following}" if written else "")


def _run(act: Callable[[], Awaitable[_Result]]) -> _Result:
    return run(act, command=_COMMAND, plain=(NotChanged,))


def _is_wanted(question: str, *, yes: bool) -> bool:
    """Exits with code 1 if the person refuses."""
    if not yes:
        click.confirm(question, abort=True)
    return True


def _skip_lines(lease: Lease, skipped: SkippedRange) -> Iterator[str]:
    """Shows the full sequence number, so that it can be found in logs."""
    record, owner = skipped.last, lease.actual_owner or "nobody"
    yield f"skip {lease.lease_key} -> {record.position} (at {lease.checkpoint}, owner {owner})"
    if skipped.count > 1:
        yield f"  {skipped.count - 1} records before it have no checkpoint and are skipped too"
    (decoded,) = Payload((record,), 0).decoded()
    data = base64.b64decode(decoded.data)
    arrival_ms = decoded.approximate_arrival_timestamp
    if arrival_ms is not None:
        yield f"  arrived {datetime.fromtimestamp(arrival_ms / 1000, UTC).isoformat(timespec='milliseconds')}"
    yield f"  partition key {on_one_line(decoded.partition_key[:_SHOWN_MOST])}"
    more = "" if len(data) <= _SHOWN_MOST else " ..."
    yield f"  {len(data)} bytes: {on_one_line(data[:_SHOWN_MOST].decode('utf-8', 'backslashreplace'))}{more}"


def _change_lines(changes: Iterable[LeaseChange]) -> tuple[str, ...]:
    lines = tuple(
        f"{change.kind.value} {change.lease.lease_key}"
        + ("" if change.position is None else f" -> {shortened(change.position)}")
        + f" ({change.reason})"
        for change in changes
    )
    return lines or ("nothing to do",)
