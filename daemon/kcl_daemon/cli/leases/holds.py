"""Workers follow a row in the tables (`leases/holds.py`)."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import click
from msgspec.structs import replace

from kcl_daemon.assignment.plan import Fleet
from kcl_daemon.cli.application import Application, leases_of, on_application, stream_option
from kcl_daemon.cli.common import (
    EPILOG,
    NotChanged,
    as_json_option,
    ask,
    json_text,
    settings_of,
    shards_option,
    stream_text,
    with_file,
    with_settings,
    yes_option,
)
from kcl_daemon.cli.leases.change import all_leases, chosen_leases
from kcl_daemon.cli.leases.look import look_at
from kcl_daemon.config.kinds import age_s, moment_s
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.hold_watch import FRESH_S, HoldsNotWritten, tell_holds, with_holds
from kcl_daemon.hold_words import hold_json, hold_text, not_held, scope_text, who_text
from kcl_daemon.leases.holds import HOLDS_KEY, Hold, LimitUnit, MalformedHoldsError, counted, holds_from_row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Clock, Table
from kcl_daemon.system import SystemClock, SystemRandomness
from kcl_daemon.text import numbered

_Command = TypeVar("_Command", bound=Callable[..., object])
Change = Callable[[tuple[Hold, ...]], Iterable[Hold]]

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(|k|B|[kKM]i?B|Gi?B)/s")
_BYTES: Final = {"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# Every worker that reaches the table has read it by then.
_IN_FORCE_S: Final = FRESH_S + 2.0
_KEPT_MS: Final = 86_400_000
SCHEMA: Final = 1


class Rate(NamedTuple):
    amount: float
    unit: LimitUnit


def rate_of(text: str) -> Rate | None:
    if text == "off":
        return None
    match = _RATE.fullmatch(text.strip())
    amount = 0.0 if match is None else float(match[1])
    if match is None or amount <= 0:
        raise click.BadParameter(
            f"{text!r} is not a limit: 500/s (records), 2MiB/s, 300kB/s, or off", param_hint="RATE"
        )
    if match[2] in ("", "k"):
        return Rate(amount * (1_000 if match[2] else 1), LimitUnit.RECORDS)
    return Rate(amount * _BYTES[match[2]], LimitUnit.BYTES)


def _until_ms(for_: str | None, until: str | None, clock: Clock) -> int | None:
    if for_ is not None and until is not None:
        raise click.UsageError("give --for or --until, not both")
    now_s = clock.wall_ms() / 1000
    given = for_ if for_ is not None else until
    if given is None:
        return None
    span = age_s(given) if for_ is not None else None
    at_s = moment_s(given) if for_ is None else None if span is None else now_s + span
    if at_s is None or at_s <= now_s:
        option, example = (
            ("--for", "30m or 1h30m") if for_ is not None else ("--until", "2026-11-20T12:00:00Z")
        )
        raise click.BadParameter(f"{given!r} is no time in the future, such as {example}", param_hint=option)
    return int(at_s * 1000)


def ended(before: tuple[Hold, ...], target: Hold) -> list[Hold]:
    """NotChanged if a wider hold is in force."""
    same_kind = [hold for hold in before if hold.is_pause == target.is_pause]
    wider = [hold for hold in same_kind if hold.includes(target) and hold.scope != target.scope]
    if wider:
        what = "paused" if target.is_pause else "limited"
        raise NotChanged(
            f"{scope_text(target)} is {what} with {scope_text(wider[0])} ({who_text(wider[0])}), and that cannot be ended for a "
            f"part: end it for {scope_text(wider[0])}, and hold the others one by one"
        )
    return [hold for hold in before if hold.is_pause != target.is_pause or not target.includes(hold)]


def _with_scope(command: _Command) -> _Command:
    return stream_option(shards_option(as_json_option(command)))


def _with_end(command: _Command) -> _Command:
    for_ = click.option(
        "--for", "for_", metavar="SPAN", help="End by itself after so long: 90s, 30m, 1h30m, 2d."
    )
    until = click.option(
        "--until", "until", metavar="TIME", help="End by itself then: 2026-11-20T12:00:00Z, or epoch seconds."
    )
    reason = click.option(
        "--reason",
        "reason",
        metavar="TEXT",
        default="",
        help="Why; shown wherever it is shown that records are held back.",
    )
    return for_(until(reason(command)))


async def _targets(
    application: Application, settings: Settings, stream: str | None, shards: Sequence[str]
) -> list[Hold]:
    leases = leases_of(await all_leases(application.table), stream, settings)
    if stream is not None and not leases:
        raise NotChanged(
            f"this application has no leases of a stream {stream}; it reads {stream_text(settings)}"
        )
    base = Hold(by=_me(), reason="", since_ms=application.clock.wall_ms())
    if shards:
        chosen = chosen_leases(leases, shards)
        finished = [lease.lease_key for lease in chosen if lease.is_finished]
        if finished:
            raise NotChanged(
                f"{', '.join(finished)}: the shard is finished, so there is nothing to hold back"
            )
        return [_at(base, lease, lease.lease_key) for lease in chosen]
    if stream is None or leases[0].stream is None:
        return [base]
    return list(dict.fromkeys(_at(base, lease, None) for lease in leases))


def _at(base: Hold, lease: Lease, lease_key: str | None) -> Hold:
    stream = None if lease.stream is None else str(lease.stream)
    return replace(base, stream=stream, lease_key=lease_key)


def _me() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container may have a user without a name
        return f"uid@{socket.gethostname()}"


class _Told(NamedTuple):
    holds: tuple[Hold, ...]
    fleet: Fleet | None
    problem: str = ""

    def unheld(self, hold: Hold) -> str:
        return "" if self.fleet is None else not_held(hold, self.fleet.leases, self.fleet.stats)


async def _told(holds: tuple[Hold, ...], application: Application, settings: Settings) -> _Told:
    """What was written is written: a fleet that cannot be read fails nothing."""
    try:
        return _Told(holds, (await look_at(application, settings)).fleet)
    except AwsError as error:
        return _Told(holds, None, f"which workers follow it is not known: {error}")


async def _write(application: Application, settings: Settings, change: Change) -> _Told:
    oldest_ms = application.clock.wall_ms() - _KEPT_MS

    def without_old(before: tuple[Hold, ...]) -> Iterable[Hold]:
        return [hold for hold in change(before) if not hold.is_over(oldest_ms)]

    try:
        after = await tell_holds(
            application.opened.tables.coordinator, without_old, token=SystemRandomness().token()
        )
    except HoldsNotWritten as refused:
        raise NotChanged(str(refused)) from refused
    return await _told(after, application, settings)


def _show(told: _Told, *, as_json: bool, settings: Settings, note: str = "") -> None:
    now_ms = SystemClock().wall_ms()
    held = [hold for hold in told.holds if not hold.is_over(now_ms)]
    if as_json:
        document = {
            "schema": SCHEMA,
            "application": settings.application_name,
            "holds": [hold_json(hold, told.unheld(hold)) for hold in held],
        }
        click.echo(json_text(document))
    else:
        click.echo("\n".join(hold_text(hold, told.unheld(hold)) for hold in held) or "nothing is held back")
    for line in filter(None, ("" if as_json else note, told.problem)):
        click.echo(line, err=True)


@click.command("pause", short_help="Give no more records to children, for now.", epilog=EPILOG)
@with_settings
@_with_scope
@_with_end
@click.option("--list", "only_list", is_flag=True, help="Change nothing; show all pauses and limits.")
@yes_option
def pause(
    settings: Settings,
    *,
    as_json: bool,
    stream: str | None,
    shards: tuple[str, ...],
    for_: str | None,
    until: str | None,
    reason: str,
    only_list: bool,
    yes: bool,
) -> None:
    """Give no more records to the children of a shard, a stream or the whole application, until `resume`.

    Children stay and may checkpoint, leases stay with their workers. The pause is kept in the tables of the application: it
    holds for workers that start later, too.
    """
    until_ms = _until_ms(for_, until, SystemClock())
    if not only_list and not reason:
        raise click.UsageError("a pause needs a reason: --reason TEXT")

    async def act(application: Application) -> _Told:
        if only_list:
            stored = await stored_holds(application.opened.tables.coordinator)
            return await _told(stored, application, settings)
        targets = await _targets(application, settings, stream, shards)
        if not shards:
            leases = leases_of(await all_leases(application.table), stream, settings)
            many = numbered(sum(not lease.is_finished for lease in leases), "shard")
            end = "until somebody says resume" if until_ms is None else "for a while"
            ask(f"give no records of {many} to their children, {end}?", yes=yes, always=False)
        new = [replace(target, reason=reason, until_ms=until_ms) for target in targets]
        return await _write(application, settings, lambda before: with_holds(before, new))

    note = "" if only_list else f"in force within {_IN_FORCE_S:g} s; children finish the batch that they have"
    _show(on_application(settings, act), as_json=as_json, settings=settings, note=note)


@click.command("resume", short_help="End a pause.", epilog=EPILOG)
@with_settings
@_with_scope
def resume(settings: Settings, *, as_json: bool, stream: str | None, shards: tuple[str, ...]) -> None:
    """End the pauses of a shard, of a stream with all its shards, or of the whole application with all streams and shards."""
    _end(settings, as_json=as_json, stream=stream, shards=shards, unit=None)


def _end(
    settings: Settings, *, as_json: bool, stream: str | None, shards: tuple[str, ...], unit: LimitUnit | None
) -> None:
    async def act(application: Application) -> _Told:
        targets = [replace(each, unit=unit) for each in await _targets(application, settings, stream, shards)]

        def change(before: tuple[Hold, ...]) -> tuple[Hold, ...]:
            for target in targets:
                before = tuple(ended(before, target))
            return before

        return await _write(application, settings, change)

    _show(on_application(settings, act), as_json=as_json, settings=settings)


@click.command("limit", short_help="Limit records or bytes a second.", epilog=EPILOG)
@with_file
@click.argument("rate", metavar="RATE", required=False)
@_with_scope
@_with_end
def limit(
    *,
    file: Path | None,
    properties_file: Path | None,
    rate: str | None,
    as_json: bool,
    stream: str | None,
    shards: tuple[str, ...],
    for_: str | None,
    until: str | None,
    reason: str,
) -> None:
    """Limit what children are given to RATE: 500/s (records), 2MiB/s or 300kB/s (of data), or `off`.

    The limit of a stream or of the application is a total. It is divided evenly by the shards that are not finished, and what
    one shard does not use is not given to another.
    """
    if rate is None and properties_file is not None and file is not None:
        file, rate = None, str(file)
    if rate is None:
        raise click.UsageError("give a limit such as 500/s or 2MiB/s, or off")
    until_ms = _until_ms(for_, until, SystemClock())
    wanted = rate_of(rate)
    settings = settings_of(file, properties_file)
    if wanted is None:
        _end(settings, as_json=as_json, stream=stream, shards=shards, unit=LimitUnit.RECORDS)
        return

    async def act(application: Application) -> _Told:
        targets = await _targets(application, settings, stream, shards)
        leases = await all_leases(application.table)
        new = counted(
            (
                replace(each, reason=reason, until_ms=until_ms, unit=wanted.unit, amount=wanted.amount)
                for each in targets
            ),
            leases,
        )
        return await _write(application, settings, lambda before: with_holds(before, new))

    note = f"in force within {_IN_FORCE_S:g} s"
    _show(on_application(settings, act), as_json=as_json, settings=settings, note=note)


async def stored_holds(table: Table) -> tuple[Hold, ...]:
    try:
        return holds_from_row(await table.get(HOLDS_KEY))
    except MalformedHoldsError as malformed:
        raise NotChanged(f"{malformed}; delete that row, which ends all pauses and limits") from malformed
