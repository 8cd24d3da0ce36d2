from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import click

from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.children.start import ChildOptions, options_of
from kcl_daemon.cli.common import EXIT_FAILURE, NotChanged, as_json_option, ask, json_text, yes_option
from kcl_daemon.cli.leases.change import position_of
from kcl_daemon.cli.letters.replay import LetterReplay, Receipts, ReplayOptions, read_receipts
from kcl_daemon.cli.letters.show import list_json, list_lines, replay_lines, show_lines
from kcl_daemon.cli.letters.source import ChosenSource, FoundLetters, choose, on_letters
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.dead_letters import ALLOWED, OVERFLOW_FORM
from kcl_daemon.errors import ChildStartFailed
from kcl_daemon.ports import LogLevel
from kcl_daemon.records.dead_letter import DeadLetter, LetterCause
from kcl_daemon.records.letters import BadLetter, BadPlace, LetterSource, StoredLetter, in_order
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.logs import build_log
from kcl_daemon.text import numbered, on_one_line

_Command = TypeVar("_Command", bound=Callable[..., object])

EPILOG: Final = f"""\b
SOURCE is what deadLetterDestination may be (but a topic keeps none), or the path of a file; with --properties it may
be left out:
  {ALLOWED}

\b
Exit codes:
  0  done
  1  AWS did not answer or refused, something in SOURCE is no letter, or (replay) not all letters are done
  2  wrong command line, properties file or environment
"""
_TIMEOUT_S: Final = 60.0

properties_option: Final = click.option(
    "-p",
    "--properties",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Properties file of the application: its destination, program, region, endpoints and credentials.",
)
key_option: Final = click.option(
    "--key", "keys", metavar="KEY", multiple=True, help="Only this letter; can be repeated."
)
data_at_option: Final = click.option(
    "--data-at",
    metavar=OVERFLOW_FORM,
    multiple=True,
    help="A letter may say that its data lie below this place, too; can be repeated. Known without it: SOURCE, and "
    "deadLetterDestination and deadLetterOverflow of --properties.",
)
_PROGRAM: Final = "kcl_daemon.letters.program"


def _number(name: str, default: int, text: str, within: click.IntRange) -> Callable[[_Command], _Command]:
    return click.option(name, metavar="N", type=within, default=default, show_default=True, help=text)


def _filters(command: _Command) -> _Command:
    shard = click.option(
        "--shard", "shards", metavar="ID", multiple=True, help="Only of this shard; can be repeated."
    )
    values, text = (
        click.Choice([each.value for each in LetterCause]),
        "Only with this cause; can be repeated.",
    )
    cause = click.option("--cause", "causes", multiple=True, type=values, help=text)
    since = click.option(
        "--since",
        metavar="TIME",
        type=_since_ms,
        help="Only set aside since then: 2026-11-20T12:00:00Z, how long ago (90s, 1h30m, 2d), or epoch seconds.",
    )
    return shard(cause(since(command)))


def _since_ms(text: str) -> int:
    at_s = position_of(text).timestamp_s
    if at_s is None:
        raise click.BadParameter(f"{text!r} is not a time such as 2026-11-20T12:00:00Z or 2h")
    return round(at_s * 1000)


def _chosen(
    letters: Iterable[StoredLetter], shards: Sequence[str], causes: Sequence[str], since: int | None
) -> list[StoredLetter]:
    return [
        each
        for shard in in_order(letters)
        for each in shard.letters
        if (not shards or each.letter.shard_id in shards)
        and (not causes or each.letter.cause.value in causes)
        and (since is None or each.letter.set_aside_ms >= since)
    ]


@click.group("letters", help="Show dead letters, give them to a program again, delete them.")
def letters() -> None:
    """The group."""


@letters.command("list", short_help="Show which letters there are.", epilog=EPILOG)
@click.argument("source", required=False)
@properties_option
@as_json_option
@_filters
@_number("--limit", 100, "Letters shown.", click.IntRange(0))
def list_letters(
    *,
    source: str | None,
    properties: Path | None,
    as_json: bool,
    shards: tuple[str, ...],
    causes: tuple[str, ...],
    since: int | None,
    limit: int,
) -> None:
    """Count letters by cause and shard, then show each. Nothing is consumed.

    A queue hides its messages for a moment, and counts each look as a receive. Of a FIFO queue one look shows at most
    ten letters of a shard.
    """
    chosen = choose(source, properties)

    async def look(_: LetterSource, found: FoundLetters) -> FoundLetters:
        return found

    found = on_letters(chosen, look)
    wanted = _chosen(found.letters.values(), shards, causes, since)
    if as_json:
        click.echo(json_text(list_json(str(chosen.place), wanted, found.bad, limit)))
    else:
        click.echo("\n".join(list_lines(str(chosen.place), wanted, limit)))
    _end(found.bad)


