"""A fleet of production workers in virtual time, its watcher, and a Prometheus that scrapes them all.

The samples are what the daemon and `kcl-daemon watch` answer at /metrics; a process that is dead or stopped answers nothing.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

import anyio

from kcl_daemon.admin.site import FORMAT, StatusDocument
from kcl_daemon.app import Adapters, Application, streams_of
from kcl_daemon.cli.application import Application as Outside
from kcl_daemon.cli.application import no_log, open_existing
from kcl_daemon.cli.status_view import build_view, plain_lines
from kcl_daemon.cli.watch.command import _Watch, watch_lines
from kcl_daemon.cli.watch.look import Watched
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import KclError
from kcl_daemon.exporters import MeteredWorker, telemetry_of
from kcl_daemon.leases.row import Row
from kcl_daemon.ports import Kinesis, Table, Tables
from kcl_daemon.telemetry.prometheus import PrometheusExposition
from kcl_daemon.telemetry.snapshot import ResidentMemory, Snapshot, Snapshots
from kcl_local.kinesis.model import KinesisModel
from tests.sick.account import Account, AnyLanding
from tests.sick.network import WATCHER, Refusal, Refusals, SickNetwork
from tests.sick.promql import Store, Vector, samples
from tests.sick.rules import metrics
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S, SimClock
from tests.simulator.faults.behaviour import Behaviour
from tests.simulator.faults.life import Life
from tests.simulator.faults.network import Network
from tests.simulator.faults.ports import FaultyKinesis, FaultyTable, WriteObserver
from tests.simulator.fleet.stream import STREAM_NAME
from tests.simulator.fleet.workers import Fleet, SimWorker, worker_settings
from tests.simulator.loop import at_once, current_loop, now
from tests.simulator.memory.fan_out import MemoryFanOut
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.simulator.memory.table import MemoryTable
from tests.simulator.plans.plan import Plan
from tests.simulator.rules.truth import Truth
from tests.simulator.trace import Trace

JOB: Final = "orders"
MIB: Final = 1 << 20
SCRAPED_EVERY_S: Final = 15.0
_SEEN_EVERY_S: Final = 30.0
_RESTART_S: Final = 5.0
_TICK_S: Final = 1.0
_QUICK: Final = Behaviour(process_s=(0.02, 0.1))


class HeardTrace(Trace):
    """Remembers what is logged, by event, and does not judge it."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[float, str]] = []
        self._heard_s: dict[str, float] = {}

    def log(
        self, who: str, level: str, event: str, *, bound: dict[str, object], fields: dict[str, object]
    ) -> None:
        """Keeps a text that was not heard in the last seconds."""
        if level in {"warning", "error"}:
            told = f"{level.upper()} {event} " + " ".join(f"{k}={v}" for k, v in (bound | fields).items())
            if now() - self._heard_s.get(told, -_SEEN_EVERY_S) >= _SEEN_EVERY_S:
                self.heard.append((now(), told))
                self._heard_s[told] = now()


class SimMemory(ResidentMemory):
    """Of children that keep `kept_bytes_per_s` of what they get, from `since_s` on."""

    kept_bytes_per_s = 0
    since_s = 0.0

    def of(self, pids: Iterable[int]) -> dict[int, int | None]:
        """What they use now."""
        return dict.fromkeys(pids, 100 * MIB + int(self.kept_bytes_per_s * (now() - self.since_s)))


