"""The covering array: rows in which each two values that may be together are together at least once.

Owns the list of what a daemon refuses, and the short one of what only this simulator cannot play.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final

from allpairspy import AllPairs

from tests.simulator.chance import Chance
from tests.simulator.pairs.factors import FACTORS
from tests.simulator.pairs.makes import Factor

# A factor and a value of it, by name.
Chosen = tuple[str, str]
Row = tuple[Chosen, ...]
SEEDS: Final = 300
"""So many seeds play each pair."""
_TRIES: Final = 40
_AGAIN_TIMES: Final = 2


@dataclass(frozen=True, slots=True)
class Apart:
    """Values that are not together: one of each of these factors. `why`: the daemon's message, or the reason."""

    values: Mapping[str, frozenset[str]]
    why: str
    lines: str = ""
    """What a file needs besides, so that nothing else is wrong with it."""

    def holds(self, row: Mapping[str, str]) -> bool:
        """Whether a row, or its beginning, has them."""
        return all(row.get(name) in some for name, some in self.values.items())


def _apart(why: str, lines: str = "", /, **values: str | tuple[str, ...]) -> Apart:
    return Apart(
        {
            name.replace("_", " "): frozenset((some,) if isinstance(some, str) else some)
            for name, some in values.items()
        },
        why,
        lines,
    )


_LANES: Final = ("by key", "remembered", "in any order")
_TABLES: Final = ("tables", "snapshot")
_LETTERS: Final = ("stored", "away")
_POISON: Final = ("to letters", "skipped")
_WINDOWS: Final = ("size", "time")
_MANY: Final = ("many", "after a Java program")
_JOBS: Final = ("to a time", "to the tip")

REFUSED: Final[tuple[Apart, ...]] = (
    _apart("with landing a shard has one log, in order; remove this line", sink="landing", lanes=_LANES),
    _apart("with landing the bundled lander has the records, no program of yours; remove this line", sink="landing", letters=_LETTERS),
    _apart("with landing the bundled lander has the records, no program of yours; remove this line", sink="landing", poison=_POISON),
    _apart("with landing every record is written, of any age; remove this line", sink="landing", age="limited"),
    _apart("with landing segments are cut by landingWindowMillis and landingMaxBytes; remove this line", sink="landing", window=_WINDOWS),
    _apart("with landing there is no program to load in advance; remove this line", "childPreload = true", sink="landing", start_of_children="at once"),
    _apart("needs deadLetterDestination", poison="to letters", letters="none"),
    _apart("needs deadLetterDestination, or poisonRecordPolicy = SKIP", age="limited", letters="none", poison=("none", "to letters")),
    _apart("needs poisonRecordPolicy = DEADLETTER or SKIP", attempts="4", poison="none"),
    _apart("needs initialPositionInStream=TRIM_HORIZON, or initialPositionInStreamExtended", job=_JOBS, start="latest"),
    _apart("items of a snapshot have no time; remove this line, or snapshot", job=_JOBS, source="snapshot"),
    _apart("DynamoDB streams have no fan-out; use POLLING, or a daemon of its own for Kinesis", source=_TABLES, reading="fan-out"),
    _apart("idleTimeBetweenReadsInMillis=auto itself decides how often a shard is read; remove one of both lines", reading="auto", near_the_tip="less often"),
)  # fmt: skip
"""By the daemon's own check of a file."""

REFUSED_BY_CLIENT: Final[tuple[Apart, ...]] = (
    _apart(
        "a shard with several children (shardConcurrency) cannot be stored like this; set shardConcurrency = 1",
        sink="own positions",
        lanes=_LANES,
    ),
)
"""By `kcl_client.once`, at the start of a child."""

SENSELESS: Final[tuple[Apart, ...]] = (
    _apart("a child rejects only what can become a letter", rejects="some", letters="none"),
    _apart("changes of a table are no aggregates", records="aggregates", source=_TABLES, streams="one"),
    _apart("the bundled lander rejects nothing", sink="landing", rejects="some"),
    _apart("the bundled lander asks for no pause", sink="landing", child_asks_for_pauses="sometimes"),
)
"""Nothing would be different if they were together."""

UNPLAYED: Final[tuple[Apart, ...]] = (
    _apart("the model of a Java worker reads one stream of Kinesis", workers="Java beside", streams=_MANY),
    _apart("the model of a Java worker reads one stream of Kinesis", workers="Java beside", source=_TABLES),
    _apart("the model of a Java worker has children that store nothing", workers="Java beside", sink=("own positions", "landing")),
    _apart("the model of a Java worker knows three tables", workers="Java beside", tables=("one", "a move")),
    _apart("a Java worker reads beyond the end of a job", workers="Java beside", job=_JOBS),
    _apart("the model of a Java worker begins at the horizon", workers="Java beside", start="latest"),
    _apart("what is too old and goes nowhere leaves no sign of which records it was", age="limited", letters="none"),
    _apart(
        "where lanes have no order, nobody can tell what went with a record that was skipped after many attempts",
        lanes="in any order",
        poison="skipped",
        attempts="4",
    ),
    _apart("a move needs a fleet that goes on: its bake times are longer than a job", tables="a move", job=_JOBS),
)  # fmt: skip
"""What a daemon would do, and only this simulator cannot."""

