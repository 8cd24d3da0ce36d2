"""A whole worker goes on working, whatever others write into its tables."""

from __future__ import annotations

from itertools import islice
from typing import Final

import anyio
import pytest

from kcl_daemon.leases.row import Row
from tests.unit.consumer.poison_stage import Stage, perform, until
from tests.unit.leases.test_hostile_rows import (
    HOLDS,
    LEASE,
    LOCK,
    NOW_MS,
    TEXTS,
    WORKER,
    spoiled,
    spoiled_text,
)

SOME: Final = 6


def holds(number: int) -> Row:
    if number == 0:
        text = HOLDS.replace(str(NOW_MS + 60_000), "1" + "0" * 17)
        return {"key": "daemon/holds", "entityType": "STREAM", "streamId": text}
    text = next(islice(spoiled_text(HOLDS.replace("1:s:2:shardId-000000000000", "other")), number * 29, None))
    return {"key": "daemon/holds", "entityType": "STREAM", "streamId": text}


async def spoil(stage: Stage, number: int) -> None:
    """Every kind of row, in all tables; of holds and lock there is one each."""
    tables = stage.tables
    for at, row in enumerate(islice(spoiled(LEASE), number, None, SOME)):
        await tables.leases.put({**row, "leaseKey": f"shardId-{at + 1:012d}"})
    for at, row in enumerate(islice(spoiled(WORKER), number, None, SOME)):
        await tables.worker_metrics.put({**row, "wid": f"w-{at}"})
    await tables.coordinator.put(holds(number))
    text = TEXTS[number + 4]
    await tables.coordinator.put({"key": "daemon/capacity", "entityType": "STREAM", "streamId": text})
    lock = next(islice(spoiled(LOCK), number * 19 + 1, None))
    if number == 1:
        lock = {**LOCK, "leaseDuration": "9" * 5_000}
    await tables.coordinator.put({**lock, "key": "Leader"})


@pytest.mark.parametrize("number", range(SOME))
def test_a_worker_goes_on_beside_rows_that_others_have_spoiled(number: int) -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(["one"])
        await until(lambda: "one" in stage.seen)
        await spoil(stage, number)
        await anyio.sleep(120.0)
        stage.put(["two"])
        await until(lambda: "two" in stage.seen)

    perform(stage, scene)
    assert stage.reported("daemon_failed_unexpectedly") == []
