"""Rows as Java workers write them: read, obeyed, and whatever is not ours in them kept."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from kcl_daemon.aws.build import build_tables
from kcl_daemon.aws.session import Clients
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.fleet.tables import ApplicationTables
from kcl_daemon.leases.lease import MAX_HASH
from kcl_daemon.leases.worker_row import worker_from_row
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.contract.table_rows import ME, NUMBER, SHARD, Stage, all_tables
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import elector_of, worker_context

pytestmark = pytest.mark.anyio

JAVA_LEASE: dict[str, Any] = {
    "leaseKey": {"S": SHARD},
    "entityType": {"S": "LEASE"},
    "leaseCounter": {"N": "42"},
    "leaseOwner": {"S": ME},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": str(MAX_HASH)},
    "throughputKBps": {"N": "12.5"},
}
FOREIGN: dict[str, Any] = {
    "aFlag": {"BOOL": True},
    "aNull": {"NULL": True},
    "numbers": {"NS": ["1", "2"]},
    "nested": {"M": {"deep": {"L": [{"BOOL": False}]}}},
}


@pytest.mark.parametrize("missing", [(), ("entityType",), ("startingHashKey", "endingHashKey", "entityType")])
async def test_a_lease_of_a_java_worker_is_read_and_its_other_attributes_kept(
    stage: Stage, missing: tuple[str, ...]
) -> None:
    written = {name: value for name, value in {**JAVA_LEASE, **FOREIGN}.items() if name not in missing}
    stage.store(stage.tables.leases, written)
    renewer = stage.renewer()
    held = await renewer.claim(await stage.lease())
    assert held is not None
    await renewer.checkpoint(held, ExtendedSequenceNumber(NUMBER))
    await renewer.release_lease(held)
    expected = {
        **written,
        "leaseCounter": {"N": "45"},
        "checkpoint": {"S": NUMBER},
        "daemonFence": {"N": ANY},  # by the clock
    }
    del expected["leaseOwner"]
    assert stage.stored(stage.tables.leases, SHARD) == expected


async def test_a_worker_of_java_is_read(stage: Stage) -> None:
    table = stage.tables.worker_metrics
    stage.store(
        table,
        {
            table.key_attribute: {"S": "w-9"},
            "entityType": {"S": "WORKER_METRIC_STATS"},
            "lut": {"N": "1770000000"},
            "slu": {"N": "1770000000"},
            "sup": {"N": "1"},
            "sts": {"M": {"C": {"L": [{"N": "0.0"}, {"N": "17.25"}]}}},
            "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
        },
    )
    (row,) = await table.scan()
    worker = worker_from_row(row, key_attribute=table.key_attribute)
    assert worker is not None
    assert (worker.worker_id, worker.last_update_s, worker.support_code) == ("w-9", 1_770_000_000, 1)
    assert list(worker.metrics.values()) == [(0.0, 17.25)]


async def test_a_leader_of_java_is_watched_not_overthrown(stage: Stage) -> None:
    table = stage.tables.coordinator
    lock = {
        table.key_attribute: {"S": "Leader"},
        "entityType": {"S": "LEADER"},
        "ownerName": {"S": "w-9"},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": {"S": "6d5c1b0e-7f6a-4a57-9d0b-2f4f0c1f6a11"},
    }
    stage.store(table, lock)
    elector = elector_of(worker_context(ME, log=stage.log), table)
    await elector._poll()
    assert not elector.is_leader
    assert stage.stored(table, "Leader") == lock


async def test_rows_of_a_fresh_java_fleet_in_one_table_decide_the_layout(dynamodb_clients: Clients) -> None:
    clients, name = dynamodb_clients, "java"
    settings = Settings(name, "orders", ChildSettings(("true",)), ME)
    separate = build_tables(settings, clients, LoopClock())
    await separate.leases.ensure()
    history = {"M": {"cv": {"S": "CLIENT_VERSION_INIT"}, "mb": {"S": "w-9"}, "mts": {"N": "1770000000000"}}}
    items: list[dict[str, Any]] = [
        JAVA_LEASE,
        {
            "leaseKey": {"S": "Migration3.0"},
            "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
            "cv": {"S": "CLIENT_VERSION_3X"},
            "mb": {"S": "w-9"},
            "mts": {"N": "1770000000000"},
            "h": {"L": [history]},
        },
    ]
    for item in items:
        clients.dynamodb.put_item(TableName=name, Item=item)
    found = ApplicationTables(separate, settings=TablesSettings(), clock=LoopClock(), log=MemoryLog())
    await found.open()
    assert found.tables.share_one_table
    assert [each for each in all_tables(clients) if each.startswith(name)] == [name]
