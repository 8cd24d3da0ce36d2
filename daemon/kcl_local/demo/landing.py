from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from signal import SIGKILL
from typing import Final

import anyio
import orjson
import psutil

from kcl_local.demo.check import monotonic_s
from kcl_local.demo.processes import Processes, RunningProcess, environment, log_tail
from kcl_local.demo.screen import Screen
from kcl_local.demo.spark import logged_files, rows_of
from kcl_local.demo.stage import Stage, WriteRate, stage
from kcl_local.demo.stream import properties_text, until
from kcl_local.demo.text import DemoError, Feed

APPLICATION: Final = "demo-landing"
SETTLED_WITHIN_S: Final = 180.0
AWAY_S: Final = 3.0
_POLL_S: Final = 1.0
_DRIVER: Final = (sys.executable, "-m", "kcl_local.demo.landingdriver")
_LANDER: Final = "kcl_landing.lander"
_KILLS: Final = 3


@dataclass(frozen=True, slots=True)
class LandingOutcome:
    written: int
    shards: int
    in_spark: int
    lost: int
    repeated: int
    killed: tuple[str, ...]
    verified: str
    is_verified: bool

    @property
    def is_right(self) -> bool:
        return self.is_verified and self.lost == 0 and self.repeated == 0 and len(self.killed) == _KILLS

    def lines(self) -> Iterator[str]:
        yield f"written         {self.written:,} records to {self.shards} shards"
        yield f"killed (-9)     {', '.join(self.killed)}"
        yield f"landing verify  {self.verified}"
        yield f"in Spark        {self.in_spark:,} records"
        yield f"repeated        {self.repeated}"
        yield f"result          {'right' if self.is_right else 'WRONG'}"
        yield f"lost {self.lost}"


@dataclass(slots=True)
class SeenBySpark:
    folder: Path
    numbers: Counter[int] = field(default_factory=Counter[int])
    _read: set[Path] = field(default_factory=set[Path])

    def poll(self) -> int:
        for path in logged_files(self.folder / "_spark_metadata"):
            if path not in self._read:
                self._read.add(path)
                self.numbers.update(int(row["sequence_number"]) for row in rows_of([path]))
        return len(self.numbers)


class LandingRun:
    def __init__(self, set_up: Stage, stack: AsyncExitStack, screen: Screen) -> None:
        self._set_up = set_up
        self._stack = stack
        self._say = screen.say
        self.log = set_up.directory / "log"
        self.seen = SeenBySpark(set_up.directory / "out" / "seen")
        self.daemons: dict[str, RunningProcess] = {}
        self.driver: RunningProcess | None = None
        self.killed: list[str] = []

    async def start_daemon(self, worker: str) -> None:
        path = self._set_up.directory / f"{worker}.properties"
        if not path.exists():
            own = {"streamName": self._set_up.stream.name, "applicationName": APPLICATION, "workerId": worker}
            more = {"landing": str(self.log), "landingWindowMillis": "1000", "failoverTimeMillis": "5000"}
            path.write_text(properties_text(self._set_up.urls, own, more), "ascii")
        self.daemons[worker] = await self._stack.enter_async_context(self._set_up.daemon(path, worker))

    async def start_driver(self) -> None:
        folder = self._set_up.directory
        file = folder / "driver.json"
        options = {"landing": str(self.log), "out": str(self.seen.folder), "state": str(folder / "state")}
        file.write_bytes(orjson.dumps(options))
        running = self._set_up.processes.daemon(
            "the Spark driver", file, self._set_up.ledgers, program=_DRIVER, base=environment()
        )
        self.driver = await self._stack.enter_async_context(running)

    async def kill_daemon(self, worker: str) -> None:
        """As if its host ended: daemon, lander and relays."""
        self._say(f"kill -9 of the daemon {worker}; it comes back in {AWAY_S:g} s")
        self.daemons[worker].signal(SIGKILL)
        await self.daemons[worker].wait()
        self.killed.append("a daemon")
        await anyio.sleep(AWAY_S)
        await self.start_daemon(worker)

    async def kill_lander(self, worker: str) -> None:
        found = [pid for pid in self.daemons[worker].descendants() if runs(pid, _LANDER)]
        if not found:
            raise DemoError(f"{worker} has no lander\n{log_tail(self.daemons[worker].log)}")
        self._say(f"kill -9 of the lander of {worker}; its daemon starts it again")
        for pid in found:
            os.kill(pid, SIGKILL)
        self.killed.append("a lander")

    async def kill_driver(self) -> None:
        assert self.driver is not None
        self._say("kill -9 of the Spark driver; it is started again")
        self.driver.kill_group()
        await self.driver.wait()
        self.killed.append("the Spark driver")
        await self.start_driver()

    async def settled(self, written: int) -> None:
        async def are_seen() -> bool:
            return await anyio.to_thread.run_sync(self.seen.poll) >= written

        await until(are_seen, SETTLED_WITHIN_S, _POLL_S)


