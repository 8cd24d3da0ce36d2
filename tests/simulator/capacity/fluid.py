"""A fleet as fluid: bytes that arrive, hosts with so much CPU, children that are so quick. No records, no loop, hours in a second.

Only what the rules of capacity see and what follows from their answer is modelled: reports every half minute through their
text, a leader that estimates, an autoscaler that follows, workers that take a while to start, leases that move.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Final

from kcl_daemon.capacity.estimate import estimate
from kcl_daemon.capacity.figures import (
    Capacity,
    CapacityTargets,
    FleetState,
    ShardLoad,
    ShardObservation,
    WorkerLoad,
    bound_of,
    capacity_from,
    capacity_text,
    load_from,
    load_text,
)
from kcl_daemon.leases.lease import LeaseKey, WorkerId
from tests.simulator.chance import Chance

STEP_S: Final = 15
ROUND_S: Final = 30
HANDOFF_S: Final = 30
EPOCH_MS: Final = 1_790_000_000_000
QUOTA: Final = 2.0 * 2**20
BASE_CPU: Final = 0.03
MIB: Final = 2**20

Curve = Callable[[int, float], float]
"""Bytes a second of a shard, by its number and the time in seconds."""
Rule = Callable[[FleetState, CapacityTargets, Capacity | None], Capacity]


def production(state: FleetState, targets: CapacityTargets, previous: Capacity | None) -> Capacity:
    return estimate(state, targets, previous, by=WorkerId("leader"))


@dataclass(frozen=True)
class Span:
    """Shards `shards` (None: all) are held in this time; `rate` is what is left to their children."""

    begins_s: float
    ends_s: float
    kind: str
    shards: tuple[int, ...] | None = None
    rate: float = 0.0

    def holds(self, shard: int, now_s: float) -> bool:
        return self.begins_s <= now_s < self.ends_s and (self.shards is None or shard in self.shards)


@dataclass(frozen=True)
class Shape:
    """A load and the fleet that meets it.

    Args:
        host_rate: what a host finishes in a second with all of its CPU, as `child_rate` a child.
        starts_s: the fleet begins then; what has arrived before is its backlog.
        reshard: the time at which each shard is split in two (`splits`) or each two are merged.
        java: workers that read and tell nothing.
        ahead_s: how far the clocks of producers and workers are ahead.
        hot: the shard that is hot, and must be named while it is behind.
        is_even: as much comes in during the time that is caught up; if not, nobody can tell how long that will take.
    """

    name: str
    curve: Curve
    shards: int = 8
    hours: float = 6.0
    workers: int = 2
    host_rate: float = 4.0 * MIB
    child_rate: float = 8.0 * MIB
    starts_s: float = 0.0
    spans: tuple[Span, ...] = ()
    reshard_s: float | None = None
    splits: bool = True
    java: int = 0
    ahead_s: float = 0.0
    hot: int | None = None
    is_even: bool = True
    targets: CapacityTargets = field(default_factory=CapacityTargets)


@dataclass
class Shard:
    number: int
    key: LeaseKey
    cumulated: list[float]
    """Bytes that have arrived by the end of each step."""
    opens_s: float = 0.0
    closes_s: float = float("inf")
    parents: tuple[Shard, ...] = ()
    owner: str | None = None
    free_s: float = 0.0
    """A handoff lasts until then."""
    finished: float = 0.0
    at_s: float = 0.0
    """Arrival of the oldest byte not finished."""
    window_at_s: float = 0.0
    window_bytes: float = 0.0
    busy: float = 0.0
    refused: float = 0.0

    def arrived(self, step: int) -> float:
        return self.cumulated[min(step, len(self.cumulated) - 1)]

    def is_finished(self, now_s: float) -> bool:
        return now_s >= self.closes_s and self.finished >= self.cumulated[-1] - 1e-6

    def can_be_read(self, now_s: float) -> bool:
        return all(parent.is_finished(now_s) for parent in self.parents)

    def finish(self, count: float, step: int) -> None:
        self.finished += count
        self.window_bytes += count
        now_s = (step + 1) * STEP_S
        if self.finished >= self.arrived(step) - 1e-6:
            self.finished, self.at_s = self.arrived(step), now_s
            return
        place = bisect_left(self.cumulated, self.finished + 1e-6, int(self.at_s // STEP_S))
        before = self.cumulated[place - 1] if place else 0.0
        part = (self.finished - before) / max(self.cumulated[place] - before, 1e-9)
        self.at_s = max((place + min(max(part, 0.0), 1.0)) * STEP_S, self.at_s)

    def behind_s(self, now_s: float) -> float:
        if self.finished >= self.arrived(int(now_s / STEP_S) - 1) - 1e-6:
            return 0.0
        oldest = bisect_left(self.cumulated, self.finished + 1e-6, int(self.at_s // STEP_S)) * STEP_S
        return max(now_s - max(self.at_s, oldest), 0.0)


@dataclass
class Worker:
    name: str
    ready_s: float
    is_java: bool = False
    used: float = 0.0
    """CPU, summed over the steps of a round."""
    finished_s: float = 0.0


@dataclass(frozen=True)
class Round:
    """What was at the end of half a minute."""

    at_s: float
    behind_s: float
    live: int
    leases: int
    found: Capacity | None


@dataclass
class Run:
    """One shape, played once. With `fixed` there is no autoscaler; with `frozen_s` it stops then."""

    shape: Shape
    rule: Rule = production
    fixed: int | None = None
    frozen_s: float = float("inf")

    def play(self) -> list[Round]:
        shape = self.shape
        self.chance = Chance(shape.name)
        self.shards = shards_of(shape)
        count = shape.workers if self.fixed is None else self.fixed
        self.workers = [Worker(f"w{number}", shape.starts_s) for number in range(count)]
        self.workers += [
            Worker(f"java{number}", shape.starts_s, is_java=True) for number in range(shape.java)
        ]
        self.named = count
        self.found: Capacity | None = None
        self.asked = [count, count]
        rounds = []
        for step in range(int(shape.hours * 3600 / STEP_S)):
            now_s = (step + 1) * STEP_S
            if now_s <= shape.starts_s:
                continue
            self._step(step, now_s)
            if now_s % ROUND_S == 0:
                rounds.append(self._round(now_s))
                self._assign(now_s)
        return rounds

    def _open(self, now_s: float) -> list[Shard]:
        return [each for each in self.shards if each.opens_s <= now_s and not each.is_finished(now_s)]

    def _live(self, now_s: float) -> list[Worker]:
        return [each for each in self.workers if each.ready_s <= now_s]

    def _step(self, step: int, now_s: float) -> None:
        held: dict[str | None, list[Shard]] = {}
        for shard in self._open(now_s):
            held.setdefault(shard.owner, []).append(shard)
        for worker in self._live(now_s):
            mine = held.get(worker.name, [])
            wants = [self._wants(each, step, now_s) for each in mine]
            given = shared(wants, (1 - BASE_CPU) * self.shape.host_rate)
            worker.used += BASE_CPU + sum(given) / self.shape.host_rate
            for shard, want, gets in zip(mine, wants, given, strict=True):
                shard.finish(gets * STEP_S, step)
                shard.busy += 1.0 if gets < want - 1 else gets / self.shape.child_rate
                shard.refused += gets >= QUOTA - 1
                if gets:
                    worker.finished_s = now_s

    def _wants(self, shard: Shard, step: int, now_s: float) -> float:
        if shard.free_s > now_s or not shard.can_be_read(now_s):
            return 0.0
        child = self.shape.child_rate
        for span in self.shape.spans:
            if span.holds(shard.number, now_s):
                child = min(child, span.rate)
        return min((shard.arrived(step) - shard.finished) / STEP_S, child, QUOTA)

    def _round(self, now_s: float) -> Round:
        live, shards = self._live(now_s), self._open(now_s)
        reports = [self._report(each, shards, now_s) for each in live if not each.is_java]
        for worker in live:
            worker.used = 0.0
        for shard in shards:
            shard.window_at_s, shard.window_bytes, shard.busy, shard.refused = shard.at_s, 0.0, 0.0, 0.0
        behind_s = max((each.behind_s(now_s) for each in shards), default=0.0)
        if reports:
            self._decide(reports, shards, len(live), now_s)
        if self.fixed is None and now_s < self.frozen_s:
            self._scale(now_s, behind_s)
        elif now_s >= self.frozen_s:
            self.workers = live
        return Round(now_s, behind_s, len(live), len(shards), self.found if reports else None)

    def _decide(self, texts: list[tuple[str, str]], shards: list[Shard], live: int, now_s: float) -> None:
        loads = [load_from(text, WorkerId(name)) for name, text in texts]
        known = tuple(load for load in loads if load is not None)
        assert len(known) == len(texts), "a report was not understood"
        leases: dict[LeaseKey, str | None] = dict.fromkeys((each.key for each in shards), None)
        state = FleetState(EPOCH_MS + int(now_s * 1000), known, leases, live, live - len(known))
        found = self.rule(state, self.shape.targets, self.found)
        self.found = capacity_from(capacity_text(found))
        assert self.found == found, "what was stored is not what was found"

    def _report(self, worker: Worker, shards: list[Shard], now_s: float) -> tuple[str, str]:
        steps = ROUND_S // STEP_S
        cpu = min(worker.used / steps, 1.0)
        mine = [
            self._told(each, cpu, now_s)
            for each in shards
            if each.owner == worker.name and each.free_s <= now_s
        ]
        at_ms = EPOCH_MS + int((now_s + self.shape.ahead_s) * 1000)
        quiet_s = now_s - max(worker.finished_s, worker.ready_s)
        text = load_text(WorkerLoad(WorkerId(worker.name), at_ms, cpu, tuple(mine), quiet_s=quiet_s))
        assert len(text) <= 4096, len(text)
        return worker.name, text

    def _told(self, shard: Shard, cpu: float, now_s: float) -> ShardLoad:
        steps = ROUND_S // STEP_S
        behind = max(shard.behind_s(now_s) - self.shape.ahead_s, 0.0) if shard.can_be_read(now_s) else None
        kinds = {span.kind for span in self.shape.spans if span.holds(shard.number, now_s)}
        seen = ShardObservation(
            behind, shard.busy / steps, shard.refused / steps, 0.0, cpu,
            paused="pause" in kinds, limited="limit" in kinds, downstream="downstream" in kinds, failing="failing" in kinds,
        )  # fmt: skip
        out = shard.window_bytes / ROUND_S
        speed = (shard.at_s - shard.window_at_s) / ROUND_S if out else None
        return ShardLoad(shard.key, behind, speed, out, out, shard.busy / steps, bound_of(seen))

    def _scale(self, now_s: float, behind_s: float) -> None:
        """What was asked for half a minute ago; a worker needs 30 to 60 s to start."""
        ours = [each for each in self.workers if not each.is_java]
        wanted = (
            self.found.wanted if self.found and ours else int(behind_s > 0)
        )  # the peek, if nobody is there
        self.asked = [self.asked[1], max(wanted - self.shape.java, 0)]
        more = self.asked[0] - len(ours)
        for _ in range(more):
            self.workers.append(Worker(f"w{self.named}", now_s + self.chance.uniform(30, 60)))
            self.named += 1
        for worker in ours[len(ours) + more :] if more < 0 else ():
            self.workers.remove(worker)

    def _assign(self, now_s: float) -> None:
        live, shards = [each.name for each in self._live(now_s)], self._open(now_s)
        held: dict[str, list[Shard]] = {name: [] for name in live}
        for shard in shards:
            if shard.owner in held:
                held[shard.owner].append(shard)
        if not live:
            return
        for shard in shards:
            if shard.owner not in held:
                self._move(shard, min(live, key=lambda name: len(held[name])), held, now_s)
        while len(least := held[min(live, key=lambda name: len(held[name]))]) + 1 < len(
            most := held[max(live, key=lambda name: len(held[name]))]
        ):
            name = next(each for each in live if held[each] is least)
            self._move(most.pop(), name, held, now_s)
        if now_s % 120 == 0:
            self._swap(held, now_s)

    def _move(self, shard: Shard, name: str, held: dict[str, list[Shard]], now_s: float) -> None:
        shard.owner, shard.free_s = name, now_s + HANDOFF_S
        held[name].append(shard)

    def _swap(self, held: dict[str, list[Shard]], now_s: float) -> None:
        """As the leader does by CPU: the busiest worker gives a lease to the idlest one."""
        needs = {
            each.number: self.shape.curve(each.number, now_s) / self.shape.host_rate for each in self.shards
        }
        used = {name: sum(needs[each.number] for each in mine) for name, mine in held.items()}
        busiest, idlest = max(used, key=lambda name: used[name]), min(used, key=lambda name: used[name])
        apart = used[busiest] - used[idlest]
        some = [each for each in held[busiest] if 0.05 < needs[each.number] < apart - 0.05]
        if apart > 0.15 and some and len(held[busiest]) > 1:
            shard = min(some, key=lambda each: abs(needs[each.number] - apart / 2))
            held[busiest].remove(shard)
            self._move(shard, idlest, held, now_s)


def shared(wants: list[float], room: float) -> list[float]:
    """The host's CPU, as fairly as a scheduler gives it: what one does not want, the others get."""
    if sum(wants) <= room:
        return wants
    given = [0.0] * len(wants)
    left = len(wants)
    for number in sorted(range(len(wants)), key=lambda each: wants[each]):
        given[number] = min(wants[number], room / left)
        room -= given[number]
        left -= 1
    return given


