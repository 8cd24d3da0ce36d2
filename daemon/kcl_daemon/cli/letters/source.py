from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
import click

from kcl_daemon.cli.common import load_file, refuse, run
from kcl_daemon.config.dead_letters import OVERFLOW_FORM, Destination, Overflow, destination_of, file_at
from kcl_daemon.config.kinds import InvalidValue
from kcl_daemon.config.services import Endpoints
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError, leaves
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.letters import BadLetter, BadPlace, LetterSource, StoredLetter, newest_copies

T = TypeVar("T")


def place_of(text: str) -> Destination:
    try:
        found = destination_of(text)
    except InvalidValue as error:
        raise click.UsageError(f"{text}: {error}") from None
    if found is not None and found.unreadable:
        raise click.UsageError(found.unreadable)
    return found or file_at(text)


@dataclass(frozen=True, slots=True)
class ChosenSource:
    place: Destination
    settings: Settings | None
    data_at: Sequence[Destination] = ()

    @property
    def data_places(self) -> list[Overflow]:
        failures = None if self.settings is None else self.settings.failures
        own = () if failures is None else (failures.dead_letters, failures.dead_letter_overflow)
        return [each for each in (self.place, *own, *self.data_at) if isinstance(each, Overflow)]


def choose(source: str | None, properties: Path | None, data_at: Sequence[str] = ()) -> ChosenSource:
    places = [place_of(each) for each in data_at]
    if wrong := [text for text, each in zip(data_at, places, strict=True) if not isinstance(each, Overflow)]:
        raise click.BadParameter(f"{wrong[0]} is not {OVERFLOW_FORM}", param_hint="--data-at")
    settings: Settings | None = None
    if properties is not None:
        try:
            settings = load_file(properties).settings
        except ConfigurationError as error:
            refuse(error)
    if source is None:
        if settings is None:
            raise click.UsageError("no letters given: SOURCE, or --properties with deadLetterDestination")
        if settings.failures.dead_letters is None:
            raise click.UsageError(f"{properties} has no deadLetterDestination; give SOURCE")
        source = str(settings.failures.dead_letters)
    return ChosenSource(place_of(source), settings, places)


@dataclass(frozen=True, slots=True)
class FoundLetters:
    letters: Mapping[str, StoredLetter]
    copies: Mapping[str, Sequence[StoredLetter]]
    bad: Sequence[BadPlace]

    def called(self, word: str) -> StoredLetter:
        found = [each for each in self.letters.values() if each.is_called(word)]
        if len(found) != 1:
            names = (
                f": {', '.join(each.name for each in found[:3])}"
                if found
                else "; letters list shows the keys"
            )
            raise click.UsageError(f"{len(found) or 'no'} letters have the key {word}{names}")
        return found[0]


def on_letters(chosen: ChosenSource, act: Callable[[LetterSource, FoundLetters], Awaitable[T]]) -> T:
    async def opened() -> T:
        result: list[T] = []
        async with open_source(chosen) as source, anyio.create_task_group() as holding:
            holding.start_soon(source.hold)
            result.append(await act(source, await _find(source)))
            holding.cancel_scope.cancel()
        return result[0]

    try:
        return run(opened)
    except ExceptionGroup as group:
        for each in leaves(group):
            if isinstance(each, click.ClickException | click.Abort):
                raise each from None
        raise


@asynccontextmanager
async def open_source(chosen: ChosenSource) -> AsyncGenerator[LetterSource]:
    async with AsyncExitStack() as stack:
        places, settings = chosen.data_places, chosen.settings
        endpoints = Endpoints() if settings is None else settings.endpoints
        fetchers = [(each, await stack.enter_async_context(each.fetcher(endpoints))) for each in places]

        async def whole(stored: StoredLetter) -> DeadLetter:
            """Who may write a letter could otherwise read with the rights of the one who looks at it."""
            at = stored.data_at
            if at is None:
                return stored.letter
            fetch = next((fetch for place, fetch in fetchers if place.holds(at)), None)
            if fetch is None:
                raise BadLetter(
                    f"its data is said to be at {at}, where this application puts none. If you trust who wrote the letter: "
                    f"--properties of the application with its deadLetterOverflow, or --data-at {OVERFLOW_FORM}"
                )
            return stored.with_data(await fetch(at, stored.check_size))

        yield await stack.enter_async_context(chosen.place.reader(endpoints, whole))


async def _find(source: LetterSource) -> FoundLetters:
    copies: dict[str, list[StoredLetter]] = {}
    bad: list[BadPlace] = []
    async for found in source.scan():
        if isinstance(found, BadPlace):
            bad.append(found)
        else:
            copies.setdefault(found.name, []).append(found)
    return FoundLetters(newest_copies(each for few in copies.values() for each in few), copies, bad)
