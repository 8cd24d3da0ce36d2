"""`kcl-daemon run STREAM MODULE:FUNCTION`: from the command line to properties, and on as with a file."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

import click
import javaproperties
import orjson

from kcl_daemon.cli.common import EXIT_CONFIGURATION, refuse
from kcl_daemon.cli.replay_settings import time_of
from kcl_daemon.cli.run import RunRequest, check_program, quiet_start, run_loaded
from kcl_daemon.cli.run_options import SPELLINGS, FunctionOptions
from kcl_daemon.config.dead_letters import file_at
from kcl_daemon.config.load import Loaded, as_properties, interpret
from kcl_daemon.config.services import canonical_name
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.text import on_one_line

COMMAND: Final = "kcl-daemon run"
PROGRAM: Final = "kcl_client.run"
_WORDS: Final = frozenset({"TRIM_HORIZON", "LATEST"})
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_NAME_MOST: Final = 200


@dataclass(frozen=True, slots=True)
class Checked:
    takes: str = "record"
    is_async: bool = False
    where: str = ""
    example: str = ""
    problem: str = ""


def check_function(target: str, *, quiet: bool = False) -> Checked:
    """In a process of its own, as a child would import it. Exits with code 2 if it cannot be run.

    `quiet`: without the traceback and the exit.
    """
    command = [sys.executable, "-m", PROGRAM, "--check", target]
    stderr = subprocess.DEVNULL if quiet else None
    done = subprocess.run(  # noqa: S603 - our own program and the user's
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, check=False
    )
    try:
        checked = Checked(**orjson.loads(done.stdout))
    except (orjson.JSONDecodeError, TypeError):
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        checked = Checked(problem=f"{target}: the process that imports it ended with {how}")
        if not quiet:
            click.echo(checked.problem, err=True)
    if checked.problem and not quiet:
        sys.exit(EXIT_CONFIGURATION)
    return checked


@dataclass(frozen=True, slots=True)
class Line:
    """A property and the option that it comes from; "": from none."""

    key: str
    value: str
    option: str = ""


def lines_of(stream: str, target: str, options: FunctionOptions, checked: Checked, python: str) -> list[Line]:
    """Raises click.UsageError; of two lines for a property the later one is left."""
    found: dict[str, Line] = {}
    for each in (*_own_lines(stream, target, options, checked, python), *_set_lines(options)):
        name = canonical_name(each.key) or each.key
        found.pop(name, None)
        if each.value:
            found[name] = each
    return list(found.values())


def _own_lines(
    stream: str, target: str, options: FunctionOptions, checked: Checked, python: str
) -> Iterator[Line]:
    application = options.application or application_of(stream, target)
    yield Line("applicationName", application, SPELLINGS["application"] if options.application else "")
    yield Line("streamArn" if stream.startswith("arn:") else "streamName", stream, "STREAM")
    yield Line("executableName", _executable(python, target, options, checked), "MODULE:FUNCTION")
    yield _start_line(options.start)
    yield Line("retrievalMode", "POLLING")
    yield Line("metricsLevel", "NONE")
    yield Line("deadLetterDestination", str(file_at(f"{application}.dead-letters.jsonl")))
    if checked.takes == "value":
        # Costs nothing for records without a schema. Not for bytes, which could look like the header of one.
        yield Line("schemaRegistry", "DECODE")
    if options.concurrency is not None and not checked.is_async:
        yield Line("shardConcurrency", str(options.concurrency), SPELLINGS["concurrency"])
    if options.region is not None:
        yield Line("regionName", options.region, SPELLINGS["region"])


def application_of(stream: str, target: str) -> str:
    """`STREAM-MODULE-FUNCTION`, in characters that the name of a table may have."""
    module, _, function = target.rpartition(":")
    if module.endswith(".py") or "/" in module:
        module = Path(module).stem
    name = stream.rpartition("/")[2] if stream.startswith("arn:") else stream
    return _NOT_IN_NAMES.sub("-", f"{name}-{module}-{function}")[:_NAME_MOST]


def _executable(python: str, target: str, options: FunctionOptions, checked: Checked) -> str:
    words = [python, "-m", PROGRAM, target]
    if options.concurrency is not None and checked.is_async:
        if checked.takes == "batch":
            raise click.UsageError(
                f"{checked.where}: it takes a Batch, and --concurrency needs one that takes a record"
            )
        words += ["--concurrency", str(options.concurrency)]
    if options.checkpoint_every is not None:
        words += ["--checkpoint-every", f"{options.checkpoint_every:g}"]
    for word in words:
        if word.split() != [word]:
            raise click.UsageError(
                f"{word!r} has a space, and executableName is split at spaces; use a path without one, or for Python "
                "activate its virtual environment"
            )
    return " ".join(words)


def python_word(python: str) -> str:
    """Its path, or where that has a space the name that PATH has for it: `executableName` is split at spaces."""
    if python.split() == [python]:
        return python
    names = ("python3", "python")
    return next((name for name in names if shutil.which(name) == python), python)


def _start_line(start: str | None) -> Line:
    option = SPELLINGS["start"] if start else ""
    if start is None or start.upper() in _WORDS:
        return Line("initialPositionInStream", "TRIM_HORIZON" if start is None else start.upper(), option)
    return Line("initialPositionInStreamExtended", f"{time_of(start):.0f}", option)


def _set_lines(options: FunctionOptions) -> Iterator[Line]:
    for text in options.changes:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=SPELLINGS["changes"])
        yield Line(key.strip(), value.strip(), SPELLINGS["changes"])


@contextmanager
def naming_options(lines: list[Line]) -> Generator[None]:
    """A ConfigurationError names the option instead of a line that nobody wrote."""

    def option(match: re.Match[str]) -> str:
        line = lines[int(match[1]) - 1]
        return f"{line.option or COMMAND}: "

    try:
        yield
    except ConfigurationError as error:
        told = re.sub(rf"^{COMMAND}:(\d+): ", option, str(error), flags=re.MULTILINE)
        raise ConfigurationError(told) from None


def loaded_from(lines: list[Line], *, worker_id: str, environment: Mapping[str, str]) -> Loaded:
    """ConfigurationError also for a property of --set that is none."""
    text = "".join(f"{javaproperties.join_key_value(each.key, each.value, ' = ')}\n" for each in lines)
    with naming_options(lines):
        loaded = interpret(
            text.encode("ascii"), file=COMMAND, default_worker_id=worker_id, environment=environment
        )
    for notice in loaded.warnings:
        if notice.event == "unknown_property" and notice.variable is None:
            nearest = notice.facts.get("nearest")
            hint = f"; did you mean {nearest}?" if nearest else ""
            raise ConfigurationError(f"{SPELLINGS['changes']}: {notice.key} is not a property{hint}")
    return loaded


def letters_of(loaded: Loaded) -> str:
    found = loaded.settings.failures.dead_letters
    if found is None:
        return "none"
    return str(found if found.path is None else replace(found, address=str(found.path.absolute())))


def as_file(loaded: Loaded, words: str) -> str:
    # Java reads these without the backslash, too, and people read them better.
    plain = re.sub(
        r"\\(.)", lambda found: found[1] if found[1] in ":=#!" else found[0], as_properties(loaded)
    )
    return f"# the same as: {on_one_line(words)}\n{plain}"


ADVICE: Final = "without AWS: add --local"


def run_function(
    request: RunRequest,
    lines: list[Line],
    load: Callable[[list[Line]], Loaded],
    *,
    printed_as: str | None,
    is_local: bool,
) -> NoReturn:
    """Exits with code 2 for what cannot be run. `printed_as`: only print the properties, below this headline."""
    signals = quiet_start()
    try:
        loaded = load(lines)
        if printed_as is not None:
            click.echo(as_file(loaded, printed_as), nl=False)
            sys.exit(0)
        with naming_options(lines):
            loaded = check_program(loaded)
    except ConfigurationError as error:
        refuse(error)
    asked = replace(request, facts={"dead_letters": letters_of(loaded)}, advice="" if is_local else ADVICE)
    run_loaded(loaded, asked, signals)
