from __future__ import annotations

import base64
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import click

from kcl_daemon.cli.application import (
    Application,
    chosen_stream,
    is_of,
    leases_of,
    names_single,
    on_application,
    stream_option,
)
from kcl_daemon.cli.common import (
    EPILOG,
    EXIT_UNREAD,
    NotChanged,
    as_json_option,
    ask,
    settings_of,
    shards_option,
    stream_text,
    with_file,
    with_settings,
    yes_option,
)
from kcl_daemon.cli.leases.change import (
    ChangeResult,
    RecordTarget,
    SkippedRange,
    all_leases,
    carry_out_all,
    chosen_leases,
    just_before,
    move_past,
    next_records,
    position_of,
    record_of,
    release_all,
)
from kcl_daemon.cli.leases.look import ObservedFleet, lags, look_at
from kcl_daemon.cli.leases.show import (
    ExplainedPlan,
    explain_json,
    explain_lines,
    is_any_unread,
    list_json,
    list_lines,
    reset_words,
    shortened,
    tree_lines,
)
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import for_each, raise_first, timings
from kcl_daemon.errors import AccessDenied
from kcl_daemon.fleet.assigner import assignment_strategies
from kcl_daemon.fleet.streams import stream_words, why_not_own
from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.ports import Kinesis, StreamRef
from kcl_daemon.records.payload import Payload
from kcl_daemon.shards.lineage import InitialPosition, Shard, parents_first
from kcl_daemon.shards.sync import LeaseChange, ResetKind, reset_shards, reset_stream
from kcl_daemon.text import numbered, on_one_line
from kcl_protocol.sequence import ExtendedSequenceNumber

_Command = TypeVar("_Command", bound=Callable[..., object])

_WATCH_MOST_S: Final = 3600.0
_SEARCHES_AT_ONCE: Final = 8
_SHOWN_MOST: Final = 160


@click.group("leases", help="Show which worker reads which shard and why; move, reset and delete leases.")
def leases() -> None:
    """The group."""


@leases.command("list", short_help="Show leases, workers and the leader.", epilog=EPILOG)
@with_settings
@as_json_option
@click.option("--all", "with_finished", is_flag=True, help="Show finished leases too.")
@click.option(
    "--lag",
    "with_lag",
    is_flag=True,
    help="Also show the lag of each checkpoint. Costs one read per shard, of the five per second that "
    "Kinesis allows.",
)
@click.option(
    "--exit-code",
    "tells_unread",
    is_flag=True,
    help="End with exit code 3 if nobody reads one of these shards.",
)
@stream_option
def list_leases(
    settings: Settings,
    *,
    as_json: bool,
    with_finished: bool,
    with_lag: bool,
    tells_unread: bool,
    stream: str | None,
) -> None:
    """Show every lease with its owner and checkpoint, the workers and the leader, as stored in the tables now."""
    seen = of_stream(_look(settings, with_lag=with_lag, stream=stream), settings, stream)
    if as_json:
        click.echo(list_json(seen, with_finished=with_finished))
    else:
        click.echo("\n".join(list_lines(seen, with_finished=with_finished)))
    if tells_unread and is_any_unread(seen):
        sys.exit(EXIT_UNREAD)


@leases.command("explain", short_help="Show what the leader would do now, and why.", epilog=EPILOG)
@with_settings
@as_json_option
@click.option(
    "--watch",
    "watch_s",
    metavar="SECONDS",
    type=click.FloatRange(0, _WATCH_MOST_S),
    default=0.0,
    help="Watch this long before deciding. More than failoverTimeMillis shows which owners are silent.",
)
@stream_option
def explain_leases(settings: Settings, *, as_json: bool, watch_s: float, stream: str | None) -> None:
    """Show what the leader would do now with the settings of this file, and why. Changes nothing."""
    seen = _look(settings, watch_s=watch_s)
    # The leader plans for all leases.
    explained = explain_seen(seen, settings)
    moves = tuple(move for move in explained.plan.moves if is_of(move.lease, stream, settings))
    explained = replace(
        explained, seen=of_stream(seen, settings, stream), plan=replace(explained.plan, moves=moves)
    )
    click.echo(explain_json(explained) if as_json else "\n".join(explain_lines(explained)))


@leases.command("tree", short_help="Show the lineage of the shards, with state and lag.", epilog=EPILOG)
@with_settings
@click.option("--lag", "with_lag", is_flag=True, help="Also show the lag of each checkpoint.")
@stream_option
def tree(settings: Settings, *, with_lag: bool, stream: str | None) -> None:
    """Draw the parents and children of all shards that have leases, with the state of each."""
    seen = _look(settings, with_lag=with_lag, stream=stream)
    click.echo("\n".join(tree_lines(of_stream(seen, settings, stream))))


