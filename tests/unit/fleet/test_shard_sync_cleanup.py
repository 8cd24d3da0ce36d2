"""The leader clears finished leases away, and touches nothing where the stream is gone or another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.leases.row import RowUpdate
from kcl_daemon.shards.sync import new_lease
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.unit.fleet.shard_sync_stage import AUDIT_S, FAR, MINUTE_S, Stage, key, play

# --- clean-up


async def split_and_finished(stage: Stage) -> None:
    await stage.ensure()
    stage.split(key(0), 1000)
    shards = await stage.shards()
    await stage.has(*(replace(new_lease(shards[key(n)], TRIM_HORIZON)) for n in (4, 5)))
    await stage.finish(key(0), key(4), key(5))


async def begin(stage: Stage, *keys: str) -> None:
    for each in keys:
        await stage.table.update(RowUpdate(each, put={"checkpoint": FAR.sequence_number}))


def test_a_finished_lease_goes_after_five_minutes_once_its_children_have_begun() -> None:
    async def scene(stage: Stage) -> None:
        await split_and_finished(stage)
        await begin(stage, key(4))
        await stage.pass_time(6 * MINUTE_S)
        assert key(0) in await stage.leases()
        await begin(stage, key(5))
        await stage.pass_time(MINUTE_S + 10)
        assert key(0) not in await stage.leases()

    log = play(scene).log
    assert "finished_lease_kept" in log.events("debug")
    assert log.events("warning") == log.events("error") == []
    assert log.events("info") == ["leases_created", "lease_deleted"]


def test_it_stays_for_a_while_as_a_create_of_it_may_still_be_on_its_way() -> None:
    async def scene(stage: Stage) -> None:
        await stage.ensure()
        await stage.pass_time(4.6 * MINUTE_S)
        stage.split(key(0), 1000)
        shards = await stage.shards()
        await stage.has(*(replace(new_lease(shards[key(n)], TRIM_HORIZON)) for n in (4, 5)))
        await stage.finish(key(0), key(4), key(5))
        await begin(stage, key(4), key(5))
        await stage.pass_time(0.5 * MINUTE_S)
        assert key(0) in await stage.leases(), "more than five minutes have passed, but it ended just now"
        await stage.pass_time(2 * MINUTE_S)
        assert key(0) not in await stage.leases()

    play(scene)


def test_a_finished_lease_stays_where_clean_up_is_off() -> None:
    async def scene(stage: Stage) -> None:
        await split_and_finished(stage)
        await begin(stage, key(4), key(5))
        await stage.pass_time(40 * MINUTE_S, poll_s=60.0)
        assert key(0) in await stage.leases()

    play(scene, ShardSettings(cleanup_finished=False))


def test_a_row_that_does_not_name_its_children_is_cleaned_up_by_what_kinesis_lists() -> None:
    async def scene(stage: Stage) -> None:
        await split_and_finished(stage)
        await stage.table.update(RowUpdate(key(0), remove=frozenset({"childShardIds"})))
        await begin(stage, key(4), key(5))
        await stage.pass_time(29 * MINUTE_S, poll_s=30.0)
        assert key(0) in await stage.leases()
        await stage.pass_time(3 * MINUTE_S)
        assert key(0) not in await stage.leases()

    play(scene)


def test_a_lease_that_was_reset_meanwhile_is_not_deleted() -> None:
    async def scene(stage: Stage) -> None:
        await split_and_finished(stage)
        await begin(stage, key(4), key(5))
        seen = list((await stage.leases()).values())
        await anyio.sleep(6 * MINUTE_S)
        await stage.table.update(RowUpdate(key(0), put={"checkpoint": "TRIM_HORIZON"}))
        await stage.shard_sync.ensure(seen)
        assert (await stage.leases())[key(0)].checkpoint == TRIM_HORIZON

    play(scene)


def test_generations_go_in_one_look() -> None:
    async def scene(stage: Stage) -> None:
        await split_and_finished(stage)
        stage.split(key(4), 500)
        shards = await stage.shards()
        await stage.has(*(new_lease(shards[key(n)], FAR) for n in (6, 7)))
        await stage.finish(key(4), key(6), key(7))
        await begin(stage, key(5))
        await stage.pass_time(5 * MINUTE_S + 20)
        assert not {key(0), key(4)} & set(await stage.leases())

    play(scene)


# --- a stream that is gone, or another


def test_without_its_stream_nothing_is_written_and_little_is_said() -> None:
    async def scene(stage: Stage) -> None:
        await split_and_finished(stage)
        await begin(stage, key(4), key(5))
        stage.delete_stream()
        await stage.pass_time(30 * MINUTE_S)
        assert key(0) in await stage.leases()

    stage = play(scene)
    assert stage.log.events("error") == ["stream_gone"]
    assert stage.log.events("warning") == []
    assert stage.model.calls["ListShards"] + stage.model.calls["DescribeStreamSummary"] < 80


def test_an_empty_table_waits_for_its_stream() -> None:
    async def scene(stage: Stage) -> None:
        stage.delete_stream()
        await stage.pass_time(MINUTE_S)
        stage.create_stream(2)
        await stage.pass_time(2 * MINUTE_S)
        assert len(await stage.leases()) == 2

    assert play(scene).log.events() == ["stream_gone", "stream_found_again", "leases_created"]


def with_children(lease: Lease) -> Lease:
    return replace(lease, checkpoint=SHARD_END, child_shard_ids=frozenset({ShardId(key(8)), ShardId(key(9))}))


def behind(lease: Lease) -> Lease:
    return replace(lease, checkpoint=ExtendedSequenceNumber("1000"))


@pytest.mark.parametrize("former", [with_children, behind])
def test_leases_of_a_former_stream_of_the_name_are_recognised_and_left_alone(
    former: Callable[[Lease], Lease],
) -> None:
    async def scene(stage: Stage) -> None:
        shards = (await stage.shards()).values()
        await stage.has(*(former(new_lease(shard, FAR)) for shard in shards))
        before = await stage.leases()
        await stage.pass_time(40 * MINUTE_S)
        assert await stage.leases() == before

    log = play(scene).log
    assert log.events("error") == ["stream_recreated"]
    reported = next(fields for level, _, fields in log.lines if level == "error")
    assert "kcl-daemon leases reset" in str(reported["advice"])


def test_after_a_reset_the_new_stream_is_looked_after() -> None:
    async def scene(stage: Stage) -> None:
        shards = await stage.shards()
        await stage.has(*(behind(new_lease(shard, FAR)) for shard in shards.values()))
        await stage.pass_time(4 * AUDIT_S)
        for each in shards:
            await stage.table.delete(each)
        await stage.pass_time(4 * AUDIT_S)
        assert len(await stage.leases()) == 4

    events = play(scene).log.events()
    assert events == ["stream_recreated", "stream_found_again", "leases_created"]


def test_a_finished_lease_of_an_open_shard_is_reported_and_the_other_shards_are_looked_after() -> None:
    """A Java worker leaves such a lease when its fan-out consumer is deleted (KCL: FanOutRecordsPublisher)."""

    async def scene(stage: Stage) -> None:
        first, *others = (await stage.shards()).values()
        await stage.has(new_lease(first, SHARD_END), *(new_lease(each, FAR) for each in others))
        await stage.pass_time(4 * AUDIT_S)
        await stage.table.delete(others[-1].shard_id)
        await stage.pass_time(5 * AUDIT_S)
        found = await stage.leases()
        assert others[-1].shard_id in found
        assert found[first.shard_id].checkpoint == SHARD_END
        assert await stage.watch.is_there()
        await stage.table.delete(first.shard_id)
        await stage.pass_time(5 * AUDIT_S)
        assert first.shard_id in await stage.leases()

    assert play(scene).log.events("error") == ["open_shard_finished"]
