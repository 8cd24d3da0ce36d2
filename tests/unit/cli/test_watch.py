"""`kcl-daemon watch`: what an outsider sees of fleets that live, die, or never were; virtual time, tables in memory."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import anyio
import pytest

from kcl_daemon.admin.site import AdminAccess, AdminRequest, AdminResponse
from kcl_daemon.app import streams_of
from kcl_daemon.capacity.figures import Bound, ShardLoad, WorkerLoad, load_text
from kcl_daemon.cli.application import Application, open_existing
from kcl_daemon.cli.watch.command import WatchFigures, WatchSite, _Watch, watch_json, watch_lines
from kcl_daemon.cli.watch.look import Watched, Watcher
from kcl_daemon.coverage import Unread
from kcl_daemon.errors import AccessDenied, AwsError, StreamNotFound, Unavailable
from kcl_daemon.leases.holds import Hold, holds_write
from kcl_daemon.leases.lease import HashRange, Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import RowPut, new_lease_row
from kcl_daemon.leases.text_row import STREAM_KEY, OwnStream, text_write
from kcl_daemon.leases.worker_row import report
from kcl_daemon.ports import StreamRef, StreamSummary, Tables
from kcl_daemon.shards.lineage import InitialPosition, Shard
from kcl_daemon.telemetry.cloudwatch import CloudWatchOptions, StatisticSets
from kcl_daemon.telemetry.prometheus import PrometheusExposition, Totals
from kcl_daemon.telemetry.recorder import MetricsRecorder
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.unit.cli.test_leases_look import SETTINGS, Answers, Stage
from tests.unit.config.helpers import read
from tests.unit.fakes import MemoryLog
from tests.unit.shards.trees import Tree
from tests.unit.troubled import Trouble

T = TypeVar("T")
ONE, TWO = WorkerId("w-1"), WorkerId("w-2")
KEYS = [LeaseKey(f"shardId-{number:012d}") for number in range(4)]
ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
AT = ExtendedSequenceNumber("4000")


class Stream(Answers):
    """A stream of two shards; each lag is 7 s."""

    def __init__(self) -> None:
        self.lags: dict[str, int | AwsError | None] = dict.fromkeys(KEYS, 7000)
        super().__init__(self.lags)
        self.shards: list[Shard] = Tree(2).shards
        self.failure: AwsError | None = None
        self.created_s = 1000.0
        self.lists = 0

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        self.lists += 1
        if self.failure is not None:
            raise self.failure
        return tuple(self.shards)

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        return StreamSummary("orders", ARN, "ACTIVE", self.created_s)


class Fleet:
    """An application that a watcher looks at, and workers that renew their leases every three seconds."""

    def __init__(self) -> None:
        self.stage, self.stream = Stage(), Stream()
        self.alive: set[WorkerId] = {ONE}
        self.load: str | None = None
        self.reports = True

    async def begin(self, *leases: Lease) -> None:
        await self.stage.make_separate()
        for lease in leases:
            await self.stage.leases.put(new_lease_row(lease))

    async def watcher(self) -> Watcher:
        return Watcher(await self.application(), SETTINGS)

    async def application(self) -> Application:
        stage = self.stage
        opened = await open_existing(Tables(stage.leases, stage.workers, stage.coordinator), SETTINGS)
        streams = streams_of(SETTINGS, self.stream, stage.clock, MemoryLog(), table=stage.leases)
        return Application(opened, stage.leases, self.stream, streams, stage.clock)

    async def works(self) -> None:
        """Workers that live renew and report."""
        while True:
            for row in await self.stage.leases.scan():
                if row.get("leaseOwner") in self.alive:
                    counter = row["leaseCounter"]
                    assert isinstance(counter, int)
                    await self.stage.leases.put({**row, "leaseCounter": counter + 1})
            for worker in self.alive if self.reports else ():
                written = report(worker, now_s=self.stage.now_s, load=self.load)
                await self.stage.workers.update(written)
            await anyio.sleep(3)


def of(number: int, owner: WorkerId | None = ONE, checkpoint: ExtendedSequenceNumber = AT) -> Lease:
    shard = Tree(2).shards[number]
    return Lease(KEYS[number], 1, checkpoint, lease_owner=owner, hash_range=shard.hash_range)


def with_fleet(test: Callable[[Fleet], Awaitable[T]]) -> T:
    async def played() -> T:
        fleet, found = Fleet(), list[T]()
        async with anyio.create_task_group() as group:
            group.start_soon(fleet.works)
            found.append(await test(fleet))
            group.cancel_scope.cancel()
        return found[0]

    return run_virtual(played)


async def looks(watcher: Watcher, seconds: float) -> Watched:
    for _ in range(int(seconds / 5)):
        await watcher.look()
        await anyio.sleep(5)
    return await watcher.look()


def seen_of(
    *leases: Lease, seconds: float = 20, change: Callable[[Fleet], object] = lambda _: None
) -> Watched:
    async def test(fleet: Fleet) -> Watched:
        await fleet.begin(*leases)
        change(fleet)
        return await looks(await fleet.watcher(), seconds)

    return with_fleet(test)


def causes(seen: Watched) -> dict[str, Unread | None]:
    return {each.key: each.cause for each in seen.log.covered}


def test_a_fleet_that_renews_reads_every_shard() -> None:
    seen = seen_of(of(0), of(1))
    assert causes(seen) == {KEYS[0]: None, KEYS[1]: None}
    assert (seen.settled, seen.complete, seen.workers, seen.reasons(0)) == (True, True, 1, ())
    assert seen.oldest == (KEYS[0], 7.0)


def test_a_dead_fleet_leaves_every_shard_unread_since_its_last_renewal() -> None:
    async def test(fleet: Fleet) -> Watched:
        await fleet.begin(of(0), of(1))
        watcher = await fleet.watcher()
        await looks(watcher, 20)
        fleet.alive.clear()
        return await looks(watcher, 90)

    seen = with_fleet(test)
    assert causes(seen) == {KEYS[0]: Unread.SILENT, KEYS[1]: Unread.SILENT}
    assert seen.workers == 0
    assert all(85 <= each.seconds <= 95 for each in seen.unread)
    assert seen.reasons(60) == tuple(
        f"{key}: worker w-1 has not renewed its lease for {each.seconds:.0f} s, and does not report"
        for key, each in zip(KEYS[:2], seen.unread, strict=True)
    )


def test_a_first_look_does_not_call_anybody_silent() -> None:
    seen = seen_of(of(0, TWO), of(1, TWO), seconds=0)
    assert causes(seen) == {KEYS[0]: None, KEYS[1]: None}
    assert not seen.settled


def test_a_worker_that_lives_and_cannot_renew_is_named() -> None:
    async def test(fleet: Fleet) -> Watched:
        await fleet.begin(of(0), of(1, TWO))
        watcher = await fleet.watcher()
        return await looks(watcher, 40)

    found = {each.key: each for each in with_fleet(test).log.covered}
    assert found[KEYS[0]].cause is None
    assert (found[KEYS[1]].cause, found[KEYS[1]].reader) == (Unread.SILENT, TWO)


def test_workers_that_renew_live_though_none_reports_as_before_kcl_3() -> None:
    async def test(fleet: Fleet) -> tuple[Watched, Watched]:
        fleet.alive.add(TWO)
        fleet.reports = False
        await fleet.begin(of(0), of(1, TWO))
        watcher = await fleet.watcher()
        well = await looks(watcher, 20)
        fleet.alive.clear()
        return well, await looks(watcher, 40)

    well, dead = with_fleet(test)
    assert (well.workers, causes(well)) == (2, {KEYS[0]: None, KEYS[1]: None})
    assert (dead.workers, set(causes(dead).values())) == (0, {Unread.SILENT})


def test_a_shard_without_a_lease_and_one_without_an_owner_are_unread() -> None:
    seen = seen_of(of(1, None))
    assert causes(seen) == {KEYS[0]: Unread.NO_LEASE, KEYS[1]: Unread.NO_OWNER}


def test_a_lease_that_is_finished_while_its_shard_is_open_is_unread() -> None:
    assert causes(seen_of(of(0), of(1, None, SHARD_END)))[KEYS[1]] is Unread.FINISHED


def test_leases_with_the_hash_keys_of_another_stream_are_unread() -> None:
    other = replace(of(1), hash_range=HashRange(5, 9))
    assert causes(seen_of(of(0), other)) == {KEYS[0]: None, KEYS[1]: Unread.OTHER_STREAM}


def test_tables_that_name_another_stream_leave_all_unread() -> None:
    async def test(fleet: Fleet) -> Watched:
        await fleet.begin(of(0), of(1))
        old = OwnStream.of(ARN, 500.0)
        write = text_write(STREAM_KEY, None, old.text, key_attribute="key")
        assert isinstance(write, RowPut)
        await fleet.stage.coordinator.put(write.row)
        return await looks(await fleet.watcher(), 20)

    seen = with_fleet(test)
    assert set(causes(seen).values()) == {Unread.OTHER_STREAM}
    assert "the tables belong to the stream" in seen.log.covered[0].why


def test_a_row_that_cannot_be_read_is_the_cause() -> None:
    async def test(fleet: Fleet) -> Watched:
        await fleet.begin(of(0))
        broken = {**new_lease_row(of(1)), "checkpoint": 7}
        await fleet.stage.leases.put(broken)
        return await looks(await fleet.watcher(), 20)

    assert causes(with_fleet(test))[KEYS[1]] is Unread.UNREADABLE


@pytest.mark.parametrize(
    ("bound", "cause", "why"),
    [
        (Bound.FAILING, Unread.FAILING, "its children keep failing, says worker w-1"),
        (Bound.HANGING, Unread.STALLED, "its child has worked on one action for too long, says worker w-1"),
        (Bound.REFUSED, Unread.STALLED, "AWS refuses its reads, or does not answer, says worker w-1"),
        (Bound.CHILD, None, ""),
    ],
)
def test_the_cause_is_that_which_a_worker_of_ours_tells(bound: Bound, cause: Unread | None, why: str) -> None:
    told = ShardLoad(KEYS[1], 9.0, None, 1.0, 0.0, 0.0, bound)
    load = load_text(WorkerLoad(ONE, 0, None, (told,)))
    seen = seen_of(of(0), of(1), change=lambda fleet: setattr(fleet, "load", load))
    assert causes(seen) == {KEYS[0]: None, KEYS[1]: cause}
    assert [each.why for each in seen.unread] == [why] * bool(why)


def test_a_paused_shard_is_unread_and_says_by_whom() -> None:
    async def test(fleet: Fleet) -> Watched:
        await fleet.begin(of(0), of(1))
        hold = Hold(by="ann@host", reason="deploy", since_ms=0, lease_key=KEYS[1])
        write = holds_write(None, [hold], key_attribute="key")
        assert isinstance(write, RowPut)
        await fleet.stage.coordinator.put(write.row)
        return await looks(await fleet.watcher(), 20)

    seen = with_fleet(test)
    assert causes(seen) == {KEYS[0]: None, KEYS[1]: Unread.PAUSED}
    assert seen.unread[0].why == "ann@host has paused it: deploy"


@pytest.mark.parametrize("error", [AccessDenied("no"), StreamNotFound("orders"), Unavailable("down")])
def test_shards_that_cannot_be_listed_are_a_trouble_and_leases_stand_for_them(error: AwsError) -> None:
    seen = seen_of(of(0), of(1, None), change=lambda fleet: setattr(fleet.stream, "failure", error))
    assert causes(seen) == {KEYS[0]: None, KEYS[1]: Unread.NO_OWNER}
    assert not seen.complete
    assert seen.reasons(1000) == (f"the shards of orders are not known: {error}",)


def test_an_application_without_leases_is_not_well() -> None:
    seen = seen_of(change=lambda fleet: fleet.stream.shards.clear())
    assert seen.reasons(1000) == ("there is no shard: the stream was never read, or the leases are gone",)


def test_the_last_look_stays_with_its_age_while_the_tables_do_not_answer() -> None:
    async def test(fleet: Fleet) -> Watched:
        await fleet.begin(of(0), of(1))
        watcher = await fleet.watcher()
        await looks(watcher, 20)
        await anyio.sleep(100)
        fleet.stage.leases.reads.append(Trouble.THROTTLED)
        return await watcher.look()

    seen = with_fleet(test)
    assert seen.seen_s is not None
    assert seen.now_s - seen.seen_s >= 100
    assert seen.reasons(0)[0].startswith("the tables cannot be read: ")
    lines = list(watch_lines(seen))
    assert lines[0] == "last seen: 100 s ago; what follows is from then"


def test_shards_are_listed_once_a_minute_and_when_the_leases_know_more() -> None:
    async def test(fleet: Fleet) -> tuple[int, int, int]:
        await fleet.begin(of(0), of(1))
        watcher = await fleet.watcher()
        await looks(watcher, 50)
        first = fleet.stream.lists
        tree = Tree(2)
        tree.split(0)
        fleet.stream.shards = tree.shards
        child = Lease(
            KEYS[2], 1, TRIM_HORIZON, lease_owner=ONE, parent_shard_ids=frozenset({tree.shards[0].shard_id})
        )
        await fleet.stage.leases.put(new_lease_row(child))
        await watcher.look()
        second = fleet.stream.lists
        await looks(watcher, 60)
        return first, second, fleet.stream.lists

    assert with_fleet(test) == (1, 2, 3)


def test_a_thousand_streams_are_listed_ten_at_a_time_and_stay_in_order() -> None:
    class Many(Answers):
        """Each list of shards takes a tenth of a second."""

        def __init__(self) -> None:
            super().__init__({})
            self.asking = self.most = self.lists = 0

        async def describe_stream(self, stream: StreamRef) -> StreamSummary:
            return StreamSummary(stream.name, f"{ARN[:-6]}{stream.name}", "ACTIVE", 1000.0)

        async def list_shards(
            self, stream: StreamRef, start: InitialPosition | None = None
        ) -> tuple[Shard, ...]:
            self.asking, self.lists = self.asking + 1, self.lists + 1
            self.most = max(self.most, self.asking)
            await anyio.sleep(0.1 + int(stream.name) % 3 / 100)  # not in the order of their start
            self.asking -= 1
            if stream.name == "7":
                raise Unavailable("down")
            return tuple(Tree(1).shards)

    async def test() -> tuple[float, int, Watched, int]:
        stage, many = Stage(), Many()
        await stage.make_separate()
        names = ",".join(str(number) for number in range(1000))
        chosen = read(
            f"streamNames = {names}\n", base="applicationName = billing\nexecutableName = true\n"
        ).settings
        opened = await open_existing(Tables(stage.leases, stage.workers, stage.coordinator), chosen)
        streams = streams_of(chosen, many, stage.clock, MemoryLog(), table=stage.leases)
        watcher = Watcher(Application(opened, stage.leases, many, streams, stage.clock), chosen)
        began_s = stage.clock.monotonic()
        seen = await watcher.look()
        took_s, before = stage.clock.monotonic() - began_s, many.lists
        await watcher.look()
        return took_s, many.most, seen, many.lists - before

    took_s, most, seen, again = run_virtual(test)
    assert again == 1, "only the one that is not known"
    assert most == 10
    assert 10 <= took_s <= 13
    assert (len(seen.log.covered), seen.troubles) == (999, ("the shards of 7 are not known: down",))
    names = [each.key.split(":")[1] for each in seen.log.covered]
    assert names == [str(number) for number in range(1000) if number != 7]


def test_a_refused_look_is_a_trouble_of_each_look_and_no_old_age_is_shown() -> None:
    async def test(fleet: Fleet) -> list[Watched]:
        await fleet.begin(of(0), of(1))
        watcher = await fleet.watcher()
        found = [await looks(watcher, 20)]
        fleet.stream.lags.update(dict.fromkeys(KEYS, AccessDenied("no GetRecords")))
        await looks(watcher, 60)
        for _ in range(3):
            await anyio.sleep(5)
            found.append(await watcher.look())
        fleet.stream.lags.update(dict.fromkeys(KEYS, 8000))
        await anyio.sleep(5)
        return [*found, await watcher.look()]

    well, *blind, again = with_fleet(test)
    assert well.oldest == (KEYS[0], 7.0)
    assert {each.troubles for each in blind} == {("the age of records is not known: no GetRecords",)}
    assert {(each.oldest, each.unknown_lags, each.still_s) for each in blind} == {(None, 2, None)}
    assert (again.troubles, again.oldest) == ((), (KEYS[0], 8.0))


def test_tables_that_a_fleet_makes_after_the_watcher_has_begun_are_read() -> None:
    async def test() -> tuple[int | None, int | None]:
        fleet = Fleet()
        await fleet.stage.leases.ensure()
        watcher = await fleet.watcher()
        seen = [await watcher.look()]
        await fleet.begin(of(0), of(1))
        async with anyio.create_task_group() as group:
            group.start_soon(fleet.works)
            seen.append(await looks(watcher, 20))
            group.cancel_scope.cancel()
        return seen[0].workers, seen[1].workers

    assert run_virtual(test) == (0, 1)


def test_no_look_writes_anything() -> None:
    async def test(fleet: Fleet) -> set[str]:
        await fleet.begin(of(0), of(1))
        fleet.alive.clear()
        await anyio.sleep(4)
        fleet.stage.forget_calls()
        await looks(await fleet.watcher(), 70)
        stage = fleet.stage
        return {call for table in (stage.leases, stage.workers, stage.coordinator) for call in table.calls}

    assert with_fleet(test) <= {"get", "scan", "other"}


def test_the_words_group_the_shards_of_one_cause() -> None:
    seen = seen_of(of(0, None), of(1, None))
    assert list(watch_lines(seen)) == [
        "2 of 2 open shards are read by nobody; 1 worker live",
        "  shards 0 and 1 for 20 s: no worker has its lease (no owner)",
        "oldest unread record: 7 s old, in shard 0",
    ]


def test_nothing_unread_is_said_in_one_line() -> None:
    assert next(watch_lines(seen_of(of(0), of(1)))) == "all 2 open shards are read; 1 worker live"


def test_json_has_null_for_what_is_not_known() -> None:
    shown = json.loads(json.dumps(watch_json(Watched(0.0, 0), 60)))
    assert shown["ready"] is False
    assert {
        shown[each] for each in ("shards", "workers", "lookAgeSeconds", "oldestUnreadSeconds", "capacity")
    } == {None}


def figures(*looked: Watched) -> str:
    async def test() -> str:
        totals = Totals()
        recorder = MetricsRecorder(lambda: 0.0, StatisticSets(CloudWatchOptions(None, None, "watch")), totals)
        taking = WatchFigures(recorder)
        for each in looked:
            taking.take(each)
        return (await PrometheusExposition(totals).render()).body.decode()

    return run_virtual(test)


def test_the_figures_count_the_unread_by_cause_and_end_at_zero() -> None:
    text = figures(seen_of(of(0), of(1, None)))
    assert "\nkcl_shards_unread 1.0\n" in text or "\nkcl_shards_unread 1\n" in text
    assert 'kcl_shards_unread_by_cause{cause="no owner"} 1' in text
    assert 'kcl_shard_unread_seconds{shard_id="shardId-000000000001"} 20' in text
    both = figures(seen_of(of(0), of(1, None)), seen_of(of(0), of(1)))
    assert 'kcl_shard_unread_seconds{shard_id="shardId-000000000001"} 0' in both
    assert 'kcl_shards_unread_by_cause{cause="no owner"} 0' in both


def test_without_a_look_only_its_failure_is_a_figure() -> None:
    text = figures(Watched(5.0, 0, troubles=("down",)))
    assert "kcl_watch_look_failed 1" in text
    assert "kcl_shards_unread" not in text


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        (None, 503, "nothing was seen yet\n"),
        (lambda: seen_of(of(0), of(1)), 200, "ready\n"),
        (
            lambda: seen_of(of(0), of(1, None), seconds=70),
            503,
            "not ready\nshardId-000000000001: no worker has its lease\n",
        ),
    ],
)
def test_ready_means_that_every_shard_is_read(
    seen: Callable[[], Watched] | None, status: int, words: str
) -> None:
    async def test() -> tuple[int, str]:
        async def capacity(_: AdminRequest) -> AdminResponse:
            raise AssertionError("it is not asked")

        site = WatchSite(AdminAccess("127.0.0.1", None), PrometheusExposition(Totals()), 60.0, capacity)
        site.seen = found
        answer = await site.answer(AdminRequest("GET", "/readyz", host="127.0.0.1"))
        return int(answer.status), answer.body.decode()

    found = None if seen is None else seen()
    assert run_virtual(test) == (status, words)


@pytest.mark.parametrize(
    ("leases", "within_s", "code"),
    [((of(0), of(1)), 20, 0), ((of(0), of(1, None)), 70, 3), ((of(0),), 70, 3)],
)
def test_a_single_look_ends_as_soon_as_it_is_certain(
    leases: tuple[Lease, ...], within_s: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def test(fleet: Fleet) -> tuple[int, float]:
        await fleet.begin(*leases)
        watch = _Watch(await fleet.application(), SETTINGS, 60.0)
        began_s = fleet.stage.clock.monotonic()
        return await watch.once(3.0, as_json=True), fleet.stage.clock.monotonic() - began_s

    found, took_s = with_fleet(test)
    assert (found, took_s <= within_s) == (code, True)
    assert json.loads(capsys.readouterr().out)["ready"] is (code == 0)
