"""Fifty and more shapes of load against the rules of capacity, in a closed loop: `python -m tests.simulator.capacity.shapes` prints a table.

What must hold of each:

- Held: no shard is beyond the service level for longer than `REACTS_S` in a row, but for the time in which it would have been
  with a worker for each lease from the beginning, once and a half.
- Calm: two reversals of the number of workers wanted are an hour or more apart.
- Never more workers are wanted than there are leases.
- A hot shard is named while it is late, and does not make the fleet grow.
- The time to drain, as estimated in the middle of each drain, is true within 20 %: of what then happened to a fleet that had the
  workers of that moment until the end. Not where what came in changed tenfold in between (`is_even`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf, pi, sin
from typing import Final

from kcl_daemon.capacity.figures import CapacityTargets
from tests.simulator.capacity.fluid import MIB, Curve, Round, Rule, Run, Shape, Span, production, reversals
from tests.simulator.chance import Chance

REACTS_S: Final = 20 * 60.0
HOUR_S: Final = 3600.0
ERROR: Final = 0.2
RESTS: Final = 3
"""Rounds after which leases have come to rest when the number of workers has changed."""
LONGEST: Final = 3
"""So many drains of a shape are measured."""
SHORTEST_S: Final = 300.0
"""A drain that takes less is over before an estimate is of use."""


def flat(rate: float) -> Curve:
    return lambda _, __: rate


def step(before: float, after: float, at_s: float = HOUR_S) -> Curve:
    return lambda _, now_s: before if now_s < at_s else after


def stairs(*rates: float, every_s: float) -> Curve:
    return lambda _, now_s: rates[min(int(now_s / every_s), len(rates) - 1)]


def wave(mean: float, part: float, period_s: float = 24 * HOUR_S) -> Curve:
    return lambda _, now_s: mean * (1 + part * sin(2 * pi * now_s / period_s))


def bursts(usual: float, burst: float, every_s: float, lasts_s: float) -> Curve:
    return lambda _, now_s: burst if now_s > HOUR_S and now_s % every_s < lasts_s else usual


def one_hot(others: float, hot: float, begins_s: float = HOUR_S, ends_s: float = inf) -> Curve:
    return lambda shard, now_s: hot if shard == 0 and begins_s <= now_s < ends_s else others


def noisy(curve: Curve, part: float, name: str, every_s: float = 60.0) -> Curve:
    """Another factor for each shard and minute."""
    chance = Chance(name)
    factors = [chance.uniform(1 - part, 1 + part) for _ in range(4096)]
    return lambda shard, now_s: (
        curve(shard, now_s) * factors[(int(now_s / every_s) * 31 + shard * 7) % len(factors)]
    )


def ramp(low: float, high: float, begins_s: float, ends_s: float) -> Curve:
    def rate(_: int, now_s: float) -> float:
        return low + (high - low) * min(max((now_s - begins_s) / (ends_s - begins_s), 0.0), 1.0)

    return rate


def every() -> tuple[Shape, ...]:
    return (
        *_steps(),
        *_waves(),
        *_hot(),
        *_sinks(),
        *_backlogs(),
        *_producers(),
        *_bursts(),
        *_reshards(),
        *_held(),
        *_others(),
    )


def _steps() -> Iterator[Shape]:
    low, host = 0.2 * MIB, 2 * MIB
    for times in (1.5, 2.0, 3.0, 5.0, 8.0):
        yield Shape(f"step up {times:g}x, 8 shards", step(low, low * times), host_rate=host)
    for shards in (4, 16):
        yield Shape(f"step up 4x, {shards} shards", step(low, low * 4), shards=shards, host_rate=host)
    hourly = stairs(low, 2 * low, 3 * low, 4 * low, every_s=HOUR_S)
    yield Shape("step up at every hour", hourly, workers=1, host_rate=host)
    for times in (2.0, 4.0, 10.0):
        yield Shape(f"step down {times:g}x", step(4 * low, 4 * low / times), workers=3, hours=8)
    for minutes in (30, 90):
        up_and_down = stairs(low, 4 * low, low, every_s=minutes * 60)
        yield Shape(f"step up 4x, {minutes} min later down", up_and_down, host_rate=host, hours=8)
        down_and_up = stairs(3 * low, low, 3 * low, every_s=minutes * 60)
        yield Shape(f"step down 3x, {minutes} min later up", down_and_up, workers=4, host_rate=host)
    again = stairs(low, 3 * low, *[low] * 6, 3 * low, every_s=720)
    yield Shape("as much again ten minutes after a fall", again, host_rate=host)


def _waves() -> Iterator[Shape]:
    for part in (0.3, 0.6, 0.9):
        yield Shape(f"daily wave, {part:.0%}", wave(0.6 * MIB, part), hours=26, workers=3)
    yield Shape("a wave in 3 hours", wave(0.6 * MIB, 0.5, 3 * HOUR_S), hours=12, workers=3)
    yield Shape("a wave in 40 minutes", wave(0.6 * MIB, 0.5, 2400), hours=8, workers=3)
    yield Shape("daily wave with noise", noisy(wave(0.6 * MIB, 0.5), 0.2, "wave"), hours=26, workers=3)


def _hot() -> Iterator[Shape]:
    low = 0.1 * MIB
    yield Shape("one hot shard: child", one_hot(low, MIB), child_rate=0.7 * MIB, hot=0)
    yield Shape(
        "one hot shard: child, for an hour", one_hot(low, MIB, ends_s=2 * HOUR_S), child_rate=0.8 * MIB, hot=0
    )
    yield Shape("one hot shard: read quota", one_hot(low, 2.5 * MIB), hot=0)
    yield Shape(
        "one hot shard: read quota, half an hour",
        one_hot(low, 2.6 * MIB, ends_s=1.5 * HOUR_S),
        hours=4,
        hot=0,
    )
    alone = one_hot(low, 1.3 * MIB)
    yield Shape("one hot shard: more than a host", alone, host_rate=1.2 * MIB, workers=3, hot=0)
    yield Shape("one hot shard, 32 shards", one_hot(low, MIB), shards=32, child_rate=0.7 * MIB, hot=0)


def _sinks() -> Iterator[Shape]:
    yield Shape("slow sink that just keeps up", flat(0.45 * MIB), child_rate=0.5 * MIB)
    yield Shape("slow sink that does not", flat(0.6 * MIB), child_rate=0.5 * MIB, hours=3)
    slow = (Span(HOUR_S, 1.5 * HOUR_S, "sink", rate=0.2 * MIB),)
    yield Shape("sink slow for half an hour", flat(0.4 * MIB), child_rate=0.8 * MIB, spans=slow)
    yield Shape(
        "sink slow, then children quick", flat(0.4 * MIB), spans=slow, child_rate=1.6 * MIB, host_rate=2 * MIB
    )


def _backlogs() -> Iterator[Shape]:
    yield Shape("backlog of 1 h, 2 workers", flat(0.3 * MIB), hours=5, starts_s=HOUR_S)
    yield Shape("backlog of 3 h, 1 worker", flat(0.3 * MIB), hours=9, workers=1, starts_s=3 * HOUR_S)
    yield Shape("retention near: 22 h of 24", flat(0.2 * MIB), hours=27, workers=1, starts_s=22 * HOUR_S)
    yield Shape(
        "retention near, slow children", flat(0.2 * MIB), hours=30, child_rate=0.7 * MIB, starts_s=20 * HOUR_S
    )
    yield Shape(
        "backlog of 6 h with noise", noisy(flat(0.3 * MIB), 0.3, "backlog"), hours=14, starts_s=6 * HOUR_S
    )
    yield Shape("backlog of 2 h, read quota", flat(1.2 * MIB), hours=8, workers=4, starts_s=2 * HOUR_S)
    yield Shape(
        "backlog of 2 h, a level of 10 min",
        flat(0.3 * MIB),
        starts_s=2 * HOUR_S,
        targets=CapacityTargets(600),
    )


def _producers() -> Iterator[Shape]:
    zero = CapacityTargets(scale_to_zero=True)
    stops = stairs(0.5 * MIB, 0.0, 0.5 * MIB, every_s=2 * HOUR_S)
    yield Shape("producers stop for 2 h", stops, hours=8)
    yield Shape("producers stop for 2 h, zero allowed", stops, hours=8, targets=zero)
    yield Shape("producers stop for good, zero allowed", step(0.5 * MIB, 0.0), targets=zero)
    yield Shape("silence", flat(0.0), hours=4)
    yield Shape("silence, zero allowed", flat(0.0), hours=4, targets=zero)
    now_and_then = bursts(0.0, 0.2 * MIB, 5400, 300)
    yield Shape("five minutes now and then, zero allowed", now_and_then, hours=10, targets=zero)


def _bursts() -> Iterator[Shape]:
    low = 0.25 * MIB
    for every_min, lasts_min in ((20, 3), (45, 10), (70, 15), (130, 40)):
        curve = bursts(low, 3 * low, every_min * 60, lasts_min * 60)
        yield Shape(f"bursts of {lasts_min} min, every {every_min} min", curve, hours=10)
    yield Shape(
        "ten minutes of 10x",
        stairs(low / 2, *[low / 2] * 5, 5 * low, low / 2, every_s=600),
        hours=4,
        host_rate=2 * MIB,
        is_even=False,
    )
    yield Shape("noisy, 50 %", noisy(flat(0.4 * MIB), 0.5, "noise"), hours=8)


def _reshards() -> Iterator[Shape]:
    def halves(shard: int, _: float) -> float:
        return 0.5 * MIB if shard < 8 else 0.25 * MIB

    def doubles(shard: int, _: float) -> float:
        return 0.25 * MIB if shard < 8 else 0.5 * MIB

    yield Shape("split", halves, reshard_s=HOUR_S, workers=2)
    yield Shape("merge", doubles, reshard_s=HOUR_S, splits=False, workers=2)
    yield Shape(
        "split because children are too slow", halves, reshard_s=1.5 * HOUR_S, child_rate=0.4 * MIB, hours=5
    )
    yield Shape("split of a full fleet", lambda shard, _: 2.0 * MIB / (1 + (shard >= 2)), shards=2, reshard_s=HOUR_S,
                host_rate=1.5 * MIB, workers=2)  # fmt: skip


def _held() -> Iterator[Shape]:
    for kind, shards, name in (
        ("pause", None, "a pause of 20 min"),
        ("pause", (3,), "a pause of one shard"),
        ("downstream", None, "downstream out for 20 min"),
        ("failing", (1, 2), "two children fail for 20 min"),
    ):
        yield Shape(name, flat(0.35 * MIB), spans=(Span(HOUR_S, HOUR_S + 1200, kind, shards),))
    limit = Span(HOUR_S, 2 * HOUR_S, "limit", rate=0.25 * MIB)
    yield Shape("a limit for an hour", flat(0.35 * MIB), spans=(limit,), hours=8)


def _others() -> Iterator[Shape]:
    low = 0.2 * MIB
    yield Shape("one Java worker beside", step(low, 2 * low), java=1)
    yield Shape("two Java workers beside, step down", step(3 * low, low), java=2, hours=5)
    yield Shape("noisy ramp up", noisy(ramp(low, 4 * low, HOUR_S, 4 * HOUR_S), 0.2, "up"), hours=6, workers=1)
    yield Shape(
        "noisy ramp down", noisy(ramp(4 * low, low, HOUR_S, 4 * HOUR_S), 0.2, "down"), hours=8, workers=3
    )
    yield Shape("clocks ahead by 2 min", step(low, 2 * low), ahead_s=120, targets=CapacityTargets(180))
    yield Shape("a single shard", step(low, 1.5 * MIB), shards=1, workers=1)


@dataclass(frozen=True)
class Verdict:
    """What was measured of a shape; `late_s`: the longest time beyond the level; `wrong`: what did not hold, in words."""

    shape: Shape
    worst_s: float
    late_s: float
    reversals: int
    closest_s: float
    most: int
    errors: tuple[float, ...]
    wrong: tuple[str, ...]


def judge(shape: Shape, rule: Rule = production) -> Verdict:
    rounds = Run(shape, rule).play()
    turns = reversals(rounds)
    closest_s = min((late - early for early, late in pairwise(turns)), default=inf)
    errors = tuple(_errors(shape, rule, rounds))
    wrong = [*_not_held(shape, rounds), *_not_said(shape, rounds)]
    if closest_s < HOUR_S:
        wrong.append(f"reversals {closest_s / 60:.0f} min apart")
    if any(each.found and each.found.wanted > max(each.leases, 1) for each in rounds):
        wrong.append("more workers than leases")
    if shape.is_even and any(each > ERROR for each in errors):
        wrong.append(f"estimate {max(errors):.0%} off")
    worst_s = max(each.behind_s for each in rounds)
    most = max(each.live for each in rounds)
    late = _late(rounds, shape.targets.level_s)
    late_s = max((rounds[last].at_s - rounds[first].at_s for first, last in late), default=0.0)
    return Verdict(shape, worst_s, late_s, len(turns), closest_s, most, errors, tuple(wrong))


def _late(rounds: list[Round], level_s: float) -> list[tuple[int, int]]:
    """First and last round of each time in which a shard is beyond the level."""
    found: list[tuple[int, int]] = []
    for number, each in enumerate(rounds):
        if each.behind_s > level_s:
            begins = found.pop()[0] if found and found[-1][1] == number - 1 else number
            found.append((begins, number))
    return found


def _not_held(shape: Shape, rounds: list[Round]) -> Iterator[str]:
    level_s = shape.targets.level_s
    long = [
        (first, last, took_s)
        for first, last in _late(rounds, level_s)
        if (took_s := rounds[last].at_s - rounds[first].at_s) > REACTS_S
    ]
    most = max(each.leases for each in rounds)
    best = {each.at_s for each in Run(shape, fixed=most).play() if each.behind_s > level_s} if long else set()
    for first, last, took_s in long:
        excused_s = 30.0 * sum(each.at_s in best for each in rounds[first : last + 1])
        if took_s > 1.5 * excused_s + REACTS_S:
            at = rounds[first].at_s / HOUR_S
            yield f"late for {took_s / 60:.0f} min from {at:.1f} h (with all workers {excused_s / 60:.0f})"


def _not_said(shape: Shape, rounds: list[Round]) -> Iterator[str]:
    if shape.hot is None:
        return
    late = [each.found for each in rounds if each.found and each.behind_s > shape.targets.level_s + 60]
    if any(not found.whole.hot or not found.whole.hot[0].endswith(f"{shape.hot:012d}") for found in late):
        yield "the hot shard is not named"
    if any(found.wanted > shape.workers for found in late):
        yield "workers for one hot shard"


def _errors(shape: Shape, rule: Rule, rounds: list[Round]) -> Iterator[float]:
    late = sorted(_late(rounds, shape.targets.level_s), key=lambda each: each[0] - each[1])
    for first, last in late[:LONGEST]:
        if last + 1 == len(rounds):
            continue
        begins = max(range(first, last + 1), key=lambda each: rounds[each].behind_s)
        half = (begins + last + 1) // 2
        while half <= last and len({each.live for each in rounds[max(half - RESTS, 0) : half + 1]}) > 1:
            half += 1  # leases are on the move, and nobody knows how fast they will be read
        found = rounds[half].found
        if half > last or found is None or rounds[last + 1].at_s - rounds[begins].at_s < SHORTEST_S:
            continue
        takes_s: float | None = rounds[last + 1].at_s - rounds[half].at_s
        if len({each.live for each in rounds[half : last + 2]}) > 1:
            takes_s = _takes_s(shape, rule, rounds, half)
        said_s = found.whole.drains_s
        if takes_s is not None and said_s is not None:
            yield abs(said_s - takes_s) / takes_s
        elif said_s is not None or takes_s is not None:
            yield inf


def _takes_s(shape: Shape, rule: Rule, rounds: list[Round], half: int) -> float | None:
    """From the round `half` on, with the workers of then."""
    now_s = rounds[half].at_s
    then = Run(shape, rule, frozen_s=now_s).play()
    return next((each.at_s - now_s for each in then[half:] if each.behind_s <= shape.targets.level_s), None)


def table(verdicts: list[Verdict]) -> Iterator[str]:
    yield f"{'shape':42} {'worst':>8} {'late':>6} {'turns':>5} {'apart':>7} {'most':>4} {'error':>6}  verdict"
    for each in verdicts:
        apart = "-" if each.closest_s == inf else f"{each.closest_s / 60:.0f} min"
        error = f"{max(each.errors):.0%}" if each.errors else "-"
        yield (
            f"{each.shape.name:42} {each.worst_s / 60:6.1f} m {each.late_s / 60:4.0f} m {each.reversals:5} {apart:>7} "
            f"{each.most:4} {error:>6}  {'; '.join(each.wrong) or 'ok'}"
        )
    yield f"{len(verdicts)} shapes, {sum(not each.wrong for each in verdicts)} as they must be"


def main(names: list[str]) -> int:
    verdicts = [judge(shape) for shape in every() if not names or any(name in shape.name for name in names)]
    print("\n".join(table(verdicts)))  # noqa: T201 - this is the command's answer
    return int(any(each.wrong for each in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