APART: Final = (*REFUSED, *REFUSED_BY_CLIENT, *SENSELESS, *UNPLAYED)

AGAIN: Final[tuple[Row, ...]] = (
    # In the array's rows a bad record is too old before the search has found it.
    (
        ("poison", "to letters"),
        ("age", "any"),
        ("job", "endless"),
        ("window", "none"),
        ("checkpoints", "each batch"),
        ("Kinesis", "calm"),
        ("DynamoDB", "ambiguous"),
    ),
    # In the array's rows a job is over before a child hangs, or begins at a position of its own.
    (
        ("sink", "own positions"),
        ("job", "endless"),
        ("age", "any"),
        ("reading", "fan-out"),
        ("checkpoints", "in the middle"),
        ("children", "hanging"),
    ),
)
"""Values of further rows: each two of them are in a row of the array, too, but there hardly ever happen together."""


def may_be_together(row: Mapping[str, str]) -> bool:
    """Whether no two or three of these values are apart."""
    return not any(each.holds(row) for each in APART)


def pairs_of(row: Sequence[Chosen], strength: int = 2) -> Iterator[Row]:
    """All pairs of a row, or triples."""
    return combinations(row, strength)


@dataclass(frozen=True)
class CoveringArray:
    """Rows that together have each pair, or triple, that may be.

    Args:
        wanted: all of those.
        again: rows with the values of `AGAIN`.
    """

    rows: tuple[Row, ...]
    wanted: frozenset[Row]
    again: tuple[Row, ...] = ()


@lru_cache
def covering_array(strength: int = 2) -> CoveringArray:
    """Of all factors; triples only of those that bear on positions."""
    factors = [factor for factor in FACTORS if strength == 2 or factor.of_positions]
    matrix = [[(factor.name, value.name) for value in factor.values] for factor in factors]
    rows = [
        tuple(row) for row in AllPairs(matrix, filter_func=lambda row: may_be_together(dict(row)), n=strength)
    ]
    found = {some for row in rows for some in pairs_of(row, strength)}
    chance = Chance(f"array of {strength}")
    wanted = set(found)
    for some in _all(factors, strength):
        if some in found:
            continue
        row = _completed(some, factors, chance)  # the library stops where its next row has nothing new
        if row is not None:
            rows.append(row)
            found.update(pairs_of(row, strength))
            wanted.update(pairs_of(row, strength))
    again = [_completed(some, factors, chance) for some in AGAIN] if strength == 2 else []
    return CoveringArray(tuple(rows), frozenset(wanted), tuple(row for row in again if row is not None))


def _all(factors: Sequence[Factor], strength: int) -> Iterator[Row]:
    for some in combinations(factors, strength):
        yield from _product(some)


def _product(factors: Sequence[Factor]) -> Iterator[Row]:
    if not factors:
        yield ()
        return
    for value in factors[0].values:
        for rest in _product(factors[1:]):
            yield ((factors[0].name, value.name), *rest)


def _completed(some: Row, factors: Sequence[Factor], chance: Chance) -> Row | None:
    """A row that has these; None: there is none."""
    if not may_be_together(dict(some)):
        return None
    for _ in range(_TRIES):
        row = dict(some)
        if all(_choose(row, factor, chance) for factor in _most_bound_first(factors)):
            return tuple((factor.name, row[factor.name]) for factor in factors)
    return None


def _most_bound_first(factors: Iterable[Factor]) -> list[Factor]:
    bound = [name for each in APART for name in each.values]
    return sorted(factors, key=lambda factor: -bound.count(factor.name))


def _choose(row: dict[str, str], factor: Factor, chance: Chance) -> bool:
    if factor.name in row:
        return True
    names = [value.name for value in factor.values]
    fitting = [name for name in names if may_be_together(row | {factor.name: name})]
    if fitting:
        row[factor.name] = chance.pick(fitting)
    return bool(fitting)


def row_of(seed: int, strength: int = 2) -> Row:
    """The row that a seed plays: the last ones of `SEEDS` play those of `AGAIN`, each twice."""
    array = covering_array(strength)
    left = SEEDS - 1 - seed % SEEDS
    if left < _AGAIN_TIMES * len(array.again):
        return array.again[left % len(array.again)]
    return array.rows[seed % len(array.rows)]
