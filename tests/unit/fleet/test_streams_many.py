"""Many streams: which there are, their leases, and what becomes of those of former ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import pytest

from kcl_daemon.app import shard_sync_of, streams_of
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.config.streams import FormerStreams, ListedStream, StreamsSettings
from kcl_daemon.errors import AccessDenied, ConfigurationError, StreamNotFound
from kcl_daemon.fleet.many_streams import MultiStreamShardSync, MultiStreamTracker
from kcl_daemon.fleet.streams import SingleStreamTracker, require_same_stream_mode
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, StreamIdentity, lease_key_of
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import LATEST, TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.troubled import TroubledTable

ACCOUNT = "000000000000"
SHARD = ShardId("shardId-000000000000")
REFRESH_S = 10.0


class Stage:
    """An account, an empty table, and a leader that reads many streams."""

    def __init__(self, settings: StreamsSettings) -> None:
        self.clock = LoopClock()
        self.model = KinesisModel(lambda: self.clock.wall_ms() / 1000)
        self.kinesis = MemoryKinesis(self.model)
        self.table = TroubledTable()
        self.log = MemoryLog()
        self.configure(settings)

    def configure(self, streams: StreamsSettings) -> None:
        """A worker with these settings leads from now on."""
        settings = Settings(
            "app", "", ChildSettings(("true",)), "w-1", streams=streams,
            initial_position=InitialPosition(StartAt.TRIM_HORIZON),
        )  # fmt: skip
        found = streams_of(settings, self.kinesis, self.clock, self.log, table=self.table)
        assert isinstance(found, MultiStreamTracker)
        self.streams = found
        shard_sync = shard_sync_of(
            found,
            settings,
            worker_context(clock=self.clock, log=self.log),
            table=self.table,
            kinesis=self.kinesis,
            leads=lambda: True,
        )
        assert isinstance(shard_sync, MultiStreamShardSync)
        self.shard_sync = shard_sync
        self.shard_sync.begin()

    def create(self, name: str, shards: int = 1) -> StreamIdentity:
        self.model.handle("CreateStream", {"StreamName": name, "ShardCount": shards})
        return StreamIdentity(self.account, name, self.clock.wall_ms() // 1000)

    @property
    def account(self) -> str:
        """The model's."""
        stream = next(iter(self.model.handle("ListStreams", {})["StreamNames"]))  # type: ignore[call-overload]  # JSON
        answer = self.model.handle("DescribeStreamSummary", {"StreamName": stream})
        return str(answer["StreamDescriptionSummary"]["StreamARN"]).split(":")[4]  # type: ignore[index]  # JSON

    def delete(self, name: str) -> None:
        self.model.handle("DeleteStream", {"StreamName": name})

    async def leases(self) -> list[Lease]:
        return [lease_row.lease_from_row(row) for row in await TroubledTable.scan(self.table)]

    async def keys(self) -> set[str]:
        return {lease.lease_key for lease in await self.leases()}

    async def poll(self) -> bool:
        return await self.shard_sync.ensure(await self.leases())

    async def later(self, seconds: float = REFRESH_S) -> None:
        """The leader looks again and again."""
        for _ in range(int(seconds)):
            await anyio.sleep(1.0)
            await self.poll()


def listing(*names: str, former: FormerStreams = FormerStreams.KEEP, wait_s: float = 30.0) -> StreamsSettings:
    return StreamsSettings(
        names=tuple(map(ListedStream, names)),
        refresh_ms=int(REFRESH_S * 1000),
        former=former,
        former_wait_s=wait_s,
    )


def play(scene: Callable[[Stage], Awaitable[None]], settings: StreamsSettings) -> Stage:
    async def main() -> Stage:
        stage = Stage(settings)
        await stage.table.ensure()
        await scene(stage)
        return stage

    return run_virtual(main)


def test_every_stream_gets_its_leases_and_one_that_is_missing_is_reported_once() -> None:
    async def scene(stage: Stage) -> None:
        clicks, orders = stage.create("clicks", 2), stage.create("orders")
        await stage.streams.prepare()
        assert await stage.poll()
        second = ShardId("shardId-000000000001")
        assert await stage.keys() == {
            lease_key_of(clicks, SHARD),
            lease_key_of(clicks, second),
            lease_key_of(orders, SHARD),
        }
        await stage.later(5 * REFRESH_S)
        assert not await stage.poll()

    log = play(scene, listing("clicks", "missing", "orders")).log
    errors = [fields["stream"] for level, _, fields in log.lines if level == "error"]
    assert errors == ["missing"]


def test_a_stream_that_appears_is_read_from_the_next_look_at_the_list_on() -> None:
    async def scene(stage: Stage) -> None:
        stage.create("clicks")
        await stage.poll()
        orders = stage.create("orders")
        await stage.later()
        assert lease_key_of(orders, SHARD) in await stage.keys()

    play(scene, listing("clicks", "orders"))


