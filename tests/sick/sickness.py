"""What a sickness is, how it is played, and whether all that is promised of it came true."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from tests.sick.promql import Store
from tests.sick.rules import EVERY_S, Firing, firings, rules
from tests.sick.stage import Seen, Stage
from tests.simulator.loop import run_virtual

WITHIN_S: Final = {"page": 300.0, "ticket": 900.0}
_BEFORE_S: Final = 180.0
_AFTER_S: Final = 240.0
LATE: Final = frozenset({"KclServiceLevelBurnsFast", "KclServiceLevelBurnsSlowly"})
"""What was not read for a while is finished late."""

Act = Callable[[Stage], object]


def nothing(_stage: Stage) -> None:
    """Nothing is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sickness:
    """One fault of a fleet, as a contract.

    Args:
        name: in a few words.
        broken: what is broken, a sentence for the runbook.
        breaks: makes it so.
        heals: what a person does, or what ends by itself.
        alert: that fires: a page within five minutes, a ticket within fifteen.
        words: where the cause is named, and in which words (a regular expression): `page`, `status` (which `top` shows
            too), `watch`, `log`, `end` (the last words of the process).
        do: what a person does.
        also: alerts that may fire beside it; those of `LATE` always may.
        stage: the fleet.
        begins_s: when it begins.
        lasts_s: for how long.
        ends_within_s: how long the alert may go on when it is healed.
        within_s: how soon it fires; None: as its severity promises.
        daily: whether it is played in `make test`.
    """

    name: str
    broken: str
    breaks: Act
    heals: Act
    alert: str
    words: tuple[tuple[str, str], ...]
    do: str
    also: frozenset[str] = frozenset()
    stage: Callable[[str], Stage] = Stage
    begins_s: float = _BEFORE_S
    lasts_s: float = 600.0
    ends_within_s: float = 120.0
    within_s: float | None = None
    daily: bool = False

    @property
    def healed_s(self) -> float:
        """When it ends."""
        return self.begins_s + self.lasts_s

    @property
    def until_s(self) -> float:
        """When the play ends."""
        return self.healed_s + max(_AFTER_S, self.ends_within_s + 2 * EVERY_S)

    @property
    def severity(self) -> str:
        """`page` or `ticket`."""
        return next(rule.severity for rule in rules() if rule.alert == self.alert)

    @property
    def fires_within_s(self) -> float:
        """How soon."""
        return WITHIN_S[self.severity] if self.within_s is None else self.within_s


@dataclass(frozen=True, slots=True)
class Course:
    """What was seen of a sickness."""

    sickness: Sickness
    store: Store
    seen: Seen
    firings: tuple[Firing, ...]

    @property
    def fired(self) -> list[Firing]:
        """The promised alert, from the fault on."""
        return [
            each
            for each in self.firings
            if each.alert == self.sickness.alert and each.to_s >= self.sickness.begins_s
        ]

    @property
    def fired_after_s(self) -> float | None:
        """None: it did not."""
        fired = self.fired
        return fired[0].from_s - self.sickness.begins_s if fired else None

    @property
    def ended_after_s(self) -> float | None:
        """After it was healed; None: it did not fire."""
        ends = [each.to_s + EVERY_S for each in self.fired]
        return max(ends) - self.sickness.healed_s if ends else None

    @property
    def gaps(self) -> list[float]:
        """Evaluations in the fault at which it did not fire any more."""
        fired, at_s = self.fired, 0.0
        found: list[float] = []
        while fired and at_s < self.sickness.healed_s:
            if at_s > fired[0].from_s and not any(each.from_s <= at_s <= each.to_s for each in fired):
                found.append(at_s)
            at_s += EVERY_S
        return found

    @property
    def others(self) -> set[str]:
        """Alerts that fired beside it."""
        return {each.alert for each in self.firings} - {self.sickness.alert}

    def shown(self, where: str, words: str) -> str | None:
        """The line that has these words."""
        for at_s, text in self.seen.texts.get(where, ()):
            if at_s >= self.sickness.begins_s:
                for line in text.splitlines():
                    if re.search(words, line):
                        return line.strip()
        return None


def play(sickness: Sickness) -> Course:
    """From a calm start to a while after it was healed."""
    stage = run_virtual(partial(_played, sickness))
    return Course(sickness, stage.store, stage.texts(), firings(stage.store, sickness.until_s))


@cache
def played(sickness: Sickness) -> Course:
    """Once."""
    return play(sickness)


async def _played(sickness: Sickness) -> Stage:
    stage = sickness.stage(sickness.name)
    stage.shown_from_s = sickness.begins_s
    await stage.begin()
    await stage.run(sickness.begins_s)
    await _done(sickness.breaks, stage)
    await stage.run(sickness.healed_s)
    await _done(sickness.heals, stage)
    await stage.run(sickness.until_s)
    return stage


async def _done(act: Act, stage: Stage) -> None:
    result = act(stage)
    if isinstance(result, Awaitable):
        await result


def broken_promises(course: Course) -> Iterator[str]:
    """In words."""
    sickness = course.sickness
    after_s, ended_s = course.fired_after_s, course.ended_after_s
    before = {each.alert for each in course.firings if each.from_s < sickness.begins_s}
    if before:
        yield f"before anything is broken there is {', '.join(sorted(before))}"
    if after_s is None or ended_s is None:
        yield f"{sickness.alert} did not fire"
    else:
        if after_s > sickness.fires_within_s:
            yield f"{sickness.alert} fired after {after_s:g} s, not within {sickness.fires_within_s:g} s"
        if course.gaps:
            yield f"{sickness.alert} was resolved while the fault lasted, at {course.gaps}"
        if ended_s > sickness.ends_within_s:
            yield f"{sickness.alert} ended {ended_s:g} s after it was healed, not within {sickness.ends_within_s:g} s"
    for other in sorted(course.others - sickness.also - LATE):
        yield f"{other} fired beside it"
    for where, words in sickness.words:
        first_s = course.seen.first(where, words, sickness.begins_s)
        if first_s is None:
            yield f"{where} did not say {words!r}"
        elif first_s > sickness.begins_s + sickness.fires_within_s:
            yield f"{where} said {words!r} only after {first_s - sickness.begins_s:g} s"
