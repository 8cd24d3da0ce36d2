"""Pauses and limits: the row, what they are for, and the pace that a limit leaves."""

from __future__ import annotations

import json
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kcl_daemon.leases.holds import (
    Hold,
    LimitUnit,
    MalformedHoldsError,
    Pace,
    counted,
    holds_from_row,
    holds_write,
    lease_hold,
)
from kcl_daemon.leases.lease import Lease, LeaseKey, StreamIdentity
from kcl_daemon.leases.row import Absent, Equals, Row, RowDelete, RowPut, RowUpdate
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON

PAUSE = Hold(by="ann@host", reason="the sink is down", since_ms=1_000)
LIMIT = Hold("ann@host", "slow", 1_000, unit=LimitUnit.RECORDS, amount=500.0)
ORDERS = StreamIdentity("123456789012", "orders", 7)
BILLS = StreamIdentity("123456789012", "bills", 7)
USERS = StreamIdentity("123456789012", "users", 7)


def lease(number: int = 0, stream: StreamIdentity | None = None, *, finished: bool = False) -> Lease:
    prefix = "" if stream is None else f"{stream}:"
    return Lease(
        LeaseKey(f"{prefix}shardId-{number}"), 1, SHARD_END if finished else TRIM_HORIZON, stream=stream
    )


def stored(*holds: Hold) -> Row:
    write = holds_write(None, holds, key_attribute="key")
    assert isinstance(write, RowPut)
    return write.row


def test_the_row_is_one_that_java_workers_leave_alone_in_every_layout() -> None:
    write = holds_write(None, [PAUSE], key_attribute="leaseKey")
    assert isinstance(write, RowPut)
    assert write.require == (Absent("leaseKey"),)
    assert write.row.keys() == {"leaseKey", "entityType", "streamId"}
    assert (write.row["leaseKey"], write.row["entityType"]) == ("daemon/holds", "STREAM")
    assert json.loads(str(write.row["streamId"])) == {
        "version": 1,
        "holds": [{"by": "ann@host", "reason": "the sink is down", "sinceMs": 1000}],
    }


def test_holds_that_were_written_are_read_back() -> None:
    holds = (PAUSE, replace(LIMIT, shards=8), replace(PAUSE, lease_key="shardId-3", until_ms=9))
    assert set(holds_from_row(stored(*holds))) == set(holds)
    assert holds_from_row(None) == ()


def test_a_write_is_refused_once_somebody_else_has_written_and_no_row_is_left_without_holds() -> None:
    before = stored(PAUSE)
    unchanged = (Equals("streamId", before["streamId"]),)
    update = holds_write(before, [PAUSE, LIMIT], key_attribute="key")
    assert isinstance(update, RowUpdate)
    assert update.require == unchanged
    assert holds_write(before, [], key_attribute="key") == RowDelete("daemon/holds", unchanged)
    assert holds_write(None, [], key_attribute="key") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s-1",
        "{}",
        '{"version":0,"holds":[]}',
        '{"version":2,"holds":[]}',
        '{"version":1,"holds":[{"by":"ann"}]}',
        '{"version":1,"holds":[{"by":"a","reason":"","sinceMs":1,"unit":"pages"}]}',
        '{"version":1,"holds":[{"by":"a","reason":"","sinceMs":1,"unit":"records"}]}',
    ],
)
def test_a_row_of_somebody_else_or_of_a_later_version_is_refused(text: str) -> None:
    with pytest.raises(MalformedHoldsError, match="row daemon/holds"):
        holds_from_row({"key": "daemon/holds", "entityType": "STREAM", "streamId": text})


def test_each_scope_covers_its_own_leases() -> None:
    of_orders = replace(PAUSE, stream=str(ORDERS))
    of_shard = replace(PAUSE, stream=str(ORDERS), lease_key=f"{ORDERS}:shardId-0")
    assert all(PAUSE.covers(each) for each in (lease(), lease(0, ORDERS), lease(0, BILLS)))
    covered = [of_orders.covers(lease(0, each)) for each in (ORDERS, BILLS, USERS, None)]
    assert covered == [True, False, False, False]
    assert [of_shard.covers(lease(number, ORDERS)) for number in (0, 1)] == [True, False]
    assert not of_shard.covers(lease(0, BILLS))
    assert PAUSE.includes(of_orders) and of_orders.includes(of_shard) and not of_shard.includes(of_orders)


