from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from kcl_local.demo.check import LedgerReader, monotonic_s
from kcl_local.demo.stage import POLL_EVERY_S, WriteRate
from kcl_local.demo.stream import DemoStream, until
from kcl_local.demo.text import DemoError, first_of
from kcl_prove.account import Account, Settled
from kcl_prove.fleet import Application, Fleet, Worker, fleet_of
from kcl_prove.parts import Options, ProveError, SceneResult, Size, Usage
from kcl_prove.producer import Numbered, Producer, numbered
from kcl_prove.stage import ACTIVE_WITHIN_S, Stage

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

READING_WITHIN_S: Final = 180.0
SETTLED_WITHIN_S: Final = 300.0
RECORD_BYTES: Final = 250
RECORD_BYTES_MAX: Final = 10 * 2**20
_MIB: Final = 2**20
LARGE_CALL_S: Final = 120.0
_PUT_UNIT_BYTES: Final = 25 * 1024
_KB: Final = 1024  # on demand each record counts in whole KB
_GB: Final = 2**30
_AROUND_S: Final = 150.0
"""Beside its traffic: tables, start, settling, stop."""


@dataclass(slots=True)
class Play:
    """`missed`: what the scene should have shown and did not."""

    stage: Stage
    stream: DemoStream
    fleet: Fleet
    size: Size
    reader: LedgerReader
    account: Account = field(default_factory=Account)
    notes: list[str] = field(default_factory=list[str])
    missed: list[str] = field(default_factory=list[str])
    began_s: float = 0.0

    async def poll(self) -> None:
        for shard in await self.stream.shards():
            self.account.checker.lineage(shard.shard_id, parents=shard.parents, is_open=shard.is_open)
        for entry in self.reader.new_entries():
            self.account.reported(entry)
        self.fleet.check()

    async def until(self, holds: Callable[[], Awaitable[bool]], within_s: float) -> bool:
        return await until(holds, within_s, POLL_EVERY_S)

    async def at(self, share: float) -> None:
        await anyio.sleep(max(0.0, self.began_s + share * self.size.seconds - monotonic_s()))

    async def owned_by(self, worker: Worker) -> list[str]:
        return [shard for shard, owner in (await self.fleet.owners()).items() if owner == worker.name]

    async def follower(self) -> Worker:
        found: list[Worker] = []

        async def there_is() -> bool:
            leader, owners = await self.fleet.leader(), set((await self.fleet.owners()).values())
            found.extend(each for each in self.fleet.running if each is not leader and each.name in owners)
            return bool(found)

        if not await self.until(there_is, READING_WITHIN_S):
            raise ProveError(
                f"for {READING_WITHIN_S:g} s no worker but the leader had a lease: nobody to act on"
            )
        return found[0]

    async def taken_from(self, worker: Worker) -> None:
        async def others_own_all() -> bool:
            owners = await self.fleet.owners()
            return worker.name not in owners.values() and None not in owners.values()

        began_s = monotonic_s()
        if await self.until(others_own_all, READING_WITHIN_S):
            self.notes.append(
                f"others owned all shards of {worker.name} after {monotonic_s() - began_s:.1f} s"
            )
        else:
            self.missed.append(f"the shards of {worker.name} were not taken over in {READING_WITHIN_S:g} s")


Act = Callable[[Play], Coroutine[Any, Any, None]]


