"""`/status.json`, there and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from kcl_daemon.admin.site import NoStatus, status_document, status_from
from kcl_daemon.admin.view import ThroughputHistory
from kcl_daemon.telemetry.snapshot import Snapshot
from tests.examples import examples
from tests.unit.admin.stage import SNAPSHOT, SPARKING, calmly, many, snapshots
from tests.unit.metrics.snapshots import LANDER


def written(snapshot: Snapshot) -> bytes:
    history = ThroughputHistory()
    history.remember(snapshot, 1.0)
    return b"".join(status_document(snapshot, history, now_s=4.0))


@pytest.mark.parametrize(
    "snapshot",
    [SNAPSHOT, SPARKING, replace(SNAPSHOT, landing=LANDER), many(50)],
    ids=["all kinds", "an engine", "a lander", "many"],
)
def test_a_status_document_is_read_as_it_was_written(snapshot: Snapshot) -> None:
    status = status_from(written(snapshot))
    assert status.snapshot == snapshot
    assert status.throughput == {shard.key: [(3.0, shard.bytes_per_s)] for shard in snapshot.shards}


@given(snapshots)
@calmly(max_examples=examples(50))
def test_any_snapshot_is_written_as_a_readable_document(snapshot: Snapshot) -> None:
    data = written(snapshot)
    status = status_from(data)
    assert [shard.records for shard in status.snapshot.shards] == [each.records for each in snapshot.shards]
    assert len(status.snapshot.fleet) == len(snapshot.fleet)


def test_no_json_key_of_the_document_is_repeated() -> None:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    assert set(json.loads(written(SNAPSHOT), object_pairs_hook=once)) == {"format", "snapshot", "throughput"}


def test_fields_of_later_versions_are_passed_over_and_later_formats_refused() -> None:
    loaded = json.loads(written(SNAPSHOT))
    loaded["snapshot"]["mood"] = "good"
    assert status_from(json.dumps(loaded).encode()).snapshot == SNAPSHOT
    with pytest.raises(NoStatus, match="format 2"):
        status_from(json.dumps({**loaded, "format": 2}).encode())


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b'{"format":1}', b"\xff"])
def test_anything_else_is_no_status(data: bytes) -> None:
    with pytest.raises(NoStatus):
        status_from(data)
