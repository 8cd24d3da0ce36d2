"""Row for row, on the wire: what production code writes is what the reference says, in both layouts.

Raw attribute values are read back past our own adapter, so that no mistake of the codec can hide another.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from unittest.mock import ANY

import anyio
import pytest

from kcl_daemon.fleet.reporter import Reporter
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.leases.lease import MAX_HASH, ShardId
from kcl_daemon.leases.worker_row import Incarnation
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.contract.table_rows import ME, NUMBER, OTHER, SHARD, Stage, all_tables
from tests.unit.fleet.contexts import elector_of, worker_context

pytestmark = pytest.mark.anyio

FRESH: dict[str, Any] = {
    "leaseKey": {"S": SHARD},
    "entityType": {"S": "LEASE"},
    "leaseCounter": {"N": "0"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": str(MAX_HASH)},
}
OWNED: dict[str, Any] = {
    **FRESH,
    "leaseOwner": {"S": ME},
    "leaseCounter": {"N": "2"},
    "daemonFence": {"N": ANY},  # by the clock
}


async def test_the_layout_has_its_tables_and_keys(stage: Stage) -> None:
    tables, name = stage.tables, stage.tables.leases.name
    expected = {
        TableLayout.SEPARATE: {
            name: "leaseKey",
            f"{name}-WorkerMetricStats": "wid",
            f"{name}-CoordinatorState": "key",
        },
        TableLayout.SINGLE: {name: "leaseKey"},
    }[stage.layout]
    all_names = all_tables(stage.clients)
    assert {each for each in all_names if each == name or each.startswith(f"{name}-")} == expected.keys()
    assert {
        table.name: table.key_attribute
        for table in (tables.leases, tables.worker_metrics, tables.coordinator)
    } == expected


async def test_a_new_lease(stage: Stage) -> None:
    await stage.created()
    assert stage.stored(stage.tables.leases, SHARD) == FRESH


async def test_a_new_lease_of_a_child_shard(stage: Stage) -> None:
    await stage.created(frozenset({ShardId("shardId-000000000001"), ShardId("shardId-000000000000")}))
    parents = {"SS": ["shardId-000000000000", "shardId-000000000001"]}
    assert stage.stored(stage.tables.leases, SHARD) == {**FRESH, "parentShardId": parents}


async def test_an_assignment(stage: Stage) -> None:
    await stage.tables.leases.update(lease_row.assignment(await stage.created(), ME))
    stored = stage.stored(stage.tables.leases, SHARD)
    assert stored == {**FRESH, "leaseOwner": {"S": ME}, "leaseCounter": {"N": "1"}}
    assert sorted(await stage.tables.leases.owned_keys(ME)) == [SHARD]


async def test_a_renewal(stage: Stage) -> None:
    await stage.held(stage.renewer())
    assert stage.stored(stage.tables.leases, SHARD) == OWNED


async def test_a_renewal_with_a_throughput(stage: Stage) -> None:
    await stage.held(stage.renewer())
    await stage.tables.leases.update(lease_row.renewal(await stage.lease(), 12.3456785))
    expected = {**OWNED, "leaseCounter": {"N": "3"}, "throughputKBps": {"N": "12.345679"}}
    assert stage.stored(stage.tables.leases, SHARD) == expected


async def test_a_checkpoint(stage: Stage) -> None:
    renewer = stage.renewer()
    await renewer.checkpoint(await stage.held(renewer), ExtendedSequenceNumber(NUMBER, 3))
    assert stage.stored(stage.tables.leases, SHARD) == {
        **OWNED,
        "leaseCounter": {"N": "3"},
        "checkpoint": {"S": NUMBER},
        "checkpointSubSequenceNumber": {"N": "3"},
    }


async def test_the_child_shards(stage: Stage) -> None:
    renewer = stage.renewer()
    await renewer.write_children(await stage.held(renewer), frozenset({ShardId("shardId-000000000009")}))
    children = {"SS": ["shardId-000000000009"]}
    assert stage.stored(stage.tables.leases, SHARD) == {**OWNED, "childShardIds": children}


async def test_a_hand_off_from_its_beginning_to_its_end(stage: Stage) -> None:
    renewer = stage.renewer()
    held = await stage.held(renewer)
    await stage.tables.leases.update(lease_row.handoff(await stage.lease(), OTHER))
    handed = {**OWNED, "leaseOwner": {"S": OTHER}}
    assert stage.stored(stage.tables.leases, SHARD) == {**handed, "checkpointOwner": {"S": ME}}
    await renewer.checkpoint(held, ExtendedSequenceNumber(NUMBER))
    await renewer.release_lease(held)
    assert stage.stored(stage.tables.leases, SHARD) == {
        **handed,
        "leaseCounter": {"N": "4"},
        "checkpoint": {"S": NUMBER},
    }


async def test_a_lease_torn_from_its_owner_counts_a_switch(stage: Stage) -> None:
    await stage.held(stage.renewer())
    await stage.tables.leases.update(lease_row.assignment(await stage.lease(), OTHER))
    assert stage.stored(stage.tables.leases, SHARD) == {
        **OWNED,
        "leaseOwner": {"S": OTHER},
        "leaseCounter": {"N": "3"},
        "ownerSwitchesSinceCheckpoint": {"N": "1"},
    }


async def test_a_release(stage: Stage) -> None:
    renewer = stage.renewer()
    await renewer.release_lease(await stage.held(renewer))
    expected = {**OWNED, "leaseCounter": {"N": "3"}}
    del expected["leaseOwner"]
    assert stage.stored(stage.tables.leases, SHARD) == expected
    assert await stage.tables.leases.owned_keys(ME) == []


def _reporter(stage: Stage, *averages: str, load: str | None = None) -> Reporter:
    reporter = Reporter(
        worker_context(ME, log=stage.log),
        table=stage.tables.worker_metrics,
        cpu_averages=lambda: [Decimal(each) for each in averages],
        java_leader=lambda: None,
        incarnation=Incarnation(7, "nonce"),
        on_other=lambda _: False,
    )
    reporter.load = lambda cpu: None if load is None else f"{load} {cpu}"
    return reporter


def _worker_row(stage: Stage, stats: dict[str, Any], ranges: dict[str, Any]) -> dict[str, Any]:
    stored = stage.stored(stage.tables.worker_metrics, ME)
    update = stored["lut"]
    assert len(update["N"]) == 10, "epoch seconds"
    return {
        stage.tables.worker_metrics.key_attribute: {"S": ME},
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": update,
        "sts": {"M": stats},
        "opr": {"M": ranges},
        "sup": {"N": "1"},
        "slu": update,
        "daemonIncarnation": {"S": "nonce"},
        "daemonStarted": {"N": "7"},
        "daemonStandby": {"N": "1"},
    }


async def test_a_workers_row(stage: Stage) -> None:
    assert await _reporter(stage, "0", "17.25").report()
    stats = {"C": {"L": [{"N": "0"}, {"N": "17.25"}]}}
    expected = _worker_row(stage, stats, {"C": {"L": [{"N": "100"}]}})
    assert stage.stored(stage.tables.worker_metrics, ME) == expected


async def test_a_workers_row_with_what_it_says_about_its_shards(stage: Stage) -> None:
    assert await _reporter(stage, "50", load="[1]").report()
    stats = {"C": {"L": [{"N": "50"}]}}
    expected = _worker_row(stage, stats, {"C": {"L": [{"N": "100"}]}})
    assert stage.stored(stage.tables.worker_metrics, ME) == {**expected, "daemonLoad": {"S": "[1] 0.5"}}
    assert await _reporter(stage).report()
    assert stage.stored(stage.tables.worker_metrics, ME) == _worker_row(stage, {}, {})


async def test_a_workers_row_without_figures(stage: Stage) -> None:
    assert await _reporter(stage).report()
    assert stage.stored(stage.tables.worker_metrics, ME) == _worker_row(stage, {}, {})


async def test_the_leaders_lock(stage: Stage) -> None:
    table = stage.tables.coordinator
    elected = anyio.Event()
    elector = elector_of(worker_context(ME, log=stage.log), table, on_elected=elected.set)
    async with anyio.create_task_group() as group:
        group.start_soon(elector.run)
        with anyio.fail_after(90):
            await elected.wait()
        group.cancel_scope.cancel()
    lock = {
        table.key_attribute: {"S": "Leader"},
        "entityType": {"S": "LEADER"},
        "ownerName": {"S": ME},
        "leaseDuration": {"S": "12000"},
        "recordVersionNumber": {"S": "token-1"},
        # The only one that is ours. A Java heartbeat keeps it, and its PutItem drops it; nothing of Java reads it.
        "daemonAssigned": {"S": "token-1"},
    }
    assert stage.stored(table, "Leader") == lock
    beaten = elector._lock
    assert beaten is not None
    await elector._send_heartbeat(beaten)
    assert stage.stored(table, "Leader") == {**lock, "recordVersionNumber": {"S": "token-2"}}
    await elector.resign()
    assert await table.get("Leader") is None


async def test_tables_with_rows_are_opened_again_in_the_layout_they_have(stage: Stage) -> None:
    await _reporter(stage).report()
    found = await stage.opened_again()
    assert found.share_one_table is stage.tables.share_one_table