@letters.command("show", short_help="Show one letter with its data.", epilog=EPILOG)
@click.argument("words", metavar="[SOURCE] KEY", nargs=-1, required=True)
@properties_option
@data_at_option
@click.option("--raw", is_flag=True, help="Write the bytes of the data to stdout, and nothing else.")
def show_letter(
    *, words: tuple[str, ...], properties: Path | None, data_at: tuple[str, ...], raw: bool
) -> None:
    """Show one letter: where it is from, why it is here, its data and the last stderr of its program."""
    *sources, key = words
    if len(sources) > 1:
        raise click.UsageError("give SOURCE and KEY, no more")
    chosen = choose(sources[0] if sources else None, properties, data_at)

    async def look(source: LetterSource, found: FoundLetters) -> tuple[StoredLetter, DeadLetter]:
        stored = found.called(key)
        try:
            return stored, await source.read(stored)
        except BadLetter as bad:
            raise NotChanged(f"{stored.place}: {bad}") from bad

    stored, letter = on_letters(chosen, look)
    if raw:
        click.echo(b64decode(letter.record.data), nl=False)
    else:
        click.echo("\n".join(show_lines(stored, letter, str(chosen.place))))


class _WithProgram(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_PROGRAM] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM [ARGS]...]"]


@letters.command("replay", cls=_WithProgram, short_help="Give letters to a program again.", epilog=EPILOG)
@click.argument("source", required=False)
@properties_option
@data_at_option
@key_option
@_filters
@click.option(
    "--receipts",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What became of each letter, as JSON lines. Default: SOURCE.receipts beside a file.",
)
@click.option("--delete-done", is_flag=True, help="Delete letters that are done.")
@_number("--parallel", 1, "Shards at once.", click.IntRange(1, 64))
@_number("--batch", 100, "Letters per batch.", click.IntRange(1, 10_000))
@_number("--tries", 2, "A letter has failed after so many children fail at it alone.", click.IntRange(1))
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(0.1),
    help="For one answer. Default: timeoutInSeconds, or 60 for a program after --.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def replay_letters(
    *,
    source: str | None,
    properties: Path | None,
    data_at: tuple[str, ...],
    keys: tuple[str, ...],
    shards: tuple[str, ...],
    causes: tuple[str, ...],
    since: int | None,
    receipts: Path | None,
    delete_done: bool,
    parallel: int,
    batch: int,
    tries: int,
    timeout: float | None,
    log_level: LogLevel,
) -> None:
    """Give letters to the application's program, or to PROGRAM, as the daemon gives records, in the order of each shard.

    Each letter gets a receipt: done, rejected (again) or failed (the program failed at it). Run the command again, and it
    goes on with what is not done. Checkpoints are kept in memory; those of the application stay as they are.
    """
    chosen = choose(source, properties, data_at)
    program: tuple[str, ...] | None = click.get_current_context().meta.get(_PROGRAM)
    settings, children = _program(chosen, program, timeout)
    place = chosen.place
    if place.undeletable is not None and delete_done:
        raise click.UsageError(f"{place.undeletable[0]}; leave out --delete-done")
    if receipts is None and place.path is not None:
        receipts = Path(f"{place.path}.receipts")
    if receipts is None and not delete_done:
        raise click.UsageError("give --receipts FILE (or --delete-done): it remembers what is done")
    application = None if program or chosen.settings is None else chosen.settings.application_name
    clock = SystemClock()
    log = build_log(level=log_level, form="console", stream=sys.stderr, clock=clock)

    async def act(letters: LetterSource, found: FoundLetters) -> int:
        wanted = [found.called(key) for key in keys] or found.letters.values()
        own = [each for each in wanted if application in {None, each.letter.application_name}]
        chosen_letters = _chosen({each.name: each for each in own}.values(), shards, causes, since)
        _note(len(found.letters) - len(own) if not keys else 0, application)
        many = len({each.letter.stream_name for each in chosen_letters}) > 1
        if chosen.settings is not None:
            many = many or bool(chosen.settings.streams.texts)
        singly = delete_done and place.path is None
        options = ReplayOptions(settings, many, batch, tries, parallel, delete_done, singly)
        with Receipts.opened(receipts) as written:
            async with ProcessChildren(settings.command, log, clock, children) as processes:
                replay = LetterReplay(letters, found.copies, written, options, processes, clock, log)
                return await _replay(replay, chosen_letters, found)

    sys.exit(on_letters(chosen, act))


