"""A stream, hosts that land it and state how complete they are, and a reader, in steps of half a second; no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random  # noqa: TID251 - of a seed that Hypothesis draws

from kcl_spark_source import (
    Entry,
    Horizon,
    Host,
    Mark,
    Place,
    Roster,
    Shard,
    Statements,
    behind,
    complete_ms,
    horizon_ms,
    plan,
    stands_since,
    statements_of,
)

STEP_MS = 500
WINDOW_MS = 2_000
FAILOVER_MS = 10_000
WAIT_MS = 60_000
MARGIN_MS = 1_000
STREAM = "s"


@dataclass
class Source:
    """A shard of the stream: the arrivals of its records, in order."""

    born_ms: int
    parents: tuple[str, ...] = ()
    arrivals: list[int] = field(default_factory=list)
    closed: bool = False
    children: tuple[str, ...] = ()


@dataclass
class Turn:
    """What a host knows of a shard that it has."""

    number: int
    read: int
    draft: list[int] = field(default_factory=list)
    since_ms: int = 0
    tip_ms: int | None = None
    landed_ms: int = 0

    def mark(self) -> Mark | None:
        if self.draft:
            return Mark(self.number, self.draft[0])
        if self.tip_ms is not None:
            return Mark(self.number, self.tip_ms - MARGIN_MS)
        return Mark(self.number, self.landed_ms) if self.landed_ms else None


@dataclass
class Writer:
    """A host. It may be frozen or cut off from the store until a time, and dead for good."""

    turns: dict[str, Turn] = field(default_factory=dict)
    frozen_until_ms: int = 0
    away_until_ms: int = 0
    dead: bool = False
    marked_ms: int = -10_000


@dataclass
class World:
    random: Random
    now_ms: int = 100_000
    sources: dict[str, Source] = field(default_factory=dict)
    log: dict[str, list[Entry]] = field(default_factory=dict)
    arrivals: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    hosts: list[Writer] = field(default_factory=list)
    owners: dict[str, tuple[Writer, int]] = field(default_factory=dict)
    marks: dict[int, Host] = field(default_factory=dict)
    roster: Roster | None = None
    led_ms: int = 0

    def __post_init__(self) -> None:
        self.led_ms = self.now_ms + self.random.choice([0, 20_000])
        self.hosts = [Writer() for _ in range(self.random.randint(2, 3))]
        for number in range(self.random.randint(1, 3)):
            self.sources[f"{STREAM}/{number}"] = Source(self.now_ms)

    def step(self, *, faults: bool, traffic: bool = True) -> None:
        self.now_ms += STEP_MS
        if traffic:
            self._produce()
        if faults:
            self._fail()
        for number, host in enumerate(self.hosts):
            if not host.dead and host.frozen_until_ms <= self.now_ms:
                self._run(number, host)
        self._assign()
        if self.now_ms > self.led_ms and self.random.random() < 0.3:
            known = {key: source.parents for key, source in self.sources.items()}
            self.roster = Roster(known, FAILOVER_MS)

    def _produce(self) -> None:
        for key, source in list(self.sources.items()):
            if source.closed:
                continue
            rate = 0 if int(key[2]) == 1 and self.now_ms // 20_000 % 2 else self.random.randint(0, 4)
            new = sorted(self.now_ms - STEP_MS + self.random.randrange(STEP_MS) for _ in range(rate))
            source.arrivals += new
        if len(self.sources) < 10 and self.random.random() < 0.02:
            self._reshard()

    def _reshard(self) -> None:
        open_keys = [key for key, source in self.sources.items() if not source.closed]
        number = len(self.sources)
        pair = open_keys[: self.random.randint(1, 2)] if len(open_keys) > 1 else open_keys
        children = [f"{STREAM}/{number + each}" for each in range(1 if len(pair) > 1 else 2)]
        for key in pair:
            self.sources[key].closed, self.sources[key].children = True, tuple(children)
        for child in children:
            self.sources[child] = Source(self.now_ms, tuple(pair))

    def _fail(self) -> None:
        alive = [host for host in self.hosts if not host.dead]
        host = self.random.choice(alive)
        drawn = self.random.random()
        if drawn < 0.01 and len(alive) > 1:
            host.dead = True
            self.hosts.append(Writer())
        elif drawn < 0.02:
            host.frozen_until_ms = self.now_ms + self.random.randint(1_000, 30_000)
        elif drawn < 0.03:
            host.away_until_ms = self.now_ms + self.random.randint(1_000, 20_000)

    def _assign(self) -> None:
        """A lease is free when its shard may begin, or its owner has not renewed it for a while."""
        for key, source in self.sources.items():
            owner, renewed_ms = self.owners.get(key, (None, 0))
            if owner is not None and not owner.dead and owner.frozen_until_ms <= self.now_ms:
                renewed_ms = self.now_ms
                self.owners[key] = owner, renewed_ms
            # Who has let go reads its shard anew.
            free = owner is None or key not in owner.turns or self.now_ms - renewed_ms > FAILOVER_MS
            if not free or self._ended(key) or not all(map(self._ended, source.parents)):
                continue
            able = [each for each in self.hosts if not each.dead and each.frozen_until_ms <= self.now_ms]
            if able and self.random.random() < 0.5:
                host = self.random.choice(able)
                its = self.log.get(key, [])
                rows = sum(entry.rows for entry in its)
                host.turns[key] = Turn(len(its) - 1, rows, landed_ms=its[-1].last_ms if its else 0)
                self.owners[key] = host, self.now_ms

    def _ended(self, key: str) -> bool:
        its = self.log.get(key, [])
        return bool(its) and its[-1].children is not None

    def _run(self, number: int, host: Writer) -> None:
        reachable = host.away_until_ms <= self.now_ms
        for key in list(host.turns):
            self._read(key, host.turns[key])
            if reachable:
                self._land(key, host)
        due_ms = self.random.choice([1_000, 5_000])
        if reachable and self.now_ms - host.marked_ms >= due_ms:
            host.marked_ms = self.now_ms
            said = {key: mark for key, turn in host.turns.items() if (mark := turn.mark()) is not None}
            self.marks[number] = Host(self.now_ms, WINDOW_MS, said)

    def _read(self, key: str, turn: Turn) -> None:
        if self.random.random() < 0.3:
            return
        hidden_ms = self.random.randrange(MARGIN_MS)
        there = [each for each in self.sources[key].arrivals[turn.read :] if each <= self.now_ms - hidden_ms]
        some = there[: self.random.randint(1, 20)]
        if some and not turn.draft:
            turn.since_ms = self.now_ms
        turn.draft += some
        turn.read += len(some)
        turn.tip_ms = self.now_ms if some == there else None

    def _land(self, key: str, host: Writer) -> None:
        turn, source = host.turns[key], self.sources[key]
        over = source.closed and turn.read == len(source.arrivals)
        while turn.draft and (over or self.now_ms - turn.since_ms >= WINDOW_MS):
            some = [each for each in turn.draft if each - turn.draft[0] <= WINDOW_MS]
            if not self._create(key, host, some, None):
                return
            turn.draft = turn.draft[len(some) :]
        if over:
            self._create(key, host, [], [child.partition("/")[2] for child in source.children])

    def _create(self, key: str, host: Writer, some: list[int], children: list[str] | None) -> bool:
        turn, its = host.turns[key], self.log.setdefault(key, [])
        if len(its) != turn.number + 1 or self._ended(key):
            del host.turns[key]
            return False
        turn.number += 1
        turn.landed_ms = max([turn.landed_ms, *some])
        first_ms, last_ms = (some[0], max(some)) if some else (turn.landed_ms, turn.landed_ms)
        before = its[-1].last if its else "-1/0"
        last = f"{turn.read - len(turn.draft) + len(some)}/0" if some else before
        self.arrivals[key, turn.number] = some
        entry = Entry(turn.number, turn.number, before, last, len(some), 100 * len(some), 1, first_ms, last_ms, 1, children)  # fmt: skip
        its.append(entry)
        if children is not None:
            del host.turns[key]
        return True

    def shards(self) -> dict[str, Shard]:
        """Now and then a manifest is old."""
        found = {}
        for key, written in self.log.items():
            its = written[:-1] if self.random.random() < 0.02 else written
            place, children = Place(0), list[str]()
            for each in its:
                place, children = behind(each, place), each.children or []
            names = tuple(f"{STREAM}/{child}" for child in children)
            found[key] = Shard(place, names, 0, 0.0, marks=True)
        return found

    def descendants(self, keys: set[str]) -> set[str]:
        """With themselves."""
        found = set(keys)
        for key, source in self.sources.items():
            if found.intersection(source.parents):
                found.add(key)
        return found

    def entries(self, key: str, number: int) -> Iterator[Entry]:
        return iter([each for each in self.log[key] if each.number >= number])


@dataclass
class Reader:
    """Marks are read a step before the manifests."""

    world: World
    places: dict[str, Place] = field(default_factory=dict)
    h_ms: int = 0
    since: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    said: Statements = field(default_factory=Statements)
    horizon: Horizon = field(default_factory=Horizon)
    rows: int = 0

    def look(self) -> None:
        world = self.world
        rosters = {} if world.roster is None else {STREAM: world.roster}
        self.said = statements_of(list(world.marks.values()), rosters, world.now_ms)

    def batch(self, most_bytes: int | None) -> list[tuple[str, int]]:
        """The shards and arrivals of its rows."""
        world, shards = self.world, self.world.shards()
        self.since = stands_since(self.since, complete_ms(shards, self.said), world.now_ms)
        still = {key: world.now_ms - since_ms for key, (_, since_ms) in self.since.items()}
        self.horizon = horizon_ms(shards, WAIT_MS, self.said, still)
        self.left |= set(self.horizon.left)
        starts = {key: self.places.get(key, Place(0)) for key in shards}
        ends = plan(starts, shards, world.entries, most_bytes=most_bytes, horizon=self.horizon)
        rows = [
            (key, ms)
            for key, end in ends.items()
            for number in range(starts[key].number, end.number)
            for ms in world.arrivals[key, number]
        ]
        self.places = ends
        self.rows += len(rows)
        return rows

    def taken(self, rows: list[tuple[str, int]]) -> None:
        self.h_ms = max([self.h_ms, *(ms - self.said.reach_ms for _, ms in rows)])