def test_a_limit_is_divided_by_the_unfinished_shards_that_it_is_for() -> None:
    leases = [lease(0), lease(1), lease(2, finished=True), lease(3)]
    (limit, pause) = counted([LIMIT, PAUSE], leases)
    assert (limit.shards, limit.share, pause) == (3, 500 / 3, PAUSE)
    (of_one,) = counted([replace(LIMIT, lease_key="shardId-1")], leases)
    assert of_one.share == 500
    assert counted([LIMIT], []) == (LIMIT,)
    assert replace(LIMIT, shards=0).share == 500, "whatever somebody wrote into the row"


def test_less_than_one_record_a_second_is_a_limit_too() -> None:
    slow = replace(LIMIT, amount=0.5)
    assert holds_from_row(stored(slow)) == (slow,)


def test_the_row_is_the_same_in_whatever_order_the_holds_were_made() -> None:
    of_bills, of_orders = replace(LIMIT, stream=str(BILLS)), replace(PAUSE, stream=str(ORDERS))
    of_shard = replace(PAUSE, stream=str(BILLS), lease_key=f"{BILLS}:shardId-0")
    kept = (LIMIT, PAUSE, of_bills, of_shard, of_orders)
    assert holds_from_row(stored(*kept)) == holds_from_row(stored(*reversed(kept))) == kept


def test_a_lease_is_held_by_the_longest_pause_and_by_the_narrowest_limit_until_their_time_is_over() -> None:
    shard = lease(0)
    short = replace(PAUSE, lease_key="shardId-0", until_ms=5_000)
    tight = replace(LIMIT, lease_key="shardId-0", amount=5.0, until_ms=9_000)
    assert lease_hold([short, PAUSE], shard, 2_000).pause is PAUSE
    now = lease_hold([short, LIMIT, tight], shard, 2_000)
    assert (now.pause, now.ends_ms, now.share(LimitUnit.RECORDS)) == (short, 5_000, 5.0)
    assert now.share(LimitUnit.BYTES) == inf
    later = lease_hold([short, LIMIT, tight], shard, 9_000)
    assert (later.pause, later.limits, later.ends_ms) == (None, (LIMIT,), None)


@given(
    rate=st.floats(0.5, 5_000),
    delays_s=st.lists(st.floats(0, 0.3), min_size=1, max_size=60),
    works_s=st.floats(0, 0.5),
)
def test_a_pace_is_never_exceeded_by_more_than_five_percent_in_ten_seconds(
    rate: float, delays_s: list[float], works_s: float
) -> None:
    """Timers are late, children take their time, and there is always more to give."""
    pace, now_s, given_at = Pace((rate, inf)), 100.0, list[tuple[float, int]]()
    for delay_s in delays_s * 3:
        now_s = max(now_s, pace.free_s) + delay_s
        count = max(1, int(pace.part[0]))
        given_at.append((now_s, count))
        pace = pace.after(count, 0, now_s)
        now_s += works_s
    for at_s, _ in given_at:
        total = sum(count for when_s, count in given_at if at_s <= when_s < at_s + 10)
        assert total <= max(rate * 10 * 1.05, rate * 10 + 1.1)


def test_a_pace_is_kept_on_average_although_timers_are_a_little_late() -> None:
    pace, now_s, total = Pace((100.0, inf)), 0.0, 0
    while now_s < 60:
        total += 25
        pace = pace.after(25, 0, now_s)
        now_s = pace.free_s + 0.05
    assert total == pytest.approx(6_000, rel=0.01)


def test_bytes_and_records_are_paid_for_both() -> None:
    pace = Pace((10.0, 1_000.0)).after(1, 2_000, 50.0)
    assert pace.free_s == pytest.approx(50.0 - 0.1 + 2.0)
    assert pace.at((10.0, 1_000.0), 50.0) is pace
    assert Pace((10.0, 1_000.0)).after(1, 1_500, 50.0).free_s == pytest.approx(50.0 - 0.1 + 1.5)
    assert Pace((10.0, 1_000.0)).part == (2.5, 250.0)


def test_a_faster_limit_shortens_the_wait_that_is_owed_and_a_slower_one_keeps_it() -> None:
    pace = Pace((1.0, inf), free_s=60.0)
    assert pace.at((100.0, inf), 50.0).free_s == pytest.approx(50.1)
    assert pace.at((0.5, inf), 50.0) == Pace((0.5, inf), free_s=60.0)
    assert pace.at((inf, 500.0), 50.0).free_s == -inf
    assert Pace((1.0, inf), free_s=40.0).at((2.0, inf), 50.0).free_s <= 50.0