def shards_of(shape: Shape) -> list[Shard]:
    first = [_shard(shape, number, 0.0, shape.reshard_s) for number in range(shape.shards)]
    if shape.reshard_s is None:
        return first
    number, later = shape.shards, []
    groups = (
        [(each, each) for each in first] if shape.splits else list(zip(first[::2], first[1::2], strict=True))
    )
    for one, two in groups:
        for _ in range(2 if shape.splits else 1):
            child = _shard(shape, number, shape.reshard_s, None)
            later.append(replace(child, parents=(one, two)))
            number += 1
    return first + later


def _shard(shape: Shape, number: int, opens_s: float, closes_s: float | None) -> Shard:
    ends_s = float("inf") if closes_s is None else closes_s
    key = LeaseKey(f"shardId-{number:012d}")
    return Shard(number, key, _cumulated(shape, number, opens_s, ends_s), opens_s, ends_s)


@lru_cache(maxsize=64)  # a shape is played several times
def _cumulated(shape: Shape, number: int, opens_s: float, ends_s: float) -> list[float]:
    times = range(0, int(shape.hours * 3600), STEP_S)
    rates = (shape.curve(number, at_s) if opens_s <= at_s < ends_s else 0.0 for at_s in times)
    return list(accumulate(rate * STEP_S for rate in rates))


def reversals(rounds: Iterable[Round]) -> list[float]:
    """When the number of workers wanted went into the other direction. Being woken is none."""
    found, rises, before = [], None, None
    for each in rounds:
        if each.found is None:
            continue
        wanted = each.found.wanted
        if before is not None and wanted != before:
            if rises is not None and rises is not (wanted > before) and before > 0:
                found.append(each.at_s)
            rises = wanted > before
        before = wanted
    return found
