"""A leader that follows a DynamoDB table: leases of each stream, alone and among many streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.app import shard_sync_of, streams_of
from kcl_daemon.config.changes import ChangesSettings
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.config.streams import ListedStream, StreamsSettings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.fleet.many_streams import streams_to_read
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, lease_key_of
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.transport.table_streams import FollowedTables
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.changed_table import TABLE, ChangedTable, arn_of, identity_of, shard
from tests.unit.fleet.contexts import worker_context
from tests.unit.troubled import TroubledTable

TIP = InitialPosition(StartAt.LATEST)
OLDEST = InitialPosition(StartAt.TRIM_HORIZON)
ONE = ChangesSettings(table=TABLE)
MANY = StreamsSettings(tables=(ListedStream(TABLE, table=TABLE),), names=(), refresh_ms=10_000)


class Stage:
    """A leader, its lease table, and the table that it follows."""

    def __init__(self, streams: StreamsSettings, changes: ChangesSettings, position: InitialPosition) -> None:
        self.clock, self.log, self.source, self.table = (
            LoopClock(),
            MemoryLog(),
            ChangedTable(),
            TroubledTable(),
        )
        self.settings = Settings(
            "app", "" if streams.are_many else TABLE, ChildSettings(("true",)), "w-1",
            streams=streams, changes=changes, initial_position=position,
        )  # fmt: skip
        self.lead()

    def lead(self) -> None:
        """A new leader."""
        kinesis = FollowedTables(self.source)
        self.streams = streams_of(self.settings, kinesis, self.clock, self.log, table=self.table)
        context = worker_context(clock=self.clock, log=self.log)
        self.shard_sync = shard_sync_of(
            self.streams,
            self.settings,
            context,
            table=self.table,
            kinesis=kinesis,
            leads=lambda: True,
        )
        self.shard_sync.begin()

    async def leases(self) -> dict[str, Lease]:
        rows = await TroubledTable.scan(self.table)
        return {str(lease.shard_id): lease for lease in map(lease_row.lease_from_row, rows)}

    async def later(self, seconds: int = 400) -> dict[str, str]:
        """What the leases are after some looks, by shard."""
        for _ in range(seconds // 5):
            await anyio.sleep(5.0)
            await self.shard_sync.ensure(list((await self.leases()).values()))
        return {name: str(lease.checkpoint) for name, lease in (await self.leases()).items()}

    async def reach(self, name: str, at: ExtendedSequenceNumber = SHARD_END, *children: str) -> None:
        lease = (await self.leases())[name]
        done = Lease(
            lease.lease_key, 5, at, stream=lease.stream, parent_shard_ids=lease.parent_shard_ids,
            child_shard_ids=frozenset(map(ShardId, children)), hash_range=lease.hash_range,
        )  # fmt: skip
        await self.table.delete(lease.lease_key)
        await self.table.put(*lease_row.creation(done))


def play(
    scene: Callable[[Stage], Awaitable[None]],
    *,
    streams: StreamsSettings | None = None,
    changes: ChangesSettings = ONE,
    position: InitialPosition = TIP,
) -> Stage:
    async def main() -> Stage:
        stage = Stage(streams or StreamsSettings(), changes, position)
        await stage.table.ensure()
        await scene(stage)
        return stage

    return run_virtual(main)


def test_a_stream_that_comes_while_all_is_read_begins_at_its_oldest_change() -> None:
    async def scene(stage: Stage) -> None:
        stage.source.switch_on(1, shard("a"), shard("b", "a", is_open=True))
        assert await stage.later() == {"b": "LATEST"}
        stage.source.switch_off(1)
        await stage.reach("b")
        assert await stage.later() == {"b": "SHARD_END"}
        stage.source.switch_on(2, shard("c"), shard("d", "c", is_open=True))
        assert await stage.later() == {"b": "SHARD_END", "c": "TRIM_HORIZON"}

    log = play(scene).log
    assert [line for line in log.lines if line[0] in {"warning", "error"}] == []


def test_the_former_stream_may_be_forgotten_before_the_next_one_comes() -> None:
    async def scene(stage: Stage) -> None:
        stage.source.switch_on(1, shard("a", is_open=True), shard("b", is_open=True))
        await stage.later()
        await stage.reach("a")
        await stage.reach("b")
        stage.source.switch_off(1)
        stage.source.shards[arn_of(1)] = ()  # all are trimmed
        assert await stage.later(4_000) == {"b": "SHARD_END"}
        stage.source.forget(1)
        await stage.later(4_000)
        stage.lead()
        stage.source.switch_on(2, shard("c", is_open=True))
        assert await stage.later() == {"b": "SHARD_END", "c": "TRIM_HORIZON"}
        await stage.reach("c", ExtendedSequenceNumber("105"))
        assert await stage.later(4_000) == {"c": "105"}

    play(scene)


def test_leases_go_when_their_children_have_begun_and_never_make_three_times_the_open_shards() -> None:
    async def scene(stage: Stage) -> None:
        generation, lineages, most = 0, range(100), 0
        named = [f"s0-{each:03}" for each in lineages]
        stage.source.switch_on(1, *(shard(each, is_open=True) for each in named))
        await stage.later()
        while generation < 5:
            generation += 1
            before, named = named, [f"s{generation}-{each:03}" for each in lineages]
            listed = [*stage.source.shards[arn_of(1)]]
            listed += [
                shard(each, parent, number=100 * generation)
                for each, parent in zip(named, before, strict=True)
            ]
            stage.source.shards[arn_of(1)] = tuple(listed)
            for parent, child in zip(before, named, strict=True):
                lease = Lease(
                    LeaseKey(child), 0, ExtendedSequenceNumber("0"), parent_shard_ids=frozenset({ShardId(parent)}),
                    hash_range=listed[0].hash_range,
                )  # fmt: skip
                await stage.table.put(*lease_row.creation(lease))
                await stage.reach(parent, SHARD_END, child)
            most = max(most, len(await stage.leases()))
            await stage.later(100)
        assert most <= 3 * len(lineages)
        assert set(await stage.later()) == set(named)

    play(scene, position=OLDEST)


def test_among_many_streams_a_later_one_gets_leases_when_the_one_before_is_finished() -> None:
    async def scene(stage: Stage) -> None:
        stage.source.switch_on(1, shard("a", is_open=True), shard("b", is_open=True))
        await stage.streams.prepare()
        assert await stage.later(60) == {"a": "LATEST", "b": "LATEST"}
        stage.source.switch_off(1)
        stage.source.switch_on(2, shard("c", is_open=True))
        await stage.reach("a")
        assert set(await stage.later(60)) == {"a", "b"}
        await stage.reach("b")
        assert (await stage.later(60))["c"] == "TRIM_HORIZON"
        keys = {lease.lease_key for lease in (await stage.leases()).values()}
        assert keys == {
            lease_key_of(identity_of(1), ShardId("a")),
            lease_key_of(identity_of(1), ShardId("b")),
            "111122223333:eu-west-1$111122223333$orders$2026-11-02T10_00_00.000:1:c",
        }
        stage.source.forget(1)
        assert await stage.later(4_000) == {"c": "TRIM_HORIZON"}

    log = play(scene, streams=MANY).log
    assert [line for line in log.lines if line[0] == "error"] == []


def test_among_many_streams_a_later_one_begins_at_its_oldest_change_after_a_day_without_a_worker() -> None:
    async def scene(stage: Stage) -> None:
        stage.source.switch_on(1, shard("a", is_open=True))
        await stage.later(60)
        stage.source.forget(1)
        stage.source.switch_on(2, shard("c", is_open=True))
        stage.lead()
        assert (await stage.later(60))["c"] == "TRIM_HORIZON"

    play(scene, streams=MANY)


@pytest.mark.parametrize(
    ("position", "begun", "expected"),
    [
        (TIP, {}, [(3, "LATEST")]),
        (OLDEST, {}, [(1, "TRIM_HORIZON")]),
        (InitialPosition(StartAt.TIMESTAMP, 2.5 * 86_400), {}, [(2, "AT_TIMESTAMP")]),
        (InitialPosition(StartAt.TIMESTAMP, 0.5 * 86_400), {}, [(1, "AT_TIMESTAMP")]),
        (TIP, {2: True}, [(2, "LATEST"), (3, "TRIM_HORIZON")]),
        (TIP, {2: False}, [(2, "LATEST")]),
        (TIP, {1: True, 2: True, 3: False}, [(1, "LATEST"), (2, "TRIM_HORIZON"), (3, "TRIM_HORIZON")]),
    ],
)
def test_which_streams_of_a_table_are_read(
    position: InitialPosition, begun: dict[int, bool], expected: list[tuple[int, str]]
) -> None:
    table = ChangedTable()
    for day in (1, 2, 3):
        table.switch_on(day, shard(f"s{day}"))
    leases = {
        identity_of(day): [
            Lease(
                LeaseKey("k"),
                1,
                SHARD_END if finished else ExtendedSequenceNumber("7"),
                stream=identity_of(day),
            )
        ]
        for day, finished in begun.items()
    }
    found = streams_to_read(anyio.run(table.streams_of, TABLE), leases, position)
    assert [(each.arn, str(at.checkpoint)) for each, at in found] == [
        (arn_of(day), at) for day, at in expected
    ]


def test_a_snapshot_needs_new_images_and_plain_records_are_warned_of_without() -> None:
    async def scene(stage: Stage) -> None:
        stage.source.view_type = "KEYS_ONLY"
        stage.source.switch_on(1, shard("a", is_open=True))
        await stage.streams.prepare()

    with pytest.raises(ConfigurationError, match=r"snapshot = true needs the new images.*KEYS_ONLY"):
        play(scene, changes=ChangesSettings(table=TABLE, snapshot=True))
    log = play(scene, changes=ChangesSettings(table=TABLE, form=ChangeForm.PLAIN)).log
    assert "stream_without_new_images" in {event for level, event, _ in log.lines if level == "warning"}
    assert not [line for line in play(scene).log.lines if line[0] == "warning"]
