from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

import anyio
import click

from kcl_local import REGION
from kcl_local.demo.processes import stoppable
from kcl_local.demo.text import DemoError, first_of
from kcl_prove.cleaning import Found, clean, found_leftovers, remove_leftovers
from kcl_prove.inventory import state_folder
from kcl_prove.parts import Options, ProveError
from kcl_prove.prices import PRICES_OF, cost, cost_items
from kcl_prove.removal import Leftover
from kcl_prove.runner import SIZES, planned_usage
from kcl_prove.session import NotBegun, Request, run
from kcl_prove.stage import Scene

MOST_DOLLARS: Final = 5.0
EXIT_WRONG: Final = 1
EXIT_REFUSED: Final = 2
_EXIT_SIGNAL: Final = 128
_HINT: Final = "`kcl-daemon prove --clean` removes what is left"


class Refused(click.ClickException):
    """Nothing was made."""

    exit_code = EXIT_REFUSED


def _options() -> list[click.Parameter]:
    text, flag = partial(click.Option, type=str), partial(click.Option, is_flag=True)
    return [
        text(["--region"], metavar="REGION", help="AWS region. [default: as for any AWS SDK]"),
        text(["--profile"], metavar="NAME", help="Profile of your AWS configuration."),
        flag(["--local"], help="On local endpoints: no account, no cost. Uses `kcl-daemon local` if the "
             "environment names it."),
        flag(["--estimate"], help="Print what it would cost, call nothing, and end."),
        flag(["--clean"], help="Remove what earlier runs left behind, and end."),
        flag(["--search"], help="With --clean: look in the account, not in the files of earlier runs."),
        text(["--only"], metavar="SCENES", help="Play these scenes, separated by commas."),
        text(["--without"], metavar="SCENES", help="Do not play these scenes."),
        click.Option(["--size"], type=click.Choice(list(SIZES)), help="How much is done. [default: normal; small "
                     "with --local]"),
        click.Option(["--most", "most_dollars"], type=click.FloatRange(min=0), metavar="DOLLARS",
                     help=f"Never use more than this, by list prices. [default: {MOST_DOLLARS:g}; none with --local]"),
        text(["--java"], metavar="CLASSPATH", help="Class path of KCL for Java: adds workers of it."),
        text(["--fis", "fis_role"], metavar="ROLE_ARN", help="Role for experiments of AWS FIS: adds faults by AWS."),
        click.Option(["--report"], type=click.Path(file_okay=False, writable=True, path_type=Path), default=".",
                     metavar="FOLDER", help="Where the report goes. [default: here]"),
        flag(["--yes"], help="Do not ask."),
    ]  # fmt: skip


def _loaded_scenes() -> tuple[Scene, ...]:
    from kcl_prove.scenes import SCENES

    return SCENES


def command(scenes: Callable[[], Sequence[Scene]] = _loaded_scenes) -> click.Command:
    return click.Command(
        "prove",
        callback=partial(_prove, scenes),
        params=_options(),
        short_help="Prove in your own AWS account that nothing is lost.",
        help="Prove in your own AWS account, or with --local without one, that nothing is lost.\n\n"
        "Makes a throw-away stream and application for each scene, writes numbered records, runs a fleet of real workers, "
        "disturbs it, and settles the account: every record delivered, in order, parents first. Prints the cost first, and "
        "asks. Removes everything it made, also after Ctrl-C; after a crash, --clean does. Writes a report as HTML and "
        "JSON.\n\nExit code: 0 all is right and removed; 1 it is not; 2 it did not begin, and made nothing; 128+n ended "
        "by signal n.",
    )


def _prove(
    scenes: Callable[[], Sequence[Scene]],
    *,
    region: str | None,
    profile: str | None,
    local: bool,
    estimate: bool,
    clean: bool,
    search: bool,
    only: str | None,
    without: str | None,
    size: str | None,
    most_dollars: float | None,
    java: str | None,
    fis_role: str | None,
    report: Path,
    yes: bool,
) -> None:
    if search and not clean:
        raise click.UsageError("--search belongs to --clean")
    if clean:
        sys.exit(_clean(profile, region, is_search=search, yes=yes))
    request = Request(
        chosen(scenes(), only, without),
        state_folder(),
        report,
        size_name=size or ("small" if local else "normal"),
        most_dollars=most_dollars if most_dollars is not None else inf if local else MOST_DOLLARS,
        region=region,
        profile=profile,
        is_local=local,
        java=java,
        fis_role=fis_role,
    )
    options = request.options(region or REGION, {"kinesis": "local"} if local else {})
    lines, dollars = list(estimate_lines(request.scenes, options)), estimated(request.scenes, options)
    if estimate:
        click.echo("\n".join(lines))
        return
    if dollars > request.most_dollars:
        text = f"the estimate is {dollars:.2f} dollars, above --most {request.most_dollars:.2f}"
        raise Refused(f"{text}; use a smaller --size, or fewer scenes with --only or --without")
    if not local:
        _ask(lines, yes=yes)
    sys.exit(_run(partial(run, request)))


