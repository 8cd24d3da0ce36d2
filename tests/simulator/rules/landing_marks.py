"""What hosts state of a landing log, and a reader that believes them: each mark is true, and no row comes too late.

Owns the landers of the hosts, as far as they write marks and rosters, and a reader that plans as Spark's data source does.
Knows nothing of how records become segments (`landing_program`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

import msgspec

from kcl_landing.log import MANIFESTS, MARKS, ROSTERS, Manifest, Mark, Marks, manifest_path
from kcl_landing.manifests import ShardLog
from kcl_landing.marks import HostObjects, Rosters, merged
from kcl_spark_source import (
    Entry,
    Host,
    Place,
    Roster,
    Shard,
    Since,
    Statements,
    behind,
    host_of,
    plan,
    roster_of,
    stands_since,
    statements_of,
)
from kcl_spark_source import complete_ms as complete_of
from kcl_spark_source import horizon_ms as horizon_of
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S
from tests.simulator.fleet.stream import STREAM_NAME
from tests.simulator.fleet.workers import SimWorker
from tests.simulator.loop import current_loop, now
from tests.simulator.rules.landing import Fate, Landing, Segment, read_footer
from tests.simulator.trace import Trace
from tests.simulator.violation import report

_TICK_S: Final = 0.2
_WAYS_S: Final = (0.0005, 0.05)
_SLOW_S: Final = (0.5, 20.0)
_ROSTER_S: Final = 60.0
_DISORDER_MS: Final = 1_000
"""By which a watermark's delay is longer than a batch reaches beyond the horizon."""
_READS_S: Final = (0.5, 3.0)
_BETWEEN_S: Final = (0.0, 1.0)
_RESTARTS: Final = 0.02


class HostLander:
    """The lander of one host, as far as it writes marks. It lives a little longer than its worker."""

    def __init__(self, worker: SimWorker, landing: Landing, chance: Chance, trace: Trace) -> None:
        def log_event(level: str, event: str, /, **fields: object) -> None:
            trace.note("lander", event, f"{level} {fields}")

        self.worker = worker
        self.rosters = Rosters(log_event)
        self._told: tuple[float, bytes] = (-_ROSTER_S, b"")
        self._landing = landing
        self._chance = chance
        self._said: dict[tuple[str, int], Mark] = {}
        self._objects = HostObjects(landing.info, worker.worker_id, landing.plan.window_ms, self.rosters)
        self._is_waiting = False
        self._lives_s = chance.uniform(0.0, 3.0)
        self._tick()

    @property
    def is_over(self) -> bool:
        """Whether it writes nothing any more."""
        life = self.worker.life
        is_dead = life.died_s is not None and now() > life.died_s + self._lives_s
        return is_dead or self.worker.ended.is_done

    def tell(self, line: bytes) -> None:
        """As the daemon does: what is new, and once a minute what it said before."""
        told_s, told = self._told
        if line != told or now() - told_s >= _ROSTER_S:
            self._told = now(), line
            self.rosters.hear(line)

    def _tick(self) -> None:
        if self.is_over:
            return
        current_loop().after(_TICK_S, self._tick)
        if self.worker.children.are_paused:
            return
        for stream, shard_id in sorted(self.rosters.take_parents()):
            self._mend_end(stream, shard_id)
        if self._is_waiting:
            return
        put = self._objects.next(now(), self.worker.clock.wall_ms(), self._stated)
        if put is not None:
            self._send(*put)

    def _mend_end(self, stream: str, shard_id: str) -> None:
        if not self._landing.is_full:
            ShardLog(self._landing, self._landing.info, stream, shard_id, read_footer).mend_end()

    def _stated(self) -> dict[str, Mark]:
        writing = self._landing.writing
        marks = (
            {f"{STREAM_NAME}/{child.identity.shard_id}": mark}
            for child in self.worker.children.running
            if child.identity.number in writing and (mark := writing[child.identity.number].mark) is not None
        )
        return merged(marks)

    def _send(self, path: str, content: bytes) -> None:
        landing, chance = self._landing, self._chance
        if path.startswith(MARKS):
            self._check(msgspec.json.decode(content, type=Marks))
        fate = landing.fate(chance)
        there_s, back_s = (chance.uniform(*(_SLOW_S if fate is Fate.SLOW else _WAYS_S)) for _ in range(2))
        belated_s = chance.uniform(0.05, 60.0) if fate is Fate.BELATED else 0.0
        is_lost = fate in {Fate.REFUSED, Fate.LOST} or landing.is_full
        if not is_lost:
            current_loop().after(there_s + belated_s, landing.replace, path, content)
        is_well = fate in {Fate.DONE, Fate.SLOW} and not is_lost
        self._is_waiting = True
        current_loop().after(there_s + back_s, self._answered, is_well)

    def _answered(self, is_well: bool) -> None:
        self._is_waiting = False
        if is_well:
            self._objects.done()
        else:
            self._objects.trouble(now())

    def _check(self, marks: Marks) -> None:
        for key, mark in marks.shards.items():
            shard_id = key.partition("/")[2]
            self._landing.stated(shard_id, mark, f"{marks.worker} at {now():.3f} s")
            before = self._said.get((key, mark.token), mark)
            if mark.number < before.number or mark.complete_ms < before.complete_ms:
                report("mark_went_back", f"{marks.worker} states {mark} of {key}, and said {before}")
            self._said[key, mark.token] = mark


