"""What every adapter of the port `Transactions` promises."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.errors import InvalidRequest, TableNotFound
from kcl_daemon.leases.row import (
    Absent,
    Conditions,
    Equals,
    Present,
    Row,
    RowCheck,
    RowDelete,
    RowPart,
    RowPut,
)
from kcl_daemon.ports import CommitResult, Table
from tests.contract.table_backends import Store
from tests.contract.table_pair import KEY, LEADER, MOVED, Pair, a_pair

pytestmark = pytest.mark.anyio

LEADING: Conditions = (Equals("ownerName", "w-1"),)


@pytest.fixture
async def pair(store: Store) -> Pair:
    return await a_pair(store)


async def test_all_parts_take_effect_at_once(pair: Pair) -> None:
    done = await pair.commit(
        (pair.one, RowCheck("Leader", LEADING)),
        (pair.other, RowPut(MOVED, (Absent(KEY),))),
        (pair.one, RowDelete("Migration3.0", (Equals("cv", "3X"), Equals("h", MOVED["h"])))),
    )
    assert done == CommitResult(applied=True)
    assert await pair.rows() == ([LEADER], [MOVED])


@pytest.mark.parametrize("wrong", range(3))
async def test_nothing_takes_effect_where_one_condition_does_not_hold(pair: Pair, wrong: int) -> None:
    parts: list[tuple[Table, RowPart]] = [
        (pair.one, RowCheck("Leader", LEADING)),
        (pair.other, RowPut(MOVED, (Absent(KEY),))),
        (pair.one, RowDelete("Migration3.0", (Present("cv"),))),
    ]
    refused: list[tuple[Table, RowPart]] = [
        (pair.one, RowCheck("Leader", (Equals("ownerName", "w-2"),))),
        (pair.other, RowPut(MOVED, (Present(KEY),))),
        (pair.one, RowDelete("Migration3.0", (Equals("cv", "2X"),))),
    ]
    parts[wrong] = refused[wrong]
    assert await pair.commit(*parts) == CommitResult(applied=False, refused=(wrong,))
    assert await pair.rows() == ([LEADER, MOVED], [])


async def test_every_refused_part_is_reported(pair: Pair) -> None:
    done = await pair.commit(
        (pair.one, RowCheck("nobody", (Present(KEY),))),
        (pair.one, RowCheck("Leader", LEADING)),
        (pair.one, RowDelete("Migration3.0", (Absent("cv"),))),
    )
    assert done == CommitResult(applied=False, refused=(0, 2))


async def test_a_put_replaces_the_row(pair: Pair) -> None:
    after: Row = {KEY: "Migration3.0", "cv": "2X"}
    assert (await pair.commit((pair.one, RowPut(after, (Equals("cv", "3X"),))))).applied
    assert await pair.one.get("Migration3.0") == after


async def test_an_invalid_transaction_is_refused_and_changes_no_row(pair: Pair) -> None:
    double: list[tuple[Table, RowPart]] = [
        (pair.one, RowPut(MOVED)),
        (pair.one, RowDelete("Migration3.0")),
    ]
    many: list[tuple[Table, RowPart]] = [(pair.other, RowPut({KEY: f"k-{n}"})) for n in range(101)]
    unstorable: list[tuple[Table, RowPart]] = [(pair.other, RowPut({KEY: "k", "set": frozenset()}))]
    nothing: list[tuple[Table, RowPart]] = [(pair.one, RowCheck("Leader", ()))]
    no_key: list[tuple[Table, RowPart]] = [(pair.one, RowDelete(""))]
    for parts in (double, many, unstorable, nothing, no_key, []):
        with pytest.raises(InvalidRequest):
            await pair.commit(*parts)
    assert await pair.rows() == ([LEADER, MOVED], [])


async def test_a_hundred_parts_are_carried_out(pair: Pair) -> None:
    parts: list[tuple[Table, RowPart]] = [(pair.other, RowPut({KEY: f"k-{n:03}"})) for n in range(100)]
    assert (await pair.commit(*parts)).applied
    assert len(await pair.other.scan()) == 100


async def test_a_table_that_does_not_exist_is_reported(pair: Pair) -> None:
    missing = pair.store.new_table(False)
    with pytest.raises(TableNotFound):
        await pair.commit((pair.one, RowDelete("Migration3.0")), (missing, RowPut({KEY: "k"})))
    assert await pair.rows() == ([LEADER, MOVED], [])


async def test_of_concurrent_moves_of_one_row_exactly_one_wins(pair: Pair) -> None:
    done: list[CommitResult] = []

    async def move() -> None:
        done.append(
            await pair.commit(
                (pair.other, RowPut(MOVED, (Absent(KEY),))),
                (pair.one, RowDelete("Migration3.0", (Present(KEY),))),
            )
        )

    async with anyio.create_task_group() as moves:
        for _ in range(8):
            moves.start_soon(move)
    assert sum(each.applied for each in done) == 1
    assert await pair.rows() == ([LEADER], [MOVED])