class SickProcess(SimWorker):
    """It may end as it likes; a service manager starts it again."""

    def _failed(self, error: Exception) -> None:
        fleet = WatchedFleet.current
        fleet.said.append((now(), f"the daemon ended: {_words(error)}"))
        self.life.kill()
        if fleet.restarts:
            current_loop().after(_RESTART_S, fleet.replace, self)


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, KclError) else repr(error)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a worker tells those who ask."""

    exposition: PrometheusExposition
    snapshots: Snapshots


class WatchedFleet(Fleet):
    """Its workers have a status page."""

    process = SickProcess
    current: WatchedFleet

    def __init__(self, network: SickNetwork, **parts: object) -> None:
        super().__init__(network=network, **parts)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # those of Fleet
        self._sick_network = network
        self.shown: dict[SimWorker, Shown] = {}
        self.said: list[tuple[float, str]] = []
        self.restarts = True
        self.memory = SimMemory(SimClock(Life("memory")))
        self.change: Callable[[Settings], Settings] = lambda settings: settings
        WatchedFleet.current = self

    def replace(self, ended: SimWorker) -> None:
        """The service manager starts it again, under its name."""
        if self.restarts:
            self.start(ended.worker_id, machine=ended.machine)

    def make_ours(self, worker: SimWorker, settings: Settings, adapters: Adapters) -> MeteredWorker:
        """With what is exported and shown."""
        settings = self.change(settings)

        def snapshot() -> Snapshot:
            return application.snapshots.now()  # made below, of what is counted

        telemetry = telemetry_of(settings, adapters, snapshot=snapshot, serves_metrics=True)
        application = Application(settings, telemetry.adapters)
        application.snapshots.memory = self.memory
        self.shown[worker] = Shown(telemetry.exposition(), application.snapshots)
        return telemetry.background(application.worker)

    def _table(self, table: Table, life: Life, knows_one_table: bool = True) -> FaultyTable:
        network = self._sick_network.of(table.name)
        return FaultyTable(table, life=life, network=network, observer=self._observer)


class SilentWatch(_Watch):
    """Keeps what it would print."""

    def _print(self, seen: Watched, *, as_json: bool) -> None:
        pass


@dataclass(slots=True)
class Seen:
    """Texts that were shown, each with the time at which it was first seen, by where."""

    texts: dict[str, list[tuple[float, str]]] = field(default_factory=dict[str, list[tuple[float, str]]])

    def add(self, where: str, at_s: float, text: str) -> None:
        """Shown now."""
        self.texts.setdefault(where, []).append((at_s, text))

    def first(self, where: str, words: str, after_s: float) -> float | None:
        """When these words were first shown there; a regular expression."""
        pattern = re.compile(words)
        return next(
            (at for at, text in self.texts.get(where, ()) if at >= after_s and pattern.search(text)), None
        )


class Stage:
    """One application: stream, tables, workers, watcher; `run` inside `run_virtual`."""

    def __init__(self, seed: str, *, shards: int = 4, workers: int = 2, plan: Plan | None = None) -> None:
        self.plan = plan or Plan(shards=shards, records_per_s=0.0, events=(), calm_at_s=0.0, ends_at_s=0.0)
        self.plan = replace(self.plan, shards=shards)
        self.chance = Chance(f"sick/{seed}")
        self.refusals = Refusals()
        self.network = SickNetwork(self.chance.fork("network"), self.refusals)
        self.children = self.plan.children_plan
        self.children.behaviour = self.children.behaviour or _QUICK
        self.model = KinesisModel(lambda: EPOCH_S + now())
        self.model.handle("CreateStream", {"StreamName": STREAM_NAME, "ShardCount": shards})
        settings = worker_settings("nobody", self.plan)
        self.leases = MemoryTable(settings.lease_table, "leaseKey", has_owner_index=True)
        self.worker_rows = MemoryTable(settings.worker_metrics_table, "wid")
        self.coordinator = MemoryTable(settings.coordinator_table, "key")
        self.tables = Tables(
            leases=self.leases, worker_metrics=self.worker_rows, coordinator=self.coordinator
        )
        self.trace = HeardTrace()
        self.account = Account(self.trace)
        if self.plan.landing is not None:
            self.children.landing = AnyLanding(self.plan.landing, Truth(), self.trace)
        self.fleet = WatchedFleet(
            self.network,
            tables=self.tables,
            kinesis=MemoryKinesis(self.model),
            fan_out=MemoryFanOut(self.model),
            children_plan=self.children,
            deliveries=self.account,
            observer=self.account,
            trace=self.trace,
            chance=self.chance.fork("fleet"),
            plan=self.plan,
        )
        self.workers = workers
        self.records_per_s = 2
        self.store = Store()
        self.seen = Seen()
        self.watch: SilentWatch | None = None
        self.is_watched = True
        self._written = 0
        self.shown_from_s = 0.0

    @property
    def living(self) -> list[SimWorker]:
        """Workers that answer: neither dead nor stopped."""
        return [each for each in self.fleet.workers if each.is_living and not each.life.is_paused]

    @property
    def leader(self) -> SimWorker:
        """Of those that live."""
        shown = self.fleet.shown
        return next(each for each in self.living if each in shown and shown[each].snapshots.now().leads)

    @property
    def at_s(self) -> float:
        """Virtual time."""
        return now()

    def leases_rows(self) -> list[Row]:
        """As they are."""
        return at_once(self.leases.scan())

    def refuse(self, *refusals: Refusal) -> None:
        """From now on."""
        self.refusals.now.extend(refusals)

    def answer_all(self) -> None:
        """Refuse nothing any more."""
        self.refusals.now.clear()

    async def run(self, until_s: float) -> None:
        """Scrape until then; to be called again and again."""
        while now() < until_s - 1e-6:
            await anyio.sleep(min(SCRAPED_EVERY_S - now() % SCRAPED_EVERY_S, until_s - now()))
            if now() % SCRAPED_EVERY_S < 1e-6 or SCRAPED_EVERY_S - now() % SCRAPED_EVERY_S < 1e-6:
                await self.scrape()

    async def begin(self) -> None:
        """Start producers, workers and the watcher."""
        current_loop().after(_TICK_S, self._produce)
        for _ in range(self.workers):
            self.fleet.start()

    async def scrape(self) -> None:
        """All targets, and what is shown to people."""
        at_s = round(now())
        # A target that was named by its worker lives on under its name, as a pod or host does.
        answers: dict[str, Vector] = {each.worker_id: {} for each in self.fleet.workers}
        for worker in self.living:
            if worker in self.fleet.shown:
                rendered = await self.fleet.shown[worker].exposition.render()
                answers[worker.worker_id] = _asked(rendered.body.decode(), worker.worker_id)
                if at_s % _SEEN_EVERY_S == 0 and at_s >= self.shown_from_s:
                    self._show(worker, at_s)
        for target, found in answers.items():
            self.store.scraped(target, at_s, found)
        await self._look(at_s)

    def _show(self, worker: SimWorker, at_s: float) -> None:
        snapshot = self.fleet.shown[worker].snapshots.now()
        view = build_view(StatusDocument(FORMAT, snapshot))
        self.seen.add("status", at_s, "\n".join(plain_lines(view)))
        self.seen.add("page", at_s, "\n".join(view.troubles))

    async def _look(self, at_s: float) -> None:
        if not self.is_watched:
            self.store.scraped(WATCHER, at_s, {})
            return
        if self.watch is None:
            try:
                self.watch = await self._watcher()
            except KclError:
                return
        seen = await self.watch.look(as_json=False)
        self.watch.recorder.sweep()
        if at_s >= self.shown_from_s:
            self.seen.add("watch", at_s, "\n".join(watch_lines(seen)))
        text = (await PrometheusExposition(self.watch.totals).render()).body.decode()
        self.store.scraped(WATCHER, at_s, _asked(text, WATCHER))

    async def _watcher(self) -> SilentWatch:
        settings = worker_settings(WATCHER, self.plan)
        life = Life(WATCHER)
        clock = SimClock(life)

        def mine(table: MemoryTable) -> FaultyTable:
            network: Network = self.network.of(table.name)
            return FaultyTable(
                table, life=life, network=network, observer=cast("WriteObserver", self.account)
            )

        tables = Tables(
            leases=mine(self.leases),
            worker_metrics=mine(self.worker_rows),
            coordinator=mine(self.coordinator),
        )
        opened = await open_existing(tables, settings)
        kinesis: Kinesis = FaultyKinesis(MemoryKinesis(self.model), life=life, network=self.network)
        streams = streams_of(settings, kinesis, clock, no_log(clock), table=tables.leases)
        outside = Outside(opened, tables.leases, kinesis, streams, clock)
        return SilentWatch(outside, settings, 60.0)

    def _produce(self) -> None:
        count = self.records_per_s
        if count and self.has_stream:
            entries = [self._entry() for _ in range(count)]
            self.model.handle("PutRecords", {"StreamName": STREAM_NAME, "Records": entries})
        current_loop().after(_TICK_S, self._produce)

    @property
    def has_stream(self) -> bool:
        """Whether the stream exists and takes records."""
        return STREAM_NAME in cast("list[str]", self.model.handle("ListStreams", {})["StreamNames"])

    def _entry(self) -> dict[str, str]:
        self._written += 1
        return {"Data": _encoded(f"record {self._written}"), "PartitionKey": f"key-{self._written}"}

    def texts(self) -> Seen:
        """All that was seen, the log and the last words of processes with it."""
        return Seen({**self.seen.texts, "log": self.trace.heard, "end": self.fleet.said})


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _asked(text: str, instance: str) -> Vector:
    return samples(text, job=JOB, instance=instance, names=metrics())


def kill(workers: Sequence[SimWorker]) -> None:
    """SIGKILL, and nobody starts them again."""
    for worker in workers:
        worker.life.kill()
