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
from kcl_daemon.cli.findings import Finding
from kcl_daemon.cli.run import check_program
from kcl_daemon.cli.verdict import Verdict, about_region, about_script, missing_script, sentence, verdict_of
from kcl_daemon.config.effective import Effective, as_properties, effective
from kcl_daemon.config.load import Loaded, load
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.system import SystemRandomness

_EPILOG: Final = """\b
Exit codes:
  0  the daemon would start, as far as checked
  1  with --with-aws: something in AWS is missing or not permitted
  2  the file or the environment has errors; with --strict also for warnings
"""


@click.command("check", short_help="Show what a properties file means, and its errors.", epilog=_EPILOG)
@with_file
@click.option(
    "--with-aws",
    is_flag=True,
    help="Also check stream, tables and permissions in AWS. Writes nothing; what it cannot test without "
    "writing is marked NOT TRIED.",
)
@click.option("--all", "everything", is_flag=True, help="Show all settings, including defaults.")
@click.option("--changed", is_flag=True, hidden=True)
@click.option("--strict", is_flag=True, help="Exit with 2 for warnings too.")
@click.option(
    "--resolved",
    is_flag=True,
    help="Print a properties file instead, with variables and overrides resolved. Secrets are NOT masked.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document with all settings, for scripts."
)
def check(
    *,
    file: Path | None,
    properties_file: Path | None,
    with_aws: bool,
    everything: bool,
    changed: bool,
    strict: bool,
    resolved: bool,
    as_json: bool,
) -> None:
    """Read a properties file and the KCL_... variables as the daemon does; print each setting and its source.

    The last line is the result. Uses the network only with --with-aws.
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
        for line in () if as_json else (*problems, Verdict(errors=len(problems)).line()):
            click.echo(line, err=True)
        sys.exit(EXIT_CONFIGURATION)
    if resolved:
        click.echo(as_properties(loaded), nl=False)
        return
    only_changed = changed if as_json else not everything
    shown = [each for each in effective(loaded) if not (only_changed and each.is_default)]
    findings = _ask_aws(loaded) if with_aws else None
    warnings = _warnings(loaded)
    verdict = verdict_of(warnings, findings)
    if as_json:
        click.echo(_document(loaded, shown, findings, verdict))
    else:
        _tell(shown, [*_infos(loaded), *warnings], findings or [])
        click.echo(verdict.line())
    if verdict.errors:
        sys.exit(EXIT_FAILURE)
    if strict and verdict.warnings:
        sys.exit(EXIT_CONFIGURATION)


def _ask_aws(loaded: Loaded) -> list[Finding]:
    # Here and not above: most checks need no AWS SDK.
    from kcl_daemon.cli.check_aws import look  # noqa: PLC0415

    return run(lambda: look(loaded.settings), command="kcl-daemon check")


def _table(shown: list[Effective]) -> list[str]:
    widths = [max((len(getattr(each, name)) for each in shown), default=0) for name in ("key", "value")]
    key_width, value_width = widths[0], min(widths[1], 48)
    return [f"{each.key:{key_width}}  {each.value:{value_width}}  {each.origin}" for each in shown]


def _tell(shown: list[Effective], notices: list[str], findings: list[Finding]) -> None:
    """Settings, notices and findings, an empty line between them."""
    about_aws = [text if good else f"error: {text}" for good, text in findings]
    for lines in (_table(shown), notices, about_aws):
        for line in (*lines, "") if lines else ():
            click.echo(line)


def _infos(loaded: Loaded) -> list[str]:
    return [sentence(each, loaded.file) for each in loaded.warnings if each.level == "info"]


def _warnings(loaded: Loaded) -> list[str]:
    """What a person should look at; one line each."""
    told = [sentence(each, loaded.file) for each in loaded.warnings if each.level == "warning"]
    told += _unknown_regions(loaded)
    script = missing_script(loaded.settings.child.command, lambda name: Path(name).exists())
    if script is not None:
        told.append(about_script(script, str(Path.cwd())))
    return told


def _unknown_regions(loaded: Loaded) -> list[str]:
    # Here and not above: it loads the AWS SDK.
    from kcl_daemon.aws.session import unknown_regions  # noqa: PLC0415

    return [about_region(name, nearest) for name, nearest in unknown_regions(loaded.settings.endpoints)]


def _document(
    loaded: Loaded, shown: list[Effective], findings: list[Finding] | None, verdict: Verdict
) -> bytes:
    settings = {each.key: {"value": each.value, "origin": each.origin} for each in shown}
    notices = [
        {"event": each.event, "level": each.level, **each.fields(loaded.file)} for each in loaded.warnings
    ]
    document: dict[str, object] = {"problems": [], "settings": settings, "notices": notices}
    document["verdict"] = {
        "errors": verdict.errors,
        "warnings": verdict.warnings,
        "notTried": verdict.not_tried,
        "line": verdict.line(),
    }
    if findings is not None:
        document["aws"] = [{"good": good, "finding": text} for good, text in findings]
    return orjson.dumps(document, option=orjson.OPT_INDENT_2, default=str)
