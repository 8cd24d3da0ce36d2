"""Whatever is put, split and merged: nothing is lost, doubled or out of order."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_local.kinesis.arguments import KinesisOptions
from tests.examples import examples
from tests.unit.local.world import HASHES, START_S, ShardView, World

PAGES_MAX = 100  # more than there can be records


@dataclass(frozen=True, slots=True)
class Put:
    """A record for that hash."""

    key_hash: int


@dataclass(frozen=True, slots=True)
class Split:
    """The open shard of that hash is split there."""

    at_hash: int


@dataclass(frozen=True, slots=True)
class Merge:
    """The open shard of that hash is merged with the one above it."""

    key_hash: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Time passes."""

    seconds: float


Step = Put | Split | Merge | Wait

_hashes = st.integers(0, 15).map(lambda sixteenth: sixteenth * HASHES // 16) | st.integers(0, HASHES - 1)
_steps = st.lists(
    st.builds(Put, _hashes)
    | st.builds(Split, _hashes)
    | st.builds(Merge, _hashes)
    | st.builds(Wait, st.floats(0, 100)),
    max_size=40,
)


def _open(world: World) -> list[ShardView]:
    return sorted(
        (shard for shard in world.shards() if shard.last_number is None), key=lambda each: each.start_hash
    )


def _index(shard: ShardView) -> int:
    return int(shard.shard_id[-12:])


def _play(world: World, steps: list[Step]) -> list[tuple[int, bytes]]:
    """Do the steps that are possible; the records put, with their sequence numbers."""
    put: list[tuple[int, bytes]] = []
    for step in steps:
        shards = _open(world)
        match step:
            case Put(key_hash):
                data = b"%d" % len(put)
                put.append((world.put(data, key_hash), data))
            case Split(at_hash):
                holder = next(shard for shard in shards if shard.start_hash <= at_hash <= shard.end_hash)
                if holder.start_hash < at_hash:
                    world.split(_index(holder), at_hash)
            case Merge(key_hash):
                place = next(i for i, shard in enumerate(shards) if key_hash <= shard.end_hash)
                if place + 1 < len(shards):
                    world.merge(_index(shards[place]), _index(shards[place + 1]))
            case Wait(seconds):
                world.now_s += seconds
    return put


def _read_shard(world: World, shard: ShardView, limit: int) -> tuple[list[tuple[int, bytes]], list[str]]:
    """All records of a shard, and the shards that follow it."""
    records: list[tuple[int, bytes]] = []
    iterator = world.iterator(_index(shard))
    for _ in range(PAGES_MAX):
        page = world.read(iterator, Limit=limit)
        records += page.records
        if page.next_iterator is None:
            assert page.children
            return records, page.children
        if not page.millis_behind:
            assert page.children is None
            if shard.last_number is None:
                return records, []
        iterator = page.next_iterator
    raise AssertionError(f"{shard.shard_id} does not end")


@settings(max_examples=examples(150), deadline=None)
@given(steps=_steps, shard_count=st.integers(1, 3), limit=st.integers(1, 5))
def test_reading_along_the_lineage_gives_every_record_once_and_in_order(
    steps: list[Step], shard_count: int, limit: int
) -> None:
    world = World()
    world.create(shard_count)
    put = _play(world, steps)

    shards = {shard.shard_id: shard for shard in world.shards()}
    waiting = [shard for shard in shards.values() if not shard.parents]
    read: dict[str, list[tuple[int, bytes]]] = {}
    while waiting:
        shard = waiting.pop(0)
        read[shard.shard_id], children = _read_shard(world, shard, limit)
        for child_id in children:
            child = shards[child_id]
            if child not in waiting and all(parent in read for parent in child.parents):
                waiting.append(child)

    assert read.keys() == shards.keys()
    assert sorted(record for records in read.values() for record in records) == put
    for shard_id, records in read.items():
        numbers = [number for number, _ in records]
        last = shards[shard_id].last_number
        assert numbers == sorted(numbers)
        assert all(shards[shard_id].first_number < number for number in numbers)
        assert last is None or all(number < last for number in numbers)


@settings(max_examples=examples(100), deadline=None)
@given(steps=_steps, shard_count=st.integers(1, 3))
def test_numbers_grow_and_open_shards_cover_every_hash(steps: list[Step], shard_count: int) -> None:
    world = World()
    world.create(shard_count)
    put = _play(world, steps)

    numbers = [number for number, _ in put]
    assert numbers == sorted(set(numbers))
    shards = {shard.shard_id: shard for shard in world.shards()}
    for shard in shards.values():
        assert all((shards[parent].last_number or HASHES) < shard.first_number for parent in shard.parents)
    expected = 0
    for shard in _open(world):
        assert shard.start_hash == expected
        expected = shard.end_hash + 1
    assert expected == HASHES


@settings(max_examples=examples(50), deadline=None)
@given(steps=_steps)
def test_the_same_steps_give_the_same_answers(steps: list[Step]) -> None:
    def run() -> tuple[list[tuple[int, bytes]], list[ShardView], str]:
        world = World(KinesisOptions(retention_hours=24))
        world.create(2)
        return _play(world, steps), world.shards(), world.iterator(0, "AT_TIMESTAMP", Timestamp=START_S)

    assert run() == run()


@settings(max_examples=examples(100), deadline=None)
@given(steps=_steps, expired_s=st.floats(0, 3000))
def test_the_oldest_shards_cover_every_hash_also_after_some_have_expired(
    steps: list[Step], expired_s: float
) -> None:
    world = World()
    world.create(2)
    _play(world, steps)
    world.now_s = START_S + 24 * 3600 + expired_s

    expected = 0
    for shard in sorted(
        world.shards(ShardFilter={"Type": "AT_TRIM_HORIZON"}), key=lambda each: each.start_hash
    ):
        assert shard.start_hash == expected
        expected = shard.end_hash + 1
    assert expected == HASHES
