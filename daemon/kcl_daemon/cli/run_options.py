"""Imports little: `--help` reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Final

import click


@dataclass(frozen=True, slots=True)
class FunctionOptions:
    """None and False: not given. `until_eof`: end with stdin, for who starts this command."""

    application: str | None = None
    start: str | None = None
    concurrency: int | None = None
    checkpoint_every: float | None = None
    region: str | None = None
    changes: tuple[str, ...] = ()
    local: bool = False
    shards: int | None = None
    reload: bool = False
    print_properties: bool = False
    until_eof: bool = False

    def given(self) -> tuple[str, ...]:
        return tuple(spelling for name, spelling in SPELLINGS.items() if getattr(self, name))

    def words(self) -> Iterator[str]:
        for name, spelling in SPELLINGS.items():
            value = getattr(self, name)
            for each in value if isinstance(value, tuple) else (value,):
                if each is True:
                    yield spelling
                elif each:
                    yield f"{spelling}={each}"


SPELLINGS: Final = {
    "application": "--application",
    "start": "--from",
    "concurrency": "--concurrency",
    "checkpoint_every": "--checkpoint-every",
    "region": "--region",
    "changes": "--set",
    "local": "--local",
    "shards": "--shards",
    "reload": "--reload",
    "print_properties": "--print-properties",
    "until_eof": "--until-eof",
}
_OPTIONS: Final = (
    click.option("--application", metavar="NAME", help="Application name; default: STREAM-MODULE-FUNCTION."),
    click.option(
        "--from",
        "start",
        metavar="WHERE",
        help="Where to begin if there is no checkpoint: TRIM_HORIZON (default), LATEST, a time, or an age such as 2h.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(min=1),
        metavar="N",
        help="Records of a shard at once: calls of an `async def`, otherwise children (shardConcurrency).",
    ),
    click.option(
        "--checkpoint-every",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Seconds between checkpoints; default: 10.",
    ),
    click.option("--region", metavar="REGION", help="AWS region; default: that of the environment."),
    click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any property; repeatable. KEY= leaves out what this command sets itself.",
    ),
    click.option(
        "--local",
        is_flag=True,
        help="Without AWS: on the local endpoints, which are started if none run; the stream is made.",
    ),
    click.option(
        "--shards",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Shards of the stream that --local makes; default: 1.",
    ),
    click.option("--reload", is_flag=True, help="While developing: restart when a .py file changes."),
    click.option(
        "--print-properties", is_flag=True, help="Print the properties file that means the same, and end."
    ),
    click.option("--until-eof", is_flag=True, hidden=True),
)


def with_function_options(command: Callable[..., object]) -> Callable[..., object]:
    @wraps(command)
    def called(**given: Any) -> object:
        own = {each.name: given.pop(each.name) for each in fields(FunctionOptions)}
        return command(**given, options=FunctionOptions(**own))

    decorated: Callable[..., object] = called
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
