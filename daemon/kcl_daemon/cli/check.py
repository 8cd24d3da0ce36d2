"""`kcl-daemon check`: what a properties file means, and whether a daemon could start from it.

Owns the command line and how the answer looks; what is asked of AWS is in `check_aws`.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Final

import click
import orjson

from kcl_daemon.cli.acting import chosen_file, run, with_file
from kcl_daemon.cli.failures import EXIT_CONFIGURATION, EXIT_FAILURE
from kcl_daemon.cli.run import check_program
from kcl_daemon.config.effective import Effective, as_properties, effective
from kcl_daemon.config.load import Loaded, load
from kcl_daemon.config.notices import Notice
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.observe.redact import on_one_line
from kcl_daemon.system import SystemRandomness

_EPILOG: Final = """\b
Exit codes:
  0  a daemon would start, for all that was tried
  1  with --with-aws: something in AWS is missing or not permitted
  2  the file or the environment must be put right first
"""


@click.command(
    "check", short_help="Say what a properties file means, and what is wrong with it.", epilog=_EPILOG
)
@with_file
@click.option(
    "--with-aws",
    is_flag=True,
    help="Also ask AWS for stream, tables and permissions. Writes nothing; what cannot be tried so is named NOT TRIED.",
)
@click.option("--changed", is_flag=True, help="Show only what is not at its default.")
@click.option(
    "--resolved",
    is_flag=True,
    help="Print a properties file instead, with variables and overrides written out. Nothing in it is masked.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")
def check(
    *,
    file: Path | None,
    properties_file: Path | None,
    with_aws: bool,
    changed: bool,
    resolved: bool,
    as_json: bool,
) -> None:
    """Read a properties file and the KCL_... variables as the daemon would; print every setting and where it is from.

    Touches no network without --with-aws.
    """
    chosen = chosen_file(file, properties_file, command="kcl-daemon check")
    try:
        loaded = load(
            chosen, randomness=SystemRandomness(), hostname=socket.gethostname(), environment=os.environ
        )
        check_program(loaded)
    except ConfigurationError as error:
        problems = str(error).splitlines()
        if as_json:
            click.echo(orjson.dumps({"problems": problems}, option=orjson.OPT_INDENT_2))
        for line in () if as_json else problems:
            click.echo(line, err=True)
        sys.exit(EXIT_CONFIGURATION)
    if resolved:
        click.echo(as_properties(loaded), nl=False)
        return
    shown = [each for each in effective(loaded) if not (changed and each.is_default)]
    findings = _ask_aws(loaded) if with_aws else []
    if as_json:
        click.echo(_document(loaded, shown, findings if with_aws else None))
    else:
        for line in (*_table(shown), *_notices(loaded), *(text for _, text in findings)):
            click.echo(line)
    if not all(good for good, _ in findings):
        sys.exit(EXIT_FAILURE)


def _ask_aws(loaded: Loaded) -> list[tuple[bool, str]]:
    # Here and not above: most checks need no AWS SDK.
    from kcl_daemon.cli.check_aws import look  # noqa: PLC0415

    return run(lambda: look(loaded.settings), command="kcl-daemon check")


def _table(shown: list[Effective]) -> list[str]:
    widths = [max((len(getattr(each, name)) for each in shown), default=0) for name in ("key", "value")]
    key_width, value_width = widths[0], min(widths[1], 48)
    return [f"{each.key:{key_width}}  {each.value:{value_width}}  {each.origin}" for each in shown]


def _notices(loaded: Loaded) -> list[str]:
    return ["", *(_notice(each, loaded.file) for each in loaded.warnings)] if loaded.warnings else []


def _notice(notice: Notice, file: str) -> str:
    where = notice.variable or f"{file}:{notice.line}"
    facts = " ".join(f"{name}={value}" for name, value in notice.facts.items())
    return on_one_line(f"{where}: {notice.event}: {notice.key} {facts}").rstrip()


def _document(loaded: Loaded, shown: list[Effective], findings: list[tuple[bool, str]] | None) -> bytes:
    settings = {each.key: {"value": each.value, "origin": each.origin} for each in shown}
    notices = [
        {"event": each.event, "level": each.level, **each.fields(loaded.file)} for each in loaded.warnings
    ]
    document: dict[str, object] = {"problems": [], "settings": settings, "notices": notices}
    if findings is not None:
        document["aws"] = [{"good": good, "finding": text} for good, text in findings]
    return orjson.dumps(document, option=orjson.OPT_INDENT_2, default=str)