def _note(others: int, application: str | None) -> None:
    if others:
        click.echo(
            f"{numbered(others, 'letter')} of other applications than {application} left alone", err=True
        )


async def _replay(replay: LetterReplay, letters: Sequence[StoredLetter], found: FoundLetters) -> int:
    done = [each for each in letters if replay.receipts.is_done(each)]
    if done:
        click.echo(f"{numbered(len(done), 'letter')} done before")
        await replay.are_done(done)
    todo = [each for each in letters if not replay.receipts.is_done(each)]
    try:
        await replay.run(in_order(todo))
    finally:
        await replay.delete_done()
        bad = [*found.bad, *replay.lost]
        _complain(bad, replay.stopped)
        click.echo("\n".join(replay_lines(todo, replay.receipts, bad)))
    all_done = all(replay.receipts.is_done(each) for each in todo)
    return 0 if all_done and not bad else EXIT_FAILURE


def _program(
    chosen: ChosenSource, program: tuple[str, ...] | None, timeout_s: float | None
) -> tuple[ChildSettings, ChildOptions]:
    settings = chosen.settings
    if program:
        own = ChildSettings(program, timeout_s=_TIMEOUT_S) if settings is None else settings.child
        child = replace(own, command=program)
    elif settings is None:
        raise click.UsageError("no program given: --properties FILE, or -- PROGRAM")
    elif settings.bundled is not None:
        raise click.UsageError(f"letters cannot be given to {settings.bundled}; give a program: -- PROGRAM")
    else:
        child = settings.child
    child = child if timeout_s is None else replace(child, timeout_s=timeout_s)
    try:
        return child, options_of(child, finish_batches=True)
    except ChildStartFailed as failed:
        raise click.UsageError(failed.plain) from None


@letters.command("delete", short_help="Delete letters.", epilog=EPILOG)
@click.argument("source", required=False)
@properties_option
@key_option
@click.option("--all", "everything", is_flag=True, help="All letters.")
@click.option(
    "--done",
    metavar="RECEIPTS",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Letters that are done by these receipts of a replay.",
)
@yes_option
def delete_letters(
    *,
    source: str | None,
    properties: Path | None,
    keys: tuple[str, ...],
    everything: bool,
    done: Path | None,
    yes: bool,
) -> None:
    """Delete letters from a file, a bucket or a queue. Daemons may add letters meanwhile; those stay."""
    if (bool(keys), everything, done is not None).count(True) != 1:
        raise click.UsageError("give one of --key KEY, --all and --done RECEIPTS")
    chosen = choose(source, properties)
    if chosen.place.undeletable is not None:
        raise click.UsageError("; ".join(chosen.place.undeletable))
    try:
        receipts = None if done is None else read_receipts(done)
    except OSError as error:
        raise click.BadParameter(f"{done}: {error.strerror}", param_hint="--done") from None

    async def act(letters: LetterSource, found: FoundLetters) -> FoundLetters:
        wanted = [found.called(key) for key in keys] if keys else list(found.letters.values())
        if receipts is not None:
            wanted = [each for each in wanted if (was := receipts.get(each.name)) and was.is_done(each)]
        if wanted:
            of = f"of {len(found.letters)} " if len(wanted) < len(found.letters) else ""
            ask(f"delete {numbered(len(wanted), 'letter')} {of}in {chosen.place}?", yes=yes)
        await letters.delete([copy for name in {each.name for each in wanted} for copy in found.copies[name]])
        click.echo(f"deleted {numbered(len(wanted), 'letter')}")
        return found

    _end(on_letters(chosen, act).bad)


def _complain(bad: Sequence[BadPlace], stopped: Sequence[str] = ()) -> None:
    for line in (
        *(f"{each.place}: {each.why}; skipped" for each in bad),
        *(f"stopped: {each}" for each in stopped),
    ):
        click.echo(on_one_line(line), err=True)


def _end(bad: Sequence[BadPlace]) -> None:
    _complain(bad)
    if bad:
        sys.exit(EXIT_FAILURE)