def explain_seen(seen: ObservedFleet, settings: Settings) -> ExplainedPlan:
    rules = assignment_strategies(settings)
    depth = settings.shards.waiting_generations_most
    fleet = replace(seen.fleet, leases=parents_first(seen.fleet.leases, depth))
    return ExplainedPlan(
        seen,
        rules.balance(fleet),
        frozenset(move.lease.lease_key for move in rules.place(fleet).moves),
        timings(settings.leases, settings.balance).balance_s,
        settings.balance.worker_metrics_ema_alpha,
    )


def of_stream(seen: ObservedFleet, settings: Settings, stream: str | None) -> ObservedFleet:
    chosen = leases_of(seen.leases, stream, settings)
    is_named = stream is None or stream in settings.streams.texts or names_single(stream, settings)
    if not chosen and not is_named:
        raise click.BadParameter(
            f"this application has no stream {on_one_line(stream or '')}; it reads {stream_text(settings)}",
            param_hint="--stream",
        )
    return replace(seen, fleet=replace(seen.fleet, leases=list(chosen)))


def _look(
    settings: Settings, *, watch_s: float = 0.0, with_lag: bool = False, stream: str | None = None
) -> ObservedFleet:

    async def look(application: Application) -> ObservedFleet:
        seen = await look_at(application, settings, watch_s)
        if not with_lag:
            return seen
        chosen = leases_of(seen.leases, stream, settings)
        return replace(seen, lags=await lags(chosen, application.kinesis, application.streams))

    return on_application(settings, look)


def _that_asks(command: _Command) -> _Command:
    dry_run = click.option("--dry-run", is_flag=True, help="Show the changes, but write nothing.")
    return dry_run(yes_option(command))


def _that_writes(command: _Command) -> _Command:
    return stream_option(_that_asks(command))