def test_nothing_that_was_never_there_holds_up_a_start_but_a_refusal_of_everything_does() -> None:
    async def scene(stage: Stage) -> None:
        await stage.streams.prepare()
        stage.model.fail_next("DescribeStreamSummary", "AccessDeniedException")
        stage.model.fail_next("DescribeStreamSummary", "AccessDeniedException")
        with pytest.raises(AccessDenied):
            await stage.streams.prepare()

    play(scene, listing("clicks", "orders"))


def test_trouble_with_one_stream_does_not_hold_up_the_others() -> None:
    async def scene(stage: Stage) -> None:
        clicks, orders = stage.create("clicks"), stage.create("orders")
        await stage.streams.prepare()
        stage.model.fail_next("ListShards", "AccessDeniedException")
        assert await stage.poll()
        assert len(await stage.keys()) == 1
        await stage.later()
        assert await stage.keys() == {lease_key_of(clicks, SHARD), lease_key_of(orders, SHARD)}

    assert play(scene, listing("clicks", "orders")).log.events("error") == ["lease_sync_failed"]


@pytest.mark.parametrize("former", FormerStreams)
def test_leases_of_a_stream_that_is_created_anew_go_by_the_strategy_too(former: FormerStreams) -> None:
    async def scene(stage: Stage) -> None:
        before = stage.create("clicks")
        stage.create("orders")
        await stage.poll()
        await anyio.sleep(2.0)
        stage.delete("clicks")
        await stage.later(3 * REFRESH_S)
        assert lease_key_of(before, SHARD) in await stage.keys()
        after = stage.create("clicks")
        await stage.later(2 * REFRESH_S)
        assert {lease_key_of(before, SHARD), lease_key_of(after, SHARD)} <= await stage.keys()
        stage.configure(settings)  # a worker that knows nothing leads
        await stage.streams.prepare()
        await stage.later(4 * REFRESH_S)
        assert lease_key_of(after, SHARD) in await stage.keys()
        stays = former is not FormerStreams.DELETE_ALL  # and it is not among those given
        assert (lease_key_of(before, SHARD) in await stage.keys()) is stays

    settings = listing("clicks", "orders", former=former)
    assert play(scene, settings).log.events("error").count("stream_not_found") == 1


@pytest.mark.parametrize("former", FormerStreams)
def test_a_stream_that_is_listed_no_more_goes_by_the_strategy(former: FormerStreams) -> None:
    async def scene(stage: Stage) -> None:
        clicks = stage.create("clicks")
        stage.create("orders")
        await stage.poll()
        stage.configure(listing("orders", former=former))
        await stage.later(25.0)
        assert lease_key_of(clicks, SHARD) in await stage.keys()
        await stage.later(10.0)
        stays = former is not FormerStreams.DELETE_ALL  # and it is not among those given
        assert (lease_key_of(clicks, SHARD) in await stage.keys()) is stays

    play(scene, listing("clicks", "orders"))


def test_a_former_stream_that_kinesis_does_not_know_is_not_waited_for() -> None:
    async def scene(stage: Stage) -> None:
        clicks = stage.create("clicks")
        stage.create("orders")
        await stage.poll()
        stage.delete("clicks")
        stage.configure(listing("orders", former=FormerStreams.DELETE_ALL, wait_s=1e6))
        await stage.later(2.0)
        assert lease_key_of(clicks, SHARD) not in await stage.keys()

    play(scene, listing("clicks", "orders"))


def test_a_worker_knows_the_stream_of_a_lease_that_only_the_leader_lists() -> None:
    async def scene(stage: Stage) -> None:
        stage.create("orders")
        await stage.streams.prepare()
        identity = StreamIdentity("444455556666", "clicks", 1_700_000_000)
        lease = Lease(lease_key_of(identity, SHARD), 0, TRIM_HORIZON, stream=identity)
        found = stage.streams.of(lease)
        assert found.ref.arn == "arn:aws:kinesis:us-east-1:444455556666:stream/clicks"
        assert found.ref.identity == identity
        assert found.position == InitialPosition(StartAt.TRIM_HORIZON)

    play(scene, listing("orders"))


@pytest.mark.parametrize("many", [True, False])
def test_a_table_of_the_other_kind_is_refused_and_one_of_this_kind_is_not(many: bool) -> None:
    async def scene(stage: Stage) -> None:
        await require_same_stream_mode(stage.table, many=many)
        identity = StreamIdentity("444455556666", "clicks", 1_700_000_000) if many else None
        lease = Lease(lease_key_of(identity, SHARD), 0, TRIM_HORIZON, stream=identity)
        await stage.table.put(*lease_row.creation(lease))
        await require_same_stream_mode(stage.table, many=many)
        with pytest.raises(ConfigurationError, match="applicationName"):
            await require_same_stream_mode(stage.table, many=not many)

    play(scene, listing("orders"))


