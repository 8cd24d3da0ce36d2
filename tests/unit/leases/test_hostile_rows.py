"""Whatever somebody writes into the tables: a reader of rows says that it is malformed, or its value is fit for all that is done with it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pytest

from kcl_daemon.admin.site import capacity_json
from kcl_daemon.aws.dynamodb import encode_row
from kcl_daemon.capacity.figures import Alternative, capacity_from, capacity_text, load_from
from kcl_daemon.fleet.client_version import CLIENT_VERSION_CODEC
from kcl_daemon.fleet.hold_watch import hold_fields
from kcl_daemon.hold_words import hold_json, hold_text
from kcl_daemon.leases.holds import MalformedHoldsError, holds_from_row, lease_hold
from kcl_daemon.leases.layout import TABLE_STATUS_CODEC, UnusableState
from kcl_daemon.leases.leader import LockObservation, decide_lock_claim, lock_from_row
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import MalformedRowError, Row, Value, claimed, lease_from_row, renewal
from kcl_daemon.leases.worker_row import incarnation_of, worker_from_row
from tests.unit.metrics.snapshots import snapshot

NOW_MS: Final = 1_790_000_000_000
ROW_BYTES: Final = 400 * 1024
SECONDS: Final = 0.1

VALUES: Final[tuple[Value, ...]] = (
    "", "x" * ROW_BYTES, "9" * 5_000, "-1", "\u0663", "NaN", "1e400", "9" * 17, "[" * 100_000, "\ud800",
    0, -1, 10**17, 10**37, 10**125, -(10**125), Decimal("1E-130"), Decimal("-1E+125"),
    b"", b"\xff" * ROW_BYTES, frozenset({"x"}), frozenset(map(str, range(20_000))),
    (), (1, "x", b"\0", ()), ("9" * 5_000,) * 60, {}, {"x": {"x": ({},)}}, {"CPU": ("x",), "checkpoint": 1, "lanes": 7},
)  # fmt: skip
"""What an attribute may hold in DynamoDB."""
TEXTS: Final = (
    "null", "true", '""', '"' + "x" * ROW_BYTES + '"', "-1", "1e400", "-1e308", "1" + "0" * 17, "1" + "0" * 400, "1" + "0" * 5_000,
    "0.5", "[]", "[" * 100_000, "[" * 50_000 + "]" * 50_000, '{"x":' * 50_000 + "1" + "}" * 50_000, "{}", '"\\ud800"', "NaN",
)  # fmt: skip
"""What may stand in the place of a value in a JSON text."""


def spoiled(row: Row) -> Iterator[Row]:
    for name in row:
        yield {each: value for each, value in row.items() if each != name}
        for value in VALUES:
            yield {**row, name: value}


def spoiled_text(text: str) -> Iterator[str]:
    """Each value of it, however deep, replaced."""
    mark = "\0here"
    for place in _places(json.loads(text)):
        marked = json.dumps(place(mark))
        for value in TEXTS:
            yield marked.replace(json.dumps(mark), value)
    yield from TEXTS
    yield text[:-1] + ',"x":' + "[" * 100_000


def _places(value: Any) -> Iterator[Callable[[Any], Any]]:
    yield lambda new: new
    if isinstance(value, dict | list):
        for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
            for inner in _places(each):
                yield partial(_within, value, key, inner)


def _within(value: Any, key: Any, inner: Callable[[Any], Any], new: Any) -> Any:
    copy = value.copy()
    copy[key] = inner(new)
    return copy


def in_time(use: Callable[[], object]) -> None:
    began_s = time.thread_time()
    use()
    if time.thread_time() - began_s > SECONDS:  # the machine may have done something else: once more
        began_s = time.thread_time()
        use()
        assert time.thread_time() - began_s < SECONDS


HOLDS: Final = json.dumps({
    "version": 1,
    "holds": [
        {"by": "ann@host", "reason": "a test", "sinceMs": NOW_MS, "untilMs": NOW_MS + 60_000, "stream": "1:s:2",
         "leaseKey": "1:s:2:shardId-000000000000"},
        {"by": "ann@host", "reason": "", "sinceMs": NOW_MS, "unit": "bytes", "amount": 10.5, "shards": 3},
    ],
})  # fmt: skip
LEASE: Final[Row] = {
    "leaseKey": "shardId-000000000000", "leaseCounter": 5, "checkpoint": "123", "checkpointSubSequenceNumber": 0,
    "leaseOwner": "worker", "checkpointOwner": "other", "ownerSwitchesSinceCheckpoint": 1, "pendingCheckpoint": "124",
    "pendingCheckpointSubSequenceNumber": 1, "pendingCheckpointState": b"x", "parentShardId": frozenset({"shardId-1"}),
    "childShardIds": frozenset({"shardId-2"}), "startingHashKey": "0", "endingHashKey": "5", "throughputKBps": Decimal("1.5"),
    "daemonDegraded": "w", "daemonStreamCreated": 5, "daemonLanes": {"checkpoint": "123", "lanes": ("123", "124/1")},
    "daemonStandby": "x", "daemonFence": 7, "daemonReached": "5 123",
}  # fmt: skip
MANY: Final[Row] = {**LEASE, "leaseKey": "1:s:2:shardId-0", "streamName": "1:s:2", "shardId": "shardId-0"}
LOCK: Final[Row] = {
    "key": "Leader", "ownerName": "worker", "recordVersionNumber": "v", "leaseDuration": "120000", "isReleased": "1",
    "daemonAssigned": "e", "daemonDeputy": "d", "daemonHolds": "t", "entityType": "LEADER",
}  # fmt: skip
WORKER: Final[Row] = {
    "wid": "worker", "entityType": "WORKER_METRIC_STATS", "lut": NOW_MS // 1000,
    "sts": {"CPU": (Decimal("1.5"), 2)}, "opr": {"CPU": (100,)}, "daemonLoad": "[]", "sup": 1, "slu": NOW_MS // 1000,
    "daemonHost": "h", "daemonStandby": 1, "daemonRunUntil": NOW_MS, "daemonIncarnation": "n", "daemonStarted": NOW_MS,
}  # fmt: skip
LOAD: Final = json.dumps([
    1, NOW_MS, 0.5, 0, 1.0, ["p"], [[0, 3, 1.5, 2.0, 10, 10, 0.5, "child"], [0, "x", None, None, 0, 0, 0, "?"]],
])  # fmt: skip
STATE: Final[Row] = {
    "key": "Migration3.0", "entityType": "CLIENT_VERSION_MIGRATION", "cv": "CLIENT_VERSION_3X", "mb": "w", "mts": 5,
    "h": ({"cv": "CLIENT_VERSION_2X", "mb": "w", "mts": 4},),
}  # fmt: skip


def read_holds(row: Row) -> None:
    try:
        holds = holds_from_row(row)
    except MalformedHoldsError as malformed:
        assert len(str(malformed)) < 1_000  # it goes into the log
        return
    for hold in holds:
        for use in (hold_text, hold_json, hold_fields):
            use(hold)
    lease_hold(holds, lease_from_row(LEASE), NOW_MS)


def read_lease(row: Row) -> None:
    try:
        lease = lease_from_row(row)
    except MalformedRowError as malformed:
        assert len(str(malformed)) < 1_000
        return
    encode_row(claimed(renewal(lease, 1.0), lease, NOW_MS).put)
    assert lease.reached_ms is None or lease.reached_ms < 10**15


def read_lock(row: Row) -> None:
    lock = lock_from_row(row)
    assert lock is not None
    seen = LockObservation(lock.version, 0.0)
    late_s = 2 * 86_400.0
    claim = decide_lock_claim(lock, seen, me=WorkerId("me"), now_s=late_s, key_attribute="key")
    assert not lock.version or type(claim).__name__ == "ClaimLock", "nobody would lead for ever"


def read_worker(row: Row) -> None:
    incarnation_of(row)
    worker = worker_from_row(row, key_attribute="wid")
    if worker is not None:
        assert NOW_MS / 1000 - worker.last_update_s < float("inf")
        assert (worker.run_until_ms or 0) / 1000 < float("inf")
        assert worker.is_failing in {True, False}


def read_state(row: Row) -> None:
    for codec in (CLIENT_VERSION_CODEC, TABLE_STATUS_CODEC):
        state = codec.read(row)
        if state is not None and not isinstance(state, UnusableState):
            assert (NOW_MS - state.at_ms) / 1000 < float("inf")


ROWS: Final[Mapping[str, tuple[Row, Callable[[Row], None]]]] = {
    "holds": ({"key": "daemon/holds", "entityType": "STREAM", "streamId": HOLDS}, read_holds),
    "lease": (LEASE, read_lease),
    "lease of many": (MANY, read_lease),
    "lock": (LOCK, read_lock),
    "worker": (WORKER, read_worker),
    "version": (STATE, read_state),
}  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
def test_no_attribute_of_a_row_ends_or_stops_its_reader(kind: str) -> None:
    row, read = ROWS[kind]
    read(row)
    for each in spoiled(row):
        in_time(lambda each=each: read(each))  # type: ignore[misc]


def test_a_spoiled_row_of_holds_is_read_in_time_without_an_error() -> None:
    assert len(holds_from_row({"streamId": HOLDS})) == 2
    for text in spoiled_text(HOLDS):
        in_time(lambda text=text: read_holds({"streamId": text}))  # type: ignore[misc]


def test_no_text_of_a_load_ends_or_stops_its_reader() -> None:
    assert load_from(LOAD, WorkerId("w")) is not None
    for text in spoiled_text(LOAD):
        in_time(lambda text=text: load_from(text, WorkerId("w")))  # type: ignore[misc]


def read_capacity(text: str) -> None:
    capacity = capacity_from(text)
    if capacity is not None:
        capacity_json(capacity, NOW_MS)
        assert 0 <= capacity.wanted / 1.0 < float("inf")


def test_no_text_of_a_capacity_ends_or_stops_its_reader() -> None:
    capacity = snapshot().capacity
    assert capacity is not None
    text = capacity_text(
        replace(capacity, alternatives=(Alternative(2, 1.5, "x"),), falls_since_ms=NOW_MS, rises=True)
    )
    assert capacity_from(text) is not None
    for each in spoiled_text(text):
        in_time(lambda each=each: read_capacity(each))  # type: ignore[misc]