class MarksReader:
    """Follows the log as the data source `kcl` does: marks and rosters first, then manifests, then a batch."""

    def __init__(self, landing: Landing, chance: Chance, trace: Trace) -> None:
        self._landing = landing
        self._chance = chance
        self._trace = trace
        self._tolerance_ms = _DISORDER_MS if landing.plan.jitter_ms else 0
        self._starts: dict[str, Place] = {}
        self._ends: dict[str, Place] = {}
        self._since: Since = {}
        self._left: set[str] = set()
        self._known: set[str] | None = None
        """The shards that were there when a stream without a roster had been waited for long enough."""
        self._parents: dict[str, set[str]] = {}
        self._most_ms = 0
        """The largest `h` of a batch."""
        self._reach_ms = Statements(window_ms=landing.plan.window_ms).reach_ms
        self.rows = self.batches = self.late = self.held = 0
        self._read()

    def _read(self) -> None:
        hosts, rosters = list[Host](), dict[str, Roster]()
        for path, content in self._objects(MARKS):
            try:
                hosts.append(host_of(content, self._landing.info.log_id))
            except ValueError as error:
                report("mark_refused", f"{path}: {error}")
            if hosts[-1].refused:
                report("mark_refused", f"{path}: {hosts[-1].refused}")
        for path, content in self._objects(ROSTERS):
            stream = path.rpartition("/")[2].removesuffix(".json")
            rosters[stream] = roster_of(content, self._landing.info.log_id, stream)
        said = statements_of(hosts, rosters, (EPOCH_S + now()) * 1000)
        current_loop().after(self._chance.uniform(*_BETWEEN_S), self._plan, said)

    def _objects(self, folder: str) -> Iterator[tuple[str, bytes]]:
        for each in self._landing.listing(folder):
            yield each.path, self._landing.read(each.path)

    def _plan(self, said: Statements) -> None:
        current_loop().after(self._chance.uniform(*_READS_S), self._read)
        shards = self._shards()
        if not shards:
            return
        if self._chance.happens(_RESTARTS):
            self._since = {}
        self._since = stands_since(self._since, complete_of(shards, said), now())
        still_ms = {key: (now() - since_s) * 1000 for key, (_, since_s) in self._since.items()}
        wait_ms = round(self._landing.plan.left_after_s * 1000)
        horizon = horizon_of(shards, wait_ms, said, still_ms)
        self._left |= {*horizon.left}
        if self._known is None and f"{STREAM_NAME}/*" in horizon.left:
            self._known = {*shards}
        starts = {key: self._starts.get(key, Place(0)) for key in shards}
        most_bytes = self._chance.pick((None, None, 400))
        reached = plan(starts, shards, self._entries, most_bytes=most_bytes, horizon=horizon)
        if reached != starts:
            self._take(starts, reached)
        elif horizon.holder:
            self.held += 1
        self._starts = {**self._starts, **reached}

    def _shards(self) -> dict[str, Shard]:
        found = {}
        for path in [each.path for each in self._landing.listing(f"{MANIFESTS}/{STREAM_NAME}")]:
            shard_id = path.rpartition("/")[2].removesuffix(".json")
            if path != manifest_path(STREAM_NAME, shard_id):
                continue
            manifest = self._manifest(path)
            key = f"{STREAM_NAME}/{shard_id}"
            end = self._ends.get(key, Place(0))
            for each in manifest.entries:
                if each.to >= end.number:
                    end = behind(_as_read(each), end)
            self._ends[key] = end
            children = tuple(f"{STREAM_NAME}/{child}" for child in _children(manifest))
            for child in children:
                self._parents.setdefault(child, set()).add(key)
            silent_ms = (EPOCH_S + now()) * 1000 - manifest.at_ms
            found[key] = Shard(end, children, manifest.behind_ms, silent_ms, marks=manifest.marks)
        return found

    def _manifest(self, path: str) -> Manifest:
        landing = self._landing
        content = landing.read_before(path) if landing.is_old(path, self._chance) else landing.read(path)
        return msgspec.json.decode(content, type=Manifest)

    def _entries(self, key: str, number: int) -> Iterator[Entry]:
        for segment in self._segments(key)[number:]:
            footer = segment.footer
            yield Entry(
                footer.number,
                footer.to,
                footer.after,
                footer.last,
                footer.rows,
                40 * footer.rows,
                0,
                footer.first_ms,
                footer.last_ms,
                footer.token,
                None if footer.children is None else list(footer.children),
            )

    def _segments(self, key: str) -> list[Segment]:
        return self._landing.segments_of(key.partition("/")[2])

    def _take(self, starts: Mapping[str, Place], reached: Mapping[str, Place]) -> None:
        newest_ms = rows = 0
        for key, place in reached.items():
            taken = self._segments(key)[starts[key].number : place.number]
            arrivals = [
                each for each in chain.from_iterable(one.arrivals_ms for one in taken) if each is not None
            ]
            rows += len(arrivals)
            if not arrivals:
                continue
            late = [each for each in arrivals if each < self._most_ms - self._tolerance_ms]
            newest_ms = max(newest_ms, max(arrivals))  # noqa: PLW3301
            if late and not self._may_be_late(key):
                report(
                    "older_than_horizon",
                    f"a batch at {now():.3f} s has {len(late)} rows of {key} from {min(late)} on; "
                    f"an earlier one went to {self._most_ms}",
                )
            self.late += len(late)
        self.rows, self.batches = self.rows + rows, self.batches + 1
        self._most_ms = max(self._most_ms, newest_ms - self._reach_ms)
        self._trace.note(
            "reader", "batch", f"{rows} rows, up to {newest_ms}, horizon of windows {self._most_ms}"
        )

    def _may_be_late(self, key: str) -> bool:
        is_new = self._known is not None and key not in self._known
        return key in self._left or is_new or any(map(self._may_be_late, self._parents.get(key, ())))

    @property
    def is_done(self) -> bool:
        """Whether it has taken every record that is in the log."""
        in_log = sum(len(each.rows) for key in self._ends for each in self._segments(key))
        return self.rows == in_log


def _as_read(entry: object) -> Entry:
    return Entry(*msgspec.to_builtins(entry))


def _children(manifest: Manifest) -> tuple[str, ...]:
    return (manifest.entries[-1].children or ()) if manifest.entries else ()


class LandingMarks:
    """The landers of all hosts, what their daemons tell them, and the reader."""

    def __init__(
        self, landing: Landing, chance: Chance, trace: Trace, workers: Callable[[], list[SimWorker]]
    ) -> None:
        self._landing = landing
        self._chance = chance
        self._trace = trace
        self._workers = workers
        self._landers: dict[int, HostLander] = {}
        self.reader = MarksReader(landing, chance.fork("reader"), trace)
        self._look()

    def _look(self) -> None:
        """Who is new gets a lander; who leads tells his one the shards, when they changed and once a minute."""
        current_loop().after(1.0, self._look)
        for number, worker in enumerate(self._workers()):
            if number not in self._landers:
                chance = self._chance.fork(f"lander-{number}")
                self._landers[number] = HostLander(worker, self._landing, chance, self._trace)
            lander = self._landers[number]
            if worker.is_living and not worker.life.is_paused and (line := worker.roster()) is not None:
                lander.tell(line)
