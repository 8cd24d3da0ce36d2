from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from signal import SIGKILL
from typing import Final

import anyio

from kcl_local.demo.check import monotonic_s
from kcl_local.demo.landing import AWAY_S, runs
from kcl_local.demo.processes import Processes, RunningProcess, log_tail
from kcl_local.demo.screen import Screen
from kcl_local.demo.spark import STOPPED_WITHIN_S, rows_of
from kcl_local.demo.stage import WriteRate
from kcl_local.demo.stream import Urls, dynamodb_client, executable_name, properties_text, until
from kcl_local.demo.table import RATE_MOST, TABLE, DemoTable
from kcl_local.demo.tablecopy import KEY, copied, counted, item_text
from kcl_local.demo.text import DemoError

APPLICATION: Final = "demo-table-copy"
SETTLED_WITHIN_S: Final = 120.0
_PROCESSOR: Final = "kcl_local.demo.tablecopy"
_ENGINE: Final = "kcl_spark.engine"
_POLL_S: Final = 1.0
_SEGMENTS: Final = 4
_FIRST_WITHIN_S: Final = 90.0
_SPARK: Final = "spark"
_OF_PYTHON: Final = {"failoverTimeMillis": "5000", "childRecordFormat": "lambda"}
_OF_SPARK: Final = {
    "applicationName": f"{APPLICATION}-spark",
    "childRecordFormat": "plain",
    "sparkPipeline": "kcl_local.demo.tablespark:copy",
    "sparkMaster": "local[2]",
    "sparkDriverMemory": "700m",
    "sparkConf.spark.ui.enabled": "false",
    "sparkConf.spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """`unequal`: by copy, items that only the copy or the table has, or that differ."""

    items: int
    writes: Mapping[str, int]
    shards: int
    killed: tuple[str, ...]
    delivered: Counter[str]
    unequal: Mapping[str, int]
    exit_codes: tuple[int, ...]
    no_spark: str | None = None

    @property
    def lost(self) -> int:
        return sum(self.unequal.values())

    @property
    def is_right(self) -> bool:
        has_all = self.delivered["snapshot"] > 0 and len(self.delivered) > 1
        return self.lost == 0 and has_all and not any(self.exit_codes)

    def lines(self) -> Iterator[str]:
        kinds = ", ".join(f"{count:,} {kind}s" for kind, count in sorted(self.writes.items()))
        yield f"table           {self.items:,} items after {kinds}"
        yield f"stream          its shards rolled and split, {self.shards} followed"
        yield f"killed (-9)     {', '.join(self.killed)}"
        yield f"delivered       {', '.join(f'{count:,} {kind}' for kind, count in sorted(self.delivered.items()))}"
        for name, differing in self.unequal.items():
            yield f"{name:<15} {f'{differing:,} items DIFFER' if differing else f'{self.items:,} items, as the table has them'}"
        if self.no_spark is not None:
            yield f"copy by Spark   none: {self.no_spark}"
        yield f"result          {'right' if self.is_right else 'WRONG'}"
        yield f"copies {'equal' if self.lost == 0 else 'DIFFER'}"
        yield f"lost {self.lost}"


def differing(table: Mapping[str, str], copy: Mapping[str, str]) -> int:
    return sum(table.get(key) != copy.get(key) for key in {*table, *copy})


def why_no_spark() -> str | None:
    missing = [name for name in ("pyspark", "pyarrow", "kcl_spark") if find_spec(name) is None]
    return f"it needs {' and '.join(missing)}: pip install 'kcl-daemon[spark]'" if missing else None


@dataclass
class CopyRun:
    directory: Path
    urls: Urls
    table: DemoTable
    processes: Processes
    stack: AsyncExitStack
    screen: Screen
    daemons: dict[str, RunningProcess] = field(default_factory=dict[str, RunningProcess])
    killed: list[str] = field(default_factory=list[str])
    shards: int = 0

    @property
    def ledgers(self) -> Path:
        return self.directory / "ledgers"

    async def start(self, worker: str, more: Mapping[str, str]) -> None:
        path = self.directory / worker / f"{worker}.properties"
        if not path.exists():
            path.parent.mkdir()
            path.write_text(properties_text(self.urls, _properties(self.urls, worker), more), "ascii")
        self.daemons[worker] = await self.stack.enter_async_context(
            self.processes.daemon(f"the daemon {worker}", path, self.ledgers)
        )

    async def kill(self, worker: str, module: str | None = None) -> None:
        daemon = self.daemons[worker]
        what = "a daemon" if module is None else f"a process of {module}"
        self.screen.say(f"kill -9 of {what} ({worker})")
        if module is None:
            daemon.signal(SIGKILL)
            await daemon.wait()
            await anyio.sleep(AWAY_S)
            await self.start(worker, {})
        else:
            os.kill(await self._process_of(daemon, module), SIGKILL)
        self.killed.append(what)

    async def _process_of(self, daemon: RunningProcess, module: str) -> int:
        with anyio.move_on_after(_FIRST_WITHIN_S):
            while True:
                found = [pid for pid in daemon.descendants() if runs(pid, module)]
                if found:
                    return found[0]
                await anyio.sleep(_POLL_S)
        raise DemoError(f"{daemon.name} has no process of {module}\n{log_tail(daemon.log)}")

    async def order(self, action: str) -> None:
        made = await self.table.order(action)
        self.shards += made
        self.screen.say(f"the stream's shards {action}: {made} follow")

    async def copies(self) -> dict[str, dict[str, str]]:
        found = {"copy by Python": await anyio.to_thread.run_sync(copied, self.ledgers)}
        if _SPARK in self.daemons:
            found["copy by Spark"] = await anyio.to_thread.run_sync(
                copied_by_spark, self.directory / _SPARK / "out" / "copy"
            )
        return found

    async def unequal(self) -> dict[str, int]:
        table = await self.table.items()
        return {name: differing(table, copy) for name, copy in (await self.copies()).items()}


def _properties(urls: Urls, worker: str) -> dict[str, str]:
    return {
        "tableName.source": TABLE,
        "snapshot": "true",
        "snapshotSegments": str(_SEGMENTS),
        "dynamoDBStreamsEndpoint": urls.dynamodb,
        "applicationName": APPLICATION,
        "workerId": worker,
    }


def copied_by_spark(folder: Path) -> dict[str, str]:
    try:
        turn = int((folder / "_kcl_newest_batch").read_text("ascii")) % 2
        rows = rows_of(sorted((folder / f"turn={turn}").glob("*.parquet")))
    except (OSError, ValueError):
        return {}
    own = {"position", "kcl_is_removed"}
    return {
        row[KEY]: item_text({name: value for name, value in row.items() if name not in own}) for row in rows
    }


async def run_changes(
    pace: WriteRate, processes: Processes, screen: Screen, *, directory: Path, with_spark: bool
) -> CopyOutcome:
    no_spark = why_no_spark() if with_spark else "--no-spark"
    screen.say(f"files of this run: {directory}")
    (directory / "ledgers").mkdir()
    async with processes.endpoints(directory) as (_, urls), AsyncExitStack() as stack:
        client = stack.enter_context(closing(dynamodb_client(urls.dynamodb)))
        table = DemoTable(client, urls.dynamodb)
        await table.create()
        await table.fill()
        run = CopyRun(directory, urls, table, processes, stack, screen)
        screen.say(f"table {TABLE} has {table.writes.total()} items; starting two daemons that copy it ...")
        for worker in ("copy-1", "copy-2"):
            executable = executable_name(directory, module=_PROCESSOR)
            await run.start(worker, {**_OF_PYTHON, "executableName": executable})
        if no_spark is None:
            await run.start(_SPARK, _OF_SPARK)
        else:
            screen.say(f"without the copy by Spark: {no_spark}")
        await _play(run, WriteRate(min(pace.rate, RATE_MOST), pace.seconds, pace.records))
        await _settled(run)
        return await _close(run, no_spark)


async def _play(run: CopyRun, pace: WriteRate) -> None:
    run.screen.say("writing, updating and deleting items ...")
    async with anyio.create_task_group() as together, anyio.create_task_group() as live:
        together.start_soon(run.table.write, pace)
        live.start_soon(_show, run)
        await _first_delivery(run)
        await _disturb(run, pace.lasts_s)
        for scope in (together, live):
            scope.cancel_scope.cancel()


async def _first_delivery(run: CopyRun) -> None:
    async def has_come() -> bool:
        return bool(counted(run.ledgers))

    if not await until(has_come, _FIRST_WITHIN_S, _POLL_S / 4):
        logs = "\n".join(log_tail(daemon.log) for daemon in run.daemons.values())
        raise DemoError(f"no item was delivered within {_FIRST_WITHIN_S:g} s\n{logs}")


async def _disturb(run: CopyRun, lasts_s: float) -> None:
    began_s = monotonic_s()

    async def at(share: float) -> None:
        await anyio.sleep(max(0.0, began_s + lasts_s * share - monotonic_s()))

    await run.kill("copy-1")
    await at(0.3)
    await run.order("roll")
    await at(0.4)
    await run.order("split")
    await at(0.6)
    await run.kill("copy-2", _PROCESSOR)
    if _SPARK in run.daemons:
        await run.kill(_SPARK, _ENGINE)
    await at(0.8)
    await run.order("roll")
    await at(1.0)


async def _show(run: CopyRun) -> None:
    while True:
        await anyio.sleep(2 * _POLL_S)
        delivered = await anyio.to_thread.run_sync(counted, run.ledgers)
        run.screen.say(f"written {run.table.writes.total():,}  delivered {delivered.total():,}")


async def _settled(run: CopyRun) -> None:
    run.screen.say("waiting until the copies are as the table ...")

    async def are_equal() -> bool:
        return not any((await run.unequal()).values())

    await until(are_equal, SETTLED_WITHIN_S, _POLL_S)


async def _close(run: CopyRun, no_spark: str | None) -> CopyOutcome:
    codes = tuple([await daemon.stop(STOPPED_WITHIN_S) for daemon in run.daemons.values()])
    return CopyOutcome(
        items=len(await run.table.items()),
        writes=dict(run.table.writes),
        shards=run.shards,
        killed=tuple(run.killed),
        delivered=counted(run.ledgers),
        unequal=await run.unequal(),
        exit_codes=codes,
        no_spark=no_spark,
    )
