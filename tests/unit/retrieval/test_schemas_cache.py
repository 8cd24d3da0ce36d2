"""Each schema is asked for once, and what is unknown not for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.errors import SchemaNotFound, Unavailable
from kcl_daemon.retrieval.schemas import MAX_KNOWN_BYTES, UNKNOWN_S, SchemaCache
from tests.simulator.loop import run_virtual
from tests.unit.fleet.contexts import worker_context
from tests.unit.retrieval.registry import CLICKS, ORDERS, MemorySchemas

Scene = Callable[[MemorySchemas, SchemaCache], Awaitable[None]]


def play(scene: Scene, *version_ids: str) -> None:
    async def main() -> None:
        schemas = MemorySchemas(*version_ids)
        await scene(schemas, SchemaCache(schemas, worker_context()))

    run_virtual(main)


def test_all_shards_share_one_answer() -> None:
    async def scene(schemas: MemorySchemas, cache: SchemaCache) -> None:
        schemas.answers_after_s = 1.0
        async with anyio.create_task_group() as shards:
            for _ in range(20):
                shards.start_soon(cache.schema, ORDERS)
        assert anyio.current_time() < 2.0
        assert schemas.asked == {ORDERS: 1}
        assert bytes((await cache.schema(ORDERS)).name) == b'"schema-b7b4"'
        assert schemas.asked == {ORDERS: 1}

    play(scene, ORDERS)


def test_where_the_one_who_asks_goes_away_the_next_one_asks() -> None:
    async def scene(schemas: MemorySchemas, cache: SchemaCache) -> None:
        schemas.answers_after_s = 2.0
        async with anyio.create_task_group() as shards:
            with anyio.move_on_after(1):
                shards.start_soon(cache.schema, ORDERS)
                await cache.schema(ORDERS)  # asks at once, as the other has not begun yet
        assert bytes((await cache.schema(ORDERS)).data_format) == b'"AVRO"'
        assert schemas.asked == {ORDERS: 2}
        assert not cache._asking

    play(scene, ORDERS)


def test_an_unknown_schema_is_asked_for_again_after_a_while() -> None:
    async def scene(schemas: MemorySchemas, cache: SchemaCache) -> None:
        for _ in range(3):
            with pytest.raises(SchemaNotFound, match="GetSchemaVersion: no version"):
                await cache.schema(ORDERS)
        assert schemas.asked == {ORDERS: 1}
        schemas.register(ORDERS)
        await anyio.sleep(UNKNOWN_S)
        await cache.schema(ORDERS)
        assert schemas.asked == {ORDERS: 2}

    play(scene)


def test_a_failure_of_the_registry_is_not_kept() -> None:
    async def scene(schemas: MemorySchemas, cache: SchemaCache) -> None:
        schemas.troubles.append(Unavailable("down"))
        with pytest.raises(Unavailable):
            await cache.schema(ORDERS)
        await cache.schema(ORDERS)

    play(scene, ORDERS)


def test_a_registry_that_never_answers_is_not_waited_for() -> None:
    async def scene(schemas: MemorySchemas, cache: SchemaCache) -> None:
        schemas.answers_after_s = 1e9
        with pytest.raises(Unavailable, match="no answer within 20 s"):
            await cache.schema(ORDERS)

    play(scene, ORDERS)


def test_memory_is_bounded_by_the_definitions() -> None:
    async def scene(schemas: MemorySchemas, cache: SchemaCache) -> None:
        huge = "x" * (MAX_KNOWN_BYTES // 3)
        ids = [f"00000000-0000-0000-0000-00000000000{number}" for number in range(5)]
        for version_id in ids:
            schemas.register(version_id, huge)
            await cache.schema(version_id)
        await cache.schema(ids[-1])
        assert schemas.asked[ids[-1]] == 1
        await cache.schema(ids[0])
        assert schemas.asked[ids[0]] == 2
        assert cache._known_bytes <= MAX_KNOWN_BYTES
        await cache.schema(CLICKS)

    play(scene, CLICKS)