def chosen(scenes: Sequence[Scene], only: str | None, without: str | None) -> tuple[Scene, ...]:
    names = [scene.name for scene in scenes]
    wanted, unwanted = _names(only, names), _names(without, names)
    found = tuple(
        each for each in scenes if (not wanted or each.name in wanted) and each.name not in unwanted
    )
    if not found:
        raise click.UsageError(f"no scene is left to play; there are {', '.join(names)}")
    return found


def _names(given: str | None, known: Sequence[str]) -> frozenset[str]:
    names = frozenset(name.strip() for name in (given or "").split(",") if name.strip())
    if names - set(known):
        raise click.UsageError(
            f"no such scene: {', '.join(sorted(names - set(known)))}; there are {', '.join(known)}"
        )
    return names


def estimated(scenes: Sequence[Scene], options: Options) -> float:
    return cost(planned_usage([each for each in scenes if not each.left_out(options)], options.size))


def estimate_lines(scenes: Sequence[Scene], options: Options) -> Iterator[str]:
    played = [scene for scene in scenes if not scene.left_out(options)]
    for scene in scenes:
        why = scene.left_out(options)
        dollars = "-" if why else f"{cost(scene.usage(options.size)):.4f}"
        yield f"{dollars:>9}  {scene.name}: {f'left out, {why}' if why else scene.title}"
    usage = planned_usage(played, options.size)
    yield "by item:"
    for item in cost_items(usage):
        yield f"{item.dollars:>9.4f}  {item.amount:,.4g} {item.unit}"
    yield f"{cost(usage):>9.2f}  dollars in all, by list prices ({PRICES_OF}); other regions cost up to twice as much"


def _ask(lines: Sequence[str], *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            "this makes things in your AWS account: say --yes, or try --estimate or --local"
        )
    click.echo("\n".join(lines))
    click.confirm("Make these things in your AWS account, and remove them at the end?", abort=True)


def _clean(profile: str | None, region: str | None, *, is_search: bool, yes: bool) -> int:
    state, outcomes = state_folder(), list[Found]()
    if not is_search:
        return _run(lambda say: _as_code(clean(state, profile, say)))

    async def look(say: Callable[[str], None]) -> int:
        outcomes.append(await found_leftovers(state, profile, region, say))
        return 0 if outcomes[0].is_all else EXIT_WRONG

    code = _run(look)
    items = [each.item for each in _wanted(outcomes[0].leftovers, yes=yes)] if outcomes else []
    return (
        code
        if not items
        else _run(lambda say: _as_code(remove_leftovers(items, profile, region, say))) or code
    )


async def _as_code(act: Awaitable[bool]) -> int:
    return 0 if await act else EXIT_WRONG


def _wanted(found: Sequence[Leftover], *, yes: bool) -> Sequence[Leftover]:
    click.echo("nothing is left over here" if not found else "found:")
    for each in found:
        click.echo(f"  {each.item.kind} {each.item.name}{'' if each.tagged else ' (without our tag)'}")
    if yes or not found:
        return [each for each in found if each.tagged]
    if not sys.stdin.isatty():
        raise click.UsageError("say --yes to remove what has our tag")
    return found if click.confirm("Remove all of these?") else ()


def _say(text: str) -> None:
    with suppress(OSError):  # the reader or the terminal has left; what was made must still be removed
        click.echo(text)


def _run(act: Callable[[Callable[[str], None]], Awaitable[int]]) -> int:
    stopped_by: list[signal.Signals] = []
    code = EXIT_WRONG
    try:
        code = anyio.run(_guarded, act, stopped_by)
    except* (ProveError, DemoError) as errors:
        first = first_of(errors)
        click.echo(f"kcl-daemon prove: {first}", err=True)
        code = EXIT_REFUSED if isinstance(first, NotBegun) else EXIT_WRONG
    if stopped_by:
        _say(f"stopped by {stopped_by[0].name}")
        return _EXIT_SIGNAL + stopped_by[0]
    return code


async def _guarded(
    act: Callable[[Callable[[str], None]], Awaitable[int]], stopped_by: list[signal.Signals]
) -> int:
    def first(number: signal.Signals) -> None:
        _say(f"{number.name}: stopping workers, removing what was made ... (once more: at once)")

    def again(number: signal.Signals) -> None:
        _say(f"{number.name} again: ending at once; {_HINT}")
        sys.stdout.flush()
        os._exit(_EXIT_SIGNAL + number)

    code = await stoppable(partial(act, _say), stopped_by, first=first, again=again)
    return EXIT_WRONG if code is None else code


prove: Final = command()
