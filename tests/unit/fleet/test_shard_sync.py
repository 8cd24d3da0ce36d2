"""The leader keeps a stream's leases complete, over real rows and a real model."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.balance import ShardSettings, ShardSyncStrategy
from kcl_daemon.errors import AwsError, Throttled, Unavailable
from kcl_daemon.shards.sync import new_lease
from kcl_protocol.sequence import LATEST, TRIM_HORIZON
from tests.unit.at_point import killed_at
from tests.unit.fleet.shard_sync_stage import AUDIT_S, Stage, key, play
from tests.unit.troubled import Trouble

# --- bootstrap


def test_an_empty_table_is_filled_at_once() -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.ensure()
        assert list(await stage.leases()) == [key(number) for number in range(4)]
        assert not await stage.ensure()

    stage = play(scene)
    assert stage.log.events() == ["leases_created"]


def test_thousands_of_leases_are_created_side_by_side_with_a_word_now_and_then() -> None:
    async def scene(stage: Stage) -> None:
        stage.delete_stream()
        stage.create_stream(2500)
        assert await stage.ensure()
        assert len(await stage.leases()) == 2500

    stage = play(scene)
    assert stage.log.events("info") == ["leases_being_created", "leases_being_created", "leases_created"]
    assert stage.log.lines[-1][2]["count"] == 2500
    assert stage.model.calls["ListShards"] == 3


def test_a_list_with_a_hole_is_asked_for_again_and_then_refused_with_the_hole() -> None:
    async def scene(stage: Stage) -> None:
        first, *others = (await stage.shards()).values()
        stage.kinesis.lists = [tuple(others)] * 2
        assert await stage.ensure()
        assert len(await stage.leases()) == 4
        for lease in await stage.leases():
            await stage.table.delete(lease)
        stage.shard_sync.begin()
        stage.kinesis.lists = [tuple(others)] * 3
        with pytest.raises(AwsError, match=f"leave hashes 0 to {first.hash_range.end} uncovered"):
            await stage.ensure()
        assert await stage.leases() == {}

    play(scene)


def test_a_write_that_fails_ends_the_creation_and_the_next_look_goes_on() -> None:
    async def scene(stage: Stage) -> None:
        stage.table.writes.extend([Trouble.NONE, Trouble.THROTTLED])
        with pytest.raises(Throttled):
            await stage.ensure()
        created = len(await stage.leases())
        assert 0 < created < 4
        await stage.ensure()
        assert len(await stage.leases()) == created, "a while passes before the next try"
        await anyio.sleep(5)
        assert await stage.ensure()
        assert len(await stage.leases()) == 4

    play(scene)


def test_a_generation_of_which_one_failed_is_not_followed_by_its_child_shards() -> None:
    async def scene(stage: Stage) -> None:
        stage.split(key(0), 1000)
        await stage.has(new_lease((await stage.shards())[key(3)], TRIM_HORIZON))
        stage.table.writes.append(Trouble.FAILED_BEFORE)
        with pytest.raises(Unavailable):
            await stage.ensure()
        assert not {key(4), key(5)} & set(await stage.leases())

    play(scene, ShardSettings(sync_strategy=ShardSyncStrategy.PERIODIC))


# --- audits


def test_a_new_leader_fills_a_hole_at_once_and_a_later_one_is_seen_three_times_first() -> None:
    async def scene(stage: Stage) -> None:
        await stage.has(new_lease((await stage.shards())[key(0)], TRIM_HORIZON))
        assert await stage.ensure()
        assert len(await stage.leases()) == 4
        await stage.table.delete(key(2))
        await stage.pass_time(2 * AUDIT_S + 20)
        assert len(await stage.leases()) == 3
        await stage.pass_time(AUDIT_S)
        assert len(await stage.leases()) == 4

    assert "lease_hole_seen" in play(scene).log.events("debug")


def test_a_table_that_was_emptied_is_filled_at_the_next_audit() -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.ensure()
        for lease_key in await stage.leases():
            await stage.table.delete(lease_key)
        await stage.pass_time(AUDIT_S - 20)
        assert await stage.leases() == {}
        await stage.pass_time(40)
        assert len(await stage.leases()) == 4

    play(scene)


def test_the_number_of_audits_and_their_period_can_be_set() -> None:
    async def scene(stage: Stage) -> None:
        await stage.ensure()
        await stage.table.delete(key(2))
        await stage.pass_time(5.0, poll_s=1.0)
        assert len(await stage.leases()) == 4

    play(scene, ShardSettings(audit_ms=2_000, audit_confidence=2))


def test_hashes_that_a_row_lacks_are_filled_in() -> None:
    async def scene(stage: Stage) -> None:
        shards = await stage.shards()
        bare = replace(new_lease(shards[key(1)], LATEST), hash_range=None)
        await stage.has(*(new_lease(shards[key(n)], LATEST) for n in (0, 2, 3)), bare)
        assert not await stage.ensure()
        assert (await stage.leases())[key(1)].hash_range == shards[key(1)].hash_range

    assert play(scene).log.events("info") == ["lease_hashes_filled_in"]


def test_killed_between_two_rows_a_worker_fills_in_the_rest_later() -> None:
    async def scene(stage: Stage) -> None:
        shards = await stage.shards()
        bare = [replace(new_lease(shards[key(n)], LATEST), hash_range=None) for n in range(4)]
        await stage.has(*bare)
        with killed_at("after-hash-range-written", 2):
            await stage.ensure()
        assert sum(lease.hash_range is not None for lease in (await stage.leases()).values()) == 2
        await stage.ensure()
        assert all(lease.hash_range is not None for lease in (await stage.leases()).values())

    play(scene)


def test_a_periodic_sync_creates_whole_lineages_and_needs_no_hole() -> None:
    async def scene(stage: Stage) -> None:
        await stage.ensure()
        stage.split(key(0), 1000)
        await stage.pass_time(AUDIT_S + 10)
        assert {key(4), key(5)} <= set(await stage.leases())

    play(scene, ShardSettings(sync_strategy=ShardSyncStrategy.PERIODIC))


def test_child_shards_of_open_shards_stop_a_sync_unless_they_are_to_be_ignored() -> None:
    async def scene(stage: Stage) -> None:
        stage.split(key(0), 1000)
        shards = await stage.shards()
        reopened = {**shards, key(0): replace(shards[key(0)], ending_sequence_number=None)}
        await stage.has(new_lease(shards[key(3)], TRIM_HORIZON))
        stage.kinesis.lists = [tuple(reopened.values())] * 3
        if stage.shard_sync._settings.ignore_unexpected_children:
            assert await stage.ensure()
            assert set(await stage.leases()) == {key(n) for n in range(4)}
        else:
            with pytest.raises(AwsError, match="ignoreUnexpectedChildShards"):
                await stage.ensure()
            await anyio.sleep(5)
            assert await stage.ensure()

    play(scene)
    play(scene, ShardSettings(ignore_unexpected_children=True))


def test_a_leader_that_has_lost_the_lock_creates_no_lease() -> None:
    async def scene(stage: Stage) -> None:
        stage.leads = False
        assert not await stage.ensure()
        assert await stage.leases() == {}

    play(scene)
