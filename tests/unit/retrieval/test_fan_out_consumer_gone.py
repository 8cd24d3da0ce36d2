"""Consumers of enhanced fan-out that are deregistered while shards are read by them: no shard ends."""

from __future__ import annotations

from dataclasses import replace

import anyio

from kcl_daemon.config.retrieval import FanOutSettings
from kcl_daemon.retrieval.source import ShardReader
from kcl_local.kinesis.arguments import DEFAULTS, FanOutRules
from tests.unit.retrieval.fan_out_stage import CONSUMER, STREAM, FanOutStage, Start, play, texts


async def reading(stage: FanOutStage, start: Start) -> ShardReader:
    """One that has read its first record, and whose subscription the service protects no more."""
    stage.put("a")
    reader = stage.reader()
    start(reader)
    assert await texts(reader, 1) == ["a"]
    await anyio.sleep(10.0)
    return reader


def test_a_consumer_that_is_deregistered_is_registered_again() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        reader = await reading(stage, start)
        stage.model.handle("DeregisterStreamConsumer", CONSUMER)
        stage.put("b")
        assert await texts(reader, 1) == ["b"]
        assert stage.fan_out.registered == 2
        assert stage.log.events("warning") == ["consumer_gone"]

    play(scene)


def test_a_shard_whose_consumer_another_shard_has_registered_anew_goes_on() -> None:
    """Its own subscription was the old one's, so that what is not found says nothing of the shard."""

    async def scene(stage: FanOutStage, start: Start) -> None:
        reader = await reading(stage, start)
        stage.put("b")
        await anyio.sleep(1.0)  # before the child, which is busy
        stage.model.handle("DeregisterStreamConsumer", CONSUMER)
        registration = stage.readers._consumers[STREAM]
        old = await registration.arn()
        assert not await registration.exists(old), "as another shard found"
        assert await registration.arn() != old
        stage.put("c")
        assert await texts(reader, 2) == ["b", "c"]
        assert stage.log.events("warning") == ["consumer_gone"]

    play(scene)


def test_a_consumer_that_is_being_deleted_ends_no_shard() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        reader = await reading(stage, start)
        stage.model.handle("DeregisterStreamConsumer", CONSUMER)
        stage.put("b")
        assert await texts(reader, 1) == ["b"]

    play(scene, lambda: FanOutStage(replace(DEFAULTS, fan_out=FanOutRules(deleting_s=30.0))))


def test_a_given_consumer_that_is_gone_is_asked_for_ever_more_rarely() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        arn = await stage.registered()
        stage.model.handle("DeregisterStreamConsumer", CONSUMER)
        given = FanOutStage(fan_out=FanOutSettings(consumer_arn=arn))
        reader = given.reader()
        start(reader)
        await anyio.sleep(60.0)
        assert 5 <= len(given.fan_out.positions) <= 25
        assert reader.trouble

    play(scene)
