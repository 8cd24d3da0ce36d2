"""A table is followed from one stream to the next."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.errors import StreamNotFound
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import FetchedRecords, IteratorKind, ReadFrom, StreamRef
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.transport.table_streams import FollowedTables
from tests.unit.fleet.changed_table import TABLE, ChangedTable, arn_of, shard

REF = StreamRef(TABLE, table=TABLE)


def two_streams() -> ChangedTable:
    table = ChangedTable()
    table.switch_on(1, shard("a"), shard("b", "a", is_open=True), shard("c", "a", is_open=True))
    table.switch_off(1)
    table.switch_on(2, shard("d"), shard("e", "d", is_open=True))
    return table


def at_end(table: ChangedTable, name: str, ref: StreamRef = REF) -> FetchedRecords:
    async def read() -> FetchedRecords:
        followed = FollowedTables(table)
        iterator = await followed.get_shard_iterator(ref, ShardId(name), ReadFrom(IteratorKind.TRIM_HORIZON))
        return await followed.get_records(ref, ShardId(name), iterator, 1000)

    return anyio.run(read)


@pytest.mark.parametrize(
    ("position", "begin"),
    [
        (InitialPosition(StartAt.TRIM_HORIZON), ["a"]),
        (InitialPosition(StartAt.LATEST), ["e"]),
        (None, ["a", "b", "c", "d", "e"]),
    ],
)
def test_the_shards_to_begin_with(position: InitialPosition | None, begin: list[str]) -> None:
    found = anyio.run(FollowedTables(two_streams()).list_shards, REF, position)
    assert [str(each.shard_id) for each in found] == begin


def test_the_newest_stream_is_what_the_table_has() -> None:
    assert anyio.run(FollowedTables(two_streams()).describe_stream, REF).arn == arn_of(2)


def test_the_end_of_a_stream_leads_into_the_next_one() -> None:
    fetched = at_end(two_streams(), "b")
    (child,) = fetched.child_shards
    assert child.shard_id == ShardId("d")
    assert child.parent_shard_ids == {ShardId("b"), ShardId("c")}
    assert not fetched.is_last


def test_a_stream_without_a_next_one_is_the_last() -> None:
    table = two_streams()
    table.forget(2)
    fetched = at_end(table, "b")
    assert fetched.is_last
    assert not fetched.child_shards


def test_a_stream_by_its_arn_is_not_followed() -> None:
    assert at_end(two_streams(), "b", StreamRef("one", arn_of(1))).is_last


def test_shards_are_listed_once_and_again_for_an_unknown_one() -> None:
    table = two_streams()
    followed, start = FollowedTables(table), ReadFrom(IteratorKind.TRIM_HORIZON)

    async def read() -> None:
        for name in ("a", "d", "b"):
            await followed.get_shard_iterator(REF, ShardId(name), start)
        assert len(table.calls) == 2
        table.switch_on(3, shard("f", is_open=True))
        await followed.get_shard_iterator(REF, ShardId("f"), start)
        assert len(table.calls) == 5
        with pytest.raises(StreamNotFound, match="no stream of the table orders has the shard gone"):
            await followed.get_shard_iterator(REF, ShardId("gone"), start)

    anyio.run(read)


def test_a_table_without_a_stream_is_said_with_the_command_that_switches_it_on() -> None:
    with pytest.raises(StreamNotFound, match="aws dynamodb update-table --table-name orders --stream-spec"):
        anyio.run(FollowedTables(ChangedTable()).describe_stream, REF)
