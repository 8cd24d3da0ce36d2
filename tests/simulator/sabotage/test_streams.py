"""The checkers can fail where there are many streams: runs with a broken rule, each with the violation it must end in."""

from __future__ import annotations

from typing import Any

import pytest

from kcl_daemon.config.streams import StreamsSettings
from kcl_daemon.consumer.consumer import ShardConsumer
from kcl_daemon.fleet import shard_sync
from kcl_daemon.fleet.many_streams import FormerStreamCleanup, MultiStreamTracker
from kcl_daemon.fleet.streams import StreamMonitor, StreamState
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, StreamIdentity
from kcl_daemon.leases.row import Row
from kcl_daemon.ports import StreamRef, StreamSummary
from kcl_daemon.shards import sync
from tests.simulator.plans.plan import (
    Epoch,
    Kill,
    Plan,
    Planned,
    Split,
    Start,
    StreamAppears,
    StreamDisappears,
)
from tests.simulator.runner import run_plan

NAMES = ("a", "b", "c", "d")


def violation(
    *events: Planned, shards: int = 2, records_per_s: float = 8.0, epochs: tuple[Epoch, ...] = ()
) -> str | None:
    plan = Plan(
        java_epochs=epochs,
        backlog=200 if epochs else 0,
        shards=shards,
        records_per_s=records_per_s,
        events=(Planned(0.0, Start()), Planned(0.0, Start()), *events),
        calm_at_s=100.0,
        ends_at_s=200.0,
        bound_s=60.0,
        streams=NAMES,
        streams_settings=StreamsSettings(refresh_ms=5_000),
    )
    found = run_plan(plan, scenario="sabotage of streams", seed=1).violation
    return None if found is None else found.name


def no_successor(_streams: MultiStreamTracker, _identity: StreamIdentity) -> None:
    return None


APPEARS = Planned(30.0, StreamAppears(1, 3))
RETRY = (Planned(30.0, StreamDisappears(2)), Planned(42.0, StreamAppears(2, 2)))


def test_nothing_is_wrong_with_what_is_broken_below() -> None:
    assert violation(APPEARS, *RETRY, Planned(50.0, Split(1))) is None


def test_a_stream_that_is_never_looked_for_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_streams: MultiStreamTracker, _leases: object) -> None:
        return

    monkeypatch.setattr(MultiStreamTracker, "refresh", never)
    assert violation(APPEARS) == "lease_missing"


def test_waiting_for_a_stream_that_is_there_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(_watch: StreamMonitor, _within_s: float = 0.0) -> StreamState:
        return StreamState.GONE

    monkeypatch.setattr(StreamMonitor, "confirm", gone)
    assert violation() == "false_stream"


def test_leases_that_do_not_name_their_stream_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sync.leases_for_empty_table

    def of_one(shards: object, position: object, _stream: object = None) -> list[Lease]:
        return right(shards, position)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(shard_sync, "leases_for_empty_table", of_one)
    assert violation() == "unknown_shard"


def test_reading_a_new_stream_for_the_old_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_consumer: ShardConsumer) -> bool:
        return True

    monkeypatch.setattr(MultiStreamTracker, "successor", no_successor)
    # Most leases of the former stream have no checkpoint; new workers would begin with them.
    again = (Planned(30.0, StreamDisappears(2)), Planned(42.0, StreamAppears(2, 8)))
    deaths = (Planned(60.0, Kill(0, 1.0)), Planned(60.0, Kill(0, 1.0)))
    assert violation(*again, *deaths, shards=8, records_per_s=0.0) is None
    monkeypatch.setattr(ShardConsumer, "_stream_found", at_once)
    assert violation(*again, *deaths, shards=8, records_per_s=0.0) == "unknown_record"


FOREIGN = (Epoch.MADE_UP, Epoch.NOBODY, Epoch.MILLISECONDS, Epoch.NOBODY)


def test_nothing_is_wrong_with_epochs_that_a_java_program_made_up() -> None:
    assert violation(epochs=FOREIGN) is None


def test_leases_under_the_creation_time_beside_those_of_a_java_program_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def kinesis_tells(
        _streams: MultiStreamTracker, _listed: object, summary: StreamSummary, _leases: object
    ) -> StreamIdentity:
        return StreamIdentity.of_arn(summary.arn, summary.creation_time_s)

    monkeypatch.setattr(MultiStreamTracker, "_identity", kinesis_tells)
    assert violation(epochs=FOREIGN) == "unknown_shard"


def test_deleting_leases_because_their_epoch_is_older_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_cleanup: FormerStreamCleanup, identity: StreamIdentity) -> str | None:
        return "old" if identity.creation_epoch == 12345 else None

    monkeypatch.setattr(FormerStreamCleanup, "_reason", at_once)
    assert violation(epochs=FOREIGN) == "deleted_unfinished"


def test_holding_leases_without_reading_them_because_of_their_epoch_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = StreamMonitor.__init__

    def by_epoch(watch: StreamMonitor, *, stream: StreamRef, **others: Any) -> None:
        others["created_s"] = stream.identity.creation_epoch if stream.identity else None
        right(watch, stream=stream, **others)

    monkeypatch.setattr(StreamMonitor, "__init__", by_epoch)
    assert violation(epochs=FOREIGN) in {"shard_stalled", "false_stream"}


def test_a_lost_checkpoint_of_a_java_program_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lease_row.lease_from_row

    def from_the_start(row: Row) -> Lease:
        return right({**row, "checkpoint": "TRIM_HORIZON"})

    monkeypatch.setattr(lease_row, "lease_from_row", from_the_start)
    assert violation(epochs=FOREIGN) == "checkpoint_lost"