async def nothing(_play: Play) -> None: ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """A scene: a stream, workers, records, and what is done to the workers meanwhile.

    `form`: a header for each record, and the name of the schema that children hear. `reason`: for `left_out`.
    """

    name: str
    title: str
    act: Act = nothing
    actions: frozenset[str] = frozenset()
    properties: Mapping[str, str] = field(default_factory=lambda: {"retrievalMode": "POLLING"})
    is_single_table: bool = False
    is_on_demand: bool = False
    new_shards: int = 0
    record_bytes: int = RECORD_BYTES
    records_each_shard: int | None = None
    extra: Usage = field(default_factory=Usage)
    start: Callable[[Play], Awaitable[None]] | None = None
    after: Callable[[Play], Awaitable[None]] = nothing
    form: Callable[[Stage], Awaitable[tuple[Callable[[bytes], bytes], str]]] | None = None
    reason: Callable[[Options], str] = field(default=lambda _options: "")

    def left_out(self, options: Options) -> str:
        return self.reason(options)

    def records(self, size: Size) -> int:
        return size.records if self.records_each_shard is None else self.records_each_shard * size.shards

    def usage(self, size: Size) -> Usage:
        stream = Usage(on_demand_stream_hours=1.0) if self.is_on_demand else Usage(shard_hours=size.shards)
        return stream + self.beside_stream(size)

    def beside_stream(self, size: Size) -> Usage:
        """All but the first hour of the stream; at the daemon's default intervals (docs/cost.md)."""
        shards, records = size.shards + self.new_shards, self.records(size)
        minutes, gb = (size.seconds + _AROUND_S) / 60, records * self.record_bytes / _GB
        units = records * math.ceil(self.record_bytes / _PUT_UNIT_BYTES)
        fan_out = self.properties.get("retrievalMode") == "FANOUT"
        charged_gb = records * math.ceil(self.record_bytes / _KB) * _KB / _GB
        on_demand = Usage(on_demand_in_gb=charged_gb, on_demand_out_gb=charged_gb)
        kind = on_demand if self.is_on_demand else Usage(put_units=units)
        return (
            self.extra
            + kind
            + Usage(
                shard_hours=self.new_shards,
                fan_out_shard_hours=shards if fan_out else 0.0,
                fan_out_gb=gb if fan_out else 0.0,
                dynamodb_writes=writes_of(shards, size.workers, minutes, size.seconds),
                dynamodb_reads=reads_of(size.workers, minutes),
            )
        )

    async def play(self, stage: Stage) -> SceneResult:
        """ProveError, also for what AWS said."""
        began_s = monotonic_s()
        result: SceneResult | None = None
        failure: BaseException | None = None
        try:
            result = await self._play(stage, began_s)
        except* (DemoError, ClientError, BotoCoreError, ProveError) as group:
            failure = first_of(group)
        if result is None:
            raise failure if isinstance(failure, ProveError) else ProveError(f"{self.name}: {failure}")
        return result

    async def _play(self, stage: Stage, began_s: float) -> SceneResult:
        async with self._set_up(stage) as play:
            await self._start(play)
            await self._traffic(play)
            await play.fleet.stop_all()
            await play.poll()
            await self.after(play)
        return result_of(self.name, play, monotonic_s() - began_s)

    @asynccontextmanager
    async def _set_up(self, stage: Stage) -> AsyncGenerator[Play]:
        folder = stage.folder / self.name
        ledgers = folder / "ledgers"
        ledgers.mkdir(parents=True)
        size = stage.options.size
        stream = await stage.create_stream(
            self.name,
            shards=None if self.is_on_demand else size.shards,
            max_record_bytes=RECORD_BYTES_MAX if self.record_bytes > _MIB else None,
        )
        stage.spend(self.beside_stream(size))
        application = Application(stage.application(self.name), stream, self.properties, self.is_single_table)
        poll_s = 0.05 if stage.options.is_local else 2.0
        view = DemoStream(stage.client("kinesis"), stream, active_within_s=ACTIVE_WITHIN_S, poll_s=poll_s)
        async with fleet_of(stage, application, folder) as fleet:
            yield Play(stage, view, fleet, size, LedgerReader(ledgers))

    async def _start(self, play: Play) -> None:
        if self.start is None:
            for _ in range(play.size.workers):
                await play.fleet.start()
        else:
            await self.start(play)

        async def all_are_read() -> bool:
            await play.poll()
            shards = play.account.checker.progress()
            return bool(shards) and all(shard.state.value == "reading" for shard in shards)

        if not await play.until(all_are_read, READING_WITHIN_S):
            raise ProveError(f"not every shard was read within {READING_WITHIN_S:g} s of the start")

        async def all_have_some() -> bool:
            owners = list((await play.fleet.owners()).values())
            return len(set(owners) - {None}) >= min(len(owners), len(play.fleet.running))

        if not await play.until(all_have_some, READING_WITHIN_S):
            play.notes.append(
                f"for {READING_WITHIN_S:g} s a worker had no shard; the records came all the same"
            )

    async def _traffic(self, play: Play) -> None:
        records = await self._records(play.stage)
        count, seconds = self.records(play.size), play.size.seconds
        producer = Producer(putting_client(play.stage), play.stream.name, play.account)
        play.began_s = monotonic_s()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, play)
            async with anyio.create_task_group() as live:
                live.start_soon(self.act, play)
                await producer.run(records, WriteRate(rate=count / seconds, seconds=seconds, records=count))

            async def settled() -> bool:
                await play.poll()
                return play.account.checker.is_settled

            await play.until(settled, SETTLED_WITHIN_S)
            tasks.cancel_scope.cancel()

    async def _watch(self, play: Play) -> None:
        while True:
            play.fleet.check()
            await anyio.sleep(POLL_EVERY_S)

    async def _records(self, stage: Stage) -> Iterator[Numbered]:
        if self.form is None:
            return numbered(stage.run_id, self.record_bytes)
        form, schema = await self.form(stage)
        return numbered(stage.run_id, self.record_bytes, form=form, schema=schema)


def putting_client(stage: Stage) -> KinesisClient:
    config = Config(connect_timeout=10, read_timeout=LARGE_CALL_S, retries={"total_max_attempts": 1})
    options = stage.options
    return stage.session.client(
        "kinesis", region_name=options.region, endpoint_url=options.endpoints.get("kinesis"), config=config
    )


def writes_of(shards: int, workers: int, minutes: float, traffic_s: float) -> float:
    return minutes * (15 * shards + 20 + 2 * workers) + traffic_s * shards + 20 * shards + 10 * workers


def reads_of(workers: int, minutes: float) -> float:
    return minutes * (20 + 45 * workers) + 60 * workers


def result_of(name: str, play: Play, seconds: float) -> SceneResult:
    settled, requests = play.account.settle(), Counter[str]()
    for (operation, _outcome), number in play.fleet.calls.items():
        requests[operation] += number
    check = settled.check
    return SceneResult(
        name=name,
        passed=check.is_right and not play.missed,
        seconds=seconds,
        written=check.written,
        delivered=check.delivered,
        lost=check.lost,
        repeated=check.repeated,
        out_of_order=check.out_of_order,
        before_parents=check.before_parents,
        gap_ms=_ms(settled.gap_s),
        latency_p50_ms=_ms(settled.latency_p50_s),
        latency_p99_ms=_ms(settled.latency_p99_s),
        requests=dict(sorted(requests.items())),
        notes=(*play.missed, *play.notes, *_more_notes(play, settled)),
    )


def _more_notes(play: Play, settled: Settled) -> Iterator[str]:
    check = settled.check
    if check.unknown:
        yield f"{check.unknown} records were delivered for shards to which they were not written"
    if not check.words_agree:
        yield "what was delivered differs from what was written: bytes changed, or see the counts"
    if settled.twice:
        yield f"{settled.twice} records were written twice, because a put had no answer"
    if play.fleet.silent:
        yield f"requests of {', '.join(play.fleet.silent)} are not counted: no status page to ask"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