def runs(pid: int, module: str) -> bool:
    try:
        return module in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


async def run_landing(
    feed: Feed, pace: WriteRate, processes: Processes, screen: Screen, *, directory: Path, shards: int
) -> LandingOutcome:
    missing = [name for name in ("pyspark", "pyarrow", "kcl_spark") if find_spec(name) is None]
    if missing:
        raise DemoError(f"--landing needs {' and '.join(missing)}: pip install 'kcl-daemon[spark]'")
    screen.say(f"files of this run: {directory}")
    async with stage(directory, processes, shards=shards) as set_up, AsyncExitStack() as stack:
        run = LandingRun(set_up, stack, screen)
        screen.say(f"starting two daemons that land in {run.log}, and Spark, which reads it ...")
        for worker in ("landing-1", "landing-2"):
            await run.start_daemon(worker)
        await run.start_driver()
        await _play(run, set_up, screen, feed, pace)
        await run.settled(set_up.checker.written)
        return await _close(run, set_up)


async def _play(run: LandingRun, set_up: Stage, screen: Screen, feed: Feed, pace: WriteRate) -> None:
    screen.say(f"writing {feed.description}, line by line ...")
    started_s = monotonic_s()

    async def at(share: float) -> None:
        await anyio.sleep(max(0.0, started_s + pace.lasts_s * share - monotonic_s()))

    async def disturb() -> None:
        await at(0.15)
        await set_up.stream.split()
        screen.say("split a shard")
        await at(0.25)
        await run.kill_daemon("landing-1")
        await at(0.5)
        await set_up.stream.merge()
        screen.say("merged two shards")
        await run.kill_lander("landing-2")
        await at(0.7)
        await run.kill_driver()

    async with anyio.create_task_group() as together, _shown(run, set_up, screen):
        together.start_soon(disturb)
        await set_up.producer().run(feed, pace)


@asynccontextmanager
async def _shown(run: LandingRun, set_up: Stage, screen: Screen) -> AsyncGenerator[None]:
    async def show() -> None:
        while True:
            seen = await anyio.to_thread.run_sync(run.seen.poll)
            screen.say(f"{set_up.elapsed_s():5.1f} s  written {set_up.checker.written:,}  in Spark {seen:,}")
            await anyio.sleep(2 * _POLL_S)

    async with anyio.create_task_group() as live:
        live.start_soon(show)
        yield
        live.cancel_scope.cancel()


async def _close(run: LandingRun, set_up: Stage) -> LandingOutcome:
    assert run.driver is not None
    await run.driver.stop()
    for daemon in run.daemons.values():
        await daemon.stop()
    command = [sys.executable, "-m", "kcl_daemon", "landing", "verify", str(run.log)]
    verified = await anyio.run_process(command, check=False, env=environment())
    said = verified.stdout.decode("utf-8", "replace").splitlines() or [
        verified.stderr.decode("utf-8", "replace")[-300:]
    ]
    await anyio.to_thread.run_sync(run.seen.poll)
    numbers = run.seen.numbers
    return LandingOutcome(
        written=set_up.checker.written,
        shards=len(await set_up.stream.shards()),
        in_spark=len(numbers),
        lost=sum(number not in numbers for number in set_up.checker.sequence_numbers()),
        repeated=sum(count - 1 for count in numbers.values()),
        killed=tuple(run.killed),
        verified=said[-1],
        is_verified=verified.returncode == 0,
    )
