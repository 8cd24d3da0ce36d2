"""What the status shows: shard states, lineage, readiness, tables, and throughput history."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple

from kcl_daemon.coverage import UnreadShard, is_lasting, unread_lines
from kcl_daemon.metrics.metric import Shown, StatusTable, Table, words
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.progress.watchdog import CLOCK_WRONG_S, ShardState, state_of
from kcl_daemon.telemetry.shards import FIGURES, LANES, LanedShard, LaneView, ShardView
from kcl_daemon.telemetry.snapshot import LeaseView, MoveView, Snapshot, WorkerView
from kcl_daemon.text import (
    NONE,
    about,
    counted,
    duration,
    on_one_line,
    rate,
    short_number,
    short_shard,
    short_shards,
)

SHARD_END: Final = "SHARD_END"
LATE_S: Final = 60.0
"""A shard further behind is in trouble."""
CHANGES_S: Final = 15.0
"""Leases change their owner for so long, without trouble."""
MAX_DEPTH: Final = 8
_NAMED_MOST = 5
MAX_MOVES: Final = 8
MAX_SAMPLES: Final = 40
WATCHED_EVERY_S: Final = 2.0
UNWATCHED_EVERY_S: Final = 15.0
WATCHED_FOR_S: Final = 10.0
"""A viewer counts as present this long after a poll."""


class DisplayState(Enum):
    FAILING = "failing"
    STALLED = "stalled"
    READING = "reading"
    WAITING = "waiting"
    STARTING = "starting"
    PAUSED = "paused"
    AT_TIP = "caught up"
    ELSEWHERE = "elsewhere"
    HANDING_OFF = "in handoff"
    UNSETTLED = "changing"
    NOBODY = "unowned"
    UNREAD = "unread"
    FINISHED = "finished"


_BY_TONE: Final = {
    "bad": (DisplayState.FAILING, DisplayState.STALLED, DisplayState.NOBODY, DisplayState.UNREAD),
    "busy": (
        DisplayState.HANDING_OFF,
        DisplayState.UNSETTLED,
        DisplayState.STARTING,
        DisplayState.WAITING,
        DisplayState.PAUSED,
    ),
    "good": (DisplayState.READING, DisplayState.AT_TIP),
    "calm": (DisplayState.ELSEWHERE, DisplayState.FINISHED),
}
TONES: Final = {state: tone for tone, states in _BY_TONE.items() for state in states}


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """`held` None: by another worker. `unread`: nobody reads it, as the leader sees. `stream`: a name, or an identity if several share it; None: the only one."""

    key: str
    shard_id: str
    stream: str | None
    parents: tuple[str, ...]
    checkpoint: str
    owner: str | None
    next_owner: str | None
    state: DisplayState
    held: ShardView | None
    stream_id: str | None
    unread: UnreadShard | None = None


def shard_entries(snapshot: Snapshot) -> list[ShardEntry]:
    return with_distinct_names(list(entries_of_snapshot(snapshot)))


def entries_of_snapshot(snapshot: Snapshot) -> Iterator[ShardEntry]:
    """Finish the list with `with_distinct_names`."""
    held = {shard.key: shard for shard in snapshot.shards}
    unread = {each.key: each for each in snapshot.unread or () if each.seconds >= CHANGES_S}
    for lease in snapshot.fleet:
        yield _entry(lease, held.pop(lease.key, None), snapshot.worker_id, unread.get(lease.key))
    for shard in held.values():
        yield _entry(None, shard, snapshot.worker_id)


def with_distinct_names(known: list[ShardEntry]) -> list[ShardEntry]:
    """Streams of two accounts, or a deleted stream and its successor, may share a name."""
    names: dict[str, set[str | None]] = defaultdict(set)
    for entry in known:
        if entry.stream is not None:
            names[entry.stream].add(entry.stream_id)
    shared = {name for name, found in names.items() if len(found) > 1}
    if not shared:
        return known
    return [
        replace(entry, stream=entry.stream_id or entry.stream) if entry.stream in shared else entry
        for entry in known
    ]


def _entry(
    lease: LeaseView | None, held: ShardView | None, me: str, unread: UnreadShard | None = None
) -> ShardEntry:
    """What this worker knows of its own lease is newer than the table."""
    row = held or lease
    assert row is not None
    return ShardEntry(
        key=row.key,
        shard_id=row.shard_id,
        stream=row.stream,
        parents=row.parents,
        checkpoint=row.checkpoint,
        owner=me if held is not None or lease is None else lease.owner,
        next_owner=None if lease is None else lease.next_owner,
        state=DisplayState.UNREAD if unread is not None and held is None else _state(lease, held, me),
        held=held,
        stream_id=row.stream_id,
        unread=unread,
    )


def _state(lease: LeaseView | None, held: ShardView | None, me: str) -> DisplayState:
    moves = lease is not None and lease.next_owner is not None
    if held is not None:
        finished = held.checkpoint == SHARD_END
        state = state_of(held.cause, failures=held.failures, stalled=held.stalled, finished=finished)
        if not moves or state in {ShardState.FAILING, ShardState.STALLED}:
            return DisplayState(state.value.replace("_", " "))
    if moves:
        return DisplayState.HANDING_OFF
    if lease is None or lease.checkpoint == SHARD_END:
        return DisplayState.FINISHED
    if lease.owner == me:
        return DisplayState.UNSETTLED  # the table was read just before a change
    return DisplayState.NOBODY if lease.owner is None else DisplayState.ELSEWHERE


def count_states(known: Sequence[ShardEntry]) -> Counter[DisplayState]:
    return Counter(entry.state for entry in known)


@dataclass(frozen=True, slots=True)
class LineageEntry:
    """`depth` is 0 without a known parent. `lead` is drawn before the name."""

    entry: ShardEntry
    depth: int
    lead: str


_TROUBLE: Final = {
    DisplayState.FAILING: 0,
    DisplayState.STALLED: 1,
    DisplayState.UNREAD: 2,
    DisplayState.NOBODY: 2,
    DisplayState.PAUSED: 3,
    DisplayState.UNSETTLED: 3,
}


def trouble_first(known: Sequence[ShardEntry]) -> Iterator[LineageEntry]:
    troubled = sorted((entry for entry in known if is_trouble(entry)), key=urgency)
    yield from (LineageEntry(entry, 0, "") for entry in troubled)
    yield from lineage([entry for entry in known if not is_trouble(entry)])


def is_trouble(entry: ShardEntry) -> bool:
    return entry.state in _TROUBLE or _lag_s(entry.held) >= LATE_S


def urgency(entry: ShardEntry) -> tuple[int, float, str]:
    last = 6 if entry.state is DisplayState.FINISHED else 5 if entry.held is None else 4
    return _TROUBLE.get(entry.state, last), -_lag_s(entry.held), entry.key


def _lag_s(held: ShardView | None) -> float:
    return 0.0 if held is None else held.lag_s or 0.0


def lineage(known: Sequence[ShardEntry]) -> Iterator[LineageEntry]:
    """Each once, parents before children; a shard with two parents is below the first by name."""
    streams: dict[tuple[str, str], list[ShardEntry]] = defaultdict(list)
    for entry in sorted(known, key=lambda entry: (entry.shard_id, entry.key)):
        streams[entry.stream or "", entry.stream_id or ""].append(entry)
    for stream in sorted(streams):
        entries = {entry.key: entry for entry in streams[stream]}
        keys = {entry.shard_id: key for key, entry in entries.items()}
        parents = {
            key: [keys[parent] for parent in sorted(entry.parents) if parent in keys][:1]
            for key, entry in entries.items()
        }
        for branch in draw_lineage(parents):
            if not branch.again:
                yield LineageEntry(entries[branch.name], branch.depth, branch.lead)


class Branch(NamedTuple):
    """One line of a lineage; `again`: the shard is already drawn, below another parent."""

    name: str
    depth: int
    lead: str
    again: bool


def draw_lineage(parents: Mapping[str, Sequence[str]]) -> Iterator[Branch]:
    """Parents before children, in the order of `parents`; an explicit stack, for there may be thousands of generations."""
    below: dict[str, list[str]] = defaultdict(list)
    for name, above in parents.items():
        for parent in above:
            below[parent].append(name)
    drawn: set[str] = set()
    # Damaged rows may name each other as parents, so that no root leads to them.
    for root in (*(name for name in parents if not parents[name]), *parents):
        stack = [] if root in drawn else [(root, 0, "", "")]
        while stack:
            name, depth, lead, indent = stack.pop()
            yield Branch(name, depth, lead, name in drawn)
            children: Sequence[str] = () if name in drawn else below.get(name, ())
            drawn.add(name)
            for number, child in reversed(list(enumerate(children, start=1))):
                first, rest = ("└─ ", "   ") if number == len(children) else ("├─ ", "│  ")
                inner = f"{indent}{rest}" if depth + 1 < MAX_DEPTH else indent
                stack.append((child, depth + 1, f"{indent}{first}", inner))


def not_ready(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(_reasons(snapshot))


def _reasons(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.stopping:
        yield "it is stopping"
    elif not snapshot.started:
        yield "it has not started yet: tables or streams do not exist"
    trouble = None if snapshot.landing is None else snapshot.landing.trouble
    if trouble is not None and trouble.since_s >= LATE_S:
        yield f"the landing store takes nothing: {trouble}"
    yield from _read_by_nobody(snapshot, is_reason=True)
    failing = [shard for shard in snapshot.shards if shard.is_failing]
    stalled = [shard for shard in snapshot.shards if shard.stalled and not shard.is_failing]
    yield from _grouped(failing, lambda shard: shard.last_error, ("is failing", "are failing"), failure_of)
    does = ("makes no progress", "make no progress")
    yield from _grouped(stalled, lambda each: (each.cause, each.detail), does, lambda each: each.waits_for)


def _read_by_nobody(snapshot: Snapshot, *, is_reason: bool) -> Iterator[str]:
    here = () if is_reason else {"paused", *(shard.key for shard in snapshot.shards)}
    found = (
        each
        for each in snapshot.unread or ()
        if is_lasting(each) is is_reason and each.key not in here and each.cause not in here
    )
    yield from (f"nobody reads {line}" for line in unread_lines(found))


def told_by_leader(snapshot: Snapshot) -> tuple[str, ...]:
    capacity = snapshot.capacity
    if snapshot.leads or capacity is None or snapshot.capacity_age_s >= 2 * LATE_S:
        return ()
    return tuple(on_one_line(f"nobody reads {line}, says worker {capacity.by}") for line in capacity.unread)


def needs_attention(snapshot: Snapshot) -> Iterator[str]:
    """Beside `not_ready`."""
    yield from _read_by_nobody(snapshot, is_reason=False)
    yield from told_by_leader(snapshot)
    yield from (hold.text for hold in snapshot.holds)
    held, owned = len(snapshot.shards), _owned(snapshot)
    if owned > held:
        yield f"this worker holds {held} of the {owned} leases that name it: assigned just now, or DynamoDB takes no writes"
    if snapshot.leaderless_s is not None:
        yield f"no worker leads for {about(snapshot.leaderless_s)}: nobody assigns leases"
    if abs(ahead_s := snapshot.clock_ahead_s or 0.0) > CLOCK_WRONG_S:
        yield f"the clock of this host is {about(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} that of AWS: set it (NTP)"
    elif arrive_s := max((shard.ahead_s for shard in snapshot.shards), default=0.0):
        yield f"records arrive {duration(arrive_s)} in the future by the clock of this host: ages are too small by this"


def _owned(snapshot: Snapshot) -> int:
    return next((each.leases for each in snapshot.workers if each.worker_id == snapshot.worker_id), 0)


def held_text(snapshot: Snapshot) -> str:
    held, owned = len(snapshot.shards), _owned(snapshot)
    return f"{held} of its {owned}" if owned > held else str(held)


def _grouped(
    shards: Sequence[ShardView],
    cause: Callable[[ShardView], object],
    does: tuple[str, str],
    words: Callable[[ShardView], str],
) -> Iterator[str]:
    """One line for the shards of one cause, in the words of the one that waits longest. The most shards come first."""
    groups: dict[object, list[ShardView]] = {}
    for shard in sorted(shards, key=lambda each: -each.idle_s):
        groups.setdefault(cause(shard), []).append(shard)
    found = sorted(groups.values(), key=lambda group: -len(group))
    for group in found[:_NAMED_MOST]:
        names = sorted(shard.key for shard in group)
        who = f"{names[0]} {does[0]}" if len(names) == 1 else f"{short_shards(names)} {does[1]}"
        yield f"{who}: {words(group[0])}"
    if more := sum(map(len, found[_NAMED_MOST:])):
        yield f"{counted(more, 'more shard')} {does[more > 1]}, for other causes"


def failure_of(shard: ShardView) -> str:
    next_try = "" if shard.next_try_s is None else f", next try in {about(shard.next_try_s)}"
    said = f" ({shard.stderr_tail[-1]})" if shard.stderr_tail else ""
    letters = f"; {shard.waits_for}" if shard.cause is WaitReason.LETTERS else ""
    return f"{shard.failures} in a row{next_try}: {shard.last_error}{said}{letters}"


def in_words(snapshot: Snapshot, states: Counter[DisplayState]) -> str:
    """For screen readers: without figures that change."""
    held = held_text(snapshot)
    shards = "1 shard" if held == "1" else f"{held} shards"
    trouble = "".join(
        f", {states[state]} {state.value}"
        for state in (DisplayState.FAILING, DisplayState.STALLED, DisplayState.UNREAD, DisplayState.PAUSED)
        if states[state]
    )
    leader = "is the leader" if snapshot.leads else "is a follower"
    return f"This worker is {state_text(snapshot)}, {leader} and holds {shards}{trouble}."


def state_text(snapshot: Snapshot) -> str:
    if snapshot.stopping or not snapshot.started:
        return "stopping" if snapshot.stopping else "starting"
    return "not ready" if not_ready(snapshot) else "running"


def headline(snapshot: Snapshot, states: Counter[DisplayState]) -> tuple[tuple[str, str], ...]:
    return (
        ("State", state_text(snapshot)),
        ("Worst lag", _worst_lag(snapshot.shards)),
        ("Throughput", rate(sum(shard.bytes_per_s for shard in snapshot.shards))),
        ("Failing", str(states[DisplayState.FAILING])),
        ("Stalled", str(states[DisplayState.STALLED])),
        ("Unread", NONE if snapshot.unread is None else str(len(snapshot.unread))),
        ("Paused", str(states[DisplayState.PAUSED])),
    )


def _worst_lag(shards: Sequence[ShardView]) -> str:
    late = max((shard for shard in shards if shard.lag_s is not None), key=_lag_s, default=None)
    if late is None or not late.lag_s:
        return NONE if late is None else duration(0)
    number = short_shard(late.shard_id)
    name = number if late.stream is None else f"{number} of {late.stream}"
    return f"{duration(late.lag_s)} (shard {name})"


def time_text(snapshot: Snapshot) -> str:
    if not snapshot.at_ms:
        return ""
    return f"{datetime.fromtimestamp(snapshot.at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def leader_text(snapshot: Snapshot) -> str:
    if snapshot.leads:
        return f"{snapshot.worker_id} (this worker)"
    if snapshot.leaderless_s is not None:
        return f"nobody for {about(snapshot.leaderless_s)}"
    return snapshot.leader or "not known"


def capacity_text(snapshot: Snapshot) -> str:
    """In full; what is not of now says how old it is."""
    capacity, age_s = snapshot.capacity, snapshot.capacity_age_s
    if capacity is None:
        return ""
    said = capacity.sentence
    if capacity.wanted != capacity.workers and capacity.reason not in said:
        said = f"{said}; {counted(capacity.wanted, 'worker')} wanted: {capacity.reason}"
    return said if age_s < 2 * LATE_S else f"{said} (said {about(age_s)} ago by {capacity.by})"


def _shown_of_held(figure: Shown[ShardView]) -> Shown[ShardEntry]:
    cell = figure.cell
    return Shown(
        figure.heading,
        text=lambda entry: _of_nobody(entry, figure) if entry.held is None else cell(entry.held),
        number=figure.number,
        shortened=figure.shortened,
        drops=figure.drops,
        name=figure.name,
    )


def _of_nobody(entry: ShardEntry, figure: Shown[ShardView]) -> str:
    unread = entry.unread
    if figure.name != "waits_for":
        return ""
    if unread is None:
        return "lease (assigned to this worker, not taken)" if entry.state is DisplayState.UNSETTLED else ""
    return f"{unread.cause} for {about(unread.seconds)} ({unread.why})"


def _reader(entry: ShardEntry) -> str:
    owner = entry.owner or NONE
    return owner if entry.next_owner is None else f"{owner}, then {entry.next_owner}"


def _checkpoint(entry: ShardEntry) -> str:
    return short_number(entry.checkpoint, entry.shard_id)


SHARDS: Final[Table[ShardEntry]] = Table(
    "Shards",
    (
        words("Shard", lambda entry: entry.shard_id, name="shard"),
        words("State", lambda entry: entry.state.value, name="state"),
        *map(_shown_of_held, FIGURES.shown),
        words("Checkpoint", _checkpoint, drops=1, name="checkpoint"),
        words("Worker", _reader, drops=2, name="worker"),
    ),
    "no lease is known",
)


class KnownWorker(NamedTuple):
    worker: WorkerView
    by: Snapshot

    @property
    def role(self) -> str:
        is_me = self.worker.worker_id == self.by.worker_id
        leads = self.by.leads if is_me else self.worker.worker_id == self.by.leader
        return f"{'leader' if leads else 'follower'}{', this worker' if is_me else ''}"


def cpu_text(worker: WorkerView) -> str:
    known = NONE if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %"
    return "failed" if worker.cpu_failed else known


def reported_text(worker: WorkerView) -> str:
    return NONE if worker.reported_s is None else f"{about(worker.reported_s)} ago"


WORKERS: Final[Table[KnownWorker]] = Table(
    "Workers",
    (
        words("Worker", lambda known: known.worker.worker_id),
        words("Role", lambda known: known.role, shortened=True),
        Shown("Leases", lambda known: known.worker.leases),
        Shown("CPU", text=lambda known: cpu_text(known.worker)),
        Shown("Last report", text=lambda known: reported_text(known.worker)),
    ),
    "the tables were not read yet",
)


def worker_table(snapshot: Snapshot) -> StatusTable:
    workers = sorted(snapshot.workers, key=lambda each: each.worker_id)
    return WORKERS.of(KnownWorker(each, snapshot) for each in workers)


def shards_with_children(snapshot: Snapshot) -> Iterator[ShardView]:
    """Sorted; each lane of a shard counts as one, named in its key."""
    for shard in sorted(snapshot.shards, key=lambda shard: shard.key):
        for lane in (None,) if shard.lanes is None else shard.lanes.lanes:
            worked = shard if lane is None else lane
            if worked.child is not None or worked.failures:
                yield shard if lane is None else _as_shard(shard, lane)


def _as_shard(shard: ShardView, lane: LaneView) -> ShardView:
    return replace(
        shard,
        key=f"{shard.key} lane {lane.number}",
        child=lane.child,
        failures=lane.failures,
        restarts=lane.restarts,
        stderr_tail=lane.stderr_tail,
    )


def lane_table(snapshot: Snapshot) -> StatusTable | None:
    found = [LanedShard(shard, shard.lanes) for shard in snapshot.shards if shard.lanes is not None]
    found.sort(key=lambda each: (-(each.lanes.held_s or 0.0), each.shard.key))
    return LANES.of(found) if found else None


class SetAside(NamedTuple):
    shard: ShardView
    cause: str
    records: int


SET_ASIDE: Final[Table[SetAside]] = Table(
    "Records set aside",
    (
        words("Shard", lambda aside: aside.shard.key),
        words("Cause", lambda aside: aside.cause),
        Shown("Records", lambda aside: aside.records),
        words("Last reason", lambda aside: aside.shard.last_set_aside),
    ),
)


def set_aside_table(snapshot: Snapshot) -> StatusTable | None:
    found = [SetAside(shard, *each) for shard in snapshot.shards for each in shard.set_aside.items()]
    found.sort(key=lambda each: (-each.records, each.shard.key, each.cause))
    return SET_ASIDE.of(found) if found else None


def _reason(move: MoveView) -> str:
    name, colon, reason = move.reason.partition(": ")
    return reason if colon and "shardId-" in name and " " not in name else move.reason


MOVES: Final[Table[MoveView]] = Table(
    "Last moves",
    (
        Shown("When", text=lambda move: f"{about(move.ago_s)} ago"),
        words("Lease", lambda move: move.key),
        words("Reason", _reason, shortened=True),
    ),
    "none by this worker",
)


def moves_table(snapshot: Snapshot) -> StatusTable:
    return MOVES.of(snapshot.moves[:MAX_MOVES])


class ThroughputHistory:
    """The last `MAX_SAMPLES` samples: when, and bytes a second by lease key."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=MAX_SAMPLES)
        self._polled_s: float | None = None

    def checked(self, now_s: float) -> None:
        self._polled_s = now_s

    def is_due(self, now_s: float, *, late_s: float = 0.0) -> bool:
        """`late_s` below 0 allows an early sample."""
        return not self._samples or now_s - self._samples[-1][0] >= self.every_s(now_s) + late_s

    def every_s(self, now_s: float) -> float:
        watched = self._polled_s is not None and now_s - self._polled_s < WATCHED_FOR_S
        return WATCHED_EVERY_S if watched else UNWATCHED_EVERY_S

    def remember(self, snapshot: Snapshot, now_s: float) -> None:
        self._samples.append((now_s, {shard.key: shard.bytes_per_s for shard in snapshot.shards}))

    def ages_s(self, now_s: float) -> list[float]:
        return [now_s - at_s for at_s, _ in self._samples]

    def values(self, key: str) -> list[float | None]:
        """Bytes a second; None if the lease was not held."""
        return [bytes_per_s.get(key) for _, bytes_per_s in self._samples]

    def of(self, key: str, now_s: float) -> list[tuple[float, float]]:
        """Seconds ago and bytes a second, oldest first."""
        both = zip(self.ages_s(now_s), self.values(key), strict=True)
        return [(age_s, value) for age_s, value in both if value is not None]