def test_one_stream_must_be_there_at_the_start() -> None:
    async def main() -> None:
        settings = Settings("app", "clicks", ChildSettings(("true",)), "w-1")
        kinesis = MemoryKinesis(KinesisModel(lambda: 0.0))
        streams = streams_of(settings, kinesis, LoopClock(), MemoryLog(), table=TroubledTable())
        assert isinstance(streams, SingleStreamTracker)
        assert streams.of(Lease(LeaseKey(SHARD), 0, TRIM_HORIZON)) is streams.stream
        with pytest.raises(StreamNotFound):
            await streams.prepare()

    run_virtual(main)


def test_a_filter_finds_streams_as_they_come_and_a_named_one_keeps_its_position() -> None:
    async def scene(stage: Stage) -> None:
        clicks, other = stage.create("log-clicks"), stage.create("metrics")
        stage.create("log-late")
        await stage.streams.prepare()
        await stage.poll()
        logs = stage.create("log-orders")
        await stage.later()
        keys = await stage.keys()
        assert {lease_key_of(clicks, SHARD), lease_key_of(logs, SHARD)} <= keys
        assert lease_key_of(other, SHARD) not in keys
        begins = {lease.stream.name: lease.checkpoint for lease in await stage.leases() if lease.stream}
        assert begins == {"log-clicks": TRIM_HORIZON, "log-orders": TRIM_HORIZON, "log-late": LATEST}
        await anyio.sleep(2.0)
        stage.delete("log-clicks")
        await stage.later(2 * REFRESH_S)
        assert lease_key_of(clicks, SHARD) not in await stage.keys()

    named = (ListedStream("log-late", None, InitialPosition(StartAt.LATEST)),)
    settings = replace(listing(former=FormerStreams.DELETE_ALL), names=named, name_filter="log-*")
    assert play(scene, settings).log.events("error") == []


def test_streams_that_cannot_be_listed_stay_as_they_were() -> None:
    async def scene(stage: Stage) -> None:
        clicks = stage.create("clicks")
        await stage.poll()
        stage.model.fail_next("ListStreams", "InternalFailure")
        await stage.later()
        assert [each.ref.identity for each in stage.streams.current] == [clicks]

    assert play(scene, replace(listing(), name_filter="cl?cks")).log.events("warning") == [
        "streams_not_listed"
    ]


def test_until_streams_could_be_listed_once_none_of_a_filter_is_a_former_one() -> None:
    settings = replace(listing("orders", former=FormerStreams.DELETE_ALL), name_filter="cl*")

    async def scene(stage: Stage) -> None:
        clicks, metrics = stage.create("clicks"), stage.create("metrics")
        stage.create("orders")
        stage.configure(replace(settings, name_filter="*"))
        await stage.poll()
        stage.configure(settings)  # another worker leads, and is told nothing
        for _ in range(9):
            stage.model.fail_next("ListStreams", "AccessDeniedException")
        await stage.later(9 * REFRESH_S)
        assert {lease_key_of(clicks, SHARD), lease_key_of(metrics, SHARD)} <= await stage.keys()
        await stage.later(20.0)
        assert lease_key_of(metrics, SHARD) in await stage.keys(), "the wait begins with the first answer"
        await stage.later(30.0)
        assert lease_key_of(metrics, SHARD) not in await stage.keys()
        assert lease_key_of(clicks, SHARD) in await stage.keys()

    play(scene, settings)


def test_a_new_leader_with_an_old_list_deletes_nothing_before_it_has_listed_the_streams_itself() -> None:
    """Found by the simulator, `many_streams` 111: it deleted the leases of a stream that was there."""
    settings = replace(listing(former=FormerStreams.DELETE_ALL), name_filter="*")

    async def scene(stage: Stage) -> None:
        stage.create("orders")
        await stage.poll()
        former_leader = stage.streams, stage.shard_sync
        clicks = stage.create("clicks")
        stage.configure(settings)  # another worker leads, and finds the new stream
        await stage.poll()
        stage.streams, stage.shard_sync = former_leader
        stage.shard_sync.begin()
        for _ in range(9):
            stage.model.fail_next("ListStreams", "LimitExceededException")
        await stage.later(9 * REFRESH_S)
        assert lease_key_of(clicks, SHARD) in await stage.keys()

    play(scene, settings)


def test_no_right_to_list_streams_is_an_error_at_the_start() -> None:
    async def scene(stage: Stage) -> None:
        stage.model.fail_next("ListStreams", "AccessDeniedException")
        with pytest.raises(AccessDenied):
            await stage.streams.prepare()

    play(scene, replace(listing(), name_filter="*"))


def test_a_filter_that_no_stream_fits_is_reported_once_until_one_does() -> None:
    async def scene(stage: Stage) -> None:
        stage.create("orders")
        await stage.streams.prepare()
        await stage.later(3 * REFRESH_S)
        clicks = stage.create("clicks")
        await stage.later(2 * REFRESH_S)
        assert await stage.keys() == {lease_key_of(clicks, SHARD)}

    log = play(scene, replace(listing(), name_filter="cl*")).log
    assert log.events("warning") == ["no_stream_fits_the_filter"]
