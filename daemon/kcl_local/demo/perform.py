"""The play: text goes into the stream, a daemon delivers it, shards split and merge meanwhile, and all is checked.

Owns the order of events and their time limits. How each thing is done is known to `stage`, `producer` and `processes`;
what is right to `check` and `report`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from kcl_local.demo.clock import monotonic_s
from kcl_local.demo.feed import Feed
from kcl_local.demo.processes import Processes, Running
from kcl_local.demo.producer import Pace
from kcl_local.demo.report import Outcome, shards_not_saved
from kcl_local.demo.screen import Progress, Screen, short_name
from kcl_local.demo.spark import SparkJob, SparkProgress, spark_job
from kcl_local.demo.stage import LOOK_EVERY_S, Stage, stage

SETTLED_WITHIN_S: Final = 60.0
"""After the last record was written. What arrives late on a busy machine is not to be called lost."""
SPLIT_AT: Final = 0.25
MERGE_AT: Final = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for.

    Args:
        shards: of the new stream.
        pace: how much to write.
        spark: whether a second application runs on Spark.
    """

    shards: int
    pace: Pace
    spark: bool = False

    @property
    def load_s(self) -> float:
        """How long writing is going to take if the text is long enough."""
        records = self.pace.records
        return self.pace.seconds if records is None else min(self.pace.seconds, records / self.pace.rate)


async def perform(
    plan: Plan, feed: Feed, *, directory: Path, processes: Processes, screen: Screen
) -> Outcome:
    """Play it in an empty directory.

    Raises:
        DemoError: it could not be played to its end; in an exception group.
    """
    screen.say(f"files of this run: {directory}")
    screen.say("starting a local Kinesis and DynamoDB ...")
    async with stage(directory, processes, shards=plan.shards) as set_up:
        screen.say(
            f"stream {set_up.stream.name} with {plan.shards} shards is ACTIVE at {set_up.urls.kinesis}"
        )
        properties = set_up.write_properties("demo-worker")
        screen.say(f"starting the daemon: kcl-daemon --properties {properties}\n")
        screen.say(properties.read_text("ascii"))
        async with AsyncExitStack() as stack:
            spark = None
            if plan.spark:
                screen.say(
                    "starting a second daemon: a windowed word count on Spark (starting takes a while) ...\n"
                )
                spark = await stack.enter_async_context(spark_job(set_up))
            daemon = await stack.enter_async_context(set_up.daemon(properties))
            return await _Play(plan, feed, set_up, screen, spark).run(daemon)


class _Play:
    """One run on a stage that is set up, with a daemon just started."""

    def __init__(
        self, plan: Plan, feed: Feed, set_up: Stage, screen: Screen, spark: SparkJob | None = None
    ) -> None:
        self._plan = plan
        self._feed = feed
        self._stage = set_up
        self._screen = screen
        self._spark = spark
        self._written = anyio.Event()
        self._load_s = 0.0

    async def run(self, daemon: Running) -> Outcome:
        """Play, stop the daemon, settle the accounts."""
        async with anyio.create_task_group() as watch:
            watch.start_soon(daemon.fail_when_ended)
            watch.start_soon(self._stage.endpoints.fail_when_ended)
            if self._spark is not None:
                watch.start_soon(self._spark.running.fail_when_ended)
            async with anyio.create_task_group() as live:
                live.start_soon(self._show)
                await self._load()
                await self._stage.settled(SETTLED_WITHIN_S)
                if self._spark is not None:
                    await self._spark.settled(self._stage.checker.written)
                live.cancel_scope.cancel()
            watch.cancel_scope.cancel()
        return await self._close(daemon)

    async def _load(self) -> None:
        async with anyio.create_task_group() as load:
            load.start_soon(self._write)
            load.start_soon(self._reshard)

    async def _write(self) -> None:
        self._screen.say(f"writing {self._feed.description}, line by line ...")
        started_s = monotonic_s()
        await self._stage.producer().run(self._feed, self._plan.pace)
        self._load_s = monotonic_s() - started_s
        self._written.set()

    async def _reshard(self) -> None:
        """Split and merge while records are written, or right after where the text is short."""
        started_s = monotonic_s()
        await self._until(started_s + self._plan.load_s * SPLIT_AT)
        parent = await self._stage.stream.split()
        if parent is not None:
            self._screen.say(f"split shard {short_name(parent.shard_id)}")
        await self._until(started_s + self._plan.load_s * MERGE_AT)
        pair = await self._stage.stream.merge()
        if pair is not None:
            self._screen.say(f"merged shards {' and '.join(short_name(shard.shard_id) for shard in pair)}")

    async def _until(self, moment_s: float) -> None:
        with anyio.move_on_after(max(0.0, moment_s - monotonic_s())):
            await self._written.wait()

    async def _show(self) -> None:
        while True:
            await self._stage.look()
            self._show_now(None if self._spark is None else await self._spark.look())
            await anyio.sleep(LOOK_EVERY_S)

    def _show_now(self, spark: SparkProgress | None = None) -> None:
        elapsed_s = monotonic_s() - self._stage.active_at_s
        self._screen.show(Progress(elapsed_s, self._stage.checker.progress(), spark))

    async def _close(self, daemon: Running) -> Outcome:
        self._screen.say("stopping the daemon (SIGTERM) ...")
        asked_s = monotonic_s()
        exit_code = await daemon.stop()
        stop_s = monotonic_s() - asked_s
        await self._stage.look()
        self._show_now()
        checker = self._stage.checker
        stored = {shard: lease.checkpoint for shard, lease in (await self._stage.leases()).items()}
        spark = None if self._spark is None else await self._spark.close(checker.sequence_numbers())
        first_s, last_s = checker.first_delivery_s, checker.last_delivery_s
        return Outcome(
            verdict=checker.verdict(),
            shards=len(checker.progress()),
            load_s=self._load_s,
            first_record_s=None if first_s is None else first_s - self._stage.active_at_s,
            delivering_s=0.0 if first_s is None or last_s is None else last_s - first_s,
            daemon_exit_code=exit_code,
            daemon_stop_s=stop_s,
            not_saved=shards_not_saved(checker, stored),
            spark=spark,
        )
