from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.capacity.figures import (
    Alternative,
    Bound,
    Capacity,
    CapacityTargets,
    ShardLoad,
    StreamCapacity,
    WorkerLoad,
    capacity_from,
    capacity_text,
    load_from,
    load_text,
)
from kcl_daemon.leases.lease import LeaseKey, WorkerId
from tests.examples import examples

ME = WorkerId("worker-1")
SHARD = ShardLoad(LeaseKey("shardId-000000000003"), 812.4, 1.523, 10234.0, 12345.0, 0.97, Bound.HOST_CPU)
LOAD = WorkerLoad(ME, 1_790_000_000_000, 0.71, (SHARD,), left_out=2, quiet_s=0.5)


def keyed(number: int, behind_s: float, out_bytes: float = 12345.0) -> ShardLoad:
    key = LeaseKey(f"shardId-{number:012d}")
    return replace(SHARD, key=key, behind_s=behind_s, out_bytes=out_bytes)


def test_a_report_comes_back() -> None:
    assert load_from(load_text(LOAD), ME) == LOAD


@pytest.mark.parametrize(
    "key",
    [
        "shardId-000000000000",
        "123456789012:orders:1790000000:shardId-000000000017",
        "anything",
        "",
        "shardId-1",
        "ü:\n",
    ],
)
def test_every_lease_key_comes_back(key: str) -> None:
    load = replace(LOAD, shards=(replace(SHARD, key=LeaseKey(key)),))
    assert load_from(load_text(load), ME) == load


def test_a_report_fits_into_four_kilobytes_and_names_the_shards_furthest_behind() -> None:
    shards = tuple(keyed(number, behind_s=number * 10.0) for number in range(256))
    text = load_text(replace(LOAD, shards=shards))
    found = load_from(text, ME)
    assert found is not None and len(text.encode()) <= 4096
    assert len(found.shards) + found.left_out == 256 + LOAD.left_out and len(found.shards) >= 64
    assert [each.key for each in found.shards] == [each.key for each in shards[::-1][: len(found.shards)]]


def test_a_shard_with_more_bytes_comes_first_among_those_as_far_behind() -> None:
    idle, busy = keyed(1, behind_s=0.0, out_bytes=0.0), keyed(2, behind_s=0.0, out_bytes=5.0)
    found = load_from(load_text(replace(LOAD, shards=(idle, busy))), ME)
    assert found is not None and found.shards == (busy, idle)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -3.0, 1e300])
def test_figures_that_cannot_be_are_told_as_ones_that_can(value: float) -> None:
    shard = replace(SHARD, behind_s=value, speed=value, in_bytes=value, out_bytes=value, busy=value)
    found = load_from(load_text(replace(LOAD, cpu=value, quiet_s=value, at_ms=-5, shards=(shard,))), ME)
    assert (
        found is not None and 0 <= (found.shards[0].behind_s or 0) <= 1e15 and 0 <= found.shards[0].busy <= 1
    )


def _rows(**changes: object) -> str:
    fields = {
        "prefix": 0,
        "shard": 3,
        "behind": 1,
        "speed": 1,
        "in": 1,
        "out": 1,
        "busy": 1,
        "bound": "child",
    }
    return orjson.dumps([1, 5, None, 0, 0, [""], [list((fields | changes).values())]]).decode()


def test_the_row_that_is_spoilt_below_is_good() -> None:
    found = load_from(_rows(), ME)
    assert found is not None and found.shards[0].bound is Bound.CHILD


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "null", "[1]", "[" * 100_000, "\ud800", "[1,-1,null,0,0,[],[]]", "[2,1,null,0,0,[],[]]"),
        *(_rows(prefix=1), _rows(prefix=-1), _rows(shard=-1), _rows(shard=10**12), _rows(shard=None)),
        *(_rows(behind=-1), _rows(speed="1"), _rows(out=None), _rows(busy=1.5), _rows(bound=1), "[1,1,2,0,0,[],[]]"),
    ],
)  # fmt: skip
def test_malformed_text_is_none(text: str) -> None:
    assert load_from(text, ME) is None
    assert capacity_from(text) is None


def test_a_bound_that_is_not_known_here_is_unknown() -> None:
    found = load_from(_rows(bound="moon"), ME)
    assert found is not None and found.shards[0].bound is Bound.UNKNOWN


def test_more_at_the_end_is_a_newer_version_that_can_be_read() -> None:
    assert load_from(load_text(LOAD)[:-1] + ',"more"]', ME) == LOAD


@settings(max_examples=examples(300))
@given(st.text() | st.recursive(st.none() | st.floats() | st.integers() | st.text(), st.lists).map(
    lambda value: orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=str).decode() if _plain(value) else "x"))  # fmt: skip
def test_any_text_of_a_load_row_is_read_without_an_error(text: str) -> None:
    load_from(text, ME)
    capacity_from(text)


def _plain(value: object) -> bool:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


@settings(max_examples=examples(100))
@given(st.data())
def test_a_spoilt_text_never_raises(data: st.DataObject) -> None:
    text = load_text(LOAD) if data.draw(st.booleans()) else capacity_text(CAPACITY)
    at = data.draw(st.integers(0, len(text) - 1))
    spoilt = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 5)) :]
    load_from(spoilt, ME)
    capacity_from(spoilt)


WHOLE = StreamCapacity(
    None,
    8,
    840.0,
    3.1,
    393.0,
    Bound.HOST_CPU,
    "the CPU is used up",
    5.0,
    6.0,
    (LeaseKey("shardId-000000000003"),),
)
CAPACITY = Capacity(
    5, ME, 2, 0, 3, "reason", "sentence", "", WHOLE, (replace(WHOLE, stream="a:b:1", speed=None),),
    (Alternative(3, None, "3 workers"),), 4, 3, True, 2, CapacityTargets(30.0, True), ("shard 3: why",),
)  # fmt: skip


def test_an_estimate_that_was_written_is_read_back() -> None:
    assert capacity_from(capacity_text(CAPACITY)) == CAPACITY


def test_the_names_are_stable() -> None:
    found = orjson.loads(capacity_text(CAPACITY))
    assert " ".join(found) == (
        "format atMs by workers silent wanted reason sentence unknown whole streams alternatives sinceMs fallsSinceMs rises "
        "turnedMs targets unread"
    )
    assert " ".join(found["whole"]) == "stream shards behindS speed drainsS binds why inBytes outBytes hot"
    assert found["targets"] == {"levelS": 30.0, "scaleToZero": True}
    assert found["alternatives"] == [{"workers": 3, "drainsS": None, "words": "3 workers"}]


def test_fields_of_a_newer_version_are_left_out() -> None:
    newer = orjson.loads(capacity_text(CAPACITY)) | {"more": {"a": [1]}}
    assert capacity_from(orjson.dumps(newer).decode()) == CAPACITY


def test_another_format_is_none() -> None:
    newer = orjson.loads(capacity_text(CAPACITY)) | {"format": 2}
    assert capacity_from(orjson.dumps(newer).decode()) is None
