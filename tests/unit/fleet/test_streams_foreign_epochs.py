"""Leases whose keys bear an epoch that is not Kinesis' creation time, as Java programs write them (KCL does not compare)."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.streams import FormerStreams
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, StreamIdentity, lease_key_of
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.unit.fleet.test_streams_many import REFRESH_S, SHARD, Stage, listing, play

EPOCHS = {"one": 1, "made up": 12345, "seconds": 1_900_000_000, "milliseconds": 1_900_000_000_123}


def put_records(stage: Stage, name: str, count: int = 3) -> list[str]:
    answers = [
        stage.model.handle("PutRecord", {"StreamName": name, "Data": "eA==", "PartitionKey": "k"})
        for _ in range(count)
    ]
    return [str(answer["SequenceNumber"]) for answer in answers]


async def java_lease(
    stage: Stage, real: StreamIdentity, epoch: int, checkpoint: ExtendedSequenceNumber
) -> StreamIdentity:
    """A lease as a Java program leaves it: nothing in it but what KCL knows."""
    identity = replace(real, creation_epoch=epoch)
    lease = Lease(
        lease_key_of(identity, SHARD), 7, checkpoint, stream=identity, hash_range=HashRange(0, MAX_HASH)
    )
    await stage.table.put(*lease_row.creation(lease))
    return identity


@pytest.mark.parametrize("epoch", EPOCHS.values(), ids=EPOCHS)
@pytest.mark.parametrize("former", FormerStreams)
def test_leases_of_any_epoch_are_taken_over_with_their_checkpoints(epoch: int, former: FormerStreams) -> None:
    async def scene(stage: Stage) -> None:
        real = stage.create("clicks")
        stage.create("orders")
        numbers = put_records(stage, "clicks")
        checkpoint = ExtendedSequenceNumber(numbers[1], 0)
        identity = await java_lease(stage, real, epoch, checkpoint)
        await stage.streams.prepare()
        await stage.later(6 * REFRESH_S)
        found = {lease.lease_key: lease for lease in await stage.leases()}
        assert found[lease_key_of(identity, SHARD)].checkpoint == checkpoint
        assert lease_key_of(real, SHARD) not in found
        assert await stage.streams.of(found[lease_key_of(identity, SHARD)]).watch.is_there()

    assert play(scene, listing("clicks", "orders", former=former)).log.events("error") == []


async def one_foreign(
    stage: Stage, *, epoch: int = 12345, behind_s: float = 0.0
) -> tuple[StreamIdentity, StreamIdentity]:
    """A stream whose lease has a made-up epoch: what Kinesis would call it, and what it is called."""
    real = stage.create("clicks")
    numbers = put_records(stage, "clicks")
    foreign = await java_lease(stage, real, epoch, ExtendedSequenceNumber(numbers[1], 0))
    await anyio.sleep(behind_s)
    return real, foreign


def test_that_a_stream_is_created_anew_is_seen_by_a_worker_that_starts_afterwards() -> None:
    settings = listing("clicks", former=FormerStreams.DELETE_ALL)

    async def scene(stage: Stage) -> None:
        _, foreign = await one_foreign(stage)
        await stage.later(2.0)
        stage.delete("clicks")
        await anyio.sleep(REFRESH_S)
        after = stage.create("clicks")
        stage.configure(settings)
        await stage.streams.prepare()
        await stage.poll()
        assert {lease_key_of(foreign, SHARD), lease_key_of(after, SHARD)} == await stage.keys()
        (former,) = [lease for lease in await stage.leases() if lease.stream == foreign]
        assert not await stage.streams.of(former).watch.is_there()
        await stage.later(20.0)
        assert lease_key_of(foreign, SHARD) in await stage.keys(), "the wait has just begun"
        await stage.later(20.0)
        assert await stage.keys() == {lease_key_of(after, SHARD)}

    play(scene, settings)


def test_without_a_note_positions_tell_that_the_stream_was_created_anew() -> None:
    async def scene(stage: Stage) -> None:
        _, foreign = await one_foreign(stage)
        stage.delete("clicks")
        await anyio.sleep(REFRESH_S)
        after = stage.create("clicks")
        await stage.streams.prepare()
        await stage.poll()
        assert {lease_key_of(foreign, SHARD), lease_key_of(after, SHARD)} == await stage.keys()

    play(scene, listing("clicks"))


@pytest.mark.parametrize("also_real", [True, False])
def test_two_identities_of_one_stream_are_refused_at_the_start(also_real: bool) -> None:
    async def scene(stage: Stage) -> None:
        real, foreign = await one_foreign(stage)
        await java_lease(stage, real, real.creation_epoch if also_real else 99, TRIM_HORIZON)
        with pytest.raises(ConfigurationError, match=str(foreign)) as refused:
            await stage.streams.prepare()
        assert "kcl-daemon leases delete" in str(refused.value)

    play(scene, listing("clicks"))


def test_a_second_identity_that_comes_later_is_an_error_once_and_nothing_is_deleted() -> None:
    async def scene(stage: Stage) -> None:
        real, foreign = await one_foreign(stage)
        await stage.streams.prepare()
        await stage.later(2.0)
        await java_lease(stage, real, 99, TRIM_HORIZON)
        await stage.later(10 * REFRESH_S)
        keys = {lease_key_of(foreign, SHARD), lease_key_of(replace(real, creation_epoch=99), SHARD)}
        assert keys == await stage.keys()

    log = play(scene, listing("clicks", former=FormerStreams.DELETE_ALL)).log
    assert log.events("error") == ["stream_has_two_identities"]


def test_the_creation_time_is_noted_once_in_each_lease_and_nothing_else_is_touched() -> None:
    async def scene(stage: Stage) -> None:
        real, foreign = await one_foreign(stage, behind_s=5.0)
        orders = stage.create("orders")
        before = {row["leaseKey"]: row for row in await stage.table.scan()}
        await stage.poll()
        await stage.poll()
        after = {row["leaseKey"]: row for row in await stage.table.scan()}
        noted = {"daemonStreamCreated": real.creation_epoch}
        key = lease_key_of(foreign, SHARD)
        assert after[key] == {**before[key], **noted}
        assert after[lease_key_of(orders, SHARD)]["daemonStreamCreated"] == orders.creation_epoch

    play(scene, listing("clicks", "orders"))


def test_a_deleted_lease_does_not_come_back_with_a_note() -> None:
    async def scene(stage: Stage) -> None:
        await one_foreign(stage)
        leases = await stage.leases()
        await stage.table.delete(leases[0].lease_key)
        await stage.streams.prepare()
        await stage.shard_sync.ensure(leases)
        assert leases[0].lease_key not in await stage.keys()

    play(scene, listing("clicks"))