@leases.command("reset", short_help="Move checkpoints: replay or skip.", epilog=EPILOG)
@with_settings
@click.option(
    "--to",
    "position",
    metavar="TRIM_HORIZON|LATEST|TIME",
    type=position_of,
    required=True,
    help="New position: the oldest record (TRIM_HORIZON), the newest (LATEST), or a time: "
    "2026-11-20T12:00:00Z, how long ago (90s, 1h30m, 2d), or epoch seconds.",
)
@shards_option
@_that_writes
def reset(
    settings: Settings,
    *,
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

    async def plan(application: Application) -> tuple[tuple[LeaseChange, ...], tuple[str, ...]]:
        ref = await chosen_stream(settings, stream, application.streams)
        await _require_own_stream(application, may_be_new=not shards)
        known = [lease for lease in await all_leases(application.table) if lease.stream == ref.identity]
        listed = await _shards(application.kinesis, ref, position, shards)
        positions = await _positions(application, ref, listed, position)
        changes = (reset_shards if shards else reset_stream)(listed, known, positions, ref.identity)
        return changes, () if yes else await _told(application, changes, position)

    async def carry_out(application: Application) -> int:
        written = await carry_out_all(application.table, changes, click.echo)
        own = application.own_stream
        # A table of KCL 2.x gets no row: its workers fail on rows that are not leases. With a lease left, the stream is not its own.
        if own is not None and not shards and written == len(changes) and await own.stored() is not None:
            await own.adopt()
        return written

    changes, words = on_application(settings, plan)
    for line in words:
        click.echo(line)
    question = f"reset {numbered(len(changes), 'lease')} of {settings.application_name}?"
    _change(settings, changes, question, dry_run=dry_run, yes=yes, carry_out=carry_out)


async def _told(
    application: Application, changes: Iterable[LeaseChange], position: InitialPosition
) -> tuple[str, ...]:
    """Costs a read of each shard."""
    try:
        behind = await lags((change.lease for change in changes), application.kinesis, application.streams)
    except AccessDenied as denied:
        return (f"how far behind the shards are is not known: {denied}",)
    now_s = application.clock.wall_ms() / 1000
    return tuple(reset_words(position, behind.values(), now_s=now_s))


async def _require_own_stream(application: Application, *, may_be_new: bool = False) -> None:
    if (own := application.own_stream) is None:
        return
    if not may_be_new:
        await own.check(False)
    elif (stored := await own.stored()) is not None and stored.arn != (await own.mine()).arn:
        await own.is_known()


async def _shards(
    kinesis: Kinesis, ref: StreamRef, position: InitialPosition, names: Sequence[str]
) -> tuple[Shard, ...]:
    if not names:
        return await kinesis.list_shards(ref, position)
    listed = {str(shard.shard_id): shard for shard in await kinesis.list_shards(ref)}
    missing = sorted(set(names) - listed.keys())
    if missing:
        raise NotChanged(f"the stream {ref.name} has no shard {', '.join(missing)}")
    return tuple(listed[name] for name in dict.fromkeys(names))


async def _positions(
    application: Application, ref: StreamRef, shards: Iterable[Shard], position: InitialPosition
) -> Mapping[ShardId, ExtendedSequenceNumber]:
    at_s = position.timestamp_s
    if at_s is None:
        return {shard.shard_id: position.checkpoint for shard in shards}
    found: dict[ShardId, ExtendedSequenceNumber] = {}

    async def search(shard: Shard) -> None:
        kinesis, clock = application.kinesis, application.clock
        found[shard.shard_id] = await just_before(kinesis, ref, shard.shard_id, at_s, clock=clock)

    raise_first(await for_each(shards, search, at_once=_SEARCHES_AT_ONCE, to_the_end=False))
    return found


@leases.command("skip", short_help="Skip a record that blocks its shard.", epilog=EPILOG)
@with_settings
@click.option("--shard", "shard", metavar="ID", required=True, help="Shard to change.")
@click.option(
    "--record",
    "record",
    metavar="NUMBER[/SUB]",
    type=record_of,
    help="Skip up to and including this record; its sequence number is in the log of the processor or the "
    "daemon. Records between the checkpoint and this one are skipped too. Default: the first record "
    "after the checkpoint.",
)
@_that_writes
def skip(
    settings: Settings,
    *,
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

    async def plan(application: Application) -> tuple[Lease, SkippedRange]:
        ref = await chosen_stream(settings, stream, application.streams)
        await _require_own_stream(application)
        known = [lease for lease in await all_leases(application.table) if lease.stream == ref.identity]
        (lease,) = chosen_leases(known, [shard])
        start_s, clock = settings.initial_position.timestamp_s, application.clock
        read = replace(lease, hash_range=None) if settings.delivery.keeps_other_shards else lease
        return lease, await next_records(application.kinesis, ref, read, record, start_s=start_s, clock=clock)

    lease, skipped = on_application(settings, plan)
    click.echo("\n".join(_skip_lines(lease, skipped)))
    many = "this record" if skipped.count == 1 else f"these {skipped.count} records"
    if not _confirmed(f"skip {many}? No child will get them again.", dry_run=dry_run, yes=yes):
        return

    async def move(application: Application) -> None:
        done = await move_past(application.table, lease, skipped.last.position)
        if done is not ChangeResult.WRITTEN:
            raise NotChanged(f"{lease.lease_key}: {done.value}")

    on_application(settings, move)
    click.echo("done: reading continues after this record within seconds")


@leases.command("release", short_help="Take leases away from their owners.", epilog=EPILOG)
@with_file
@click.option(
    "--shard", "shards", metavar="ID", multiple=True, help="The lease of this shard; can be repeated."
)
@click.option("--worker", metavar="ID", help="All leases of this worker.")
@_that_writes
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
    settings = settings_of(file, properties_file)

    async def plan(application: Application) -> list[Lease]:
        known = leases_of(await all_leases(application.table), stream, settings)
        chosen = chosen_leases(known, shards) if worker is None else known
        owned = (lease for lease in chosen if lease.lease_owner is not None)
        return [lease for lease in owned if worker in (None, lease.lease_owner, lease.actual_owner)]

    chosen = on_application(settings, plan)
    for lease in chosen:
        click.echo(f"release {lease.lease_key} from {lease.actual_owner}")
    if not chosen:
        click.echo("nothing to release: these leases have no owner")
    elif _confirmed(f"release {numbered(len(chosen), 'lease')}?", dry_run=dry_run, yes=yes):
        keys = [lease.lease_key for lease in chosen]
        written = on_application(
            settings, lambda application: release_all(application.table, keys, click.echo)
        )
        click.echo(_done(written, "the leader assigns them again shortly"))


@leases.command("delete", short_help="Delete leases.", epilog=EPILOG)
@with_settings
@click.option(
    "--shard",
    "shards",
    metavar="ID",
    multiple=True,
    required=True,
    help="The leases of this shard; can be repeated.",
)
@_that_writes
def delete(
    settings: Settings, *, shards: tuple[str, ...], stream: str | None, dry_run: bool, yes: bool
) -> None:
    """Delete the leases of shards, with their checkpoints.

    If the shard is open, the leader creates its lease again, at the initial position of its properties file. To start
    at another position, use `reset`.
    """

    async def plan(application: Application) -> tuple[LeaseChange, ...]:
        known = leases_of(await all_leases(application.table), stream, settings)
        return tuple(
            LeaseChange(ResetKind.DELETE, lease, None, f"owner {lease.actual_owner or 'nobody'}")
            for lease in chosen_leases(known, shards)
        )

    changes = on_application(settings, plan)
    question = f"delete {numbered(len(changes), 'lease')} with their checkpoints?"
    _change(settings, changes, question, dry_run=dry_run, yes=yes)


@leases.command("adopt", short_help="Say that the leases belong to the stream of the file.", epilog=EPILOG)
@with_settings
@_that_asks
def adopt(settings: Settings, *, dry_run: bool, yes: bool) -> None:
    """Say that the leases belong to the stream of the file: workers of another stream end when they start.

    No lease changes. Use it if a worker ends because the leases seem to be of another stream and you know better, or before
    `leases reset` when the application goes over to another stream. Stop all workers first.
    """

    async def plan(application: Application) -> Iterable[str]:
        if (own := application.own_stream) is None:
            raise NotChanged(
                "this application reads many streams, and each lease names its own: nothing to do"
            )
        stored, mine = await own.stored(), await own.mine()
        why = why_not_own(await own.compared(await all_leases(application.table)))
        return (
            f"from: {'not known' if stored is None else stream_words(stored)}",
            f"to:   {stream_words(mine)}",
            "the leases fit the stream" if why is None else f"the leases do not seem to be of it: {why}",
        )

    async def write(application: Application) -> None:
        if (own := application.own_stream) is not None:
            await own.adopt()

    for line in on_application(settings, plan):
        click.echo(line)
    if _confirmed(f"do the leases of {settings.application_name} belong to it?", dry_run=dry_run, yes=yes):
        on_application(settings, write)
        click.echo(
            "done: start the workers; if the leases are of another stream, run `kcl-daemon leases reset` first"
        )


def _change(
    settings: Settings,
    changes: Sequence[LeaseChange],
    question: str,
    *,
    dry_run: bool,
    yes: bool,
    carry_out: Callable[[Application], Awaitable[int]] | None = None,
) -> None:
    for line in _change_lines(changes) or ["nothing to do"]:
        click.echo(line)
    if _confirmed(question, dry_run=dry_run, yes=yes):
        written = on_application(
            settings, carry_out or (lambda application: carry_out_all(application.table, changes, click.echo))
        )
        click.echo(_done(written, "workers follow within seconds"))


def _confirmed(question: str, *, dry_run: bool, yes: bool) -> bool:
    ask(question, yes=yes or dry_run)
    return not dry_run


def _done(written: int, following: str) -> str:
    return f"done: {numbered(written, 'lease')}" + (f"; {following}" if written else "")


def _skip_lines(lease: Lease, skipped: SkippedRange) -> Iterator[str]:
    record, owner = skipped.last, lease.actual_owner or "nobody"
    yield f"skip {lease.lease_key} -> {record.position} (at {lease.checkpoint}, owner {owner})"
    if skipped.count > 1:
        yield f"  {skipped.count - 1} records before it have no checkpoint and are skipped too"
    (decoded,) = Payload((record,), 0).decoded()
    data = base64.b64decode(decoded.data)
    arrival_ms = decoded.approximate_arrival_timestamp
    if arrival_ms is not None:
        yield f"  arrived {datetime.fromtimestamp(arrival_ms / 1000, UTC).isoformat(timespec='milliseconds')}"
    if decoded.partition_key is not None:
        yield f"  partition key {on_one_line(decoded.partition_key[:_SHOWN_MOST])}"
    more = "" if len(data) <= _SHOWN_MOST else " ..."
    yield f"  {len(data)} bytes: {on_one_line(data[:_SHOWN_MOST].decode('utf-8', 'backslashreplace'))}{more}"


def _change_lines(changes: Iterable[LeaseChange]) -> list[str]:
    return [
        f"{change.kind.value} {change.lease.lease_key}"
        + ("" if change.position is None else f" -> {shortened(change.position)}")
        + f" ({change.reason})"
        for change in changes
    ]
